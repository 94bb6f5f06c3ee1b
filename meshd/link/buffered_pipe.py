"""The common part of all pipes: wait for room or for bytes, refuse, close within a second.

A kind adds its engine below: what it does with outgoing pieces, how it fetches what came in, how it says
goodbye. The path of a message is designed to cost one call of the kind's own, no more.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from meshd.base.errors import (
    Broken,
    Busy,
    Closed,
    EndOfStream,
    LocalProtocolError,
    MeshdError,
    RemoteProtocolError,
)

MAX_SEND_BYTES = 1 << 20  # one call of send; four of the largest frames
SEND_HIGH_BYTES = 64 << 10  # what a kind takes and has not sent before it stops the sender
CLOSE_SECONDS = 0.8  # for the goodbyes of both sides; the contract of a link is 1 s


class BufferedPipe(ABC):
    """A RawPipe (secure/handshake.py).

    A kind counts in `_unread` what it keeps for `receive`, and sets `_readable` when there is more; it clears
    `_writable` over its high-water mark and sets it when that has drained. It asks `_take` first (`divert`).
    """

    _breath_bytes = 1 << 20  # after so much sent without a pause other tasks get a turn
    _code = ""  # of the RemoteProtocolError that ends it

    def __init__(self) -> None:
        self._unread = 0
        self._since_breath = 0
        self._receiving = self._sending = False
        self._end: tuple[type[MeshdError], str] | None = None  # what receive raises once all is read
        self._readable = asyncio.Event()  # bytes, or the end
        self._writable = asyncio.Event()
        self._writable.set()
        self._take: Callable[[bytes | memoryview], bool] | None = None
        self._secured = False

    # --- what a kind brings

    @abstractmethod
    def _put(self, data: Sequence[bytes | memoryview], size: int) -> None:
        """Send the pieces, `size` bytes, or keep them until they can be sent."""

    @abstractmethod
    def _fetch(self) -> bytes:
        """Return the next chunk; called only while `_unread` is not 0."""

    @abstractmethod
    async def _say_goodbye(self, *, ended: bool) -> None:
        """Drop what is unread, say goodbye, wait for the other's; `ended`: there was an end before."""

    @abstractmethod
    def abort(self) -> None:
        """Drop it at once, without a goodbye. Idempotent."""

    async def _wait_gone(self) -> None:  # noqa: B027 - most are gone at once
        """Wait, after `abort`, until nothing of it is left."""

    # --- what the owner calls

    @property
    def unread_bytes(self) -> int:
        """The bytes that `receive` has not fetched yet."""
        return self._unread

    async def secure(self) -> None:
        """Wait for the end of the handshake.

        Raises RemoteProtocolError when the other side does not speak what we do, Broken, Closed.
        """
        while not self._secured:
            self._check()
            self._readable.clear()
            await self._readable.wait()

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send the pieces in order, at most 1 MiB together; waits while over the high-water mark.

        All or nothing: a call that is cancelled has either sent all pieces or none.
        Raises Closed, Broken, Busy.
        """
        if self._sending:
            raise Busy("two tasks send on one link")
        self._sending = True
        try:
            await self._writable.wait()  # an earlier call may have been cancelled while it waited
            size = sum(map(len, data))
            if self._end is not None or size > MAX_SEND_BYTES:
                self._refuse(size)
            self._put(data, size)
            self._since_breath += size
            if not self._writable.is_set():
                self._since_breath = 0
                await self._writable.wait()
                self._check_send()
            elif self._since_breath >= self._breath_bytes:
                self._since_breath = 0
                await asyncio.sleep(0)
        finally:
            self._sending = False

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        """Send without waiting; False when `send` would have to wait. Raises Closed, Broken."""
        if self._sending or not self._writable.is_set() or self._since_breath >= self._breath_bytes:
            return False
        size = sum(map(len, data))
        if self._end is not None or size > MAX_SEND_BYTES:
            self._refuse(size)
        self._put(data, size)
        self._since_breath += size
        return True

    def divert(self, take: Callable[[bytes | memoryview], bool]) -> None:
        self._take = take

    async def receive(self) -> bytes:
        """Return the next chunk. Raises EndOfStream, Broken, Closed when there is nothing left; Busy."""
        if self._receiving:
            raise Busy("two tasks receive on one link")
        self._receiving = True
        try:
            while not self._unread:
                self._check()
                self._readable.clear()
                await self._readable.wait()
        finally:
            self._receiving = False
        return self._fetch()

    async def aclose(self) -> None:
        """Deliver what was sent, and say goodbye. At most 0.8 s, then the connection is dropped."""
        ended = self._end is not None
        self._finish(Closed, "this link was closed")
        self._unread = 0
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._say_goodbye(ended=ended)
        except TimeoutError:
            pass  # the other side does not read, or is gone
        finally:
            self.abort()
        await self._wait_gone()

    # --- inside

    def _finish(self, kind: type[MeshdError], what: str) -> None:
        """End the pipe: nothing more is sent, and only unread bytes still come. The first end counts."""
        self._end = self._end or (kind, what)
        self._readable.set()
        self._writable.set()

    def _refuse(self, size: int) -> None:
        self._check_send()
        raise LocalProtocolError(f"{size} bytes in one send, at most {MAX_SEND_BYTES}")

    def _check(self) -> None:
        if self._end is None:
            return
        kind, what = self._end
        if kind is RemoteProtocolError:
            raise RemoteProtocolError(what, code=self._code)
        raise kind(what)

    def _check_send(self) -> None:
        if self._end is not None and self._end[0] is EndOfStream:
            raise Broken(self._end[1])
        self._check()
