"""The kernel's own way to let a process stand still: a control group that is frozen (cgroups(7), version 2).

No signal is involved, every connection stays open, and SIGKILL still ends frozen processes. One group is made
below the root of the mounted hierarchy, and removed again. Needs root on Linux.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FROZEN_SECONDS = 10.0


def _mounted() -> Path | None:
    """Where cgroup2 is mounted, alone or beside the groups of version 1."""
    with suppress(OSError):
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, place, kind, *_ = line.split(" ")
            if kind == "cgroup2":
                return Path(place)
    return None


def skip_reason() -> str:
    """Why nothing can be frozen here; empty when it can."""
    return _lacking() if sys.platform == "linux" and os.geteuid() == 0 else "needs root on Linux"


def _lacking() -> str:
    root = _mounted()
    if root is None:
        return "no cgroup2 is mounted"
    group = root / f"meshd-can-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        return f"no control group can be made: {error.strerror}"
    try:
        return "" if (group / "cgroup.freeze").exists() else "this kernel has no cgroup.freeze"
    finally:
        group.rmdir()


class Freezer:
    """One group; processes put into it stand still from then on."""

    def __init__(self, group: Path) -> None:
        self._group = group
        self._back: dict[int, Path] = {}

    def freeze(self, pid: int) -> float:
        """Returns when it stood still, of time.monotonic(). Raises ProcessLookupError."""
        try:
            groups = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
        except FileNotFoundError:
            raise ProcessLookupError(f"process {pid} has ended") from None
        [own] = [line[3:] for line in groups if line[:3] == "0::"]
        self._back[pid] = self._group.parent / own.strip("/") / "cgroup.procs"
        (self._group / "cgroup.procs").write_text(str(pid))
        (self._group / "cgroup.freeze").write_text("1")
        end = time.monotonic() + FROZEN_SECONDS
        while "frozen 1" not in (self._group / "cgroup.events").read_text():
            assert time.monotonic() < end, "the kernel did not freeze it"
        return time.monotonic()

    def thaw(self) -> None:
        """Everything goes on, where it was before."""
        (self._group / "cgroup.freeze").write_text("0")
        for pid, place in self._back.items():
            with suppress(OSError):  # it has ended
                place.write_text(str(pid))

    def remove(self) -> None:
        """The group; one whose processes have just been killed is busy for a moment."""
        end = time.monotonic() + FROZEN_SECONDS
        while True:
            try:
                self._group.rmdir()
                return
            except OSError:
                if time.monotonic() > end:
                    raise


@contextmanager
def freezer() -> Iterator[Freezer]:
    """Its group is gone afterwards, and nothing is frozen."""
    root = _mounted()
    assert root is not None
    group = root / f"meshd-test-{os.getpid()}"
    group.mkdir()
    made = Freezer(group)
    try:
        yield made
    finally:
        made.thaw()
        made.remove()
