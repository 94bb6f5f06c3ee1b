"""Who of the mesh is there, and with whom this node keeps a session: for meshes of any size.

In a small mesh (up to nine) everybody is connected with everybody, and nothing here does anything. In a
larger one each node signs that it is there every 20 s (identity/presence.py), which the news carry along,
and standing.py tells from that with whom to keep a session. Others are connected on demand.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass

from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.presence import Presence
from meshd.peer.interface import Book
from meshd.peer.node import Node
from meshd.peer.standing import DEGREE, wanted

SIGN_SECONDS = 20.0
FRESH_SECONDS = 60.0  # three signs of life missed: not there any more
NEW_SECONDS = 75.0  # a member that we have just heard of is taken to be there
DEMAND_SECONDS = 120.0  # a session that somebody asked for, from its last use
FEW = 3  # with fewer sessions than this, others are tried as well
LOOK_SECONDS = (
    15.0  # how long one who is not wanted is tried: when we have few, or to find a mesh that was cut in two
)
ALONE_TRIES, AWAY_TRIES = 4, 1


@dataclass(frozen=True, slots=True)
class Signer:
    """What signs our own signs of life."""

    key: KeyPair
    mesh: MeshId


class Crowd:
    """`tick` every few seconds; the rest are questions. Without a `signer` every mesh counts as small."""

    def __init__(self, *, node: Node, book: Book, signer: Signer | None, chance: Callable[[], float]) -> None:
        self._node = node
        self._book = book
        self._signer = signer
        self._chance = chance
        self._heard: dict[PeerId, tuple[Presence, float]] = {}
        self._met: dict[PeerId, float] = {}
        self._demanded: dict[PeerId, float] = {}
        self._tried: frozenset[PeerId] = frozenset()
        self._tried_until = 0.0
        self._wanted: frozenset[PeerId] = frozenset()
        self._roles: Mapping[PeerId, str] = {}  # of those who are there, by which that was told
        self._members: frozenset[PeerId] = frozenset()
        self._count = 0
        self._signed_at = -SIGN_SECONDS
        self.large = False

    def tick(self, connected: Collection[PeerId]) -> None:
        """Look who is there. `connected`: with whom there is a session now."""
        now = self._node.now()
        self._members = frozenset(self._book.peers())
        self.large = self._signer is not None and len(self._members) > DEGREE
        for peer in self._members - self._met.keys():
            self._met[peer] = now
        for gone in self._met.keys() - self._members:
            self._met.pop(gone)
            self._heard.pop(gone, None)
        for peer in [peer for peer, until in self._demanded.items() if until <= now]:
            del self._demanded[peer]
        if not self.large:
            return
        self._sign(now)
        there = {peer for peer in self._members if peer in connected or self._is_new_or_fresh(peer, now)}
        roles = {peer: self._role(peer) for peer in there}
        if roles != self._roles:
            self._roles = roles
            self._wanted = wanted(self._node.peer, self._node.facts.role, roles)
        self._try_others(now, len(connected), there)

    def wants(self, peer: PeerId) -> bool:
        """Is a session with it to be kept, or made?"""
        if not self.large or peer not in self._members:
            return True
        return peer in self._wanted or peer in self._demanded or peer in self._tried

    def demand(self, peer: PeerId) -> None:
        """Somebody wants to talk to it now."""
        self._demanded[peer] = self._node.now() + DEMAND_SECONDS

    def present(self, peer: PeerId) -> bool:
        """Heard of a moment ago, though maybe from others."""
        return self.large and self._is_fresh(peer, self._node.now())

    def last_heard(self, peer: PeerId) -> float | None:
        """Loop time; None: never."""
        heard = self._heard.get(peer)
        return heard[1] if heard is not None else None

    def _role(self, peer: PeerId) -> str:
        record = self._book.record(peer)
        return record.role if record is not None else ""

    def _is_fresh(self, peer: PeerId, now: float) -> bool:
        heard = self._heard.get(peer)
        return heard is not None and now - heard[1] < FRESH_SECONDS

    def _is_new_or_fresh(self, peer: PeerId, now: float) -> bool:
        return now - self._met[peer] < NEW_SECONDS or self._is_fresh(peer, now)

    def _try_others(self, now: float, sessions: int, there: Collection[PeerId]) -> None:
        """Some more while we have few sessions; and now and then one who seems to be away."""
        if now < self._tried_until:
            return
        self._tried_until = now + LOOK_SECONDS
        away = [peer for peer in self._members if peer not in there]
        alone = sessions < FEW
        pool = [*self._members] if alone else away
        picked = (pool[int(self._chance() * len(pool))] for _ in range(ALONE_TRIES if alone else AWAY_TRIES))
        self._tried = frozenset(picked) if pool else frozenset()

    # Signs of life.

    def _sign(self, now: float) -> None:
        if self._signer is None or now - self._signed_at < SIGN_SECONDS:
            return
        self._signed_at = now
        self._count += 1
        sequence = self._node.my_record().sequence
        own = Presence.sign(self._signer.key, mesh=self._signer.mesh, sequence=sequence, count=self._count)
        self._heard[self._node.peer] = (own, now)

    def newer(self, told: dict[PeerId, tuple[int, int]], *, to: PeerId) -> list[bytes]:
        """Signs of life that `to` has not been told; they are noted in `told` as such."""
        found: list[bytes] = []
        for peer, (presence, _) in self._heard.items():
            if peer != to and told.get(peer, (-1, -1)) < presence.order:
                told[peer] = presence.order
                found.append(presence.to_bytes())
        return found

    def learn(self, entries: Iterable[bytes], told: dict[PeerId, tuple[int, int]]) -> None:
        """Take in what a peer told. Those of nobody known, old ones and forged ones are dropped.

        Raises RemoteProtocolError for what cannot be read.
        """
        for raw in entries:
            presence = Presence.from_bytes(raw)
            known = self._heard.get(presence.peer)
            if known is not None and presence.order <= known[0].order:
                told[presence.peer] = max(told.get(presence.peer, (-1, -1)), presence.order)
                continue
            if self._signer is None or presence.peer == self._node.peer:
                continue
            record = self._book.record(presence.peer)
            if record is None or record.sequence > presence.sequence or not presence.holds(self._signer.mesh):
                continue
            told[presence.peer] = presence.order
            self._heard[presence.peer] = (presence, self._node.now())
