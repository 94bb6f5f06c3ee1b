"""Run a build tool in the foreground: its output to a log and a callback, its whole group ended on cancel.

The one place besides meshd/process that starts programs: a build has no daemon behind it, is never restarted,
and must not need the guard and probes that children of a daemon have.
"""

import asyncio
import contextlib
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_MAX_LINE = 4096  # longer ones are cut: compilers print whole command lines
_CHUNK = 1 << 16
_TAIL_LINES = 30
_END_SECONDS = 3.0  # a compiler ends at once, ninja when its compilers have


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a program: its exit code (negative: the signal), and its last lines of output."""

    code: int
    tail: tuple[str, ...]


async def run(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    folder: Path,
    log: Path,
    on_line: Callable[[str], None] = lambda line: None,
) -> Result:
    """Run `argv` in `folder` until it ends; output is appended to `log`. `on_line` must be quick.

    When cancelled, ends the program and everything it started before it raises CancelledError.
    Raises OSError when the program cannot be started.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env=dict(env),
        start_new_session=True,
    )
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    try:
        # Copy the output to the log, and whole lines to `on_line`.
        assert process.stdout is not None
        with log.open("ab") as file:
            file.write(f"$ {' '.join(argv)}\n".encode())
            pending = b""
            while chunk := await process.stdout.read(_CHUNK):
                file.write(chunk)
                *lines, pending = (pending + chunk).split(b"\n")
                pending = pending[:_MAX_LINE]
                for line in lines:
                    text = line[:_MAX_LINE].decode("utf-8", "replace").rstrip("\r")
                    tail.append(text)
                    on_line(text)
        return Result(await process.wait(), tuple(tail))
    # Cancelled or failed: leave no process behind.
    finally:
        if process.returncode is None:
            await asyncio.shield(_end(process))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Ask the group to end, then make it; also those of it that outlive the program itself."""
    _signal_group(process.pid, signal.SIGTERM)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(process.wait(), _END_SECONDS)
    _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    # macOS says EPERM of a group that has only dead members left
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
