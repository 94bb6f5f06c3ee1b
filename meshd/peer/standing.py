"""With whom to keep a session: pure. All in a small mesh, a few in a large one, by a rule of both ends.

In a mesh of up to nine, everybody keeps a session with everybody. In a larger one the members that are there
stand on a ring, in order of their ids (which are random), and each keeps a session with those 1, n^(1/4),
n^(1/2) and n^(3/4) places on, and back: eight sessions, over which news reach everybody in a few steps. A
head also keeps one with each of the sixteen workers that it may use at most. The rule gives the same answer
at both ends, so that neither closes what the other one wants.
"""

from collections.abc import Collection, Mapping

from meshd.identity.keys import PeerId

DEGREE = 8
HEAD_ROLE, WORKER_ROLE = "serve", "worker"
HEAD_WORKERS = 16  # llama.cpp takes no more devices


def neighbours(me: PeerId, members: Collection[PeerId]) -> frozenset[PeerId]:
    """Those of `members` next to `me` on the ring; all of them where they are few."""
    others = frozenset(members) - {me}
    if len(others) <= DEGREE:
        return others
    ring = sorted((*others, me))
    at, size = ring.index(me), len(ring)
    return frozenset(ring[(at + way * step) % size] for step in steps(size) for way in (1, -1)) - {me}


def steps(size: int) -> tuple[int, ...]:
    """How many places on the ring the sessions lead."""
    found: list[int] = []
    for power in range(DEGREE // 2):
        step = max(found[-1] + 1 if found else 1, round(size ** (power / (DEGREE // 2))))
        found.append(min(step, size // 2))
    return tuple(dict.fromkeys(found))


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
