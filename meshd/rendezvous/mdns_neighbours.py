"""The members seen by multicast DNS, and their addresses. Pure.

Bounded, whatever the network says: who is seen, how many addresses each has, and how often a change is told.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from meshd.base.peer_limits import NEARBY, NEARBY_OF_PEER
from meshd.identity.keys import MeshId, PeerId
from meshd.rendezvous.mdns_text import Sign, nearby
from meshd.wire.address import Candidate

MAX_SEEN = NEARBY.most
MAX_CANDIDATES_PER_PEER = NEARBY_OF_PEER.most
TELL_SECONDS = 5.0  # a peer is told of at most that often: records that change all the time cost nothing more


@dataclass(slots=True)
class _SeenMember:
    sign: Sign
    candidates: tuple[Candidate, ...]
    peer: PeerId | None = None


@dataclass(slots=True)
class _ToldPlaces:
    candidates: tuple[Candidate, ...] = ()
    at: float = float("-inf")
    news: bool = True  # something was announced anew: the peer is there, even if its addresses are the same


@dataclass(slots=True)
class Neighbours:
    """Records of one mesh; `me` is left out. Times are any clock's, seconds."""

    mesh: MeshId
    me: PeerId | None = None
    heard_at: float | None = None  # when anybody else's record came last, of whatever mesh
    _seen: dict[tuple[str, str], _SeenMember] = field(default_factory=dict)
    _known: frozenset[PeerId] = frozenset()
    _told: dict[PeerId, _ToldPlaces] = field(default_factory=dict)

    @property
    def members(self) -> int:
        """The number of nodes of this mesh seen now."""
        return len(
            {seen.sign.node_tag if seen.peer is None else seen.peer.raw for seen in self._seen.values()}
        )

    def saw(
        self,
        where: tuple[str, str],
        text: bytes,
        *,
        hosts: Iterable[str],
        port: int,
        own: Sequence[str],
        now: float,
    ) -> bool:
        """Handle a record at `where` (interface, name); `own` are our addresses there. Return True if it is
        news.

        Raises RemoteProtocolError when it is malformed.
        """
        # Ignore our own record; any other shows that multicast works.
        sign = Sign.decode(text)
        if self.me is not None and sign.is_of_mesh(self.mesh) and sign.is_of_node(self.mesh, self.me):
            return False
        self.heard_at = now
        candidates = nearby(hosts, port, udp_port=sign.udp_port, own=own, interface=where[0])
        # Forget what is not of this mesh any more, or leads nowhere.
        if not sign.is_of_mesh(self.mesh):
            self._seen.pop(where, None)
            return False
        known = self._seen.pop(where, None)
        if not candidates:
            return known is not None
        # Keep a known record as it is, so that its age stays.
        if known is not None and known.sign == sign and known.candidates == candidates:
            self._seen[where] = known
            return False
        # Add a new one, and find out whose it is.
        seen = self._seen[where] = _SeenMember(sign, candidates)
        self._name(seen, self._known)
        if len(self._seen) > MAX_SEEN:
            self._drop_one()
        return True

    def lost(self, where: tuple[str, str]) -> bool:
        """Drop a record that is withdrawn, or has run out; True if it was one of ours."""
        return self._seen.pop(where, None) is not None

    def lost_network(self, interface: str) -> None:
        """Drop everything seen in a network that this node has left."""
        for where in [where for where in self._seen if where[0] == interface]:
            del self._seen[where]

    def know(self, peers: Iterable[PeerId]) -> None:
        """Set the peers whose tags are looked for."""
        now_known = frozenset(peers)
        fresh = now_known - self._known
        if fresh:
            for seen in self._seen.values():
                if seen.peer is None:
                    self._name(seen, fresh)
        self._known = now_known

    def of(self, peer: PeerId) -> tuple[Candidate, ...]:
        """Return where `peer` was seen: the newest record, then the oldest, the second newest and so on.

        Anybody in the network can repeat a record with other addresses. The newest matters after a restart
        of the peer, the oldest is most likely its own during a flood of copies.
        """
        records = [seen.candidates for seen in self._seen.values() if seen.peer == peer]
        found: dict[Candidate, None] = {}
        while records and len(found) < MAX_CANDIDATES_PER_PEER:
            found.update(dict.fromkeys(records.pop()))
            records.reverse()
        return tuple(found)[:MAX_CANDIDATES_PER_PEER]

    def tell(self, now: float) -> list[tuple[PeerId, tuple[Candidate, ...]]]:
        """Return the changes since the last call: peers, and where they are seen now (nowhere: gone)."""
        changes: list[tuple[PeerId, tuple[Candidate, ...]]] = []
        present = {seen.peer for seen in self._seen.values() if seen.peer is not None}
        for peer in (present | set(self._told)) & self._known:
            last = self._told.setdefault(peer, _ToldPlaces())
            candidates = self.of(peer)
            if now - last.at < TELL_SECONDS or not (last.news or set(candidates) != set(last.candidates)):
                continue
            changes.append((peer, candidates))
            if candidates:
                self._told[peer] = _ToldPlaces(candidates, now, news=False)
            else:
                del self._told[peer]
        for peer in set(self._told) - self._known:
            del self._told[peer]
        return changes

    def _drop_one(self) -> None:
        """Drop a record of the node with the most; records of unknown nodes count as one node's.

        So made-up nodes displace each other, and copies of one node's record displace each other. The oldest
        record of a known node stays, see `of`.
        """
        shares: dict[PeerId | None, list[tuple[str, str]]] = {}
        for where, seen in self._seen.items():
            shares.setdefault(seen.peer, []).append(where)
        owner, largest = max(shares.items(), key=lambda share: len(share[1]))
        del self._seen[largest[0 if owner is None or len(largest) == 1 else 1]]

    def _name(self, seen: _SeenMember, peers: Iterable[PeerId]) -> None:
        """Find the owner of a record: one hash for each of `peers`."""
        seen.peer = next((peer for peer in peers if seen.sign.is_of_node(self.mesh, peer)), None)
        if seen.peer is not None:
            self._told.setdefault(seen.peer, _ToldPlaces()).news = True
