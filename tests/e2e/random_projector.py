"""Multimodal projectors of random weights, as small as llama.cpp takes them: one that sees, one that hears.

Keys and tensors are those of the pinned llama.cpp (`tools/mtmd/clip.cpp`): an encoder of two layers, and the
two matrices of its projector. LLaVA's kind makes four tokens of an image, and leaves out the last layer;
Qwen3-ASR's makes thirteen tokens of each second of sound that has begun.
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
_TONES, _CHANNELS = 16, 8  # of a spectrum; each of three convolutions halves it in both directions
SECOND_TOKENS = 13  # 100 frames, halved three times


class _Projector:
    """The GGUF file of one with the encoder `sense`, `vision` or `audio`; `finish` writes it."""

    def __init__(self, path: Path, sense: str, kind: str, *, width: int) -> None:
        self._random = np.random.default_rng(zlib.crc32(b"projector"))
        self.writer = GGUFWriter(path, "clip")
        self.writer.add_name(f"random {sense} projector")
        self.writer.add_bool(f"clip.has_{sense}_encoder", val=True)
        self.writer.add_string("clip.projector_type", kind)
        self.writer.add_bool("clip.use_gelu", val=True)
        for key, value in {
            "embedding_length": _WIDTH,
            "feed_forward_length": _INNER,
            "block_count": _LAYERS,
            "projection_dim": width,
            "attention.head_count": _HEADS,
        }.items():
            self.writer.add_uint32(f"clip.{sense}.{key}", value)
        self.writer.add_float32(f"clip.{sense}.attention.layer_norm_epsilon", 1e-5)

    def matrix(self, name: str, columns: int, *rows: int, scale: float = 0.0) -> None:
        values = self._random.standard_normal((*reversed(rows), columns), np.float32)
        self.writer.add_tensor(f"{name}.weight", values / np.float32(np.sqrt(scale or columns)))

    def vector(self, name: str, size: int, centre: float) -> None:
        spread = np.float32(0.1) * self._random.standard_normal(size, np.float32)
        self.writer.add_tensor(name, np.float32(centre) + spread)

    def encoder(self, short: str) -> None:
        for layer in range(_LAYERS):
            block = f"{short}.blk.{layer}"
            for name, columns, rows in (
                ("attn_q", _WIDTH, _WIDTH),
                ("attn_k", _WIDTH, _WIDTH),
                ("attn_v", _WIDTH, _WIDTH),
                ("attn_out", _WIDTH, _WIDTH),
                ("ffn_up", _WIDTH, _INNER),
                ("ffn_down", _INNER, _WIDTH),
            ):
                self.matrix(f"{block}.{name}", columns, rows)
                self.vector(f"{block}.{name}.bias", rows, 0.0)
            for norm in ("ln1", "ln2"):
                self.vector(f"{block}.{norm}.weight", _WIDTH, 1.0)
                self.vector(f"{block}.{norm}.bias", _WIDTH, 0.0)

    def finish(self) -> None:
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def _write_sight(path: Path, *, width: int) -> None:
    made_of = _Projector(path, "vision", "mlp", width=width)
    made_of.writer.add_uint32("clip.vision.image_size", _IMAGE)
    made_of.writer.add_uint32("clip.vision.patch_size", _PATCH)
    made_of.writer.add_array("clip.vision.image_mean", [0.5, 0.5, 0.5])
    made_of.writer.add_array("clip.vision.image_std", [0.5, 0.5, 0.5])
    made_of.matrix("v.patch_embd", _PATCH, _PATCH, 3, _WIDTH)
    made_of.matrix("v.position_embd", _WIDTH, IMAGE_TOKENS)
    made_of.encoder("v")
    for number, columns in ((0, _WIDTH), (2, width)):
        made_of.matrix(f"mm.{number}", columns, width)
        made_of.vector(f"mm.{number}.bias", width, 0.0)
    made_of.finish()


def _write_hearing(path: Path, *, width: int) -> None:
    made_of = _Projector(path, "audio", "qwen3a", width=width)
    made_of.writer.add_uint32("clip.audio.num_mel_bins", _TONES)
    for number, channels in ((1, 1), (2, _CHANNELS), (3, _CHANNELS)):
        made_of.matrix(f"a.conv2d.{number}", 3, 3, channels, _CHANNELS, scale=9 * channels)
        made_of.vector(f"a.conv2d.{number}.bias", _CHANNELS, 0.0)
    made_of.matrix("a.conv_out", _TONES // 8 * _CHANNELS, _WIDTH)
    made_of.matrix("a.position_embd", _WIDTH, SECOND_TOKENS)
    made_of.encoder("a")
    for number, columns in ((1, _WIDTH), (2, width)):
        made_of.matrix(f"mm.a.mlp.{number}", columns, width)
        made_of.vector(f"mm.a.mlp.{number}.bias", width, 0.0)
    made_of.finish()


@cache
def random_projector(width: int) -> Path:
    """Return a projector of images, for embeddings of `width` elements; made if it is not there yet."""
    return made(f"random-mmproj-{width}.gguf", partial(_write_sight, width=width))


@cache
def random_audio_projector(width: int) -> Path:
    """Return a projector of sounds, likewise."""
    return made(f"random-audio-mmproj-{width}.gguf", partial(_write_hearing, width=width))
