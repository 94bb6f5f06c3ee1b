"""Binaries and model files that tests share: made once, kept in the cache, and only read from then on.

Each maker returns a path that no test may write to (`copy_to` makes one that it may). What is made is moved
to its place when complete, so tests that run side by side do not see half-made files.
"""

import asyncio
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TypeVar

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from meshd.build import native as native_builds
from meshd.build.fetch import demo_model, fetch
from meshd.build.interface import LLAMA_QUANTIZE, LLAMA_SERVER, BuildProgress, NativeInfo
from meshd.build.pin import read_pin
from meshd.config.tree import find_cache
from meshd.model.gguf import Header, TensorInfo, read_header
from meshd.wire.versions import UNKNOWN

from tests.bench.random_model import random_model
from tests.e2e import native_rig
from tests.e2e.kept_texts import kept_text
from tests.e2e.native_rig import PROMPT, Head
from tests.native import build as native_build

T = TypeVar("T")
_VERSION = "1"  # of what the makers make


def _silent(progress: BuildProgress) -> None:
    """Nobody watches a test build; its log is in the cache."""


def cache_folder() -> Path:
    return find_cache(os.environ)


def own_cache(folder: Path) -> Path:
    """A cache of its own for some nodes, with the shared native builds."""
    mine = folder / "cache"
    mine.mkdir()
    (mine / "native").symlink_to(cache_folder() / "native")
    return mine


def cache_without_models(folder: Path) -> Path:
    """The shared cache, but for the weights in it: a worker would read what another node is to send."""
    mine = folder / "shared-cache"
    if not mine.exists():
        mine.mkdir(parents=True)
        for entry in cache_folder().iterdir():
            if entry.name not in ("models", "tensors"):
                (mine / entry.name).symlink_to(entry)
    return mine


@cache
def native() -> NativeInfo:
    """Return the programs that daemons run: upstream's binaries and ours, built if they are not there yet."""
    return _done(native_builds.build(cache_folder(), backend="cpu", progress=_silent))


@cache
def stock() -> NativeInfo:
    """Upstream's binaries, of the same commit; of another one while follow.py runs tests on it."""
    if (other := native_build.other()) is not None:
        return NativeInfo(UNKNOWN, UNKNOWN, UNKNOWN, other, {LLAMA_SERVER: other / LLAMA_SERVER})
    return native()


@cache
def smollm2() -> Path:
    """SmolLM2-135M-Instruct, Q4_1: 98 MB, 30 layers, tied embeddings."""
    return _done(demo_model(cache_folder(), _silent))


def unpack_templates(folder: Path) -> list[Path]:
    """Put the chat templates of the pinned llama.cpp there, from the archive that builds are made of."""
    archive = _done(fetch(read_pin().sdist, cache_folder() / "downloads", _silent))
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            path = PurePosixPath(member.name)
            content = tar.extractfile(member) if path.match("models/templates/*.jinja") else None
            if content is not None:
                with content:
                    (folder / path.name).write_bytes(content.read())
    return sorted(folder.iterdir())


@cache
def stock_text(model: Path, tokens: int = 24, prompt: str = PROMPT, extra: tuple[str, ...] = ()) -> str:
    """Return what upstream's llama-server answers on one machine, without meshd.

    Kept for models that every run finds as they are; those that a test makes for itself have no end.
    """
    mode = "none" if native_build.other() is None else ""  # older releases have no such option

    def answer() -> str:
        with (
            tempfile.TemporaryDirectory() as folder,
            Head(binary, Path(folder), model, [], load_mode=mode, extra=extra) as head,
        ):
            return head.complete(prompt, tokens)

    binary = stock().binaries[LLAMA_SERVER]
    if not model.is_relative_to(cache_folder()):
        return answer()
    asked = (tokens, prompt, extra, Path(native_rig.__file__).read_bytes())
    return kept_text(cache_folder(), (binary, model), asked, answer)


def copy_to(model: Path, folder: Path, name: str) -> Path:
    """A copy of its own, under another name: as on another machine."""
    target = folder / name
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(model, target)
    return target


def made(name: str, make: Callable[[Path], None]) -> Path:
    place = cache_folder() / "test-models" / f"v{_VERSION}" / name
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        part = place.with_name(f"{os.getpid()}-{name}")
        try:
            make(part)
            part.replace(place)
        finally:
            part.unlink(missing_ok=True)
    return place


def random_of(shape: str) -> Path:
    """With random weights, of one of the shapes of tests.bench.random_model."""

    def make(target: Path) -> None:
        random_model(shape, target.parent).replace(target)

    return made(f"random-{shape}.gguf", make)


def header_of(model: Path) -> Header:
    with model.open("rb") as file:
        descriptor = file.fileno()
        size = os.fstat(descriptor).st_size
        return read_header(
            lambda offset, length: os.pread(descriptor, length, offset), size=size, label=model.name
        )


def tensor_of(model: Path, name: str) -> TensorInfo:
    return next(tensor for tensor in header_of(model).tensors if tensor.name == name)


@dataclass(frozen=True, slots=True)
class _Shape:
    embedding: int
    layers: int
    heads: int
    feed_forward: int


_SMALL = _Shape(embedding=256, layers=6, heads=4, feed_forward=512)
_DEEP = _Shape(embedding=64, layers=120, heads=2, feed_forward=64)


@cache
def small() -> Path:
    """A random llama of 6 layers in Q4_K_M, rows a multiple of 256, with SmolLM2's tokenizer."""

    def make(target: Path) -> None:
        _quantise(small_f16(), target, "Q4_K_M")

    return made("small-Q4_K_M.gguf", make)


@cache
def small_f16() -> Path:
    def make(target: Path) -> None:
        _write_random(GGUFWriter(target, "llama"), _SMALL)

    return made("small-f16.gguf", make)


@cache
def deep() -> Path:
    """A random llama in F16 with 1083 tensors, all of them small."""

    def make(target: Path) -> None:
        _write_random(GGUFWriter(target, "llama"), _DEEP)

    return made("deep-f16.gguf", make)


@cache
def small_sharded() -> tuple[Path, ...]:
    """The small model's F16 form in several files; the first one is what a user names."""
    folder = cache_folder() / "test-models" / f"v{_VERSION}" / "sharded"
    if not folder.exists():
        part = folder.with_name(f"{os.getpid()}-sharded")
        part.mkdir(parents=True)
        _write_random(GGUFWriter(part / "small.gguf", "llama", split_max_tensors=24), _SMALL)
        part.replace(folder)
    return tuple(sorted(folder.iterdir()))


@cache
def other_quantisation() -> Path:
    """SmolLM2 in Q8_0."""

    def make(target: Path) -> None:
        _quantise(smollm2(), target, "Q8_0")

    return made("smollm2-Q8_0.gguf", make)


@cache
def fine_tune() -> Path:
    """SmolLM2 with the same shapes and types, and one tensor that differs: FINE_TUNED."""

    def make(target: Path) -> None:
        shutil.copyfile(smollm2(), target)
        tensor = tensor_of(target, FINE_TUNED)
        with target.open("r+b") as file:
            file.seek(tensor.offset)
            values = np.frombuffer(file.read(tensor.size), dtype=np.float32)
            file.seek(tensor.offset)
            file.write((values * np.float32(1.5)).tobytes())

    return made("smollm2-fine-tune.gguf", make)


FINE_TUNED = "blk.11.attn_norm.weight"
FLIPPED = "blk.7.ffn_up.weight"
Q4_1_BYTES = 20  # of a block


_FLIPPED_BLOCKS = 64


@cache
def flipped_byte() -> Path:
    """SmolLM2 with one bit in each of some blocks in the middle of FLIPPED the other way round.

    The weights of these blocks are 256 times as large. One bit of a single weight or block is seen
    in the text on some processors only.
    """

    def make(target: Path) -> None:
        shutil.copyfile(smollm2(), target)
        tensor = tensor_of(target, FLIPPED)
        with target.open("r+b") as file:
            # a block of Q4_1 begins with its scale, a half float: 0x20 is in the exponent (ggml-common.h)
            first = tensor.offset + tensor.size // 2 // Q4_1_BYTES * Q4_1_BYTES + 1
            for block in range(_FLIPPED_BLOCKS):
                file.seek(first + block * Q4_1_BYTES)
                byte = file.read(1)
                file.seek(-1, os.SEEK_CUR)
                file.write(bytes([byte[0] ^ 0x20]))

    return made("smollm2-flipped-scales.gguf", make)


def _done(work: Coroutine[object, object, T]) -> T:
    """In a thread: a test that asks for a model first may run a loop of its own by then."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def _quantise(source: Path, target: Path, kind: str) -> None:
    build = native_builds.build(cache_folder(), backend="cpu", tools=True, progress=_silent)
    argv = [
        str(_done(build).binaries[LLAMA_QUANTIZE]),
        "--allow-requantize",
        str(source),
        str(target),
        kind,
        "2",
    ]
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def _write_random(writer: GGUFWriter, shape: _Shape) -> None:
    tokens = _copy_tokenizer(writer)
    writer.add_name("random llama")
    writer.add_block_count(shape.layers)
    writer.add_context_length(2048)
    writer.add_embedding_length(shape.embedding)
    writer.add_feed_forward_length(shape.feed_forward)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(shape.embedding // shape.heads)
    writer.add_vocab_size(tokens)
    random = np.random.default_rng(20240601)

    def matrix(name: str, rows: int, columns: int) -> None:
        values = random.standard_normal((rows, columns), dtype=np.float32) / np.float32(np.sqrt(columns))
        writer.add_tensor(name, values.astype(np.float16))

    def norm(name: str) -> None:
        writer.add_tensor(
            name, np.ones(shape.embedding, dtype=np.float32) + np.float32(0.1) * _row(random, shape.embedding)
        )

    matrix("token_embd.weight", tokens, shape.embedding)
    norm("output_norm.weight")
    matrix("output.weight", tokens, shape.embedding)
    for layer in range(shape.layers):
        block = f"blk.{layer}"
        for part in ("attn_norm", "ffn_norm"):
            norm(f"{block}.{part}.weight")
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            matrix(f"{block}.{part}.weight", shape.embedding, shape.embedding)
        matrix(f"{block}.ffn_gate.weight", shape.feed_forward, shape.embedding)
        matrix(f"{block}.ffn_up.weight", shape.feed_forward, shape.embedding)
        matrix(f"{block}.ffn_down.weight", shape.embedding, shape.feed_forward)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _row(random: np.random.Generator, length: int) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
    return random.standard_normal(length, dtype=np.float32)


def _copy_tokenizer(writer: GGUFWriter) -> int:
    """Copies every tokenizer key of SmolLM2; returns the number of tokens."""
    tokens = 0
    for key, entry in GGUFReader(smollm2()).fields.items():
        if not key.startswith("tokenizer."):
            continue
        kind = entry.types[0]
        value = entry.contents()
        if key == "tokenizer.ggml.tokens":
            tokens = len(value)
        writer.add_key_value(key, value, kind, entry.types[-1] if kind == GGUFValueType.ARRAY else None)
    return tokens
