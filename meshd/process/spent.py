"""What a process has used so far: CPU time, and bytes read. If neither grows, it hangs."""

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def spent(pid: int) -> tuple[float, int] | None:
    """Since its start: seconds of CPU time of all threads, and bytes read, by calls and from disks.

    None where the system does not tell (Linux does), or the process is gone. See proc(5).
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        io = Path(f"/proc/{pid}/io").read_bytes()
    except OSError:
        return None
    fields = stat.rpartition(b")")[2].split()
    numbers = {name: int(count) for name, _, count in (line.partition(b": ") for line in io.splitlines())}
    cpu = (int(fields[11]) + int(fields[12])) / _TICKS
    return cpu, numbers.get(b"rchar", 0) + numbers.get(b"read_bytes", 0)
