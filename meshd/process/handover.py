"""Descriptors between meshd and a child: secrets, data and orders in, reports out.

Never by argument or environment, which other programs can read. Descriptors made here are not inheritable
until ChildSpec names them; put them into `hand_over`, and the child's owner closes them after the spawn.
"""

import asyncio
import os
import socket
import struct
import sys
import tempfile
from types import TracebackType
from typing import Self

from meshd.base.errors import Broken, Busy, Closed, EndOfStream

PIPE_BYTES = 64 << 10  # what a pipe takes without a reader, on Linux and macOS as a rule
REPORT_LINE_BYTES = 64 << 10
_READ_BYTES = 16 << 10
_NUMBERED = struct.Struct("<II")  # kind, number


def pipe_with(data: bytes) -> int:
    """Return a descriptor from which `data` can be read, then the end. The caller owns it.

    At most 64 KiB go into a pipe (read once, never on a disk). More data, or a system with smaller pipes
    (pipe(7): a user's limit), uses `file_with`. Never blocks. Raises OSError.
    """
    if len(data) > PIPE_BYTES:
        return file_with(data)
    read_end, write_end = os.pipe()
    try:
        os.set_blocking(write_end, False)
        try:
            fits = not data or os.write(write_end, data) == len(data)
        except BlockingIOError:
            fits = False
    except BaseException:
        os.close(read_end)
        raise
    finally:
        os.close(write_end)
    if fits:
        return read_end
    os.close(read_end)
    return file_with(data)


def file_with(data: bytes) -> int:
    """Return a descriptor of an unnamed file that holds `data`, at its start. The caller owns it.

    In memory on Linux (memfd), an unlinked temporary file elsewhere. Raises OSError (no space).
    """
    if sys.platform == "linux":
        descriptor = os.memfd_create("meshd", os.MFD_CLOEXEC)
    else:
        with tempfile.TemporaryFile(buffering=0) as file:
            descriptor = os.dup(file.fileno())
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def socket_pair() -> tuple[socket.socket, int]:
    """Return our end of a stream, and a child's as a descriptor. The caller owns both. Raises OSError."""
    ours, theirs = socket.socketpair()
    return ours, theirs.detach()


class DescriptorSender:
    """Descriptors that a child gets while it runs, each with a number, on a separate socket.

    Give `child_end` to the child in `hand_over`. Nothing waits here: the socket takes more messages than a
    child is ever sent.
    """

    def __init__(self) -> None:
        """Create the socket pair. Raises OSError."""
        self._ours, self.child_end = socket_pair()
        self._ours.setblocking(False)

    def send(self, kind: int, number: int, descriptor: int = -1, *, more: bytes = b"") -> None:
        """Send a message with a descriptor, which stays the caller's (-1: none). Raises Broken, Closed.

        `more` follows the message.
        """
        if self._ours.fileno() < 0:
            raise Closed("the child is not sent descriptors any more")
        message, sent = _NUMBERED.pack(kind, number) + more, [descriptor] if descriptor >= 0 else []
        try:
            socket.send_fds(self._ours, [message], sent)
        except OSError as error:  # it has ended
            raise Broken(f"the child takes no descriptors: {(error.strerror or '').lower()}") from None

    def close(self) -> None:
        """Close our end, so that the child reads the end. `child_end` is closed by its owner. Idempotent."""
        self._ours.close()


class ReportPipe:
    """Lines that a child writes to a separate descriptor. One reader; one object for one start.

    Give `child_end` to the child in `hand_over`: it then belongs to the child's owner, and the pipe ends
    when the last process that holds it ends. Holds at most one line limit plus 16 KiB; a child that writes
    more than is read waits.
    """

    def __init__(self, *, limit: int = REPORT_LINE_BYTES) -> None:
        """Create the pipe. `limit` in bytes of one line. Raises OSError."""
        self._limit = limit
        self._read_end, self.child_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._held = bytearray()
        self._ended = False
        self._reading = False
        self._waiter: asyncio.Future[None] | None = None

    async def line(self) -> str:
        """Return the next line without its end. A last line without an end counts.

        Raises EndOfStream when there is none, Broken for one over the limit, Closed, Busy.
        """
        if self._reading:
            raise Busy("two tasks read one report pipe")
        self._reading = True
        try:
            while True:
                line = self._take()
                if line is not None:
                    return line
                await self._fill()
        finally:
            self._reading = False

    def close(self) -> None:
        """Close our end; a waiting `line` raises Closed. `child_end` is its owner's matter. Idempotent."""
        if self._read_end < 0:
            return
        if self._waiter is not None:
            self._waiter.get_loop().remove_reader(self._read_end)
            self._wake()
        os.close(self._read_end)
        self._read_end = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> str:
        try:
            return await self.line()
        except EndOfStream:
            raise StopAsyncIteration from None

    def _take(self) -> str | None:
        if self._read_end < 0:
            raise Closed("the report pipe is closed")
        whole, newline, rest = self._held.partition(b"\n")
        if not newline and not self._ended:
            if len(whole) > self._limit:
                raise Broken(f"a report is longer than {self._limit} bytes")
            return None
        if not newline and not whole:
            raise EndOfStream("no more reports")
        if len(whole) > self._limit:
            raise Broken(f"a report is longer than {self._limit} bytes")
        self._held = rest
        return whole.decode("utf-8", errors="replace")

    async def _fill(self) -> None:
        """Take what the pipe holds, or wait until it holds something or is closed."""
        try:
            data = os.read(self._read_end, _READ_BYTES)
        except BlockingIOError:
            await self._until_readable()
            return
        self._held += data
        self._ended = not data

    async def _until_readable(self) -> None:
        loop = asyncio.get_running_loop()
        waiter = self._waiter = loop.create_future()
        loop.add_reader(self._read_end, self._wake)
        try:
            await waiter
        finally:
            self._waiter = None
            if self._read_end >= 0:  # else closed, which removed it: the number may be another's by now
                loop.remove_reader(self._read_end)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
