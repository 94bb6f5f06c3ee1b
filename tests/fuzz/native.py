"""`python -m tests.fuzz.native [--frames N | --seconds N] [--seed S]`: hostile sessions for our rpc-server.

Builds native/fuzz with ASan and UBSan into the user's cache (about four minutes on two cores, once for each
state of the patches), then runs it. What it finds it prints, with the session that repeats it; the exit code
is then not 0.
"""

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
from pathlib import Path

from meshd.build import cache as builds
from meshd.build import native
from meshd.build.interface import Progress
from meshd.build.machine import cpu_kind, find_tool
from meshd.build.pin import read_pin
from meshd.build.tree import Tree
from meshd.config.tree import find_cache

SOURCE = Path(__file__).parents[2] / "native" / "fuzz"
SECONDS = 60
SEED = 1


def _silent(progress: Progress) -> None:
    """Compilers say enough themselves."""


async def _build(cache: Path) -> Path:
    """The fuzzer's binary, from the patched tree, which nobody may change meanwhile."""
    await native.build(cache, backend="cpu", progress=_silent)  # fills the tree
    tree = Tree(cache / "native" / f"tree-cpu-{cpu_kind()}")
    folder = cache / "native" / f"fuzz-cpu-{cpu_kind()}"
    async with builds.locked(cache / "native" / "lock", _silent):
        tree.patch(read_pin().patches)
        # cmake ties a build folder to the path of its source, and the cache outlives any one checkout
        source, compiled = folder / "source", folder / "build"
        shutil.rmtree(source, ignore_errors=True)
        shutil.copytree(SOURCE, source)
        ninja = find_tool("ninja")
        configure = [find_tool("cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
        configure += ["-S", str(source), "-B", str(compiled), f"-DSOURCE={tree.source}"]
        for argv in (configure, [ninja, "-C", str(compiled), "rpc_fuzz"]):
            await asyncio.to_thread(subprocess.run, argv, check=True, stdout=sys.stderr)
    return compiled / "rpc_fuzz"


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.native", description=__doc__)
    parser.add_argument("--frames", type=int, help="until so many were sent")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"else so long (default: {SECONDS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of all sessions (default: {SEED})")
    options = parser.parse_args()
    binary = asyncio.run(_build(find_cache(os.environ)))
    until = ["--frames", options.frames] if options.frames else ["--seconds", options.seconds]
    return subprocess.run([binary, *map(str, until), "--seed", str(options.seed)], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
