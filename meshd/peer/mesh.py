"""All peers of this node: what others ask of them, and what keeps them connected.

What there is with each stands in peer_table.py, how people see them in roster.py.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence

from meshd.base import log
from meshd.base.errors import Broken, MeshdError, RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.identity.record import PeerRecord
from meshd.link.interface import Dialer, Link, LinkInfo, LinkKind
from meshd.mux.events import Code
from meshd.peer.interface import (
    Allow,
    Book,
    Handler,
    MetadataValue,
    PathStatus,
    PeerStatus,
    Stream,
)
from meshd.peer.news import News
from meshd.peer.node import Node, Service
from meshd.peer.peer_table import PeerEntry, PeerTable
from meshd.peer.presence import MemberPresence, in_order
from meshd.peer.presence_gossip import Signer
from meshd.peer.roster import MemberRoster
from meshd.peer.streams import OF_THE_MESH
from meshd.peer.suspend_detector import boot_seconds, watch_sleep
from meshd.wire.hello import Hello
from meshd.wire.news import NEWS_SERVICE

MESH_LOOK_SECONDS = 2.0  # how often a large mesh is looked at
SESSION_IDLE_SECONDS = 60.0  # without a stream, until a session that neither end keeps is ended
LOG = log.get("peer")


class PeerMesh:
    """Implements `Mesh` and `NodeEvents`. `serve` must run for anything to happen."""

    def __init__(
        self,
        *,
        node: Node,
        book: Book,
        dialers: Sequence[Dialer],
        rng: Callable[[], float],
        boot: Callable[[], float] = boot_seconds,
        signer: Signer | None = None,
    ) -> None:
        self._node = node
        self._book = book
        self._rng = rng
        self._boot = boot
        self._leaving = False
        self._presence = MemberPresence(node=node, book=book, signer=signer, rng=rng)
        self._peers = PeerTable(node=node, book=book, presence=self._presence, dialers=dialers, rng=rng)
        self._roster = MemberRoster(node, book, self._presence, self._peers)
        self._news = News(node, book, self._presence.gossip, heard=self._heard)
        book.spare(self._peers.is_linked)
        node.subscribe(self)
        node.services[NEWS_SERVICE] = Service(self._news.talk, lambda _member, _metadata: None, once=True)

    # Mesh.

    def peers(self) -> Sequence[PeerStatus]:
        """See Mesh; members that are only known from their record come as `known`."""
        return self._roster.peers()

    def find(self, text: str, also: Iterable[PeerId] = ()) -> PeerId:
        """The peer that `text` means, or one of `also`, which need not be peers now. Raises UnknownPeer, or
        UserError when it is this node, or fits several."""
        return self._roster.find(text, also)

    def member(self, peer: PeerId) -> Member | None:
        """See Mesh."""
        entry = self._peers.get(peer)
        return entry.connection.view.member if entry is not None else None

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        """See Mesh."""
        entry = self._peers.get(peer) if service in OF_THE_MESH else self._peers.demand(peer)
        if entry is None:
            raise Broken(f"unknown peer {peer.short}")
        return entry.connection.open_stream(service, metadata, bulk=bulk)

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        """See Mesh; `quiet` as in Service."""
        self._node.services[service] = Service(handler, allow, quiet)

    def reachable(self) -> Sequence[PeerId]:
        """See signals.Carriers."""
        return [peer for peer, entry in self._peers.items() if entry.connection.linked]

    def direct(self) -> Sequence[PeerId]:
        """Peers whose data goes over a link that is not relayed (link/relayed/through_member.py)."""
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
        began = self._node.now()
        entry = await self._reach(peer, within)
        return await entry.connection.ping(max(0.01, began + within - self._node.now()))

    async def reach(self, peer: PeerId, within: float) -> None:
        """Have a session with a member that is not connected because nobody needed it. Raises Broken."""
        await self._reach(peer, within)

    async def _reach(self, peer: PeerId, within: float) -> PeerEntry:
        """Returns at once where a session is kept anyway, connected or not."""
        kept = self._peers.get(peer)
        if kept is not None and kept.connector.wanted:
            return kept
        entry = self._peers.demand(peer)
        if entry is None:
            raise Broken(f"unknown peer {peer.short}")
        try:
            async with asyncio.timeout(within):
                seen = -1
                while not any(path.selected for path in entry.connection.status().paths):
                    seen = await self._node.wait_changed(seen)
        except TimeoutError:
            why = entry.connection.view.last_error
            raise Broken(f"not connected to {entry.connection.view.label}: {why or 'no link yet'}") from None
        return entry

    # Life.

    async def serve(self) -> None:
        """Connect to all known members, and keep at it until cancelled; then say goodbye."""
        try:
            async with Owner() as owner:
                self._peers.owner = owner
                self._presence.tick(())
                owner.start(self._keep_sessions(), name="sessions")
                self._add_wanted()
                await watch_sleep(self._woke, boot=self._boot)  # until cancelled
        finally:
            self._peers.owner = None

    def say_goodbye(self, reason: str, *, code: Code = Code.SHUTDOWN) -> None:
        """End all sessions on purpose, and make no new ones; the caller then gives the links a moment."""
        self._leaving = True
        for entry in self._peers.values():
            entry.connector.stop()
            entry.connection.close(code, reason)

    async def accept(self, link: Link) -> None:
        """Own a link that a listener took in."""
        caller = link.info.member.chain.admitter
        entry = None if self._leaving else self._peers.entry(link.info.peer, caller=caller)
        if entry is None:
            await link.aclose()
            return
        try:
            await entry.connection.run_link(link)
        except MeshdError as error:
            LOG.info("link_refused", peer=link.info.peer.short, why=error.what)

    def expect(self, peer: PeerId) -> None:
        """Begin to connect to a peer that is known by address only (from a token)."""
        self._presence.tick(self.reachable())
        self._peers.wish(peer)

    def seen_nearby(self, peer: PeerId) -> None:
        """It was just seen in one of our networks: dial now, unless it is connected."""
        entry = self._peers.wish(peer)
        if entry is not None:
            entry.connector.told()

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
        self._node.host.woke()
        self.addresses_changed()

    def record_changed(self) -> None:
        """Our own record is another one: tell everybody."""
        self._node.changed()

    async def _keep_sessions(self) -> None:
        """In a large mesh: keep few sessions, and end those that nobody needs."""
        while True:
            await asyncio.sleep(MESH_LOOK_SECONDS)
            self._presence.tick(self.reachable())
            self._add_wanted()
            now = self._node.now()
            for peer, entry in list(self._peers.items()):
                entry.connector.wanted = self._presence.wants(peer)
                if entry.connection.in_use:
                    self._presence.demand(peer)
                if entry.connector.wanted or entry.connection.in_use:
                    entry.used_at = now
                elif now - entry.used_at < SESSION_IDLE_SECONDS:
                    continue
                elif not entry.connection.linked and not entry.connection.session_id:
                    self._peers.retire(peer, entry)
                elif entry.connection.linked and entry.connection.leads:
                    entry.connection.close(Code.IDLE, "it is not needed now")

    def _add_wanted(self) -> None:
        for peer in in_order(self._presence.wishes() - self._peers.keys()):
            self._peers.entry(peer)

    def _drop(self, peer: PeerId, code: Code, why: str) -> None:
        """A peer is no member any more: forget where it is, end what there is with it, show it no longer."""
        self._book.forget(peer)
        self._presence.forget(peer)
        self._peers.drop(peer, code, why)
        self._node.changed()

    def _heard(self, record: PeerRecord) -> None:
        if record.has_left:
            LOG.info("peer_left", peer=record.peer.short, name=naming.shown(record.name))
            self._drop(record.peer, Code.NONE, "it has left the mesh")
            return
        self._known_now(record.peer)
        entry = self._peers.wish(record.peer)
        if entry is not None:
            self._peers.name_from_record(entry.connection)
            entry.connector.told()

    def _known_now(self, peer: PeerId) -> None:
        """Its record is new. One that dialled us before we knew it is wanted from now on."""
        if self._presence.large:  # others may be next to us now: see _keep_sessions
            return
        self._presence.tick(self.reachable())
        entry = self._peers.get(peer)
        if entry is not None:
            entry.connector.wanted = self._presence.wants(peer)

    def link_made(self, peer: PeerId, hello: Hello, _info: LinkInfo) -> None:
        """Raises RemoteProtocolError where the peer shows no good record: it would never be a member here."""
        record = PeerRecord.decode(hello.record)
        if record.peer != peer:
            raise RemoteProtocolError("a greeting contains another node's record", code="record")
        if self._book.add(record):
            self._node.changed()
            if record.has_left:
                self._drop(peer, Code.NONE, "it has left the mesh")
            else:
                self._known_now(peer)
        entry = self._peers.get(peer)
        if entry is None:
            return  # dropped while it greeted
        if entry.connection.leads and entry.news_session != entry.connection.session_id and self._peers.owner:
            self._keep_news(entry, self._peers.owner)

    def _keep_news(self, entry: PeerEntry, owner: Owner) -> None:
        """Speak of news with the peer for as long as its session of now lasts."""
        connection = entry.connection
        session = entry.news_session = connection.session_id

        def open_stream() -> Stream:
            if connection.session_id != session:
                raise Broken("the session has ended")
            return connection.open_stream(NEWS_SERVICE, {}, bulk=False)

        if entry.news is not None:
            entry.news.cancel()  # of the session before: it waits
        entry.news = owner.start_for(
            f"peer {connection.peer.short}",
            self._news.keep(connection.peer, open_stream, self._rng),
            name=f"news {connection.peer.short}",
            blame=connection.blame,
        )

    def said_goodbye(self, peer: PeerId, code: int) -> None:
        if code != Code.IDLE:
            LOG.info("peer_left", peer=peer.short, code=code)
            self._presence.parted(peer)
        if code == Code.LEFT:
            self._drop(peer, Code.NONE, "it has left the mesh")

    def bans_changed(self) -> None:
        """A node is banned: close its sessions, and tell the others."""
        bans = self._node.bans
        for peer in dict.fromkeys([*self._peers, *self._book.peers()]):
            entry, record = self._peers.get(peer), self._book.record(peer)
            member = entry.connection.view.member if entry is not None else None
            chain = member.chain if member is not None else record and record.chain
            why = bans.why_banned(chain) if chain else bans.why_node_banned(peer)
            if why is not None:
                LOG.warning("peer_banned", peer=peer.short, why=why)
                self._drop(peer, Code.BANNED, why)
        self._node.changed()
