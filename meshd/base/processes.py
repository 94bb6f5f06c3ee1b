"""Set limits of this process, and read from the kernel what other processes are and do.

Links, streams and files are bounded one by one; the soft limit of open files that shells give (256 to 1024)
is lower. A core dump would hold keys, tokens and prompts. Of another process the kernel tells the owner of
its end of a unix socket, whether it is suspended, and whether it works or is stuck. Descriptors on
their way to a child are given away at its start, or closed when the role ends their use (Outgoing).
"""

import os
import resource
import socket
import struct
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# Of open files. The last: what macOS takes although it says that there is no limit.
_LIMITS_TRIED = (1 << 20, 65_536, 10_240)
_before: int | None = None  # the soft limit that this process was given
KEPT_BYTES = 16 << 20  # freed, and not given back
_CHUNK_BYTES = 1 << 20  # larger ones are mapped by themselves, and given back at once
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # mallopt(3)
_XUCRED = struct.Struct("IIh2x16I")  # macOS, sys/ucred.h
_LOCAL_PEERCRED, _LOCAL_PEERPID = 1, 2  # macOS, sys/un.h, level 0
PS_SECONDS = 2.0
_CPU_TIMES = slice(11, 13)  # utime and stime, of the fields after the name in proc_pid_stat(5)
_MOVED = frozenset((b"rchar", b"wchar", b"read_bytes", b"write_bytes"))  # proc_pid_io(5)


def forbid_core_dumps() -> None:
    """Lower the soft limit of core dumps for this process and its later children; the hard one stays.

    With a limit of 0 Linux still pipes the dump to a program that core_pattern names (core(5)); a limit of 1
    prevents that as well (fs/coredump.c), and is less than any core file needs. The process stays dumpable
    (prctl(2)) otherwise: its files in /proc would belong to root, so that even its own user could not see
    which process has its ports, and that user can read the key files anyway.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_CORE)
    most = 1 if sys.platform == "linux" and hard != 0 else 0
    resource.setrlimit(resource.RLIMIT_CORE, (most, hard))


def raise_limit() -> int:
    """Raise the soft limit to the hard one; returns what it is now."""
    global _before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _before is None:
        _before = soft
    for most in _LIMITS_TRIED:
        wanted = most if hard == resource.RLIM_INFINITY else min(hard, most)
        if soft >= wanted:
            break
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            return wanted
    return soft


def lower_for(pid: int) -> None:
    """Give a child the soft limit that this process was given: a program may not be made for more.

    Where the system cannot do that (macOS) it keeps ours.
    """
    if sys.platform == "linux" and _before is not None:
        with suppress(OSError, ValueError):  # it has ended already
            _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (_before, hard))


def keep_freed_memory() -> None:
    """Make glibc keep freed chunks, for a process that copies some hundred kilobytes at a time all day.

    By default glibc gives such a chunk back to the kernel when it is freed, and each page of the next one is
    a page fault and 4 KiB of zeros: 5,000 to 220,000 faults in a daemon that passed on 2 GB, and 800 to 2,800
    with this (the daemons of `tests.bench.hop`, 2 cores of an AMD EPYC, 2026-11-23). And a thread would get
    memory of its own, a few hundred kilobytes of which stay when it waits; it allocates while it holds
    Python's lock, so it may as well share. Elsewhere nothing is done.
    """
    if sys.platform == "linux":
        import ctypes  # verbs start without it

        with suppress(OSError, AttributeError):  # another C library
            mallopt = ctypes.CDLL(None).mallopt
            mallopt(_TRIM_THRESHOLD, KEPT_BYTES)
            mallopt(_MMAP_THRESHOLD, _CHUNK_BYTES)
            mallopt(_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Give the kernel the memory that the start used and freed: 2 MB of a worker that compiled its modules.

    Once only, after keep_freed_memory(): what a daemon frees later it needs again. Elsewhere than with glibc
    nothing is done.
    """
    if sys.platform == "linux":
        import ctypes  # verbs start without it

        with suppress(OSError, AttributeError):  # another C library
            ctypes.CDLL(None).malloc_trim(0)


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


class Outgoing:
    """The descriptors for a child that is about to start.

    Until `give` they are ours, so an error on the way leaks none.
    """

    def __init__(self) -> None:
        self._held: list[int] = []
        self._at_end: list[Callable[[], None]] = []

    def add(self, descriptor: int) -> int:
        """Hold `descriptor` and return it."""
        self._held.append(descriptor)
        return descriptor

    def give(self) -> tuple[int, ...]:
        """Return all descriptors, for ChildSpec.hand_over: from here on the child's owner has them."""
        given, self._held = tuple(self._held), []
        return given

    def at_end(self, action: Callable[[], None]) -> None:
        """Run `action` when these descriptors are closed."""
        self._at_end.append(action)

    def close(self) -> None:
        """Close the descriptors that were never given, and run the actions of `at_end`. Idempotent."""
        for descriptor in self.give():
            os.close(descriptor)
        while self._at_end:
            self._at_end.pop()()
