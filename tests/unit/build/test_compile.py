"""meshd.build.compile: progress from ninja's output, and what a failure tells."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import UserError
from meshd.build import compile as build_compile
from meshd.build.compile import compile_tree, parse_step
from meshd.build.interface import BuildProgress, Stage
from meshd.build.tree import Tree


def test_a_step_of_ninja() -> None:
    line = "[24/219] Building CXX object ggml/src/CMakeFiles/ggml-cpu.dir/ggml-cpu/repack.cpp.o"
    assert parse_step(line) == BuildProgress(Stage.COMPILE, "compiling repack.cpp", 24, 219)


@given(st.text())
def test_any_line_is_a_step_or_none(line: str) -> None:
    step = parse_step(line)
    assert step is None or step.stage is Stage.COMPILE


def _tools(folder: Path, monkeypatch: pytest.MonkeyPatch, **scripts: str) -> Tree:
    for name, script in scripts.items():
        path = folder / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
    monkeypatch.setattr(build_compile, "find_tool", lambda name: str(folder / name))
    tree = Tree(folder / "tree")
    tree.source.mkdir(parents=True)
    return tree


def test_stages_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = _tools(
        tmp_path, monkeypatch, cmake="echo $@ > args", ninja='echo "[1/2] a/b.o"; echo "[2/2] Linking c"'
    )
    heard: list[BuildProgress] = []
    asyncio.run(compile_tree(tree, backend="cpu", targets=["x"], progress=heard.append))
    assert [(step.stage, step.done) for step in heard] == [
        (Stage.CONFIGURE, 0),
        (Stage.COMPILE, 1),
        (Stage.COMPILE, 2),
    ]
    arguments = (tree.folder / "args").read_text().split()
    assert {"-DGGML_RPC_RDMA=OFF", "-DGGML_OPENMP=ON"} <= set(arguments)


@pytest.mark.parametrize(
    ("backend", "options"),
    [
        ("cpu", {"-DGGML_METAL=OFF"}),
        ("metal", {"-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON"}),
        ("cuda", {"-DGGML_CUDA=ON", "-DCMAKE_CUDA_COMPILER=/opt/cuda/bin/nvcc"}),
        ("vulkan", {"-DGGML_VULKAN=ON"}),
        ("hip", {"-DGGML_HIP=ON"}),
    ],
)
def test_a_backend_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, options: set[str]
) -> None:
    """And no other, so that the tree's own defaults decide nothing; every build has RPC and is static."""
    monkeypatch.setattr(build_compile, "find_nvcc", lambda: Path("/opt/cuda/bin/nvcc"))
    monkeypatch.delenv("CUDAARCHS", raising=False)
    tree = _tools(tmp_path, monkeypatch, cmake="echo $@ > args", ninja="exit 0")
    work = compile_tree(tree, backend=backend, targets=["x"], progress=lambda step: None)
    asyncio.run(work)
    arguments = set((tree.folder / "args").read_text().split())
    assert options <= arguments
    others = ("GGML_METAL", "GGML_CUDA", "GGML_VULKAN", "GGML_HIP", "CMAKE_CUDA")
    assert {one for one in arguments - options if one.removeprefix("-D").startswith(others)} == set()
    assert {"-DGGML_RPC=ON", "-DBUILD_SHARED_LIBS=OFF"} <= arguments


def test_without_a_toolkit_nvidias_packages_compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def made(packages: Path, native: Path, log: Path) -> Path:
        assert (packages, native, log) == (Path("/site"), tmp_path, tmp_path / "tree/build.log")
        return Path("/made")

    monkeypatch.setattr(build_compile, "find_nvcc", lambda: None)
    monkeypatch.setattr(build_compile, "find_packages", lambda: Path("/site"))
    monkeypatch.setattr(build_compile, "make_toolkit", made)
    monkeypatch.setenv("CUDAARCHS", "90")
    tree = _tools(tmp_path, monkeypatch, cmake="echo $@ > args", ninja="exit 0")
    asyncio.run(compile_tree(tree, backend="cuda", targets=["x"], progress=lambda step: None))
    arguments = set((tree.folder / "args").read_text().split())
    wanted = {
        "-DCMAKE_CUDA_COMPILER=/made/bin/nvcc",
        "-DCUDAToolkit_ROOT=/made",
        "-DCMAKE_CUDA_ARCHITECTURES=90",
    }
    assert wanted <= arguments


@pytest.mark.parametrize(
    ("cmake", "ninja", "what"),
    [
        ("echo broken; exit 1", "exit 0", "cmake could not configure llama.cpp for cpu"),
        ("exit 0", "echo a; echo 'error: broken'; exit 2", "llama.cpp could not be compiled"),
    ],
)
def test_a_failure_shows_the_end_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cmake: str, ninja: str, what: str
) -> None:
    tree = _tools(tmp_path, monkeypatch, cmake=cmake, ninja=ninja)
    with pytest.raises(UserError, match=what) as caught:
        asyncio.run(compile_tree(tree, backend="cpu", targets=["x"], progress=lambda step: None))
    assert str(tree.log) in caught.value.hint
    assert caught.value.hint.endswith("broken")


def test_a_tree_that_never_was_configured_is_dropped_but_for_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = _tools(tmp_path, monkeypatch, cmake="echo no glslc; exit 1", ninja="exit 0")

    def fail() -> UserError:
        with pytest.raises(UserError) as caught:
            asyncio.run(compile_tree(tree, backend="vulkan", targets=["x"], progress=lambda step: None))
        return caught.value

    for folder in (tree.build, tree.ours):
        folder.mkdir()
    (tree.build / "build.ninja").touch()  # it was configured before: only the last change is at fault
    fail()
    assert tree.source.is_dir() and tree.build.is_dir()
    (tree.build / "build.ninja").unlink()
    failed = fail()
    assert "docs/install.md#gpus" in failed.what and "no glslc" in failed.hint
    assert not any(folder.exists() for folder in (tree.source, tree.ours, tree.build))
    assert tree.log.is_file()
