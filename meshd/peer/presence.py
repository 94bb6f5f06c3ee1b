"""Decide with which members this node keeps a session, and which it believes to be present.

In a mesh of up to nine, every node keeps a session with every other. In a larger one presence_gossip.py knows
which members are present, and they form a ring, in order of their places (random, none chooses its own:
identity/membership.py). Each keeps a session with the two before and the two behind it, with two that two
other parts of its place point at, and with two at most that point at it: eight, over which news reach every
member in a few steps. A node that comes or goes changes the sessions of few others, however large the mesh
is. A head also keeps a session with each worker that it may use, sixteen at most. The rule gives the same
answer at both ends, so that neither closes a session that the other one wants.

Others are connected on demand. A node that should have a session with another, and has none, says so to all.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence, Set
from dataclasses import dataclass

from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter, place_of
from meshd.identity.naming import HEAD_ROLE, WORKER_ROLE
from meshd.identity.record import PeerRecord
from meshd.peer.interface import Book
from meshd.peer.node import Node
from meshd.peer.presence_gossip import PresenceGossip, Signer

DEGREE = 8
BESIDE = 2  # neighbours on the ring, each way
POINTERS = 2  # pointers of each node, and pointers to it that it accepts
_POINTER_BYTES = 8
HEAD_WORKERS = 16  # llama.cpp accepts no more devices

LOSS_SECONDS = 6.0  # without a link to a member that had a session with us, until we report it as away
VAIN_SECONDS = 30.0  # the same without any earlier session: NAT traversal takes its time
TOLD_AGAIN_SECONDS, MAX_AGAIN_SECONDS = 60.0, 3600.0  # until a refuted report is repeated
NEW_SECONDS = 75.0  # a member that is known only by address is believed to be present for so long
ALONE_SECONDS = 30.0  # without any session: then the presence of others is unknown
DEMAND_SECONDS = 120.0  # a session on demand is kept for so long after its last use
FEW = 3  # with fewer sessions than this, other members are tried as well
# How long an unwanted member is tried: when we have few sessions, or to find a part of a mesh that was
# cut in two.
_LOOK_SECONDS = 15.0
ALONE_TRIES, AWAY_TRIES = 4, 1


@dataclass(frozen=True, slots=True)
class Seat:
    """The facts about a member that the rule uses: place, role, and admitter (None: not known yet)."""

    place: bytes
    role: str = ""
    admitter: Admitter | None = None


def neighbours(me: PeerId, seats: Mapping[PeerId, Seat]) -> frozenset[PeerId]:
    """Return the neighbours of `me`, which has a seat, on the ring; all other members if they are few."""
    others = frozenset(seats) - {me}
    if len(others) <= DEGREE:
        return others
    ring = sorted(seats, key=lambda peer: (seats[peer].place, peer.raw))
    at = ring.index(me)
    beside = {ring[(at + side * step) % len(ring)] for step in range(1, BESIDE + 1) for side in (1, -1)}
    far = _far(ring, [seats[peer].place for peer in ring])
    return frozenset(
        beside | {first if second == me else second for first, second in far if me in (first, second)}
    )


def _far(ring: Sequence[PeerId], places: Sequence[bytes]) -> set[tuple[PeerId, PeerId]]:
    """Return which node points at which; each accepts only the two pointers nearest before it."""
    pointing: dict[PeerId, list[tuple[int, PeerId]]] = {}
    for peer, place in zip(ring, places, strict=True):
        for number in range(1, POINTERS + 1):
            point = place[number * _POINTER_BYTES : (number + 1) * _POINTER_BYTES]
            at = bisect_left(places, point) % len(ring)
            gap = int.from_bytes(places[at][:_POINTER_BYTES]) - int.from_bytes(point)
            if ring[at] != peer:
                pointing.setdefault(ring[at], []).append((gap % (1 << 8 * _POINTER_BYTES), peer))
    return {(peer, target) for target, found in pointing.items() for _, peer in sorted(found)[:POINTERS]}


def wanted(me: PeerId, seats: Mapping[PeerId, Seat]) -> frozenset[PeerId]:
    """Return the members with which `me` keeps a session; `seats` has all present members and `me`."""
    found = neighbours(me, seats)
    role = seats[me].role
    workers = {peer: seat for peer, seat in seats.items() if seat.role == WORKER_ROLE}
    if role == HEAD_ROLE:
        return found | frozenset(workers_of(seats[me], workers))
    if role == WORKER_ROLE:
        heads = [peer for peer, seat in seats.items() if seat.role == HEAD_ROLE]
        return found | {head for head in heads if me in workers_of(seats[head], workers)}
    return found


def workers_of(head: Seat, workers: Mapping[PeerId, Seat]) -> tuple[PeerId, ...]:
    """Return the workers that a head may use: all, or of many those whose places are nearest to its own.

    Each invite or inviter gets an equal share: an inviter of many does not push out the rest.
    """
    if len(workers) <= HEAD_WORKERS:
        return tuple(workers)
    own = int.from_bytes(head.place)
    nearest = sorted(workers, key=lambda peer: int.from_bytes(workers[peer].place) ^ own)
    counts: Counter[Admitter | None] = Counter()
    turns: list[tuple[int, int, PeerId]] = []
    for at, peer in enumerate(nearest):
        admitter = workers[peer].admitter
        turns.append((counts[admitter], at, peer))
        counts[admitter] += 1
    return tuple(peer for _, _, peer in sorted(turns, key=lambda turn: turn[:2])[:HEAD_WORKERS])


def in_order(peers: Collection[PeerId]) -> list[PeerId]:
    """Sort by raw id: unlike the order of a set, this is the same in every process."""
    return sorted(peers, key=lambda peer: peer.raw)


class MemberPresence:
    """The members' presence as this node sees it, and the sessions that it keeps.

    Call `tick` every few seconds; the other methods are questions.
    """

    def __init__(self, *, node: Node, book: Book, signer: Signer, rng: Callable[[], float]) -> None:
        self._node = node
        self._book = book
        self._rng = rng
        self.gossip = PresenceGossip(
            me=node.peer,
            own=lambda: node.host.record().sequence,
            book=book,
            signer=signer,
        )
        self._met: dict[PeerId, float] = {}
        self._demanded: dict[PeerId, float] = {}
        self._tried: frozenset[PeerId] = frozenset()
        self._tried_until = 0.0
        self._wanted: frozenset[PeerId] = frozenset()
        self._seats: Mapping[PeerId, Seat] = {}  # of present members, from their records
        # The record from which each seat was made, and the seat.
        self._seat_of: dict[PeerId, tuple[PeerRecord | None, Seat]] = {}
        self._members: frozenset[PeerId] = frozenset()
        self._away: list[PeerId] = []
        self._seen: tuple[object, ...] = ()  # the state from which `_seats` were made
        self._look_at = 0.0  # when the seats change without an event
        # Since when a member is missed, and how long until that is reported.
        self._missed: dict[PeerId, tuple[float, float]] = {}
        self._quiet: dict[
            PeerId, tuple[float, float]
        ] = {}  # until when it is not reported again, and the next wait
        self._met_anybody: float | None = None  # when there was last a session, or we began
        self.large = False

    def tick(self, connected: Collection[PeerId]) -> None:
        """Update presence. `connected`: the members with a session now."""
        now = self._node.now()
        self._look_at_members(now)
        for peer in [peer for peer, until in self._demanded.items() if until <= now]:
            del self._demanded[peer]
        if connected or self._met_anybody is None:
            self._met_anybody = now
        if not self.large:
            return
        if self.gossip.refute(now):
            self._node.changed()
        self._look_who_is_there(frozenset(connected), now)
        self._miss(connected, now)
        self._try_others(now, len(connected))

    def _look_at_members(self, now: float) -> None:
        if self._seen[:1] == (self._book.version,):
            return
        self._members = frozenset(self._book.peers())
        self.large = len(self._members) > DEGREE
        for peer in self._members - self._met.keys():
            self._met[peer] = now
        for gone in self._met.keys() - self._members:
            self.forget(gone)

    def _look_who_is_there(self, connected: frozenset[PeerId], now: float) -> None:
        seen = (self._book.version, self.gossip.journal.mark, connected)
        if seen == self._seen and now < self._look_at:
            return
        self._seen = seen
        there = {peer for peer in self._members if peer in connected or self._is_there(peer, now)}
        self._away = [peer for peer in self._members if peer not in there]
        unproven = (met + NEW_SECONDS for peer, met in self._met.items() if self._book.record(peer) is None)
        dates = [date for date in unproven if date > now]
        verdict = self.gossip.next_verdict(now)
        self._look_at = min([*dates, *([verdict] if verdict is not None else [])], default=float("inf"))
        own = self._node.host.record().chain
        me = Seat(own.place, self._node.facts.role, own.admitter)
        seats = {self._node.peer: me, **{peer: self._seat(peer) for peer in there}}
        if seats != self._seats:
            self._seats = seats
            self._wanted = wanted(self._node.peer, seats)

    def wishes(self) -> Set[PeerId]:
        """Return the members with which a session is to be kept or made."""
        if not self.large:
            return self._members
        return (self._wanted | self._demanded.keys() | self._tried) & self._members

    def wants(self, peer: PeerId) -> bool:
        """Say whether a session with the member is to be kept or made."""
        return self.keeps(peer) or peer in self._demanded or peer in self._tried

    def keeps(self, peer: PeerId) -> bool:
        """Say whether the topology keeps a session, whatever the demand."""
        return peer in (self._wanted if self.large else self._members)

    def demand(self, peer: PeerId) -> None:
        """Note that somebody needs a session with the member now."""
        self._demanded[peer] = self._node.now() + DEMAND_SECONDS

    def present(self, peer: PeerId) -> bool:
        """Say whether gossip reports the member as present; also False while this node hears from nobody."""
        return self.large and not self._is_alone() and self._is_there(peer, self._node.now())

    def away_since(self, peer: PeerId) -> float | None:
        """Return the loop time since which the member is away; None if it is not known to be away."""
        away = self.gossip.away_since(peer, self._node.now())
        return self._met_anybody if away is None and self._is_alone() else away

    def met(self, peer: PeerId) -> float:
        """Return the loop time at which the member was first known here."""
        return self._met.get(peer, self._node.now())

    def forget(self, peer: PeerId) -> None:
        """Forget a node that is no longer a member."""
        self._met.pop(peer, None)
        self._missed.pop(peer, None)
        self._quiet.pop(peer, None)
        self._seat_of.pop(peer, None)
        self.gossip.forget(peer)

    def parted(self, peer: PeerId) -> None:
        """Note that the member said goodbye: its return is not awaited."""
        if peer in self._wanted:
            self._missed[peer] = self._node.now(), 0.0

    def _is_alone(self) -> bool:
        return self._met_anybody is None or self._node.now() - self._met_anybody >= ALONE_SECONDS

    def _seat(self, peer: PeerId) -> Seat:
        record = self._book.record(peer)
        made = self._seat_of.get(peer)
        if made is None or made[0] is not record:
            seat = Seat(place_of(peer))
            if record is not None:
                seat = Seat(record.chain.place, record.role, record.chain.admitter)
            made = self._seat_of[peer] = record, seat
        return made[1]

    def _is_there(self, peer: PeerId, now: float) -> bool:
        if self._book.record(peer) is None:
            return now - self._met.get(peer, now) < NEW_SECONDS
        return self.gossip.away_since(peer, now) is None

    def _miss(self, connected: Collection[PeerId], now: float) -> None:
        """Report wanted members without a session as away."""
        for peer in self._missed.keys() - self._wanted:
            del self._missed[peer]
        for peer in in_order(self._wanted):
            if peer in connected:
                self._missed[peer] = now, LOSS_SECONDS
                self._quiet.pop(peer, None)
                continue
            since, patience = self._missed.setdefault(peer, (now, VAIN_SECONDS))
            until, wait = self._quiet.get(peer, (0.0, TOLD_AGAIN_SECONDS))
            if now - since >= patience and now >= until and self.gossip.report(peer, now):
                self._quiet[peer] = now + wait, min(2 * wait, MAX_AGAIN_SECONDS)
                self._node.changed()

    def _try_others(self, now: float, sessions: int) -> None:
        """Try some more members while we have few sessions, and now and then an absent one."""
        if now < self._tried_until:
            return
        self._tried_until = now + _LOOK_SECONDS
        alone = sessions < FEW
        pool = in_order(self._members if alone else self._away)
        picked = (pool[int(self._rng() * len(pool))] for _ in range(ALONE_TRIES if alone else AWAY_TRIES))
        self._tried = frozenset(picked) if pool else frozenset()
