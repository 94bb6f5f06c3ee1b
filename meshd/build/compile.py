"""Configure and compile with cmake and ninja."""

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.resource_limits import usable_processors
from meshd.build.cuda import make_toolkit
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.build.machine import GPU_PAGE, find_nvcc, find_packages, find_tool
from meshd.build.run import Result, run
from meshd.build.tree import Tree

_STEP = re.compile(r"^\[(\d+)/(\d+)\] (.*)")

_FLAGS = (
    "-DCMAKE_BUILD_TYPE=Release",
    "-DBUILD_SHARED_LIBS=OFF",
    "-DGGML_RPC=ON",
    "-DGGML_RPC_RDMA=OFF",  # this commit has a hole there, and the mesh has its own links
    "-DGGML_OPENMP=ON",  # if the compiler has it; devices/command_lines.py says how long its threads spin
    "-DLLAMA_CURL=OFF",
    "-DLLAMA_OPENSSL=OFF",  # llama-server listens on a unix socket; the gateway is what others see
    "-DLLAMA_BUILD_TESTS=OFF",
    "-DLLAMA_BUILD_EXAMPLES=OFF",
    "-DLLAMA_BUILD_UI=OFF",
    "-DLLAMA_USE_PREBUILT_UI=OFF",  # would be fetched from the Internet while compiling
)
_BACKEND_FLAGS = {
    "cpu": ("-DGGML_METAL=OFF",),
    "metal": ("-DGGML_METAL=ON", "-DGGML_METAL_EMBED_LIBRARY=ON"),  # of a build, only programs are kept
    "cuda": ("-DGGML_CUDA=ON",),
    "vulkan": ("-DGGML_VULKAN=ON",),
    "hip": ("-DGGML_HIP=ON",),
}


async def compile_tree(
    tree: Tree, *, backend: str, targets: Sequence[str], progress: ProgressCallback, flags: Sequence[str] = ()
) -> None:
    """Build `targets` into `tree.build`/bin; `flags` come after our own. Raises UserError."""
    tree.log.write_bytes(b"")
    ninja = find_tool("ninja")
    configure = [find_tool("cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", "-S", str(tree.source)]
    configure += ["-B", str(tree.build), *options_of(backend), *flags]
    configure += await _cuda_options(tree) if backend == "cuda" else ()
    progress(BuildProgress(Stage.CONFIGURE, f"configuring llama.cpp for {backend}"))
    is_first = not (tree.build / "build.ninja").exists()
    result = await _run(configure, tree)
    if result.code != 0:
        if is_first:
            await asyncio.to_thread(tree.drop)
        lacking = f" ({GPU_PAGE})" if backend != "cpu" else ""
        what = f"cmake could not configure llama.cpp for {backend}{lacking}"
        raise build_failed(what, tree.log, result.tail)

    def on_line(line: str) -> None:
        step = parse_step(line)
        if step is not None:
            progress(step)

    argv = [*_nice(), ninja, "-C", str(tree.build), "-j", str(usable_processors()), *targets]
    result = await _run(argv, tree, on_line)
    if result.code != 0:
        raise build_failed("llama.cpp could not be compiled", tree.log, result.tail)


def build_failed(what: str, log: Path, tail: Sequence[str]) -> UserError:
    """Return the error of a build tool that failed; its hint has the last lines of the log at `log`."""
    lines = "\n".join(tail)
    return UserError(what, hint=f"the full log is `{log}`; its last lines:\n{lines}")


def options_of(backend: str) -> tuple[str, ...]:
    """Return the build options that differ from upstream's defaults."""
    return (*_FLAGS, *_BACKEND_FLAGS[backend])


async def _cuda_options(tree: Tree) -> list[str]:
    """Return which compiler to use, and for which kinds of GPU if the user says so as CMake does."""
    kinds = os.environ.get("CUDAARCHS")
    found = [f"-DCMAKE_CUDA_ARCHITECTURES={kinds}"] if kinds else []
    if (nvcc := find_nvcc()) is not None:
        return [*found, f"-DCMAKE_CUDA_COMPILER={nvcc}"]
    if (packages := find_packages()) is not None:
        toolkit = await make_toolkit(packages, tree.folder.parent, tree.log)
        return [*found, f"-DCMAKE_CUDA_COMPILER={toolkit / 'bin/nvcc'}", f"-DCUDAToolkit_ROOT={toolkit}"]
    return found  # CMake looks where the user's variables say


async def _run(argv: Sequence[str], tree: Tree, on_line: Callable[[str], None] = lambda _: None) -> Result:
    env = {**os.environ, "NINJA_STATUS": "[%f/%t] "}
    return await run(argv, env=env, folder=tree.folder, log=tree.log, on_line=on_line)


def parse_step(line: str) -> BuildProgress | None:
    """Return the progress in a line of ninja's output: `[n/m] Building …`."""
    match = _STEP.match(line)
    if match is None:
        return None
    done, total = int(match[1]), int(match[2])
    name = match[3].rsplit("/", 1)[-1].removesuffix(".o")
    return BuildProgress(Stage.COMPILE, f"compiling {name[:60]}", done, total)


def _nice() -> list[str]:
    # an hour of compiling on a small machine should not be felt by who works on it
    nice = shutil.which("nice")
    return [nice, "-n", "5"] if nice is not None else []
