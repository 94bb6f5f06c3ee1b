"""All peers of this node: the table of connections, and what keeps them connected."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshd.base import log
from meshd.base.errors import Broken, MeshdError, RemoteProtocolError, UserError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.identity.record import PeerRecord
from meshd.link.interface import Dialer, Link, LinkInfo, LinkKind
from meshd.mux.events import Code
from meshd.peer.connection import PeerConnection
from meshd.peer.connector import Connector
from meshd.peer.crowd import Crowd, Signer
from meshd.peer.interface import (
    Allow,
    Book,
    Handler,
    MetadataValue,
    PathStatus,
    PeerState,
    PeerStatus,
    Stream,
)
from meshd.peer.news import News
from meshd.peer.node import Node, Service
from meshd.peer.streams import OF_THE_MESH
from meshd.peer.wake import boot_seconds, watch_sleep
from meshd.wire.hello import Hello
from meshd.wire.news import NEWS_SERVICE

MAX_PEERS = 256
LOOK_SECONDS = 2.0  # how often a large mesh is looked at
IDLE_SECONDS = 60.0  # without a stream, until a session that neither end keeps is ended
FAREWELL_SECONDS = 3.0  # for the goodbye to a node that is dropped; then its links are cut
LOG = log.get("peer")


class UnknownPeer(UserError):
    """No peer has that name or id."""


@dataclass(slots=True)
class _Entry:
    connection: PeerConnection
    connector: Connector
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    news_session: bytes = b""  # the session in which we opened the news stream
    used_at: float = 0.0  # when it was wanted, or a stream was open, the last time that we looked


class PeerMesh:
    """Implements `Mesh`. `serve` must run for anything to happen."""

    def __init__(
        self,
        *,
        node: Node,
        book: Book,
        dialers: Sequence[Dialer],
        chance: Callable[[], float],
        boot: Callable[[], float] = boot_seconds,
        signer: Signer | None = None,
    ) -> None:
        self._node = node
        self._book = book
        self._dialers = dialers
        self._chance = chance
        self._boot = boot
        self._peers: dict[PeerId, _Entry] = {}
        self._owner: Owner | None = None
        self._leaving = False
        self._crowd = Crowd(node=node, book=book, signer=signer, chance=chance)
        self._news = News(node, book, self._crowd, heard=self._heard)
        node.on_link = self._link_made
        node.on_goodbye = self._said_goodbye
        node.on_bans = lambda _entries: self._drop_banned()
        self.handle(NEWS_SERVICE, self._news.talk, allow=lambda _member, _metadata: None)

    # Mesh.

    def peers(self) -> Sequence[PeerStatus]:
        """See Mesh; members that are only known from their record come as `known`."""
        return [self._shown(entry.connection.status()) for entry in self._peers.values()]

    def _shown(self, status: PeerStatus) -> PeerStatus:
        """Of a peer that is not connected because nobody needs it, news tell whether it is there."""
        if not self._crowd.large or status.state in (PeerState.CONNECTED, PeerState.SUSPENDED):
            return status
        if self._crowd.present(status.peer):
            away = status.state is PeerState.LOST  # from here only
            return replace(status, state=PeerState.KNOWN if away else status.state, present=True)
        heard = self._crowd.last_heard(status.peer)
        return status if heard is None else replace(status, state=PeerState.LOST, since=heard)

    def member(self, peer: PeerId) -> Member | None:
        """See Mesh."""
        entry = self._peers.get(peer)
        return entry.connection.member if entry is not None else None

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        """See Mesh."""
        entry = self._peers.get(peer)
        if entry is None:
            raise Broken(f"unknown peer {peer.short}")
        if service not in OF_THE_MESH:
            self._demand(entry)
        return entry.connection.open_stream(service, metadata, bulk=bulk)

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        """See Mesh; `quiet` as in Service."""
        self._node.services[service] = Service(handler, allow, quiet)

    def reachable(self) -> Sequence[PeerId]:
        """See signals.Carriers."""
        return [peer for peer, entry in self._peers.items() if entry.connection.linked]

    def direct(self) -> Sequence[PeerId]:
        """Peers whose data goes over a link that is not relayed (link/member_relay.py)."""
        return [
            peer
            for peer, entry in self._peers.items()
            if any(
                path.selected and path.link.kind is not LinkKind.RELAY
                for path in entry.connection.status().paths
            )
        ]

    def hears(self, peer: PeerId) -> bool:
        """See signals.Carriers."""
        entry = self._peers.get(peer)
        return entry is not None and entry.connection.hears

    async def changed(self, seen: int) -> int:
        """See Mesh."""
        return await self._node.wait_changed(seen)

    async def ping(self, peer: PeerId, within: float) -> tuple[float, PathStatus]:
        """Round trip in seconds, and the path it took. Raises Broken."""
        entry = self._peers.get(peer)
        if entry is None:
            raise Broken(f"unknown peer {peer.short}")
        began = self._node.now()
        await self._reach(entry, within)
        return await entry.connection.ping(max(0.01, began + within - self._node.now()))

    async def reach(self, peer: PeerId, within: float) -> None:
        """Have a session with a member that is not connected because nobody needed it. Raises Broken."""
        entry = self._peers.get(peer)
        if entry is None:
            raise Broken(f"unknown peer {peer.short}")
        await self._reach(entry, within)

    async def _reach(self, entry: _Entry, within: float) -> None:
        """Returns at once where a session is kept anyway, connected or not."""
        if entry.connector.wanted:
            return
        self._demand(entry)
        try:
            async with asyncio.timeout(within):
                seen = -1
                while not any(path.selected for path in entry.connection.status().paths):
                    seen = await self._node.wait_changed(seen)
        except TimeoutError:
            why = entry.connection.last_error
            raise Broken(f"not connected to {entry.connection.label}: {why or 'no link yet'}") from None

    def _demand(self, entry: _Entry) -> None:
        self._crowd.demand(entry.connection.peer)
        entry.connector.wanted = True
        entry.used_at = self._node.now()

    def find(self, text: str) -> PeerId:
        """A peer by its name, its id, or the beginning of its id. Raises UnknownPeer, or UserError when it
        is this node, or fits several."""
        me = self._node.facts
        known = {me.peer: me.name, **{peer: entry.connection.name for peer, entry in self._peers.items()}}
        names = [peer for peer, name in known.items() if name == text]
        ids = [peer for peer in known if len(text) >= 4 and str(peer).startswith(text.lower())]
        found = names or ids
        if not found:
            raise UnknownPeer(f"no node `{text}` is known", hint="`meshd peers` lists names and ids")
        if len(found) > 1:
            shown = ", ".join("this node" if peer == me.peer else str(peer)[:10] for peer in found)
            raise UserError(f"`{text}` fits {len(found)} nodes: {shown}", hint="give the beginning of its id")
        if found == [me.peer]:
            raise UserError(f"`{text}` is this node itself", hint="give the name or id of another one")
        return found[0]

    # Life.

    async def serve(self) -> None:
        """Connect to all known members, and keep at it until cancelled; then say goodbye."""
        try:
            async with Owner() as owner:
                self._owner = owner
                self._crowd.tick(())
                owner.start(self._keep_sessions(), name="sessions")
                for peer in self._book.peers():
                    self.expect(peer)
                await watch_sleep(self._woke, boot=self._boot)  # until cancelled
        finally:
            self._owner = None

    def say_goodbye(self, reason: str, *, code: Code = Code.SHUTDOWN) -> None:
        """End all sessions on purpose, and make no new ones; the caller then gives the links a moment."""
        self._leaving = True
        for entry in self._peers.values():
            entry.connector.stop()
            entry.connection.close(code, reason)

    async def accept(self, link: Link) -> None:
        """Own a link that a listener took in."""
        entry = self._entry(link.info.peer)
        if entry is None or self._leaving:
            await link.aclose()
            return
        try:
            await entry.connection.run_link(link)
        except MeshdError as error:
            LOG.info("link_refused", peer=link.info.peer.short, why=error.what)

    def expect(self, peer: PeerId) -> None:
        """Begin to connect to a peer that is known by address only (from a token)."""
        self._entry(peer)

    def seen_nearby(self, peer: PeerId) -> None:
        """It was just seen in one of our networks: dial now, unless it is connected."""
        entry = self._entry(peer)
        if entry is not None:
            entry.connector.poke()

    def addresses_changed(self) -> None:
        """Our own addresses are others now: old links may be dead without knowing it."""
        for entry in self._peers.values():
            entry.connector.poke(although_connected=True)

    def nat_changed(self) -> None:
        """More is known of this node's network, or it lets other things through: try again what failed."""
        for entry in self._peers.values():
            entry.connector.poke()

    def _woke(self, slept: float) -> None:
        LOG.info("woke_up", seconds=round(slept, 1))
        self._node.on_wake()
        self.addresses_changed()

    def record_changed(self) -> None:
        """Our own record is another one: tell everybody."""
        self._node.changed()

    async def _keep_sessions(self) -> None:
        """In a large mesh: keep few sessions, and end those that nobody needs."""
        while True:
            await asyncio.sleep(LOOK_SECONDS)
            self._crowd.tick(self.reachable())
            now = self._node.now()
            for peer, entry in list(self._peers.items()):
                entry.connector.wanted = self._crowd.wants(peer)
                if entry.connection.in_use:
                    self._crowd.demand(peer)
                if entry.connector.wanted or entry.connection.in_use or not entry.connection.linked:
                    entry.used_at = now
                elif entry.connection.leads and now - entry.used_at >= IDLE_SECONDS:
                    entry.connection.close(Code.IDLE, "nobody needs it now")

    def _entry(self, peer: PeerId) -> _Entry | None:
        entry = self._peers.get(peer)
        if entry is None:
            if self._owner is None or peer == self._node.peer or len(self._peers) >= MAX_PEERS:
                return None
            connection = PeerConnection(self._node, peer)
            connector = Connector(
                node=self._node,
                connection=connection,
                book=self._book,
                dialers=self._dialers,
                chance=self._chance,
            )
            entry = _Entry(connection, connector, used_at=self._node.now())
            self._crowd.tick(self.reachable())  # with one more member others may be next to us
            connector.wanted = self._crowd.wants(peer)
            self._name_from_record(connection)
            self._peers[peer] = entry
            self._owner.start(self._live(entry), name=f"peer {peer.short}")
            self._node.changed()
        return entry

    async def _live(self, entry: _Entry) -> None:
        """Until the peer is dropped, and the goodbye to it is out."""
        connection = entry.connection
        async with Owner() as owner:
            owner.start(connection.serve(), name=f"connection {connection.peer.short}")
            owner.start(entry.connector.serve(), name=f"connector {connection.peer.short}")
            await entry.gone.wait()
            try:
                async with asyncio.timeout(FAREWELL_SECONDS):
                    seen = -1
                    while connection.linked:
                        seen = await self._node.wait_changed(seen)
            except TimeoutError:
                pass
            connection.close(Code.NONE, "not a member any more")  # a link that was made meanwhile
            owner.cancel()

    def _drop(self, peer: PeerId, code: Code, why: str) -> None:
        """A peer is no member any more: forget where it is, end what there is with it, show it no longer."""
        self._book.forget(peer)
        entry = self._peers.pop(peer, None)
        if entry is not None:
            entry.connector.stop()
            entry.connection.close(code, why)
            entry.gone.set()
        self._node.changed()

    def _heard(self, record: PeerRecord) -> None:
        if record.has_left:
            LOG.info("peer_left", peer=record.peer.short, name=record.name)
            self._drop(record.peer, Code.NONE, "it has left the mesh")
            return
        entry = self._entry(record.peer)
        if entry is not None:
            self._name_from_record(entry.connection)
            entry.connector.poke()

    def _name_from_record(self, connection: PeerConnection) -> None:
        record = self._book.record(connection.peer)
        if record is not None and not connection.linked:
            connection.name, connection.role = record.name, record.role

    def _link_made(self, peer: PeerId, hello: Hello, _info: LinkInfo) -> None:
        try:
            record = PeerRecord.decode(hello.record)
            if record.peer == peer and self._book.add(record):
                self._node.changed()
                if record.has_left:
                    self._drop(peer, Code.NONE, "it has left the mesh")
        except RemoteProtocolError as error:
            LOG.warning("record_refused", peer=peer.short, why=error.what)
        entry = self._peers.get(peer)
        if entry is None:
            return  # dropped while it greeted
        if entry.connection.leads and entry.news_session != entry.connection.session_id and self._owner:
            entry.news_session = entry.connection.session_id
            stream = entry.connection.open_stream(NEWS_SERVICE, {}, bulk=False)
            self._owner.start(self._news.talk(stream), name=f"news {peer.short}")

    def _said_goodbye(self, peer: PeerId, code: int) -> None:
        if code != Code.IDLE:
            LOG.info("peer_left", peer=peer.short, code=code)
        if code == Code.LEFT:
            self._drop(peer, Code.NONE, "it has left the mesh")

    def _drop_banned(self) -> None:
        bans = self._node.bans
        for peer, entry in list(self._peers.items()):
            record = self._book.record(peer)
            chain = entry.connection.member.chain if entry.connection.member else record and record.chain
            why = bans.why_banned(chain) if chain else bans.why_node_banned(peer)
            if why is not None:
                LOG.warning("peer_banned", peer=peer.short, why=why)
                self._drop(peer, Code.BANNED, why)
        self._node.changed()
