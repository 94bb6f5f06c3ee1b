"""Detects whether a process is suspended (SIGSTOP): it exists, keeps its connections, but never answers."""

import sys
from pathlib import Path

PS_SECONDS = 2.0


def is_stopped(pid: int) -> bool:
    """Return True if the process is suspended (SIGSTOP and the like) or in a debugger (proc(5), `stat`).

    False where the system does not tell (only Linux does), and for a process that is gone.
    """
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return state.rpartition(b")")[2].split()[:1] in ([b"T"], [b"t"])


def is_stopped_by_ps(pid: int) -> bool:
    """Return the same as `is_stopped`, for a verb, which may run `ps` where nothing else tells (macOS)."""
    if sys.platform == "darwin":
        return _ask_ps(pid)
    else:
        return is_stopped(pid)


def _ask_ps(pid: int) -> bool:
    import subprocess  # verbs start without it

    words = ["/bin/ps", "-o", "state=", "-p", str(pid)]
    try:
        done = subprocess.run(words, capture_output=True, timeout=PS_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.lstrip()[:1] == b"T"
