"""Choose the sessions to keep: all in a small mesh, a few in a large one, by a symmetric rule. Pure.

In a mesh of up to nine, every node keeps a session with every other. In a larger one the present members form
a ring, in order of their places (random, none chooses its own: identity/membership.py). Each keeps a session
with the two before and the two behind it, with two that two other parts of its place point at, and with two
at most that point at it: eight, over which news reach every member in a few steps. A node that comes or goes
changes the sessions of few others, however large the mesh is. A head also keeps a session with each worker
that it may use, sixteen at most. The rule gives the same answer at both ends, so that neither closes a
session that the other one wants.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter
from meshd.identity.naming import HEAD_ROLE, WORKER_ROLE

DEGREE = 8
BESIDE = 2  # neighbours on the ring, each way
POINTERS = 2  # pointers of each node, and pointers to it that it accepts
_POINTER_BYTES = 8
HEAD_WORKERS = 16  # llama.cpp accepts no more devices


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
    return frozenset(beside | {one if other == me else other for one, other in far if me in (one, other)})


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
