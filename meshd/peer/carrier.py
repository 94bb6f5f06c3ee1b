"""One link under a session: a task that sends, a task that receives, until the link ends.

Holds no state of the session: it moves bytes between `Session` and `Link`, and hands the events on.
"""

import asyncio
from collections.abc import Callable

from meshd.base.errors import Broken
from meshd.base.tasks import Owner, cancel_and_wait, first_error
from meshd.link.interface import Link
from meshd.mux.events import Event
from meshd.mux.session import Session

SEND_BYTES = 256 << 10  # one turn of the sender: small enough that a control frame does not wait long
FAREWELL_SECONDS = 0.5


class Carrier:
    """Moves the bytes of one attached link."""

    def __init__(
        self,
        *,
        link: Link,
        link_id: int,
        session: Session,
        now: Callable[[], float],
        dispatch: Callable[[Session, list[Event]], None],
    ) -> None:
        self.link = link
        self.link_id = link_id
        self.session = session
        self._now = now
        self._dispatch = dispatch
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()
        self.why = ""

    def wake(self) -> None:
        """The session may have something to send."""
        self._wake.set()

    def end(self, why: str) -> None:
        """Send what is left (a goodbye), then leave `carry` with Broken(why)."""
        if not self._ending.is_set():
            self.why = why
            self._ending.set()

    async def carry(self, first: bytes) -> None:
        """Own the link's traffic; `first` was received behind the greeting. Always raises:
        Broken, EndOfStream, or RemoteProtocolError, which ends the session as well."""
        if first:
            self._take(first)
        try:
            async with Owner() as owner:
                sender = owner.start(self._send(), name="link sender")
                receiver = owner.start(self._receive(), name="link receiver")
                await self._ending.wait()
                await cancel_and_wait(sender, receiver)
                await self._farewell()
        except ExceptionGroup as group:
            raise first_error(group) from None
        raise Broken(self.why)

    async def _send(self) -> None:
        session, link, wake = self.session, self.link, self._wake
        while True:
            wake.clear()
            pieces = session.transmit(self.link_id, self._now(), SEND_BYTES)
            if pieces:
                await link.send(pieces)
            else:
                await wake.wait()

    async def _receive(self) -> None:
        while True:
            self._take(await self.link.receive())

    def _take(self, data: bytes) -> None:
        happened = self.session.receive(self.link_id, data, self._now())
        self._wake.set()
        if happened:
            self._dispatch(self.session, happened)

    async def _farewell(self) -> None:
        try:
            async with asyncio.timeout(FAREWELL_SECONDS):
                while pieces := self.session.transmit(self.link_id, self._now(), SEND_BYTES):
                    await self.link.send(pieces)
        except (TimeoutError, Broken):
            return
