"""native/mesh with its own tests, compiled in an untouched tree of the pin: `python -m tests.native.build`.

The result is kept in the user's cache, beside mesh-server and the module. About two minutes on two cores the
first time, half a minute after a change of native/mesh. Tests that need it are skipped where it is not there.
"""

import asyncio
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from meshd.build import cache as builds
from meshd.build import native
from meshd.build.interface import MESH_MODULE, MESH_PROGRAM, BuildProgress
from meshd.build.pin import read_pin
from meshd.config.tree import find_cache

OTHER = "MESHD_OTHER_BUILD"  # names a folder with these programs and llama-server, which tests take instead

_TESTS = "mesh-tests"


@dataclass(frozen=True, slots=True)
class MeshBuild:
    """Programs of native/mesh, and the module."""

    folder: Path

    @property
    def server(self) -> Path:
        return self.folder / MESH_PROGRAM

    @property
    def module(self) -> Path:
        return self.folder / MESH_MODULE

    @property
    def tests(self) -> Path:
        return self.folder / _TESTS


def other() -> Path | None:
    """The folder that follow.py has built of another release, while it runs tests on it."""
    named = os.environ.get(OTHER)
    return Path(named) if named else None


def find() -> MeshBuild | None:
    """Return what has been built from the sources as they are."""
    named = other()
    if named is not None:
        return MeshBuild(named)
    programs = builds.load(find_cache(os.environ), builds.ours_key(read_pin(), "cpu"))
    return MeshBuild(programs[_TESTS].parent) if _TESTS in programs else None


def told(progress: BuildProgress) -> None:
    """On standard output, now and then."""
    if progress.total and progress.done % 20 == 0:
        sys.stdout.write(f"{progress.done}/{progress.total} {progress.text}\n")


async def build_all(cache: Path) -> Path:
    """Build what is missing, and return where all of it is. Raises UserError."""
    return await native.build_programs(cache, (*native.OUR_PROGRAMS, _TESTS), progress=told)


def main() -> int:
    """Run; returns the exit code."""
    folder = asyncio.run(build_all(find_cache(os.environ)))
    sys.stdout.write(f"{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
