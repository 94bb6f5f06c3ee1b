"""Carry streams over the session with one peer: reads and writes that wait for data and credit.

`MeshStream` is the asyncio face of one mux stream. `Streams` has all streams of one session: it creates them,
feeds them with events, runs the handlers of those that the peer opens, and breaks them together when the
session is lost.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping
from typing import Protocol

from meshd.base import log
from meshd.base.admission import Release, TokenBucket
from meshd.base.errors import (
    Broken,
    Busy,
    Closed,
    EndOfStream,
    LocalProtocolError,
    MeshdError,
    Refused,
    RemoteProtocolError,
)
from meshd.base.fault_boundary import Blame, Contained, Fault
from meshd.base.peer_limits import NEWS_STREAMS
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.mux import events
from meshd.mux.config import Priority
from meshd.mux.events import Code
from meshd.mux.session import Session
from meshd.peer.interface import MetadataValue
from meshd.peer.node import Node, Service
from meshd.wire.news import NEWS_SERVICE
from meshd.wire.signal import SIGNAL_SERVICE

OF_THE_MESH = frozenset({NEWS_SERVICE, SIGNAL_SERVICE})  # services that keep no session alive
MAX_REASON = 200  # characters of a reset's reason
FAILED = "this node failed to handle it"  # a failure here is none of the peer's business
LOG = log.get("peer")


class MuxPort(Protocol):
    """The part of a session that a stream uses."""

    def write(self, stream_id: int, data: bytes | memoryview) -> int: ...
    def write_eof(self, stream_id: int) -> None: ...
    def reset(self, stream_id: int, code: int, reason: str) -> None: ...
    def consumed(self, stream_id: int, count: int) -> bool: ...


class MeshStream:
    """A stream over a session (implements `Stream`); `Streams` feeds it with received data."""

    def __init__(
        self,
        *,
        port: MuxPort,
        wake: Callable[[], None],
        pass_on: Callable[[int, bytes], bool],
        on_done: Callable[[int], None],
        stream_id: int,
        peer: PeerId,
        service: str,
        metadata: Mapping[str, MetadataValue],
    ) -> None:
        self._port = port
        self._wake = wake
        self._pass_on = pass_on
        self._on_done = on_done
        self._id = stream_id
        self.peer = peer
        self.service = service
        self.metadata = metadata
        self._chunks: deque[bytes] = deque()  # bounded by the stream's window (mux)
        self._take: Callable[[bytes | memoryview], bool] | None = None
        self._ended = False
        self._accepted = False
        self._eof_sent = False
        self._error: MeshdError | None = None
        self._reader = _Bell()
        self._writer = _Bell()
        self._taker = _Bell()

    async def accepted(self) -> None:
        """Wait until the peer accepts the stream. Raises Refused, Broken."""
        while not self._accepted:
            if self._error is not None:
                raise self._error.afresh()
            await self._taker.wait("wait for acceptance of")

    async def read(self) -> bytes | memoryview:
        """Return the next chunk. Raises EndOfStream, Broken, Busy."""
        while not self._chunks:
            if self._error is not None:
                raise self._error.afresh()
            if self._ended:
                raise EndOfStream("the peer ended the stream")
            await self._reader.wait("read")
        return self._chunks.popleft()

    def divert(self, take: Callable[[bytes | memoryview], bool] | None) -> None:
        """Offer each chunk to `take` as it arrives; None ends that."""
        self._take = take

    def try_write(self, data: bytes | memoryview) -> int:
        """Write what can be accepted without waiting; return the number of bytes."""
        if self._error is not None or self._eof_sent or self._writer.future is not None:
            return 0
        if type(data) is bytes and self._pass_on(self._id, data):
            return len(data)
        try:
            taken = self._port.write(self._id, data)
        except Closed:
            return 0  # the session is over; `write` raises the reason
        if taken:
            self._wake()
        return taken

    def consumed(self, count: int) -> None:
        """Give credit for `count` bytes back to the peer."""
        if self._error is None:
            try:
                if self._port.consumed(self._id, count):
                    self._wake()
            except Closed as error:
                self.break_with(_broken(error))

    async def write(self, data: bytes | memoryview) -> None:
        """Write all of `data`, waiting for credit. Raises Broken, Busy."""
        if self._eof_sent:
            raise LocalProtocolError("write after the end of the stream was sent")
        left = data
        while len(left):
            if self._error is not None:
                raise self._error.afresh()
            try:
                taken = self._port.write(self._id, left)
            except Closed as error:
                self.break_with(_broken(error))
                continue
            if taken:
                self._wake()
                if taken == len(left):
                    return
                left = memoryview(left)[taken:]
            else:
                await self._writer.wait("write")

    def write_eof(self) -> None:
        """Half-close the stream."""
        if self._error is None and not self._eof_sent:
            self._eof_sent = True
            try:
                self._port.write_eof(self._id)
            except Closed as error:
                self.break_with(_broken(error))
            self._wake()
            if self._ended:
                self._on_done(self._id)

    def reset(self, code: int, reason: str) -> None:
        """Reset the stream."""
        if self._error is None and not (self._eof_sent and self._ended and not self._chunks):
            try:
                self._port.reset(self._id, code, reason)
            except Closed as error:
                self.break_with(_broken(error))
            self._wake()
            self._on_done(self._id)
        self.break_with(Broken(f"stream reset: {reason}"))

    # Called by `Streams`.

    def feed(self, data: bytes | memoryview) -> None:
        """Take in received data, in order."""
        if self._take is not None and not self._chunks and self._take(data):
            return
        self._chunks.append(bytes(data))  # a view would keep more alive than it shows
        self._reader.ring()

    def feed_eof(self) -> None:
        """Note the peer's half-close."""
        self._ended = True
        self._reader.ring()
        if self._eof_sent:
            self._on_done(self._id)

    def feed_reset(self, code: int, reason: str) -> None:
        """Note the peer's reset, or its refusal."""
        if code in (Code.REFUSED, Code.UNKNOWN_SERVICE) and not self._accepted:
            self.break_with(Refused(reason, code="refused"))
        else:
            self.break_with(Broken(f"the peer reset the stream: {reason}"))

    def mark_accepted(self) -> None:
        """Note that the other side accepted the stream."""
        self._accepted = True
        self._taker.ring()

    def wake_writer(self) -> None:
        """Wake the writer, as credit has come."""
        self._writer.ring()

    def break_with(self, error: MeshdError) -> None:
        """End the stream with `error`; the first error stays."""
        if self._error is None:
            self._error = error
            self._chunks.clear()
        for bell in (self._reader, self._writer, self._taker):
            bell.ring()


def _broken(error: Closed) -> Broken:
    """Return Broken for a session that is over: to the user of a stream that is a loss, no bug."""
    return Broken(error.what)


class _Bell:
    """A bell for one waiting task, rung by anybody; a second waiter is a bug of the caller."""

    __slots__ = ("future",)

    def __init__(self) -> None:
        self.future: asyncio.Future[None] | None = None  # while a task waits

    async def wait(self, what: str) -> None:
        if self.future is not None:
            raise Busy(f"two tasks {what} one stream")
        self.future = asyncio.get_running_loop().create_future()
        try:
            await self.future
        finally:
            self.future = None

    def ring(self) -> None:
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Streams:
    """All streams of `session`, ours and the peer's; `owner` runs the handlers of the peer's."""

    def __init__(
        self,
        *,
        session: Session,
        peer: PeerId,
        node: Node,
        owner: Owner,
        wake: Callable[[], None],
        pass_on: Callable[[int, bytes], bool],
        blame: Blame,
    ) -> None:
        self.session = session
        self._peer = peer
        self._node = node
        self._owner = owner
        self._wake = wake
        self._pass_on = pass_on
        self._blame = blame
        self.by_id: dict[int, MeshStream] = {}  # the open streams
        self._once: set[str] = set()  # services for which the peer's single stream is open
        # How often the peer may open another stream of such a service.
        self._paces: dict[str, TokenBucket] = {}

    def open(self, service: str, metadata: Mapping[str, MetadataValue], *, bulk: bool) -> MeshStream:
        """Open a stream. Raises Busy when too many are open, Broken when the session is over."""
        priority = Priority.BULK if bulk else Priority.INTERACTIVE
        try:
            stream_id = self.session.open(service, metadata, priority)
        except Closed as error:
            raise Broken(error.what) from error
        stream = self._add(stream_id, service, metadata)
        self._wake()
        return stream

    @property
    def in_use(self) -> bool:
        """True while a stream is open that is not of the mesh itself."""
        return any(stream.service not in OF_THE_MESH for stream in self.by_id.values())

    def break_all(self, reason: str) -> None:
        """Break all streams, as the session has ended."""
        streams, self.by_id = self.by_id, {}
        for stream in streams.values():
            stream.break_with(Broken(reason))

    def deliver(self, stream_id: int, data: bytes | memoryview) -> None:
        """Hand received data to its stream; drop it if the stream has just gone."""
        stream = self.by_id.get(stream_id)
        if stream is not None:
            stream.feed(data)

    def feed(self, event: events.Event, member: Member | None) -> None:
        """Act on a stream's event. Other events, and those of a stream that has just gone, are ignored."""
        match event:
            case events.Writable(stream_id=stream_id) if stream_id in self.by_id:
                self.by_id[stream_id].wake_writer()
            case events.StreamAccepted(stream_id=stream_id) if stream_id in self.by_id:
                self.by_id[stream_id].mark_accepted()
            case events.StreamEnded(stream_id=stream_id) if stream_id in self.by_id:
                self.by_id[stream_id].feed_eof()
            case events.StreamReset(stream_id=stream_id) if stream_id in self.by_id:
                self.by_id.pop(stream_id).feed_reset(event.code, event.reason)
            case events.StreamOpened():
                self._opened(event, member)
            case _:
                pass

    def _opened(self, event: events.StreamOpened, member: Member | None) -> None:
        # Refuse what is unknown or not allowed.
        service = self._node.services.get(event.service)
        if service is None or member is None or not self._owner.is_open:
            reason = f"no service `{event.service}` here"
            self.session.reset(event.stream_id, Code.UNKNOWN_SERVICE, reason[:MAX_REASON])
            return
        if service.once and not self._may_have(event.service):
            why: str | Release | None = f"a session can have only one stream of `{event.service}`"
        else:
            why = self._why_not(service, member, event)
        if isinstance(why, str):
            say = LOG.debug if service.quiet or service.once else LOG.warning
            say("stream_refused", peer=self._peer.short, service=event.service, why=why)
            self.session.reset(event.stream_id, Code.REFUSED, why[:MAX_REASON])
            return
        # Accept the stream, and run its handler.
        self.session.accept(event.stream_id)
        stream = self._add(event.stream_id, event.service, event.metadata)
        task = self._owner.start_for(
            f"peer {self._peer.short}",
            self._handle(stream, service),
            name=f"stream {event.service}",
            blame=self._blame,
        )
        if service.once:
            self._once.add(event.service)
            task.add_done_callback(lambda _: self._once.discard(event.service))
        if why is not None:  # a reserved place, released even if the handler never began
            release = why
            task.add_done_callback(lambda _: release())

    def _why_not(self, service: Service, member: Member, event: events.StreamOpened) -> str | Release | None:
        try:
            with self._contained(event.service):
                return service.allow(member, event.metadata)
        except Fault:
            return FAILED

    def _may_have(self, service: str) -> bool:
        """Allow one stream at a time, and the next one at a pace."""
        now = self._node.now()
        pace = self._paces.setdefault(service, NEWS_STREAMS.bucket(now))
        return service not in self._once and pace.spend(1, now)

    def _contained(self, service: str) -> Contained:
        return Contained(f"peer {self._peer.short}", f"stream {service}", self._blame)

    async def _handle(self, stream: MeshStream, service: Service) -> None:
        try:
            with self._contained(stream.service):
                await service.handler(stream)
        except Fault:
            stream.reset(Code.BROKEN, FAILED)
        except (Broken, EndOfStream, RemoteProtocolError, Busy) as error:
            LOG.debug("stream_ended", peer=self._peer.short, service=stream.service, why=error.what)
            stream.reset(Code.BROKEN, error.what[:MAX_REASON])
        except MeshdError as error:
            LOG.warning("stream_failed", peer=self._peer.short, service=stream.service, why=error.what)
            stream.reset(Code.REFUSED, error.what[:MAX_REASON])
        except asyncio.CancelledError:
            stream.reset(Code.SHUTDOWN, "this node is stopping")
            raise

    def _add(self, stream_id: int, service: str, metadata: Mapping[str, MetadataValue]) -> MeshStream:
        stream = MeshStream(
            port=self.session,
            wake=self._wake,
            pass_on=self._pass_on,
            on_done=self._forget,
            stream_id=stream_id,
            peer=self._peer,
            service=service,
            metadata=metadata,
        )
        self.by_id[stream_id] = stream
        return stream

    def _forget(self, stream_id: int) -> None:
        self.by_id.pop(stream_id, None)
