"""Models with random weights, for measuring where no real one is at hand: llamas in Q4_0, dense and MoE.

`python -m tests.bench.random_model 8b FOLDER` makes one and prints its file.

Made on the spot from a seed by the standard library alone, 0.2 to 0.3 GB a second; the same file each time.
Weights are scaled so that every layer and the whole context have a say in the next token: embeddings are
small beside what the layers add, queries and keys large enough for sharp attention. Format: ggml's gguf.md;
keys and tensors as `src/models/llama.cpp` of the pinned llama.cpp reads them.
"""

import argparse
import math
import random
import struct
import sys
import zlib
from array import array
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from meshd.base.errors import MeshdError, UserError
from meshd.build.cache import explained_disk_errors
from meshd.model.ggml import F32, Q4_0

HEAD_ELEMENTS = 128  # elements of an attention head: what every GPU kernel has
_ALIGNMENT = 32
_BLOCK, _BLOCK_BYTES = 32, 18  # of Q4_0: a scale in F16, and 32 numbers of 4 bits
_CHUNK_BLOCKS = 1 << 14  # some 300 KB, which a processor's cache holds
_SPREAD = math.sqrt(2 * sum(n * n for n in range(1, 8)) / 16)  # of the numbers -7 to 7, 0 twice as often
_VOCABULARY_SCALE, _SILENT = 0.05, 0.001
_SHARP = 2.0
_CONTROL, _BYTES = 3, 256  # tokens that no text should have
_NORMAL, _UNKNOWN, _CONTROL_KIND, _BYTE_KIND = 1, 2, 3, 6  # llama_token_type
# 4 bits mean -8 to 7; -8 becomes 0, so that the mean is 0
_EVEN = bytes((one or 8) | (two or 8) << 4 for two in range(16) for one in range(16))


@dataclass(frozen=True, slots=True)
class Shape:
    """`width` is HEAD_ELEMENTS times `heads`; `vocabulary`: tokens, of which the first 259 are no text.

    `experts` of a layer, each of `inner`, and how many of them a token passes; 0: it is dense.
    """

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    vocabulary: int = 32_000
    experts: int = 0
    experts_used: int = 0


SHAPES = {
    "tiny": Shape(layers=4, width=256, inner=512, heads=2, kv_heads=1),  # 10 MB
    "small": Shape(layers=16, width=1024, inner=2816, heads=8, kv_heads=4),  # 140 MB
    "medium": Shape(layers=24, width=1280, inner=3584, heads=10, kv_heads=5),  # 300 MB
    "moe": Shape(  # 330 MB, of which a token passes 110
        layers=16, width=1024, inner=1024, heads=8, kv_heads=4, experts=10, experts_used=2
    ),
    "1b": Shape(layers=16, width=2048, inner=8192, heads=16, kv_heads=4),  # 620 MB
    "8b": Shape(layers=32, width=4096, inner=14_336, heads=32, kv_heads=8),  # 4.1 GB
    "70b": Shape(layers=80, width=8192, inner=28_672, heads=64, kv_heads=8),  # 39 GB
}


@dataclass(frozen=True, slots=True)
class _Tensor:
    """`gain`: the size of a result for inputs of size one; None: the weights of a norm."""

    name: str
    shape: tuple[int, ...]  # as llama.cpp has it, the length of a row first
    gain: float | None = None

    @property
    def size(self) -> int:
        count = math.prod(self.shape)
        return 4 * count if self.gain is None else count // _BLOCK * _BLOCK_BYTES


def random_model(name: str, folder: Path) -> Path:
    """The file of one of SHAPES in `folder`, made if it is not there yet. Raises UserError."""
    if name not in SHAPES:
        raise UserError(
            f"there is no model `{name}`", hint=f"name a GGUF file, or one of: {', '.join(SHAPES)}"
        )
    place = folder / f"random-{name}-Q4_0.gguf"
    if not place.exists():
        with explained_disk_errors(folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
            _make(place, SHAPES[name], name)
    return place


def _make(place: Path, shape: Shape, name: str) -> None:
    part = place.with_suffix(".part")
    try:
        with part.open("wb") as file:
            write_model(file, shape, name=f"random {name}")
        part.replace(place)
    except BaseException:  # gigabytes that are of no use, on a disk that may be full
        with suppress(OSError):
            part.unlink()
        raise


def write_model(file: BinaryIO, shape: Shape, *, name: str) -> None:
    """Write the whole file."""
    tensors = list(_tensors(shape))
    pairs = list(_metadata(shape, name))
    parts = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(pairs)), *pairs]
    offset = 0
    for tensor in tensors:
        kind = F32 if tensor.gain is None else Q4_0
        dims = struct.pack(f"<I{len(tensor.shape)}Q", len(tensor.shape), *tensor.shape)
        parts += [_string(tensor.name), dims, struct.pack("<IQ", kind, offset)]
        offset += _padded(tensor.size)
    header = b"".join(parts)
    file.write(header.ljust(_padded(len(header)), b"\0"))
    for tensor in tensors:
        for data in _data(tensor):
            file.write(data)
        file.write(bytes(_padded(tensor.size) - tensor.size))


def _tensors(shape: Shape) -> Iterator[_Tensor]:
    width, inner, kv = shape.width, shape.inner, shape.kv_heads * HEAD_ELEMENTS
    yield _Tensor("token_embd.weight", (width, shape.vocabulary), _VOCABULARY_SCALE * math.sqrt(width))
    yield _Tensor("output_norm.weight", (width,))
    yield _Tensor("output.weight", (width, shape.vocabulary), _VOCABULARY_SCALE * math.sqrt(width))
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        yield _Tensor(f"{block}.attn_norm.weight", (width,))
        yield _Tensor(f"{block}.attn_q.weight", (width, width), _SHARP)
        yield _Tensor(f"{block}.attn_k.weight", (width, kv), _SHARP)
        yield _Tensor(f"{block}.attn_v.weight", (width, kv), 1.0)
        yield _Tensor(f"{block}.attn_output.weight", (width, width), 1.0)
        yield _Tensor(f"{block}.ffn_norm.weight", (width,))
        which, more = ("_exps", (shape.experts,)) if shape.experts else ("", ())
        if shape.experts:
            yield _Tensor(f"{block}.ffn_gate_inp.weight", (width, shape.experts), 1.0)
        yield _Tensor(f"{block}.ffn_gate{which}.weight", (width, inner, *more), 1.0)
        yield _Tensor(f"{block}.ffn_up{which}.weight", (width, inner, *more), 1.0)
        yield _Tensor(f"{block}.ffn_down{which}.weight", (inner, width, *more), 1.0)


def _data(tensor: _Tensor) -> Iterator[bytes]:
    rng = random.Random(zlib.crc32(tensor.name.encode()))
    if tensor.gain is None:
        yield array("f", (rng.gauss(1.0, 0.1) for _ in range(tensor.shape[0]))).tobytes()
        return
    row, rows = tensor.shape[0], math.prod(tensor.shape[1:])
    scale = tensor.gain / math.sqrt(row) / _SPREAD
    silent = _CONTROL + _BYTES if tensor.name in ("token_embd.weight", "output.weight") else 0
    for count, factor in ((silent, _SILENT), (rows - silent, 1.0)):
        left = count * row // _BLOCK
        while left:
            blocks = min(left, _CHUNK_BLOCKS)
            yield _blocks(rng, blocks, scale * factor)
            left -= blocks


def _blocks(rng: random.Random, count: int, scale: float) -> bytes:
    low, high = struct.pack("<e", scale)
    numbers = rng.randbytes(16 * count).translate(_EVEN)
    data = bytearray(_BLOCK_BYTES * count)
    data[0::_BLOCK_BYTES] = bytes([low]) * count
    data[1::_BLOCK_BYTES] = bytes([high]) * count
    for place in range(16):
        data[place + 2 :: _BLOCK_BYTES] = numbers[place * count : (place + 1) * count]
    return bytes(data)


def _padded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


# --- metadata


def _metadata(shape: Shape, name: str) -> Iterator[bytes]:
    yield _text("general.architecture", "llama")
    yield _text("general.name", name)
    yield _number("llama.vocab_size", shape.vocabulary)
    yield _number("llama.context_length", 8192)
    yield _number("llama.block_count", shape.layers)
    yield _number("llama.embedding_length", shape.width)
    yield _number("llama.feed_forward_length", shape.inner)
    yield _number("llama.attention.head_count", shape.heads)
    yield _number("llama.attention.head_count_kv", shape.kv_heads)
    yield _number("llama.rope.dimension_count", HEAD_ELEMENTS)
    if shape.experts:
        yield _number("llama.expert_count", shape.experts)
        yield _number("llama.expert_used_count", shape.experts_used)
    yield _string("llama.attention.layer_norm_rms_epsilon") + struct.pack("<If", 6, 1e-5)
    yield from _tokenizer(shape.vocabulary)


def _tokenizer(count: int) -> Iterator[bytes]:
    """Sentencepiece: any text has tokens, by its bytes, and any answer is words."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(_BYTES))]
    kinds = [_UNKNOWN, _CONTROL_KIND, _CONTROL_KIND, *[_BYTE_KIND] * _BYTES]
    words = count - len(tokens)
    tokens += [f"▁w{number}" for number in range(words)]
    kinds += [_NORMAL] * words
    yield _text("tokenizer.ggml.model", "llama")
    yield _array("tokenizer.ggml.tokens", 8, [_string(token) for token in tokens])
    yield _array("tokenizer.ggml.scores", 6, [struct.pack("<f", -number) for number in range(count)])
    yield _array("tokenizer.ggml.token_type", 5, [struct.pack("<i", kind) for kind in kinds])
    for token, number in (("unknown", 0), ("bos", 1), ("eos", 2)):
        yield _number(f"tokenizer.ggml.{token}_token_id", number)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _text(key: str, value: str) -> bytes:
    return _string(key) + struct.pack("<I", 8) + _string(value)


def _number(key: str, value: int) -> bytes:
    return _string(key) + struct.pack("<II", 4, value)


def _array(key: str, kind: int, items: Sequence[bytes]) -> bytes:
    return _string(key) + struct.pack("<IIQ", 9, kind, len(items)) + b"".join(items)


def main(argv: Sequence[str]) -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.random_model")
    parser.add_argument("name", choices=SHAPES)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args(argv)
    try:
        sys.stdout.write(f"{random_model(args.name, args.folder)}\n")
    except MeshdError as error:
        raise SystemExit(f"error: {error}") from None
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
