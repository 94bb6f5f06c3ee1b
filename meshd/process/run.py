"""One run of a program, from spawn to an empty group; used by OwnedChild, and alone for programs that end.

`async with Run(spec) as run`: leaving the block ends the group (TERM first when we were cancelled, for
`stop_timeout` at most) and closes every descriptor, on every path.
"""

import asyncio
import contextlib
import os
import signal
from pathlib import Path
from types import TracebackType
from typing import Self

from meshd.base.byte_format import in_memory
from meshd.base.errors import MeshdError
from meshd.base.resource_limits import memory_limit, out_of_memory_kills
from meshd.process import orphans
from meshd.process.group import Group
from meshd.process.interface import ChildSpec, Ended
from meshd.process.output import ChildOutput

DRAIN_SECONDS = 0.5  # for output still in the pipe; only a process that left the group can hold it longer


class Run:
    """Async context manager around one process group and its output."""

    def __init__(self, spec: ChildSpec) -> None:
        self._spec = spec
        self._pid_file = pid_file_of(spec.log)
        self._group: Group | None = None
        self._output: ChildOutput | None = None
        self._kills_before = 0  # by the kernel, for lack of memory
        self._is_killed = False  # by us

    async def __aenter__(self) -> Self:
        """Start the program. Raises UserError when only the user can fix it, MeshdError when a retry may
        help.
        """
        spec = self._spec
        try:
            self._output = ChildOutput(
                spec.log,
                limit=spec.log_bytes,
                on_line=spec.on_line,
                log_filter=spec.log_filter,
                stamped=spec.stamped,
            )
            write_end = self._output.attach()
            try:
                self._kills_before = out_of_memory_kills()
                self._group = await Group.spawn(spec, output=write_end)
            finally:
                os.close(write_end)
        except BaseException as error:
            if self._output is not None:
                self._output.close()
            if isinstance(error, OSError):  # no more descriptors or processes to be had: that may pass
                raise cannot_start(spec.name, error) from error
            raise
        finally:
            close_all(spec.hand_over)
        self._note_start(self._group)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._group is not None
        assert self._output is not None
        try:
            try:
                if isinstance(error, asyncio.CancelledError):
                    await self._end_gently(self._group)
            finally:
                await self._group.bury()
            await self._output.finish(DRAIN_SECONDS)
        finally:
            self._output.close()
            orphans.remove_pid_file(self._pid_file)

    @property
    def pid(self) -> int:
        assert self._group is not None
        return self._group.pid

    @property
    def tail(self) -> tuple[str, ...]:
        return self._output.tail if self._output is not None else ()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group."""
        assert self._group is not None
        self._is_killed = self._is_killed or number == signal.SIGKILL
        self._group.signal(number)

    async def exited(self) -> int:
        """Return the exit code as Group.exited does."""
        assert self._group is not None
        return await self._group.exited()

    def no_memory(self, code: int) -> str:
        """Return the memory whose exhaustion made the kernel end it; empty if it ended otherwise.

        `code` as from `exited`. The kernel tells only how often it has done so in this node's control group.
        """
        if code != -signal.SIGKILL or self._is_killed or out_of_memory_kills() <= self._kills_before:
            return ""
        limit = memory_limit()
        if limit is None:
            return "the memory of this machine ran out"
        return f"this node reached its memory limit of {in_memory(limit.limit)} (`{limit.group}`)"

    async def _end_gently(self, group: Group) -> None:
        group.signal(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._spec.stop_timeout):
                await group.exited()

    def _note_start(self, group: Group) -> None:
        assert self._output is not None
        self._output.note(f"started, pid {group.pid}")
        record = orphans.PidRecord(self._spec.name, pid=group.pid, group=group.number, owner=os.getpid())
        orphans.write_pid_file(self._pid_file, record)


def close_all(descriptors: tuple[int, ...]) -> None:
    """Close each descriptor, whatever happens to the others."""
    for descriptor in descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)


def cannot_start(name: str, error: OSError) -> MeshdError:
    """Return the error for what the system refused us, not the child."""
    return MeshdError(f"`{name}` could not be started: {error.strerror or error}")


def split_code(code: int) -> tuple[int | None, int | None]:
    """Return exit code and signal from the number that subprocess gives (negative: a signal)."""
    return (None, -code) if code < 0 else (code, None)


async def run_to_end(spec: ChildSpec) -> Ended:
    """Run a program once and wait for its end; see RunToEnd in interface.py."""
    async with Run(spec) as run:
        ended = await run.exited()
        code, number = split_code(ended)
    return Ended(code=code, signal=number, tail=run.tail, no_memory=run.no_memory(ended))


def pid_file_of(log_path: Path) -> Path:
    """Return the path of the pid file of a child with this log."""
    return log_path.with_suffix(".pid")
