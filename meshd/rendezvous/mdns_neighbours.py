"""Which members were seen by multicast DNS, and where. Pure.

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
        """How many nodes of this mesh are seen now."""
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
        """A record came, at `where` (interface, name); `own` are our addresses there. True: it is news.

        Raises RemoteProtocolError when it is not well formed.
        """
        sign = Sign.decode(text)
        if self.me is not None and sign.is_of_mesh(self.mesh) and sign.is_of_node(self.mesh, self.me):
            return False
        self.heard_at = now
        candidates = nearby(hosts, port, udp_port=sign.udp_port, own=own)
        if not sign.is_of_mesh(self.mesh):
            self._seen.pop(where, None)
            return False
        known = self._seen.pop(where, None)
        if not candidates:
            return known is not None
        if known is not None and known.sign == sign and known.candidates == candidates:
            self._seen[where] = known
            return False
        seen = self._seen[where] = _SeenMember(sign, candidates)
        self._name(seen, self._known)
        if len(self._seen) > MAX_SEEN:
            del self._seen[next(iter(self._seen))]
        return True

    def lost(self, where: tuple[str, str]) -> bool:
        """A record is withdrawn, or has run out. True: it was one of ours."""
        return self._seen.pop(where, None) is not None

    def lost_network(self, interface: str) -> None:
        """This node has left a network: nobody is seen there any more."""
        for where in [where for where in self._seen if where[0] == interface]:
            del self._seen[where]

    def know(self, peers: Iterable[PeerId]) -> None:
        """The peers whose tags are looked for."""
        now_known = frozenset(peers)
        fresh = now_known - self._known
        if fresh:
            for seen in self._seen.values():
                if seen.peer is None:
                    self._name(seen, fresh)
        self._known = now_known

    def of(self, peer: PeerId) -> tuple[Candidate, ...]:
        """Where a peer was seen, the newest first."""
        found: dict[Candidate, None] = {}
        for seen in reversed(self._seen.values()):
            if seen.peer == peer:
                found.update(dict.fromkeys(seen.candidates))
        return tuple(found)[:MAX_CANDIDATES_PER_PEER]

    def tell(self, now: float) -> list[tuple[PeerId, tuple[Candidate, ...]]]:
        """What is new since the last call: peers, and where they are seen now (nowhere: gone)."""
        told: list[tuple[PeerId, tuple[Candidate, ...]]] = []
        present = {seen.peer for seen in self._seen.values() if seen.peer is not None}
        for peer in (present | set(self._told)) & self._known:
            last = self._told.setdefault(peer, _ToldPlaces())
            candidates = self.of(peer)
            if now - last.at < TELL_SECONDS or not (last.news or set(candidates) != set(last.candidates)):
                continue
            told.append((peer, candidates))
            if candidates:
                self._told[peer] = _ToldPlaces(candidates, now, news=False)
            else:
                del self._told[peer]
        for peer in set(self._told) - self._known:
            del self._told[peer]
        return told

    def _name(self, seen: _SeenMember, peers: Iterable[PeerId]) -> None:
        """Find out whose record it is: one hash for each peer that is asked about."""
        seen.peer = next((peer for peer in peers if seen.sign.is_of_node(self.mesh, peer)), None)
        if seen.peer is not None:
            self._told.setdefault(seen.peer, _ToldPlaces()).news = True
