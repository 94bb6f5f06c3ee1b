"""A control group of this machine with a small memory limit, to run programs in."""

import contextlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

VERSION_1 = Path("/sys/fs/cgroup/memory")
VERSION_2 = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class SmallGroup:
    """The inner of two groups; the outer one has the limit."""

    folder: Path

    def command(self, script: str) -> list[str]:
        """Return a command line that runs this Python in the group."""
        join = f'echo $$ > "{self.folder}/cgroup.procs" && exec "$0" -c "$1"'
        return ["/bin/sh", "-c", join, sys.executable, script]


@contextlib.contextmanager
def small_group(limit: int) -> Iterator[SmallGroup]:
    """Make it, and remove it at the end; skips the test where none can be made (root on Linux)."""
    root, name = (VERSION_1, "memory.limit_in_bytes") if VERSION_1.is_dir() else (VERSION_2, "memory.max")
    outer = root / f"meshd-test-{os.getpid()}"
    inner = outer / "inner"
    with contextlib.ExitStack() as made:
        try:
            for folder in (outer, inner):
                folder.mkdir()
                made.callback(folder.rmdir)
            (outer / name).write_text(str(limit))
        except OSError as error:
            pytest.skip(f"no control group with a memory limit can be made here: {error}")
        yield SmallGroup(inner)
