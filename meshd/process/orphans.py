"""Prevent orphans: guard each process group, and end it when meshd is gone.

The guard is `/bin/sh` (0.3 MB), leader of the child's process group. It reads a pipe whose
write end only meshd holds and that nobody ever writes to. When meshd is gone, however it went, the read
ends and the guard kills its own group: `kill -KILL 0` names no number, so it cannot hit a recycled one.

Why nothing slips through:
- The guard exists, with its traps set, before the child is forked. A forked child holds a copy of the pipe
  until its exec, and joins the group before that: the guard cannot see the end of the pipe too early.
- TERM, INT and what else is meant for the child or comes from a terminal is ignored by the guard; its group
  is never the terminal's foreground group. KILL is only ever meant for all.
- The guard is reaped only by `end`, so the number of the group stays taken as long as we may signal it.
- It starts with no descriptor but its own two pipes and /dev/null, so it holds nobody's port open.
- If something kills the guard alone, its other pipe ends, and another takes its place in the same group.
What leaves the group on purpose (setsid, or ninja's compilers) is out of reach: see decision 0005.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Self

from meshd.base import log
from meshd.base.errors import MeshdError, UserError

SHELL = "/bin/sh"
SCRIPT = """trap '' HUP INT QUIT TERM PIPE ALRM USR1 USR2 TSTP TTIN TTOU
echo
read -r nothing
kill -KILL 0
"""
_START_SECONDS = 10.0  # a shell starts in milliseconds; only a machine near its end needs longer
REPLACEMENTS = 3  # guards that may be killed one after the other before we leave it at that

logger = log.get("process")


class Guard:
    """One process group that ends when meshd does. `pid` is the number of the group too."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._leader: subprocess.Popen[bytes] | None = None
        self._others: list[subprocess.Popen[bytes]] = []
        self._hold = -1  # write end: as long as it is open the group may live
        self._alive = -1  # read end: a line when the guard is ready, the end when it is gone
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._replaceable = REPLACEMENTS

    @classmethod
    async def start(cls, name: str) -> Self:
        """Start a guard that is ready. Raises UserError without a shell, MeshdError when it does
        not start.
        """
        guard = cls(name)
        try:
            guard._spawn()
            async with asyncio.timeout(_START_SECONDS):
                await guard._ready
        except TimeoutError:
            guard.end()
            raise MeshdError(
                f"`{name}` could not be started: its guard was not ready within {_START_SECONDS:g} s",
                hint="the machine may be out of memory or processes, or overloaded",
            ) from None
        except BaseException:
            guard.end()
            raise
        return guard

    @property
    def pid(self) -> int:
        """The number of the group, which stays taken until `end`."""
        assert self._leader is not None
        return self._leader.pid

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group; the guard ignores all but KILL. Does nothing after `end`."""
        if number == signal.SIGKILL:
            self._replaceable = 0
        if self._leader is not None:
            # macOS answers EPERM for a group that holds only zombies
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._leader.pid, number)

    def end(self) -> None:
        """Kill the group, reap the guards, close the pipes. Idempotent; not a coroutine, so never cancelled
        halfway.
        """
        self.signal(signal.SIGKILL)
        self._drop_pipes()
        for process in self._others:
            process.kill()
            process.wait()
        if self._leader is not None:
            self._leader.wait()
        self._leader = None
        self._others.clear()

    def _spawn(self) -> None:
        stdin, self._hold = os.pipe()
        try:
            self._alive, stdout = os.pipe()
        except OSError:
            os.close(stdin)
            raise
        try:
            # our own session on purpose: a child can join the group only within it
            process = subprocess.Popen(
                [SHELL, "-c", SCRIPT, "meshd-guard", self._name],
                stdin=stdin,
                stdout=stdout,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                process_group=0 if self._leader is None else self._leader.pid,
            )
        except FileNotFoundError:
            raise UserError(f"cannot find `{SHELL}`", hint="install a POSIX shell there") from None
        finally:
            os.close(stdin)
            os.close(stdout)
        if self._leader is None:
            self._leader = process
        else:
            self._others.append(process)
        os.set_blocking(self._alive, False)
        self._loop.add_reader(self._alive, self._heard)

    def _heard(self) -> None:
        try:
            word = os.read(self._alive, 64)
        except BlockingIOError:
            return
        if word:
            if not self._ready.done():
                self._ready.set_result(None)
            return
        if not self._ready.done():
            self._ready.set_exception(MeshdError(f"`{self._name}` could not be started: its guard ended"))
        self._drop_pipes()
        self._replace()

    def _replace(self) -> None:
        """Guard what is left of the group again, if its guard is gone."""
        if self._leader is None or self._replaceable <= 0:
            return
        self._replaceable -= 1
        try:
            self._spawn()
        except (OSError, UserError) as error:
            # EPERM: the group ended with its guard, which is the usual case
            logger.debug("guard_not_replaced", child=self._name, why=str(error))

    def _drop_pipes(self) -> None:
        if self._alive >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._alive)
            os.close(self._alive)
        if self._hold >= 0:
            os.close(self._hold)
        self._alive = self._hold = -1


def group_lives(group: int) -> bool:
    """Return True if any process is in process group `group`; zombies, which wait to be reaped, do
    not count.
    """
    try:
        os.killpg(group, 0)
    except (ProcessLookupError, PermissionError):  # EPERM: macOS, for a group of zombies
        return False
    return _has_more_than_zombies(group) if sys.platform == "linux" else True


def _has_more_than_zombies(group: int) -> bool:
    # Linux counts zombies too, and a container's first process may reap them late or never
    try:
        return any(_lives_in(entry, group) for entry in Path("/proc").iterdir() if entry.name.isdecimal())
    except OSError:  # no descriptor is free
        return True


def _lives_in(entry: Path, group: int) -> bool:
    try:
        # proc(5): pid (comm) state ppid pgrp …; comm may hold spaces and brackets
        fields = (
            entry.joinpath("stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        )
    except OSError:
        return False
    return len(fields) > 2 and fields[2] == str(group) and fields[0] not in "ZX"
