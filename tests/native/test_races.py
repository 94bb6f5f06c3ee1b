"""Test what races.py builds and says, without compiling."""

import asyncio
import sys
from pathlib import Path

import pytest
from meshd.build import cache as builds
from meshd.build import native
from meshd.build.tree import Tree

from tests.native import races
from tests.native.build import MeshBuild


def test_the_build_for_tsan_is_apart_from_the_one_that_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[tuple[Tree, list[str]]] = []

    async def fill(*_: object) -> None:
        pass

    async def compile_tree(tree: Tree, *, flags: list[str], **_: object) -> None:
        compiled.append((tree, flags))

    for name in ("need_compiler", "need_tools"):
        monkeypatch.setattr(races, name, lambda: None)
    monkeypatch.setattr(native, "fill", fill)
    monkeypatch.setattr(races, "compile_tree", compile_tree)
    made = asyncio.run(races.build(tmp_path))
    ((tree, flags),) = compiled
    usual = builds.tree_of(tmp_path)
    assert tree.source == usual.source
    assert tree.folder != usual.folder
    assert made.tests == tree.build / "bin" / "mesh-tests"
    assert (tree.ours / "tests" / "test_main.cpp").exists()
    assert {"-DMESH_SANITIZE=thread", "-DGGML_SANITIZE_THREAD=ON", "-DGGML_OPENMP=OFF"} < set(flags)


def test_what_is_found_is_told_by_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mesh-tests"
    program.write_text(f"#!{sys.executable}\nimport sys\nsys.exit(66 if sys.argv[1:] == ['late'] else 0)\n")
    program.chmod(0o755)

    async def build(_: Path) -> MeshBuild:
        return MeshBuild(tmp_path)

    monkeypatch.setattr(races, "build", build)
    assert races.main(["late"]) == 66
    assert races.main([]) == 0
