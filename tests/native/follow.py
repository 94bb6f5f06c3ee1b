"""native/mesh on another release of llama.cpp: `python -m tests.native.follow SOURCE`.

Builds llama-server, mesh-server, the module and mesh-tests from that tree, which is not changed, runs
mesh-tests, and compares what one node answers with what one and two workers do, weights sent and weights by
content. A quarter of an hour on two cores, most of it for llama-server.
"""

import argparse
import asyncio
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from meshd.build import cache as builds
from meshd.build import mesh
from meshd.build.compile import compile_tree
from meshd.build.machine import cpu_kind, need_compiler
from meshd.build.tree import Tree
from meshd.config.tree import find_cache

from tests.e2e.mesh_rig import Mesh
from tests.e2e.models import smollm2
from tests.e2e.native_rig import Head
from tests.native.build import MeshBuild, told

_TARGETS = ("mesh-server", "ggml-mesh", "mesh-tests", "llama-server")


async def _build(cache: Path, source: Path) -> MeshBuild:
    need_compiler()
    name = hashlib.sha256(str(source).encode()).hexdigest()[:12]
    tree = Tree(cache / "native" / f"follow-{name}-cpu-{cpu_kind()}")
    tree.folder.mkdir(parents=True, exist_ok=True)
    tree.source = source
    async with builds.locked(cache / "native" / "lock", told):
        flags = [f"-DCMAKE_PROJECT_INCLUDE={mesh.sources() / 'inject.cmake'}"]
        await compile_tree(tree, backend="cpu", targets=_TARGETS, progress=told, flags=flags)
    return MeshBuild(tree.build / "bin")


def _compare(build: MeshBuild, folder: Path) -> int:
    """How many of them answer something else."""
    head, model = build.folder / "llama-server", smollm2()
    with Head(head, folder, model, [], load_mode="") as alone:
        expected = alone.complete()
    wrong = 0
    for workers in (1, 2):
        for weights in ([], [model]):
            with Mesh(build, folder, model, workers, weights=weights, binary=head) as mesh:
                same = mesh.head.complete() == expected
            wrong += not same
            how = "by content" if weights else "sent"
            sys.stdout.write(f"{workers} workers, weights {how}: {'same text' if same else 'OTHER TEXT'}\n")
    return wrong


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.native.follow", description=__doc__)
    parser.add_argument("source", type=Path, metavar="SOURCE", help="a tree of llama.cpp")
    source = parser.parse_args().source.resolve()
    build = asyncio.run(_build(find_cache(os.environ), source))
    tests = subprocess.run([build.tests], check=False).returncode
    with tempfile.TemporaryDirectory() as folder:
        return min(1, tests + _compare(build, Path(folder)))


if __name__ == "__main__":
    sys.exit(main())
