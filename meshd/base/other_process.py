"""Facts of other processes, as the kernel reports them: the owner of a unix socket, suspended, or stuck."""

import os
import socket
import struct
import sys
from dataclasses import dataclass
from pathlib import Path

_XUCRED = struct.Struct("IIh2x16I")  # macOS, sys/ucred.h
_LOCAL_PEERCRED, _LOCAL_PEERPID = 1, 2  # macOS, sys/un.h, level 0
PS_SECONDS = 2.0
_CPU_TIMES = slice(11, 13)  # utime and stime, of the fields after the name in proc_pid_stat(5)
_MOVED = frozenset((b"rchar", b"wchar", b"read_bytes", b"write_bytes"))  # proc_pid_io(5)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return user id and process id of the other end; pid 0 if unknown. Raises OSError."""
    if sys.platform == "darwin":
        raw = connection.getsockopt(0, _LOCAL_PEERCRED, _XUCRED.size)
        uid = int(struct.unpack_from("II", raw)[1])
        pid = connection.getsockopt(0, _LOCAL_PEERPID)
        return uid, pid
    else:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        pid, uid, _gid = struct.unpack("3i", raw)
        return uid, pid


def allowed(uid: int) -> bool:
    """Return True if that user may talk to our daemon: the daemon's own user, and root."""
    return uid in (os.geteuid(), 0)


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
