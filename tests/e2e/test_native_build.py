"""The build itself: reused when it is there, of the tree that was asked for, and of untouched source."""

import asyncio
import shutil
from functools import cache
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.build import native
from meshd.build.cache import tree_of
from meshd.build.compile import options_of
from meshd.build.interface import BACKENDS, BuildProgress, NativeInfo, Stage
from meshd.build.pin import read_pin
from meshd.build.tree import Tree, check_source

from tests.e2e.models import cache_folder

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]  # the first test may have to build


@cache
def built() -> NativeInfo:
    return asyncio.run(native.build(cache_folder(), backend="cpu", tools=True, progress=lambda _: None))


def test_a_finished_build_is_returned_at_once() -> None:
    before = built()
    heard: list[BuildProgress] = []
    again = asyncio.run(native.build(cache_folder(), backend="cpu", tools=True, progress=heard.append))
    assert again == before
    assert [progress.stage for progress in heard] == [Stage.DONE]
    assert native.find(cache_folder(), "cpu") == before


def test_the_tree_is_upstreams() -> None:
    built()
    tree = tree_of(cache_folder())
    assert tree.holds(read_pin().commit)
    check_source(tree.source, read_pin(), name="the tree")


def test_upstream_knows_the_options_of_every_backend() -> None:
    """Metal or HIP cannot be built everywhere, but a misspelt option would be ignored everywhere."""
    built()
    source = tree_of(cache_folder()).source
    places = (".", "ggml", "ggml/src/ggml-rpc", "common")
    text = "".join((source / place / "CMakeLists.txt").read_text() for place in places)
    assert "(NOT DEFINED LLAMA_BUILD_COMMIT)" in text, "we say it"
    for backend in BACKENDS:
        for option in options_of(backend):
            name = option.removeprefix("-D").partition("=")[0]
            assert name.startswith("CMAKE_") or f"({name} " in text or f"     {name})" in text, name


def test_a_source_that_is_not_the_pinned_commit_is_refused(tmp_path: Path) -> None:
    built()
    tree = Tree(tmp_path / "tree")
    shutil.copytree(tree_of(cache_folder()).source, tree.source)
    (tree.source / "src/llama-model.cpp").write_text("something else\n")
    with pytest.raises(UserError, match="differs"):
        asyncio.run(
            native.build(
                tmp_path / "cache", backend="cpu", source=tree.source, progress=lambda progress: None
            )
        )
    assert native.find(tmp_path / "cache", "cpu") is None
