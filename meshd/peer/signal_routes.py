"""Routes of a signal to a peer: a session with it, one hop through a member, a relay's mailbox.

A live session is enough; without one all others are tried at once, and the receiver drops what comes twice.
One stream of service `signal` carries one signal: nothing is kept between two of them, and a session that
comes and goes needs no care.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from meshd.base import log
from meshd.base.ask_history import Asked
from meshd.base.errors import Broken, Closed, MeshdError
from meshd.base.peer_limits import SIGNALLERS_KNOWN, SIGNALS_SENT
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.peer.interface import Allow, Handler, MetadataValue, Stream
from meshd.wire.signal import SIGNAL_SERVICE

MAX_UNDER_WAY = SIGNALS_SENT.most
FORWARDERS = 3  # members asked at once to pass a signal on
ROUTE_SECONDS = 3.0  # that a route may take; then it counts as none
SIGNAL_TO = "to"  # metadata of a stream whose signal is to be passed on: the node id
LOG = log.get("peer")
T = TypeVar("T")
Work = Callable[[], Coroutine[object, object, None]]


class MailRoute(Protocol):
    """A relay's mailbox: for peers with which nothing else is shared. Blobs have at most 6 KiB."""

    async def send_mail(self, to: PeerId, blob: bytes) -> None:
        """Hand it to the relay. Raises MeshdError when that cannot be done now."""
        ...

    async def receive_mail(self) -> tuple[PeerId, bytes]:
        """The next blob, and from whom the relay says it is; waits through losses of the relay."""
        ...


class Carriers(Protocol):
    """What signals need of the mesh (peer/mesh.py)."""

    def reachable(self) -> Sequence[PeerId]:
        """Peers with a link now."""
        ...

    def hears(self, peer: PeerId) -> bool:
        """Is there a link to it from which something was heard a moment ago?"""
        ...

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream: ...
    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None: ...


class SignalRoutes:
    """Hands blobs by whatever route there is. `serve` must run for any route but a live session."""

    def __init__(self, mail: MailRoute | None, rng: Callable[[], float]) -> None:
        self._mail = mail
        self._carriers: Carriers | None = None
        self._asked: Asked[PeerId, PeerId] = Asked(rng)  # members, by whom a signal is to reach
        self._owner: Owner | None = None
        self._under_way = 0

    def attach(self, carriers: Carriers) -> None:
        """Sessions carry signals from here on."""
        self._carriers = carriers

    async def serve(self, works: Sequence[Work]) -> None:
        """Own running deliveries, and `works`, until cancelled."""
        try:
            async with Owner() as owner:
                self._owner = owner
                for work in works:
                    owner.start(work(), name="signals")
                await asyncio.Event().wait()  # until cancelled
        finally:
            self._owner = None

    def came_through(self, peer: PeerId, member: PeerId) -> None:
        """A good signal of `peer` came by `member`: so it has a session with it."""
        self._asked.helped(member, peer)

    def reaches(self, peer: object) -> bool:
        """Is there a link to the node with this id (raw bytes)?"""
        return self._carriers is not None and any(one.raw == peer for one in self._carriers.reachable())

    def start(self, work: Work, peer: PeerId) -> None:
        """Own `work`, unless there is too much already."""
        if self._owner is not None and self._under_way < MAX_UNDER_WAY:
            with contextlib.suppress(Closed):
                self._owner.start_for(
                    f"peer {peer.short}", self._counted(work), name=f"signal to {peer.short}"
                )
                self._under_way += 1

    async def _counted(self, work: Work) -> None:
        try:
            await work()
        except Broken as error:
            LOG.debug("signal_way_failed", why=error.what)
        finally:
            self._under_way -= 1

    async def hand(self, peer: PeerId, blob: bytes) -> None:
        """Returns when one route has taken it. Raises Broken when none has."""
        carriers = self._carriers
        if carriers is not None and carriers.hears(peer):
            try:
                await self.by_session(peer, blob)
                return
            except MeshdError as error:
                LOG.debug("signal_way_failed", peer=peer.short, why=error.what)
        routes = self._routes(peer, blob)
        owner = self._owner
        if not routes or owner is None or self._under_way + len(routes) > MAX_UNDER_WAY:
            raise Broken(f"cannot send a signal to {peer.short}")
        race = _Race(len(routes))
        try:
            for route in routes:
                owner.start_for(f"peer {peer.short}", self._try(route, race), name=f"signal to {peer.short}")
                self._under_way += 1
        except Closed as error:
            raise Broken(f"cannot send a signal to {peer.short}: {error.what}") from error
        if not await race.won():
            raise Broken(f"cannot send a signal to {peer.short}")

    def _routes(self, peer: PeerId, blob: bytes) -> list[Work]:
        """All of them at once: the receiver drops what comes twice."""
        routes: list[Work] = []
        reachable = list(self._carriers.reachable()) if self._carriers is not None else []
        if peer in reachable:  # silent for a moment; perhaps not dead
            routes.append(partial(self.by_session, peer, blob))
            reachable.remove(peer)
        for forwarder in self._asked.order(reachable, peer, asyncio.get_running_loop().time())[:FORWARDERS]:
            routes.append(partial(self._by_member, forwarder, peer, blob))
        if self._mail is not None:
            routes.append(partial(self._mail.send_mail, peer, blob))
        return routes

    async def _try(self, route: Work, race: "_Race") -> None:
        won = False
        try:
            async with asyncio.timeout(ROUTE_SECONDS):
                await route()
            won = True
        except (MeshdError, TimeoutError) as error:
            LOG.debug("signal_way_failed", why=str(error))
        finally:
            self._under_way -= 1
            race.ended(won=won)

    async def by_session(self, peer: PeerId, blob: bytes) -> None:
        """Raises Broken when there is none."""
        await self._write(self._open(peer, {}), blob)

    async def _by_member(self, forwarder: PeerId, peer: PeerId, blob: bytes) -> None:
        try:
            stream = self._open(forwarder, {SIGNAL_TO: peer.raw})
            await self._write(stream, blob)
            await stream.accepted()  # its word only: that the peer has it, a signal of the peer shows
        except (MeshdError, asyncio.CancelledError):
            self._asked.failed(forwarder, peer, asyncio.get_running_loop().time())
            raise

    def _open(self, peer: PeerId, metadata: Mapping[str, MetadataValue]) -> Stream:
        if self._carriers is None:
            raise Broken("signals are not attached to the mesh yet")
        return self._carriers.open_stream(peer, SIGNAL_SERVICE, metadata=metadata)

    async def _write(self, stream: Stream, blob: bytes) -> None:
        written = False
        try:
            await stream.write(blob)
            stream.write_eof()
            written = True
        finally:
            if not written:
                stream.reset(1, "signal given up")


class _Race:
    """Waits for the first of some routes that has taken a signal."""

    def __init__(self, count: int) -> None:
        self._left = count
        self._won = False
        self._over = asyncio.Event()

    def ended(self, *, won: bool) -> None:
        self._left -= 1
        self._won = self._won or won
        if self._won or not self._left:
            self._over.set()

    async def won(self) -> bool:
        await self._over.wait()
        return self._won


def bounded(kept: dict[PeerId, T], peer: PeerId, value: T) -> None:
    """Put it at the end; of more peers than a mesh may have, the one silent longest goes."""
    kept.pop(peer, None)
    kept[peer] = value
    if len(kept) > SIGNALLERS_KNOWN.most:
        del kept[next(iter(kept))]
