"""All peers of this node: their services, their sessions, and their status.

`PeerTable` holds the peers with which there is something now, each in its own task; only the table begins and
ends them. presence.py decides with which members to keep a session; base/peer_limits.py limits the number of
peers, and of one issuer's peers that called us.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from meshd.base import log
from meshd.base.errors import Broken, MeshdError, RemoteProtocolError, UserError
from meshd.base.fault_boundary import Contained, Fault, contained
from meshd.base.peer_limits import TABLED_ADMITTED, TABLED_PEERS
from meshd.base.tasks import Owner, boot_seconds, watch_sleep
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter, Member
from meshd.identity.record import PeerRecord
from meshd.link.interface import Dialer, Link, LinkInfo, LinkKind
from meshd.mux.events import Code
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
from meshd.peer.limits import DialRates
from meshd.peer.news import News
from meshd.peer.node import Node, Service
from meshd.peer.peer import Peer
from meshd.peer.presence import MemberPresence, in_order
from meshd.peer.presence_gossip import Signer
from meshd.peer.streams import OF_THE_MESH
from meshd.wire.hello import Hello
from meshd.wire.news import NEWS_SERVICE

MESH_LOOK_SECONDS = 2.0  # how often a large mesh is checked
SESSION_IDLE_SECONDS = 60.0  # without a stream, until a session that neither end keeps is ended
_AGAIN_SECONDS = 5.0  # after an unexpected failure, until the peer is served again
LOG = log.get("peer")


class UnknownPeer(UserError):
    """Raised if no peer has that name or id."""


def find(text: str, *, me: PeerId, names: Mapping[PeerId, str]) -> PeerId:
    """Return the peer in `names`, which include ours, that `text` means. identity/naming.py has the rules.

    Raises UnknownPeer, or UserError if it is this node, or fits several.
    """
    by_id = {str(peer): peer for peer in names}
    found = [by_id[node] for node in naming.meant(text, {str(peer): name for peer, name in names.items()})]
    if not found:
        raise UnknownPeer(f"no node `{text}` is known", hint="run `meshd peers` for names and ids")
    if len(found) > 1:
        found.sort(key=lambda peer: peer != me)
        shown = ", ".join("this node" if peer == me else peer.short for peer in found)
        raise UserError(
            f"`{text}` matches {len(found)} nodes: {shown}",
            hint="give the first ten characters of its id, or more",
        )
    if found == [me]:
        raise UserError(f"`{text}` is this node itself", hint="give another node's name or id")
    return found[0]


class PeerTable(Mapping[PeerId, Peer]):
    """Map ids to peers. `owner` runs them; without one no peer begins. `rates` counts their dials."""

    def __init__(
        self,
        *,
        node: Node,
        book: Book,
        presence: MemberPresence,
        dialers: Sequence[Dialer],
        rng: Callable[[], float],
    ) -> None:
        self._node = node
        self._book = book
        self._presence = presence
        self.dialers = dialers
        self._rng = rng
        self.rates = DialRates()
        self._peers: dict[PeerId, Peer] = {}
        self.owner: Owner | None = None

    def __getitem__(self, peer: PeerId) -> Peer:
        return self._peers[peer]

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def wish(self, peer: PeerId) -> Peer | None:
        """Return the peer, which is begun if a session with it is to be kept."""
        known = self._peers.get(peer)
        if known is None and peer in self._book.peers() and self._presence.wants(peer):
            known = self.begin(peer)
        return known

    def begin(self, peer: PeerId, *, caller: Admitter | None = None) -> Peer | None:
        """Return the peer, creating it if necessary; None if there is no room for it.

        `caller`: the admitter of a peer that calls us.
        """
        known = self._peers.get(peer)
        if known is not None:
            return known
        if self.owner is None or peer == self._node.peer or not self._has_room(peer, caller):
            return None
        known = self._peers[peer] = Peer(
            node=self._node,
            peer=peer,
            book=self._book,
            dialers=self.dialers,
            rates=self.rates,
            rng=self._rng,
            admitter=caller,
        )
        known.wanted = self._presence.wants(peer)
        known.facts.take_name()
        self.owner.start_for(f"peer {peer.short}", self._live(known), name=f"peer {peer.short}")
        self._node.changed()
        return known

    def is_linked(self, peer: PeerId) -> bool:
        """Say whether there is a link to the peer."""
        known = self._peers.get(peer)
        return known is not None and known.linked

    def demand(self, peer: PeerId) -> Peer | None:
        """Return the peer, since a session with it is needed now; None if it is unknown."""
        known = self._peers.get(peer)
        if known is None:
            if peer not in self._book.peers():
                return None
            self._presence.demand(peer)
            known = self.begin(peer)
        if known is not None:
            self._presence.demand(peer)
            known.wanted = True
            known.used_at = self._node.now()
            known.dial_for_news(if_away=True)
        return known

    def drop(self, peer: PeerId, code: Code, why: str) -> None:
        """End everything with a peer that is no longer a member."""
        known = self._peers.pop(peer, None)
        if known is not None:
            known.close(code, why)
            known.drop()

    def retire(self, peer: PeerId) -> None:
        """Drop a member that nobody needs: its record stays in the book."""
        self._peers.pop(peer).drop()

    def _has_room(self, peer: PeerId, caller: Admitter | None) -> bool:
        if len(self._peers) >= TABLED_PEERS.most:
            return False
        if caller is None or self._presence.keeps(peer):
            return True
        alike = (other for other, known in self._peers.items() if known.admitter == caller)
        return sum(not self._presence.keeps(other) for other in alike) < TABLED_ADMITTED.most

    async def _live(self, known: Peer) -> None:
        """Run a peer until it is dropped. After an unexpected failure it is begun again."""
        peer = known.id
        source = f"peer {peer.short}"
        try:
            await contained(known.serve(), source=source, name="connection", blame=known.blame)
        except MeshdError:
            if self._peers.get(peer) is known:
                del self._peers[peer]
            with suppress(Fault), Contained(source, "connection", known.blame):
                known.close(Code.NONE, "it failed here")  # closes the links that others own
            await asyncio.sleep(_AGAIN_SECONDS)
            self.wish(peer)


class PeerMesh:
    """The mesh (implements `Mesh` and `NodeEvents`). `serve` must run for anything to happen."""

    def __init__(
        self,
        *,
        node: Node,
        book: Book,
        dialers: Sequence[Dialer],
        rng: Callable[[], float],
        signer: Signer,
        boot: Callable[[], float] = boot_seconds,
    ) -> None:
        self._node = node
        self._book = book
        self._rng = rng
        self._boot = boot
        self._leaving = False
        self.presence = MemberPresence(node=node, book=book, signer=signer, rng=rng)
        self.table = PeerTable(node=node, book=book, presence=self.presence, dialers=dialers, rng=rng)
        self.news = News(node, book, self.presence.gossip, heard=self._heard, greeted=self._greeted)
        self.on_bans: Callable[[], None] = lambda: None  # after each change of the bans
        book.spare(self.table.is_linked)
        node.events = self
        node.services[NEWS_SERVICE] = Service(self.news.talk, lambda _member, _metadata: None, once=True)

    # Mesh.

    def peers(self) -> Sequence[PeerStatus]:
        """Return the status of each peer (see Mesh); members known only by their record are `known`."""
        found = [known.status() for known in self.table.values()]
        found += [self._unmet(peer) for peer in self._book.peers() if peer not in self.table]
        ids = sorted(str(peer) for peer in (self._node.peer, *(status.peer for status in found)))
        return [self._shown(status, ids) for status in found]

    def _unmet(self, peer: PeerId) -> PeerStatus:
        """Return the status of a member with which this node has nothing now."""
        record = self._book.record(peer)
        status = PeerStatus(peer, since=self.presence.met(peer))
        if record is not None:
            status = replace(status, name=naming.shown(record.name), role=record.role)
        return status

    def _shown(self, status: PeerStatus, ids: Sequence[str]) -> PeerStatus:
        """Add gossip about the peer, its faults, and a mark to a name with which one of `ids` begins."""
        record = self._book.record(status.peer)
        faults, last_fault = self._node.faults.recent(status.peer, self._node.now())
        return replace(
            self._with_presence(status),
            name=naming.shown_among(status.name, str(status.peer), ids),
            faults=faults,
            last_fault=last_fault,
            paused=record is not None and record.is_paused,
            fetching=record is not None and record.is_fetching,
            software=(record.software if record is not None else "") or status.software,
        )

    def _with_presence(self, status: PeerStatus) -> PeerStatus:
        """Add what gossip says of a peer that is not connected because nobody needs it: whether it runs."""
        if not self.presence.large or status.state in (PeerState.CONNECTED, PeerState.SUSPENDED):
            return status
        if self.presence.present(status.peer):
            away = status.state is PeerState.LOST  # seen only from here
            return replace(status, state=PeerState.KNOWN if away else status.state, present=True)
        since = self.presence.away_since(status.peer)
        return status if since is None else replace(status, state=PeerState.LOST, since=since)

    def find(self, text: str, also: Iterable[PeerId] = ()) -> PeerId:
        """Return the peer that `text` means, or one of `also`, which need not be peers now.

        Raises UnknownPeer, or UserError if it is this node, or fits several.
        """
        names = dict.fromkeys(also, "")
        for peer in self._book.peers():
            record = self._book.record(peer)
            names[peer] = naming.shown(record.name) if record is not None else ""
        names |= {peer: known.facts.name for peer, known in self.table.items()}
        return find(text, me=self._node.peer, names=names | {self._node.peer: self._node.facts.name})

    def member(self, peer: PeerId) -> Member | None:
        """Return the peer as a member, or None if it has not greeted yet."""
        known = self.table.get(peer)
        return known.facts.member if known is not None else None

    def open_stream(
        self, peer: PeerId, service: str, *, metadata: Mapping[str, MetadataValue], bulk: bool = False
    ) -> Stream:
        """Open a stream to the peer, connecting on demand. Raises Broken."""
        known = self.table.get(peer) if service in OF_THE_MESH else self.table.demand(peer)
        if known is None:
            raise Broken(f"unknown peer {peer.short}")
        return known.open_stream(service, metadata, bulk=bulk)

    def handle(self, service: str, handler: Handler, *, allow: Allow, quiet: bool = False) -> None:
        """Serve streams of `service`; `quiet` as in Service."""
        self._node.services[service] = Service(handler, allow, quiet)

    def reachable(self) -> Sequence[PeerId]:
        """Return the peers that have a link."""
        return [peer for peer, known in self.table.items() if known.linked]

    def direct(self) -> Sequence[PeerId]:
        """Return the peers whose data is not relayed (link/relayed/through_member.py)."""
        return [
            peer
            for peer, known in self.table.items()
            if any(path.selected and path.link.kind is not LinkKind.RELAY for path in known.status().paths)
        ]

    def hears(self, peer: PeerId) -> bool:
        """Say whether something was heard from the peer a moment ago."""
        known = self.table.get(peer)
        return known is not None and known.hears

    async def changed(self, seen: int) -> int:
        """Wait until the version differs from `seen` and return it."""
        return await self._node.wait_changed(seen)

    async def ping(self, peer: PeerId, within: float) -> tuple[float, PathStatus]:
        """Return the round trip in seconds, and the path it took. Raises Broken."""
        began = self._node.now()
        known = await self._reach(peer, within)
        return await known.ping(max(0.01, began + within - self._node.now()))

    async def reach(self, peer: PeerId, within: float) -> None:
        """Connect to a member that is not connected because nobody needed it. Raises Broken."""
        await self._reach(peer, within)

    async def _reach(self, peer: PeerId, within: float) -> Peer:
        """Wait until data can be sent; return at once if a session is kept anyway, connected or not."""
        known = self.table.get(peer)
        if known is not None and known.wanted:
            return known
        known = self.table.demand(peer)
        if known is None:
            raise Broken(f"unknown peer {peer.short}")
        try:
            async with asyncio.timeout(within):
                seen = -1
                while not any(path.selected for path in known.status().paths):
                    seen = await self._node.wait_changed(seen)
        except TimeoutError:
            raise known.facts.not_connected() from None
        return known

    # Life.

    async def serve(self) -> None:
        """Connect to all known members, and keep them connected until cancelled; then say goodbye."""
        try:
            async with Owner() as owner:
                if not self._leaving:
                    self.table.owner = owner
                self.presence.tick(())
                owner.start(self._keep_sessions(), name="sessions")
                self._add_wanted()
                await watch_sleep(self._woke, boot=self._boot)  # until cancelled
        finally:
            self.table.owner = None

    def say_goodbye(self, reason: str, *, code: Code = Code.SHUTDOWN) -> None:
        """End all sessions on purpose, and make no new ones; the caller then gives the links a moment."""
        self.stop_connecting()
        for known in self.table.values():
            known.close(code, reason)

    def stop_connecting(self) -> None:
        """Make no new connections, dialled or accepted, from here on; those that are there continue."""
        self._leaving = True
        self.table.owner = None
        for known in self.table.values():
            known.stop()

    async def accept(self, link: Link) -> None:
        """Run a link that a listener accepted."""
        caller = link.info.member.chain.admitter
        known = None if self._leaving else self.table.begin(link.info.peer, caller=caller)
        if known is None:
            await link.aclose()
            return
        try:
            await known.run_link(link)
        except MeshdError as error:
            LOG.info("link_refused", peer=link.info.peer.short, why=error.what)

    def expect(self, peer: PeerId) -> None:
        """Begin to connect to a peer that is known by address only (from an invite)."""
        self.presence.tick(self.reachable())
        self.table.wish(peer)

    def seen_nearby(self, peer: PeerId) -> None:
        """Dial a peer that was just seen in one of our networks, unless it is connected."""
        known = self.table.wish(peer)
        if known is not None:
            known.dial_for_news()

    def addresses_changed(self) -> None:
        """Test all links and dial all peers, as our own addresses changed: links may be dead unnoticed."""
        for known in self.table.values():
            known.poke(although_connected=True)

    def nat_changed(self) -> None:
        """Retry what failed, as this node's network is better known, or lets other things through."""
        for known in self.table.values():
            known.poke()

    def _woke(self, slept: float) -> None:
        LOG.info("woke_up", seconds=round(slept, 1))
        self._node.host.woke()
        self.addresses_changed()

    def record_changed(self) -> None:
        """Publish our new record."""
        self._node.changed()

    async def _keep_sessions(self) -> None:
        """Keep few sessions in a large mesh, and end unneeded sessions."""
        while True:
            await asyncio.sleep(MESH_LOOK_SECONDS)
            self.presence.tick(self.reachable())
            self._add_wanted()
            now = self._node.now()
            for peer, known in list(self.table.items()):
                known.wanted = self.presence.wants(peer)
                if known.in_use:
                    self.presence.demand(peer)
                if known.wanted or known.in_use:
                    known.used_at = now
                elif now - known.used_at < SESSION_IDLE_SECONDS:
                    continue
                elif not known.linked and not known.session_id:
                    self.table.retire(peer)
                elif known.linked and known.leads:
                    known.close(Code.IDLE, "it is not needed now")

    def _add_wanted(self) -> None:
        for peer in in_order(self.presence.wishes() - self.table.keys()):
            self.table.begin(peer)

    def _drop(self, peer: PeerId, code: Code, why: str) -> None:
        """Forget a peer that is no longer a member: its record, and everything with it."""
        self._book.forget(peer)
        self.presence.forget(peer)
        self.table.drop(peer, code, why)
        self._node.changed()

    def forget(self, peer: PeerId) -> None:
        """Drop a member that is away from this node's records, until the member itself is heard of again.

        Raises UserError while it is connected.
        """
        known = self.table.get(peer)
        if self.presence.present(peer) or (known is not None and known.session_id):
            name = known.facts.label if known is not None else peer.short
            raise UserError(
                f"`{name}` is connected, or was a moment ago",
                hint="stop meshd there, or wait until it is shown as away; `meshd revoke` bans a node",
            )
        self._drop(peer, Code.NONE, "it was forgotten here")

    def _heard(self, record: PeerRecord) -> None:
        if record.has_left:
            LOG.info("peer_left", peer=record.peer.short, name=naming.shown(record.name))
            self._drop(record.peer, Code.NONE, "it has left the mesh")
            return
        self._known_now(record.peer)
        known = self.table.wish(record.peer)
        if known is not None:
            if not known.linked:
                known.facts.take_name()
            known.dial_for_news()

    def _known_now(self, peer: PeerId) -> None:
        """Note a peer whose record is new: if it dialled us before we knew it, it is wanted from now on."""
        if self.presence.large:  # others may be next to us on the ring now: see _keep_sessions
            return
        self.presence.tick(self.reachable())
        known = self.table.get(peer)
        if known is not None:
            known.wanted = self.presence.wants(peer)

    def _greeted(self, peer: PeerId) -> int:
        known = self.table.get(peer)
        return 0 if known is None else known.facts.greeted_sequence

    def link_made(self, peer: PeerId, hello: Hello, info: LinkInfo) -> None:
        """Note a link that has greeted. Raises RemoteProtocolError if the peer's record is not valid."""
        record = PeerRecord.decode(hello.record)
        if record.peer != peer:
            raise RemoteProtocolError("a greeting contains another node's record", code="record")
        self.table.rates.link_made(info)
        others = [other for other in self.table.values() if other.id != peer]
        if not any(other.linked for other in others):  # this node was alone: its network may be back
            for other in others:
                other.dial_for_news(if_away=True)
        if self._book.add(record, from_itself=True):
            self._node.changed()
            if record.has_left:
                self._drop(peer, Code.NONE, "it has left the mesh")
            else:
                self._known_now(peer)
        known = self.table.get(peer)
        if known is None:
            return  # dropped while it greeted
        known.facts.greeted_sequence = record.sequence
        if known.leads and known.news_session != known.session_id and self.table.owner:
            self._keep_news(known, self.table.owner)

    def _keep_news(self, known: Peer, owner: Owner) -> None:
        """Exchange news with the peer while its present session lasts."""
        session = known.news_session = known.session_id

        def open_stream() -> Stream:
            if known.session_id != session:
                raise Broken("the session has ended")
            return known.open_stream(NEWS_SERVICE, {}, bulk=False)

        if known.news is not None:
            known.news.cancel()  # of the previous session: it waits
        known.news = owner.start_for(
            f"peer {known.id.short}",
            self.news.keep(known.id, open_stream, self._rng),
            name=f"news {known.id.short}",
            blame=known.blame,
        )

    def said_goodbye(self, peer: PeerId, code: int) -> None:
        if code != Code.IDLE:
            if not self._leaving:  # otherwise it answers our own leave
                LOG.info("peer_left", peer=peer.short, code=code)
            self.presence.parted(peer)
        if code == Code.LEFT:
            self._drop(peer, Code.NONE, "it has left the mesh")

    def bans_changed(self) -> None:
        """Close the sessions with banned nodes, and tell the others."""
        bans = self._node.bans
        for peer in dict.fromkeys([*self.table, *self._book.peers()]):
            record, member = self._book.record(peer), self.member(peer)
            chain = member.chain if member is not None else record and record.chain
            why = bans.why_banned(chain) if chain else bans.why_node_banned(peer)
            if why is not None:
                LOG.warning("peer_banned", peer=peer.short, why=why)
                self._drop(peer, Code.BANNED, why)
        self.on_bans()
        self._node.changed()
