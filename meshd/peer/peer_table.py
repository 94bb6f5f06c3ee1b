"""The peers that there is something with now: a connection and a connector each, in a task of their own.

Nobody else begins or ends them. Whom to keep a session with is decided in presence.py; how many peers there
may be, and how many of one issuer that called us, stands in base/peer_limits.py.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from meshd.base.errors import MeshdError
from meshd.base.fault_boundary import Contained, Fault, contained
from meshd.base.peer_limits import TABLED_ADMITTED, TABLED_PEERS
from meshd.base.tasks import Owner
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter
from meshd.link.interface import Dialer
from meshd.mux.events import Code
from meshd.peer.connection import PeerConnection
from meshd.peer.connector import Connector, DialRates
from meshd.peer.interface import Book
from meshd.peer.node import Node
from meshd.peer.presence import MemberPresence

_AGAIN_SECONDS = 5.0  # after something failed that nobody foresaw, until a peer is looked after again
_FAREWELL_SECONDS = 3.0  # for the goodbye to a node that is dropped; then its links are cut


@dataclass(slots=True)
class PeerEntry:
    """What there is with one peer."""

    connection: PeerConnection
    connector: Connector
    admitter: Admitter | None = None  # of one that called us
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    news_session: bytes = b""  # the session in which we keep a news stream open
    news: asyncio.Task[None] | None = None  # what keeps it open
    used_at: float = 0.0  # when it was wanted, or a stream was open, the last time that we looked


class PeerTable(Mapping[PeerId, PeerEntry]):
    """By peer; `owner` runs them, and without one none begins."""

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
        self._dialers = dialers
        self._rng = rng
        self._rates = DialRates()
        self._peers: dict[PeerId, PeerEntry] = {}
        self.owner: Owner | None = None

    def __getitem__(self, peer: PeerId) -> PeerEntry:
        return self._peers[peer]

    def __iter__(self) -> Iterator[PeerId]:
        return iter(self._peers)

    def __len__(self) -> int:
        return len(self._peers)

    def wish(self, peer: PeerId) -> PeerEntry | None:
        """What there is with a peer; begun where a session with it is to be kept."""
        entry = self._peers.get(peer)
        if entry is None and peer in self._book.peers() and self._presence.wants(peer):
            entry = self.entry(peer)
        return entry

    def entry(self, peer: PeerId, *, caller: Admitter | None = None) -> PeerEntry | None:
        """What there is with a peer, made if there is nothing yet; None: there is no room for it."""
        entry = self._peers.get(peer)
        if entry is not None:
            return entry
        if self.owner is None or peer == self._node.peer or not self._has_room(peer, caller):
            return None
        connector = Connector(
            node=self._node,
            peer=peer,
            book=self._book,
            dialers=self._dialers,
            rates=self._rates,
            rng=self._rng,
        )
        connection = connector.connection
        entry = PeerEntry(connection, connector, admitter=caller, used_at=self._node.now())
        connector.wanted = self._presence.wants(peer)
        self.name_from_record(connection)
        self._peers[peer] = entry
        self.owner.start_for(f"peer {peer.short}", self._live(entry), name=f"peer {peer.short}")
        self._node.changed()
        return entry

    def is_linked(self, peer: PeerId) -> bool:
        """Is there a link to it?"""
        entry = self._peers.get(peer)
        return entry is not None and entry.connection.linked

    def demand(self, peer: PeerId) -> PeerEntry | None:
        """Somebody needs a session with a member now. None: it is unknown."""
        entry = self._peers.get(peer)
        if entry is None:
            if peer not in self._book.peers():
                return None
            self._presence.demand(peer)
            entry = self.entry(peer)
        if entry is not None:
            self._presence.demand(peer)
            entry.connector.wanted = True
            entry.used_at = self._node.now()
        return entry

    def drop(self, peer: PeerId, code: Code, why: str) -> None:
        """End what there is with a peer: it is no member any more."""
        entry = self._peers.pop(peer, None)
        if entry is not None:
            entry.connector.stop()
            entry.connection.close(code, why)
            entry.gone.set()

    def _has_room(self, peer: PeerId, caller: Admitter | None) -> bool:
        if len(self._peers) >= TABLED_PEERS.most:
            return False
        if caller is None or self._presence.keeps(peer):
            return True
        alike = (other for other, entry in self._peers.items() if entry.admitter == caller)
        return sum(not self._presence.keeps(other) for other in alike) < TABLED_ADMITTED.most

    def retire(self, peer: PeerId, entry: PeerEntry) -> None:
        """Drop a member that nobody needs: its record stays in the book."""
        del self._peers[peer]
        entry.connector.stop()
        entry.gone.set()

    async def _live(self, entry: PeerEntry) -> None:
        """Until the peer is dropped. If its life fails in a way that nobody foresaw, another one begins."""
        peer = entry.connection.peer
        source, blame = f"peer {peer.short}", entry.connection.blame
        try:
            await contained(self._one_life(entry), source=source, name="connection", blame=blame)
        except MeshdError:
            if self._peers.get(peer) is entry:
                del self._peers[peer]
            with suppress(Fault), Contained(source, "connection", blame):
                entry.connection.close(Code.NONE, "it failed here")  # the links that others own
            await asyncio.sleep(_AGAIN_SECONDS)
            self.wish(peer)

    async def _one_life(self, entry: PeerEntry) -> None:
        """Until the peer is dropped, and the goodbye to it is out."""
        connection = entry.connection
        async with Owner() as owner:
            owner.start(connection.serve(), name=f"connection {connection.peer.short}")
            owner.start(entry.connector.serve(), name=f"connector {connection.peer.short}")
            await entry.gone.wait()
            try:
                async with asyncio.timeout(_FAREWELL_SECONDS):
                    seen = -1
                    while connection.linked:
                        seen = await self._node.wait_changed(seen)
            except TimeoutError:
                pass
            connection.close(Code.NONE, "not a member any more")  # a link that was made meanwhile
            owner.cancel()

    def name_from_record(self, connection: PeerConnection) -> None:
        """Call a peer that is not linked what its record says."""
        record = self._book.record(connection.peer)
        if record is not None and not connection.linked:
            connection.view.name, connection.view.role = naming.shown(record.name), record.role
