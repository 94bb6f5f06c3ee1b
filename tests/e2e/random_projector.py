"""A multimodal projector of random weights, as small as llama.cpp takes one: an image becomes four tokens.

Keys and tensors are those of the pinned llama.cpp (`tools/mtmd/clip.cpp`): an encoder of two layers, of which
LLaVA's kind leaves out the last, and the two matrices of its projector.
"""

import zlib
from functools import cache, partial
from pathlib import Path

import numpy as np
from gguf import GGUFWriter

from tests.e2e.models import made

_WIDTH, _HEADS, _INNER, _LAYERS = 32, 2, 64, 2
_IMAGE, _PATCH = 28, 14  # pixels
IMAGE_TOKENS = (_IMAGE // _PATCH) ** 2


def _write(path: Path, *, width: int) -> None:
    random = np.random.default_rng(zlib.crc32(b"projector"))
    writer = GGUFWriter(path, "clip")
    writer.add_name("random projector")
    writer.add_bool("clip.has_vision_encoder", val=True)
    writer.add_string("clip.projector_type", "mlp")
    writer.add_bool("clip.use_gelu", val=True)
    for key, value in {
        "embedding_length": _WIDTH,
        "feed_forward_length": _INNER,
        "block_count": _LAYERS,
        "projection_dim": width,
        "attention.head_count": _HEADS,
        "image_size": _IMAGE,
        "patch_size": _PATCH,
    }.items():
        writer.add_uint32(f"clip.vision.{key}", value)
    writer.add_float32("clip.vision.attention.layer_norm_epsilon", 1e-5)
    writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])

    def matrix(name: str, columns: int, *rows: int) -> None:
        values = random.standard_normal((*reversed(rows), columns), np.float32) / np.float32(np.sqrt(columns))
        writer.add_tensor(f"{name}.weight", values)

    def vector(name: str, size: int, centre: float) -> None:
        spread = np.float32(0.1) * random.standard_normal(size, np.float32)
        writer.add_tensor(name, np.float32(centre) + spread)

    matrix("v.patch_embd", _PATCH, _PATCH, 3, _WIDTH)
    matrix("v.position_embd", _WIDTH, IMAGE_TOKENS)
    for layer in range(_LAYERS):
        block = f"v.blk.{layer}"
        for name, columns, rows in (
            ("attn_q", _WIDTH, _WIDTH),
            ("attn_k", _WIDTH, _WIDTH),
            ("attn_v", _WIDTH, _WIDTH),
            ("attn_out", _WIDTH, _WIDTH),
            ("ffn_up", _WIDTH, _INNER),
            ("ffn_down", _INNER, _WIDTH),
        ):
            matrix(f"{block}.{name}", columns, rows)
            vector(f"{block}.{name}.bias", rows, 0.0)
        for norm in ("ln1", "ln2"):
            vector(f"{block}.{norm}.weight", _WIDTH, 1.0)
            vector(f"{block}.{norm}.bias", _WIDTH, 0.0)
    for number, columns in ((0, _WIDTH), (2, width)):
        matrix(f"mm.{number}", columns, width)
        vector(f"mm.{number}.bias", width, 0.0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@cache
def random_projector(width: int) -> Path:
    """For a language model whose embeddings have `width` elements; made if it is not there yet."""
    return made(f"random-mmproj-{width}.gguf", partial(_write, width=width))
