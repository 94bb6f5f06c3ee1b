"""One link under a session: a task that sends, a task that receives, until the link ends.

Holds no state of the session: it moves bytes between `Session` and `Link`, and hands the events on. Whether
its task or a caller sends now is decided in send_turn.py.
"""

import asyncio
from collections.abc import Callable

from meshd.base.errors import Broken, Closed, RemoteProtocolError
from meshd.base.fault_boundary import Contained, Fault
from meshd.base.tasks import Owner, cancel_and_wait, first_error
from meshd.link.interface import Link
from meshd.mux.events import Event
from meshd.mux.session import Session
from meshd.peer.send_turn import (
    ASKED,
    FED,
    FEED,
    FEED_FAILED,
    FULL,
    IDLE,
    SEND,
    SENT,
    TASK_RESTS,
    TASK_WORKS,
    WAKE,
    WORKING,
)

SEND_BYTES = 256 << 10  # one turn of the sender: small enough that a control frame does not wait long
_FAREWELL_SECONDS = 0.5


class LinkDriver:
    """Moves bytes between one attached link and its session."""

    def __init__(
        self,
        *,
        link: Link,
        link_id: int,
        session: Session,
        now: Callable[[], float],
        dispatch: Callable[[Session, list[Event]], None],
        deliver: Callable[[Session, int, bytes | memoryview], None],
        rearm: Callable[[float], None],
        contained: Contained,
    ) -> None:
        self.link = link
        self.link_id = link_id
        self.session = session
        self._now = now
        self._limited = session.limited
        self._dispatch = dispatch
        self._deliver = deliver
        self._rearm = rearm
        self._contained = contained
        self._wake = asyncio.Event()
        self._ending = asyncio.Event()
        self.why = ""
        self._turn = WORKING
        self._fault: RemoteProtocolError | Fault | None = None
        self._held: list[bytes | memoryview] = []  # what a full link has not taken: first of all

    def wake(self) -> None:
        """The session may have something to send: at once where nothing is in the way."""
        self._turn, act = ASKED[self._turn]
        if act is SEND:
            self._send_now()
        elif act is WAKE:
            self._wake.set()

    def pass_on(self, stream_id: int, data: bytes) -> bool:
        """Write to a stream and send it at once; False, and nothing done, where that takes more steps."""
        if self._turn != IDLE:
            return False
        pieces = self.session.fast_path.send(self.link_id, stream_id, data, self._now())
        if pieces is None:
            return False
        try:
            if self.link.try_send(pieces):
                return True
        except (Broken, Closed):
            pieces = [b""]  # the task meets the same error
        self._keep(pieces)
        return True

    def _send_now(self) -> None:
        """Saves the turn of the event loop that waking the sender's task would cost."""
        try:
            while pieces := self.session.transmit(self.link_id, self._now(), SEND_BYTES):
                if not self.link.try_send(pieces):
                    self._keep(pieces)
                    return
                if sum(map(len, pieces)) < SEND_BYTES:
                    return  # that was all there is
        except (Broken, Closed):
            self._keep([b""])  # the task meets the same error
        finally:
            self._turn = SENT[self._turn]
            if self._limited:
                self._mind_timer()

    def _keep(self, pieces: list[bytes | memoryview]) -> None:
        """For the task, before anything else."""
        self._held = pieces
        self._turn = FULL[self._turn]
        self._wake.set()

    def _mind_timer(self) -> None:
        at = self.session.take_timer_at()
        if at is not None:
            self._rearm(at)

    def end(self, why: str) -> None:
        """Send the rest (a goodbye), then leave `carry` with Broken(why)."""
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
                self.link.divert(self._took)
                await self._ending.wait()
                await cancel_and_wait(sender, receiver)
                await self._farewell()
        except ExceptionGroup as group:
            raise first_error(group) from None
        raise self._fault or Broken(self.why)

    async def _send(self) -> None:
        session, link, wake = self.session, self.link, self._wake
        while True:
            wake.clear()
            held, self._held = self._held, []
            pieces = held or session.transmit(self.link_id, self._now(), SEND_BYTES)
            if pieces:
                await link.send(pieces)
            else:
                self._turn = TASK_RESTS[self._turn]
                self._mind_timer()
                try:
                    await wake.wait()
                finally:
                    self._turn = TASK_WORKS[self._turn]

    async def _receive(self) -> None:
        while True:
            self._take(await self.link.receive())

    def _took(self, data: bytes | memoryview) -> bool:
        if self._ending.is_set():
            return True  # of a link that is being closed
        try:
            with self._contained:  # nobody is below but the event loop
                self._take(data)
        except (RemoteProtocolError, Fault) as error:
            self._fault = error
            self.end(error.what)
        return True

    def _take(self, data: bytes | memoryview) -> None:
        self._turn = FEED[self._turn]
        session, now = self.session, self._now()
        try:
            arrived = session.fast_path.receive(self.link_id, data, now)
            if arrived is not None:
                stream_id, payload, ask = arrived
                self._deliver(session, stream_id, payload)
            else:
                ask = True
                self._dispatch(session, session.receive(self.link_id, data, now))
        except BaseException:
            self._turn = FEED_FAILED[self._turn]
            raise
        self._turn, act = FED[self._turn]
        if act is SEND:
            self._send_now()
        elif act is WAKE:
            self._wake.set()
        elif ask and session.due(self.link_id, now):
            self.wake()
        self._mind_timer()

    async def _farewell(self) -> None:
        try:
            async with asyncio.timeout(_FAREWELL_SECONDS):
                while pieces := self.session.transmit(self.link_id, self._now(), SEND_BYTES):
                    await self.link.send(pieces)
        except (TimeoutError, Broken):
            return
