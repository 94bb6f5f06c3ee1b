"""A child's output: to a log file of bounded size, with its last lines in memory.

A child may print without end (CUDA builds print lines at each token), without line ends, or bytes that are
no text: everything here is bounded. The pipe is read as fast as READ_RATE, so a flood slows its child and
not our loop; the file takes WRITE_RATE, so a flood does not wear the disk; skipped lines are counted there.
"""

import asyncio
import contextlib
import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from meshd.base import log
from meshd.base.admission import TokenBucket
from meshd.base.errors import UserError
from meshd.base.fault_boundary import OURS
from meshd.base.files import RotatedFile

LINE_BYTES = 4096  # longer lines are cut: the longest of llama.cpp (system_info) has about 700
TAIL_LINES = 20
_READ_BYTES = 64 << 10  # what a pipe holds
READ_SLICE = 0.1  # seconds
READ_RATE = 320 << 10  # bytes a slice: 3 MB/s cost a tenth of a core, and no sane child prints so much
WRITE_RATE = 256 << 10  # bytes a second into the file, once the burst is used up
WRITE_BURST = 4 << 20  # bytes: a model's whole start-up is below 200 KB

_STAMP_BYTES = len("2026-11-25T13:33:51.123456Z ")

_ESCAPES = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|.)?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")

logger = log.get("process")


class LineCutter:
    """Bytes to lines. Keeps at most LINE_BYTES of one line; the rest of it is dropped and said so."""

    def __init__(self) -> None:
        self._partial = bytearray()
        self._dropped = 0

    def feed(self, data: bytes) -> Iterator[str]:
        """Yield whole lines, clean. A carriage return ends a line too (progress bars)."""
        parts = re.split(rb"[\r\n]", data)
        for part in parts[:-1]:
            self._take(part)
            yield from self.flush()
        self._take(parts[-1])

    def flush(self) -> Iterator[str]:
        """Yield the unfinished line, if any."""
        if self._partial:
            yield self._clean(bytes(self._partial), self._dropped)
        self._partial.clear()
        self._dropped = 0

    def _take(self, part: bytes) -> None:
        free = LINE_BYTES - len(self._partial)
        self._partial += part[:free]
        self._dropped += max(0, len(part) - free)

    def _clean(self, raw: bytes, dropped: int) -> str:
        text = _CONTROLS.sub("", _ESCAPES.sub("", raw.decode("utf-8", errors="replace")))
        return f"{text} [{dropped} bytes more]" if dropped else text


class ChildOutput:
    """Output of one start of a child. `attach` gives the descriptor for it; `finish` or `close` ends it."""

    def __init__(
        self,
        path: Path,
        *,
        limit: int,
        on_line: Callable[[str], None] | None = None,
        log_filter: Callable[[str], str] | None = None,
        stamped: bool = True,
    ) -> None:
        """Open the log. Raises UserError when it cannot be written. `limit` in bytes, see RotatedFile."""
        self._stamped = stamped
        self._loop = asyncio.get_running_loop()
        self._cutter = LineCutter()
        self._budget = TokenBucket(rate=WRITE_RATE, burst=WRITE_BURST, now=self._loop.time())
        self._left_out = 0
        self._on_line = on_line
        self._log_filter = log_filter
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)
        self._read_end = -1
        self._slice_ends = 0.0
        self._slice_left = READ_RATE
        self._resume: asyncio.TimerHandle | None = None
        self._ended = asyncio.Event()
        self._file = _open_log(path, limit)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last lines, oldest first."""
        return tuple(self._tail)

    def attach(self) -> int:
        """Start reading; returns the descriptor that the child gets, for the caller to close."""
        self._read_end, write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._readable)
        return write_end

    def note(self, text: str) -> None:
        """Write a line of our own into the file."""
        self._file.write(f"{self._stamp()}[meshd] {text}\n".encode())

    async def finish(self, seconds: float) -> None:
        """Take what is still in the pipe, wait at most `seconds` for other holders of it, and close."""
        try:
            if self._read_end >= 0:
                async with asyncio.timeout(seconds):
                    await self._ended.wait()
        except TimeoutError:
            pass
        finally:
            self.close()

    def close(self) -> None:
        """Stop reading, write what was begun, close all. Idempotent."""
        self._detach()
        for line in self._cutter.flush():
            self._keep(line)
        if self._left_out:
            self.note(f"{self._left_out} bytes of output were dropped because it printed too much")
            self._left_out = 0
        self._file.close()

    def _detach(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None
        if self._read_end >= 0:
            if not self._loop.is_closed():
                self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
        self._ended.set()

    def _readable(self) -> None:
        now = self._loop.time()
        if now >= self._slice_ends:
            self._slice_ends = now + READ_SLICE
            self._slice_left = READ_RATE
        try:
            data = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._detach()
            return
        for line in self._cutter.feed(data):
            self._keep(line)
        self._slice_left -= len(data)
        if self._slice_left <= 0:
            self._loop.remove_reader(self._read_end)
            self._resume = self._loop.call_at(self._slice_ends, self._read_again)

    def _read_again(self) -> None:
        self._resume = None
        self._loop.add_reader(self._read_end, self._readable)

    def _keep(self, line: str) -> None:
        text = line if self._log_filter is None else self._log_filter(line)
        self._tail.append(text)
        data = f"{text}\n".encode("utf-8", errors="replace")
        if self._budget.spend(_STAMP_BYTES + len(data), self._loop.time()):
            if self._left_out:
                self.note(f"{self._left_out} bytes of output were dropped because it printed too much")
                self._left_out = 0
            self._file.write(self._stamp().encode() + data)
            if lost := self._file.take_lost():
                self.note(f"{lost} lines were lost: the log could not be written")
        else:
            self._left_out += len(data)
        if self._on_line is not None:
            self._on_line(line)

    def _stamp(self) -> str:
        """Return the UTC time in the form of meshd's own log: `meshd logs` merges both."""
        if not self._stamped:
            return ""
        return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z ")


def _open_log(path: Path, limit: int) -> RotatedFile:
    def lost(error: OSError) -> None:
        logger.warning("child_log_lost", path=str(path), why=str(error))

    file = RotatedFile(path, most=max(limit, 2 * LINE_BYTES), on_lost=lost)
    try:
        file.open()
    except OSError as error:
        if error.errno in OURS:
            return file  # the disk is full, say: the child runs, and what it prints is lost meanwhile
        raise UserError(
            f"cannot write log `{path}`: {error.strerror}",
            hint="choose another home, or fix its owner and mode",
        ) from error
    return file


def show_tail(tail: tuple[str, ...], path: Path) -> str:
    """Return the last lines as a hint for an error."""
    if not tail:
        return f"it printed nothing; its log is `{path}`"
    with contextlib.suppress(ValueError, RuntimeError):
        path = Path("~") / path.relative_to(Path.home())
    return "\n".join([f"its last lines (full log: `{path}`):", *(f"  {line[:400]}" for line in tail)])
