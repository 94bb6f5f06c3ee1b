"""With whom to keep a session: pure. All in a small mesh, a few in a large one, by a rule of both ends.

In a mesh of up to nine, everybody keeps a session with everybody. In a larger one the members that are there
stand on a ring, in order of their ids (which are random), and each keeps a session with the two before and
the two behind it, with two that two other parts of its id point at, and with two at most that point at it:
eight, over which news reach everybody in a few steps. Whoever comes or goes changes the sessions of few
others, however large the mesh is. A head also keeps one with each of the sixteen workers that it may use at
most. The rule gives the same answer at both ends, so that neither closes what the other one wants.
"""

from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence

from meshd.identity.keys import PeerId

DEGREE = 8
BESIDE = 2  # neighbours on the ring, each way
POINTERS = 2  # of each node, and those that it takes
_POINTER_BYTES = 8
HEAD_ROLE, WORKER_ROLE = "serve", "worker"
HEAD_WORKERS = 16  # llama.cpp takes no more devices


def neighbours(me: PeerId, members: Collection[PeerId]) -> frozenset[PeerId]:
    """Those of `members` next to `me` on the ring; all of them where they are few."""
    others = frozenset(members) - {me}
    if len(others) <= DEGREE:
        return others
    ring = sorted((*others, me), key=lambda peer: peer.raw)
    at = ring.index(me)
    beside = {ring[(at + way * step) % len(ring)] for step in range(1, BESIDE + 1) for way in (1, -1)}
    far = {one if other == me else other for one, other in _far(ring) if me in (one, other)}
    return frozenset(beside | far)


def _far(ring: Sequence[PeerId]) -> set[tuple[PeerId, PeerId]]:
    """Who points at whom, as far as those take it: each the two pointers that lie nearest before it."""
    ids = [peer.raw for peer in ring]
    pointing: dict[PeerId, list[tuple[int, PeerId]]] = {}
    for peer in ring:
        for number in range(1, POINTERS + 1):
            point = peer.raw[number * _POINTER_BYTES : (number + 1) * _POINTER_BYTES]
            target = ring[bisect_left(ids, point) % len(ring)]
            gap = int.from_bytes(target.raw[:_POINTER_BYTES]) - int.from_bytes(point)
            if target != peer:
                pointing.setdefault(target, []).append((gap % (1 << 8 * _POINTER_BYTES), peer))
    return {(peer, target) for target, found in pointing.items() for _, peer in sorted(found)[:POINTERS]}


def wanted(me: PeerId, role: str, members: Mapping[PeerId, str]) -> frozenset[PeerId]:
    """With whom `me` keeps a session; `members` are the others that are there, and their roles."""
    found = neighbours(me, members)
    workers = [peer for peer, theirs in members.items() if theirs == WORKER_ROLE]
    if role == HEAD_ROLE:
        return found | frozenset(workers_of(me, workers))
    if role == WORKER_ROLE:
        heads = [peer for peer, theirs in members.items() if theirs == HEAD_ROLE]
        return found | {head for head in heads if me in workers_of(head, (*workers, me))}
    return found


def workers_of(head: PeerId, workers: Collection[PeerId]) -> tuple[PeerId, ...]:
    """The workers that a head may use: all, or of many those whose ids are nearest to its own."""
    if len(workers) <= HEAD_WORKERS:
        return tuple(workers)
    own = int.from_bytes(head.raw, "big")
    return tuple(sorted(workers, key=lambda peer: int.from_bytes(peer.raw, "big") ^ own)[:HEAD_WORKERS])
