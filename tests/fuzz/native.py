"""Hostile sessions for mesh-server: `python -m tests.fuzz.native [--seconds N] [--seed S]`, or `--frames N`.

Builds native/fuzz with ASan and UBSan into the user's cache (about four minutes on two cores, once for each
state of the sources), then runs it. What it finds it prints, with the session that repeats it; the exit code
is then not 0. With `--jobs J` so many run at once, with J seeds from S on, and share the frames.
"""

import argparse
import asyncio
import os
import subprocess
import sys
from pathlib import Path

from meshd.build import cache as builds
from meshd.build import native
from meshd.build.interface import BuildProgress
from meshd.build.machine import cpu_kind, find_tool
from meshd.build.pin import read_pin
from meshd.build.tree import Tree, renew
from meshd.config.tree import find_cache

NATIVE = Path(__file__).parents[2] / "native"
_TARGET = "mesh_fuzz"
SECONDS = 60
SEED = 1


def _silent(progress: BuildProgress) -> None:
    """Compilers say enough themselves."""


async def _build(cache: Path) -> Path:
    """The fuzzer's binary, with upstream's tree as it is, which nobody may change meanwhile."""
    async with builds.locked(cache / "native" / "lock", _silent):
        tree = builds.tree_of(cache)
        await native.fill(tree, read_pin(), cache, None, _silent)
        return await _compile(cache / "native" / f"fuzz-mesh-cpu-{cpu_kind()}", tree)


async def _compile(folder: Path, tree: Tree) -> Path:
    source, mesh, compiled = folder / "source", folder / "mesh", folder / "build"
    for original, copy in ((NATIVE / "fuzz", source), (NATIVE / "mesh", mesh)):
        renew(copy, original)
    ninja = find_tool("ninja")
    configure = [find_tool("cmake"), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    configure += ["-S", str(source), "-B", str(compiled), f"-DSOURCE={tree.source}", f"-DMESH={mesh}"]
    for argv in (configure, [ninja, "-C", str(compiled), _TARGET]):
        await asyncio.to_thread(subprocess.run, argv, check=True, stdout=sys.stderr)
    return compiled / _TARGET


def main() -> int:
    """Run; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.native", description=__doc__)
    parser.add_argument("--frames", type=int, help="until so many were sent")
    parser.add_argument("--seconds", type=int, default=SECONDS, help=f"else so long (default: {SECONDS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of all sessions (default: {SEED})")
    parser.add_argument("--records", action="store_true", help="sealed records alone")
    parser.add_argument("--jobs", type=int, default=1, help="at once (default: 1)")
    options = parser.parse_args()
    binary = asyncio.run(_build(find_cache(os.environ)))
    share = -(-(options.frames or 0) // options.jobs)
    until = ["--frames", share] if options.frames else ["--seconds", options.seconds]
    words = [binary, *until, "--records", int(options.records), "--seed"]
    seeds = range(options.seed, options.seed + options.jobs)
    running = [subprocess.Popen([*map(str, words), str(seed)]) for seed in seeds]
    return max(abs(process.wait()) for process in running)  # below 0: ended by a signal


if __name__ == "__main__":
    sys.exit(main())
