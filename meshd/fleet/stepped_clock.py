"""A clock that stands still while anybody computes: distance in rounds, not in seconds. Linux.

With it a proxy (proxy.py) delivers bytes one round after they were sent, and a round begins only when all
processes in the networks sleep. So the number of rounds between two moments is the number of messages that
had to wait for one another, on a fast machine as on a busy one. What TCP itself would add (a window that has
to grow, a handshake of TLS in packets) is not in it.
"""

import asyncio
import os
from collections.abc import Callable, Sequence
from pathlib import Path

QUIET_LOOKS = 4  # in which nothing may run, one after another
LOOK_SECONDS = 0.01
LONG_SECONDS = 1.5  # of computing, after which time goes on all the same
_BUSY = frozenset("RD")  # proc_pid_stat(5): running or runnable, waiting for a disk


class SteppedClock:
    """Time in half round trips; moves by one when `is_quiet` and somebody waits for a later time."""

    def __init__(self, is_quiet: Callable[[], bool], stepped: Callable[[int, bool], None]) -> None:
        """Start at 0. `stepped` is told each new time, and whether it came because all were quiet."""
        self._is_quiet = is_quiet
        self._stepped = stepped
        self._now = 0
        self._moved = asyncio.Condition()
        self._waited_for: list[float] = []

    def time(self) -> float:
        """Return how many half round trips have passed."""
        return float(self._now)

    async def until(self, at: float) -> None:
        """Wait until the clock shows `at`."""
        self._waited_for.append(at)
        try:
            async with self._moved:
                await self._moved.wait_for(lambda: self._now >= at)
        finally:
            self._waited_for.remove(at)

    async def serve(self) -> None:
        """Move the clock until cancelled."""
        loop = asyncio.get_running_loop()
        quiet, moved_at = 0, loop.time()
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            quiet = quiet + 1 if self._is_quiet() else 0
            if not any(at > self._now for at in self._waited_for):
                moved_at = loop.time()
                continue
            # who computes for long must still be heard, or links are taken for dead
            if quiet < QUIET_LOOKS and loop.time() - moved_at < LONG_SECONDS:
                continue
            async with self._moved:
                self._now += 1
                self._stepped(self._now, quiet >= QUIET_LOOKS)
                self._moved.notify_all()
            quiet, moved_at = 0, loop.time()


def all_sleep(networks: Sequence[int]) -> bool:
    """Return True if every thread of every other process in these networks (their descriptors) sleeps."""
    inodes = {os.fstat(network).st_ino for network in networks}
    own = str(os.getpid())
    processes = (folder for folder in Path("/proc").iterdir() if folder.name.isdigit() and folder.name != own)
    return all(_sleeps(process) for process in processes if _is_in(process, inodes))


def _is_in(process: Path, inodes: set[int]) -> bool:
    try:
        return (process / "ns" / "net").stat().st_ino in inodes
    except OSError:  # it has ended, or is another user's
        return False


def _sleeps(process: Path) -> bool:
    try:
        for thread in (process / "task").iterdir():
            state = (
                (thread / "stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()[0]
            )
            if state in _BUSY:
                return False
    except OSError:  # it ends just now: that is no rest
        return False
    return True
