"""All members as people see them: their status, their names, and which one a text means."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.peer.interface import Book, PeerState, PeerStatus
from meshd.peer.naming import find
from meshd.peer.node import Node
from meshd.peer.peer_table import PeerTable
from meshd.peer.presence import MemberPresence


class MemberRoster:
    """Of those that there is something with now (`table`), and of those that only the book knows."""

    def __init__(self, node: Node, book: Book, presence: MemberPresence, table: PeerTable) -> None:
        self._node = node
        self._book = book
        self._presence = presence
        self._table = table

    def peers(self) -> Sequence[PeerStatus]:
        """See Mesh; members that are only known from their record come as `known`."""
        found = [entry.connection.status() for entry in self._table.values()]
        found += [self._known(peer) for peer in self._book.peers() if peer not in self._table]
        ids = sorted(str(peer) for peer in (self._node.peer, *(status.peer for status in found)))
        return [self._named(self._paused(self._blamed(self._shown(status))), ids) for status in found]

    def _paused(self, status: PeerStatus) -> PeerStatus:
        record = self._book.record(status.peer)
        return replace(status, paused=True) if record is not None and record.is_paused else status

    def _blamed(self, status: PeerStatus) -> PeerStatus:
        count, what = self._node.faults.told(status.peer, self._node.now())
        return replace(status, faults=count, last_fault=what) if count else status

    def _named(self, status: PeerStatus, ids: Sequence[str]) -> PeerStatus:
        name = naming.shown_among(status.name, str(status.peer), ids)
        return status if name == status.name else replace(status, name=name)

    def _known(self, peer: PeerId) -> PeerStatus:
        """Of a member with which this node has nothing now."""
        record = self._book.record(peer)
        return PeerStatus(
            peer=peer,
            name=naming.shown(record.name) if record is not None else "",
            role=record.role if record is not None else "",
            state=PeerState.KNOWN,
            paths=(),
            native=None,
            software="",
            resumes=0,
            since=self._presence.met(peer),
            last_error="",
            clock_offset=None,
        )

    def _shown(self, status: PeerStatus) -> PeerStatus:
        """Of a peer that is not connected because nobody needs it, news tell whether it is there."""
        if not self._presence.large or status.state in (PeerState.CONNECTED, PeerState.SUSPENDED):
            return status
        if self._presence.present(status.peer):
            away = status.state is PeerState.LOST  # from here only
            return replace(status, state=PeerState.KNOWN if away else status.state, present=True)
        since = self._presence.away_since(status.peer)
        return status if since is None else replace(status, state=PeerState.LOST, since=since)

    def find(self, text: str, also: Iterable[PeerId] = ()) -> PeerId:
        """The peer that `text` means, or one of `also`, which need not be peers now. Raises UnknownPeer, or
        UserError when it is this node, or fits several."""
        me = self._node.facts
        names = dict.fromkeys(also, "") | self._names()
        return find(text, me=me.peer, names=names | {me.peer: me.name})

    def _names(self) -> dict[PeerId, str]:
        records = ((peer, self._book.record(peer)) for peer in self._book.peers())
        told = {peer: naming.shown(record.name) if record is not None else "" for peer, record in records}
        return told | {peer: entry.connection.view.name for peer, entry in self._table.items()}
