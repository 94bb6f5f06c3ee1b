"""Read how much another process of this user has done so far, to tell whether it is stuck."""

import os
from dataclasses import dataclass
from pathlib import Path

_CPU_TIMES = slice(11, 13)  # utime and stime, of the fields after the name in proc_pid_stat(5)
_MOVED = frozenset((b"rchar", b"wchar", b"read_bytes", b"write_bytes"))  # proc_pid_io(5)


@dataclass(frozen=True, slots=True)
class ProcessWork:
    """Processor seconds of all threads, and bytes read and written, page faults from disk included."""

    processor_seconds: float
    moved_bytes: int


def work_of(pid: int) -> ProcessWork | None:
    """Return what the process has done; None for one that is gone, and on systems other than Linux."""
    folder = Path("/proc") / str(pid)
    try:
        stat = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        moved = [line.split(b": ") for line in (folder / "io").read_bytes().splitlines()]
    except OSError:
        return None
    ticks = sum(int(field) for field in stat[_CPU_TIMES])
    count = sum(int(number) for name, number in moved if name in _MOVED)
    return ProcessWork(ticks / os.sysconf("SC_CLK_TCK"), count)
