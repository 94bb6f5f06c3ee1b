"""Data races of native/mesh: `python -m tests.native.races [NAME]`.

Builds mesh-tests with TSan in a folder of its own in the user's cache, and runs all of them, or those whose
name has NAME in it. Five minutes on two cores the first time, one after a change of native/mesh. ggml has
TSan, too, and no OpenMP: else nothing tells what its threads wait for. The exit code is not 0 where a test
fails, or threads use the same memory and nothing says who comes first: TSan prints where.
"""

import asyncio
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from meshd.build import cache as builds
from meshd.build import native
from meshd.build.compile import compile_tree
from meshd.build.machine import cpu_kind, need_compiler, need_tools
from meshd.build.pin import mesh_sources, read_pin
from meshd.build.tree import Tree, renew
from meshd.config.tree import find_cache

from tests.native.build import MeshBuild, told

_TARGET = "mesh-tests"
_FLAGS = ("-DMESH_SANITIZE=thread", "-DGGML_SANITIZE_THREAD=ON", "-DGGML_OPENMP=OFF")
# a connection is for as long as its process, so nobody joins a thread of it that has ended
_OPTIONS = "report_thread_leaks=0"


async def build(cache: Path) -> MeshBuild:
    """mesh-tests alone. Raises UserError."""
    need_compiler()
    need_tools()
    async with builds.locked(cache / "native" / "lock", told):
        upstream = builds.tree_of(cache)
        await native.fill(upstream, read_pin(), cache, None, told)
        tree = Tree(cache / "native" / f"races-cpu-{cpu_kind()}")
        tree.source = upstream.source
        await asyncio.to_thread(renew, tree.ours, mesh_sources())
        flags = [f"-DCMAKE_PROJECT_INCLUDE={tree.ours / 'inject.cmake'}", *_FLAGS]
        await compile_tree(tree, backend="cpu", targets=[_TARGET], progress=told, flags=flags)
    return MeshBuild(tree.build / "bin")


def main(argv: Sequence[str]) -> int:
    """Run; returns the exit code."""
    made = asyncio.run(build(find_cache(os.environ)))
    options = " ".join((_OPTIONS, os.environ.get("TSAN_OPTIONS", "")))
    env = {**os.environ, "TSAN_OPTIONS": options}
    return subprocess.run([made.tests, *argv], check=False, env=env).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
