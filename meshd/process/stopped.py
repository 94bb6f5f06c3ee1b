"""Whether a process stands still by a signal: it is there, keeps its connections, and never answers."""

from pathlib import Path


def is_stopped(pid: int) -> bool:
    """True for SIGSTOP and the like, or a debugger. False where the system does not tell (Linux does), and
    for a process that is gone. See proc(5), `stat`."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return state.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])
