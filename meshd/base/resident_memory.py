"""How much memory of a process is really there: what it was given and has not used takes none."""

from pathlib import Path


def resident_bytes(pid: int) -> int:
    """Of its own, without files that it has mapped: `RssAnon` of proc(5). 0 where the system does not tell
    (Linux does), and for a process that is gone.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except OSError:
        return 0
    for line in status.splitlines():
        if line.startswith(b"RssAnon:"):
            return int(line.split()[1]) << 10
    return 0
