"""The build itself: reused when it is there, made from a user's tree, safe against a second builder."""

import asyncio
import shutil
from functools import cache
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import native
from meshd.build.compile import options_of
from meshd.build.interface import (
    BACKENDS,
    LLAMA_BENCH,
    LLAMA_SERVER,
    RPC_SERVER,
    BuildProgress,
    NativeInfo,
    Stage,
)
from meshd.build.machine import cpu_kind
from meshd.build.pin import read_pin
from meshd.build.tree import Tree

from tests.e2e.models import cache_folder, stock

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build


@cache
def patched() -> NativeInfo:
    return asyncio.run(native.build(cache_folder(), backend="cpu", tools=True, progress=lambda _: None))


def test_a_finished_build_is_returned_at_once() -> None:
    before = patched()
    heard: list[BuildProgress] = []
    again = asyncio.run(native.build(cache_folder(), backend="cpu", tools=True, progress=heard.append))
    assert again == before
    assert [progress.stage for progress in heard] == [Stage.DONE]
    assert native.find(cache_folder(), "cpu") == before
    assert native.read_bin_dir(before.bin_dir) == before


def test_patched_and_stock_differ() -> None:
    assert stock().pin == patched().pin
    assert (stock().patches_sha256, patched().patches_sha256) == ("stock", read_pin().patches_sha256)
    for name in (RPC_SERVER, LLAMA_SERVER, LLAMA_BENCH):
        assert patched().binaries[name].read_bytes() != stock().binaries[name].read_bytes()


def test_the_patches_apply_to_the_pinned_source_in_order(tmp_path: Path) -> None:
    tree = _copy_of_the_tree(tmp_path)
    pin = read_pin()
    tree.patch(())
    before = (tree.source / "ggml/src/ggml-rpc/ggml-rpc.cpp").read_text()
    patches = pin.patches
    for number in range(len(patches) + 1):  # each prefix of the series, too
        tree.patch(patches[:number])
    assert "SET_TENSOR_GGUF" in (tree.source / "ggml/src/ggml-rpc/ggml-rpc.cpp").read_text()
    tree.patch(())
    assert (tree.source / "ggml/src/ggml-rpc/ggml-rpc.cpp").read_text() == before


def test_upstream_knows_the_options_of_every_backend(tmp_path: Path) -> None:
    """Metal or HIP cannot be built everywhere, but a misspelt option would be ignored everywhere."""
    source = _copy_of_the_tree(tmp_path).source
    places = (".", "ggml", "ggml/src/ggml-rpc", "common")
    text = "".join((source / place / "CMakeLists.txt").read_text() for place in places)
    assert "(NOT DEFINED LLAMA_BUILD_COMMIT)" in text, "we say it"
    for backend in BACKENDS:
        for option in options_of(backend):
            name = option.removeprefix("-D").partition("=")[0]
            assert name.startswith("CMAKE_") or f"({name} " in text or f"     {name})" in text, name


def _copy_of_the_tree(folder: Path) -> Tree:
    patched()
    original = cache_folder() / "native" / f"tree-cpu-{cpu_kind()}"
    copy = folder / "tree"
    copy.mkdir()
    for name in ("src", "orig"):
        shutil.copytree(original / name, copy / name)
    shutil.copy(original / "state.json", copy / "state.json")
    return Tree(copy)


def test_a_source_that_is_not_the_pinned_commit_is_refused(tmp_path: Path) -> None:
    tree = _copy_of_the_tree(tmp_path)
    tree.patch(())
    (tree.source / "src/llama-model.cpp").write_text("something else\n")
    with pytest.raises(UserError, match="differs"):
        asyncio.run(
            native.build(
                tmp_path / "cache", backend="cpu", source=tree.source, progress=lambda progress: None
            )
        )
    assert native.find(tmp_path / "cache", "cpu") is None
