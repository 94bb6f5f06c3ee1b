"""The streams of one session: made, fed with events, and broken together when the session is lost."""

import asyncio
from collections.abc import Callable, Mapping

from meshd.base import log
from meshd.base.errors import Broken, Busy, Closed, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.fault_boundary import Blame, Contained, Fault
from meshd.base.peer_limits import NEWS_STREAMS
from meshd.base.tasks import Owner
from meshd.base.token_bucket import TokenBucket
from meshd.base.work_slots import Release
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.mux import events
from meshd.mux.config import Priority
from meshd.mux.events import Code
from meshd.mux.session import Session
from meshd.peer.interface import MetadataValue
from meshd.peer.node import Node, Service
from meshd.peer.stream import MeshStream
from meshd.wire.news import NEWS_SERVICE
from meshd.wire.signal import SIGNAL_SERVICE

OF_THE_MESH = frozenset({NEWS_SERVICE, SIGNAL_SERVICE})  # services that keep no session alive
MAX_REASON = 200  # characters of a reset's reason
FAILED = "this node failed to handle it"  # what went wrong here is nothing to tell
LOG = log.get("peer")


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
        self._streams: dict[int, MeshStream] = {}
        self._once: set[str] = set()  # services of which the peer has its one stream now
        self._paces: dict[str, TokenBucket] = {}  # of those: how often it may have another one

    def open(self, service: str, metadata: Mapping[str, MetadataValue], *, bulk: bool) -> MeshStream:
        """Raises Busy when too many streams are open, Broken when the session is over."""
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
        """True while a stream is open that is not of the mesh's own."""
        return any(stream.service not in OF_THE_MESH for stream in self._streams.values())

    def break_all(self, reason: str) -> None:
        """The session has ended under them."""
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.break_with(Broken(reason))

    def deliver(self, stream_id: int, data: bytes | memoryview) -> None:
        """Hand on what arrived for a stream; nothing, if it has just gone."""
        stream = self._streams.get(stream_id)
        if stream is not None:
            stream.feed(data)

    def feed(self, event: events.Event, member: Member | None) -> None:
        """Act on a stream's event; others, and those of a stream that has just gone, are left alone."""
        match event:
            case events.Writable(stream_id=stream_id) if stream_id in self._streams:
                self._streams[stream_id].wake_writer()
            case events.StreamAccepted(stream_id=stream_id) if stream_id in self._streams:
                self._streams[stream_id].mark_accepted()
            case events.StreamEnded(stream_id=stream_id) if stream_id in self._streams:
                self._streams[stream_id].feed_eof()
            case events.StreamReset(stream_id=stream_id) if stream_id in self._streams:
                self._streams.pop(stream_id).feed_reset(event.code, event.reason)
            case events.StreamOpened():
                self._opened(event, member)
            case _:
                pass

    def _opened(self, event: events.StreamOpened, member: Member | None) -> None:
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
        if why is not None:  # a place of its own, given back even by a handler that never began
            release = why
            task.add_done_callback(lambda _: release())

    def _why_not(self, service: Service, member: Member, event: events.StreamOpened) -> str | Release | None:
        try:
            with self._contained(event.service):
                return service.allow(member, event.metadata)
        except Fault:
            return FAILED

    def _may_have(self, service: str) -> bool:
        """One at a time; another one after it, at a pace."""
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
        self._streams[stream_id] = stream
        return stream

    def _forget(self, stream_id: int) -> None:
        self._streams.pop(stream_id, None)
