"""Decides which packs are evicted to make room. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_PACKS = 32  # each is a descriptor of every lease, and of its server
FREE_SHARE = 2  # the store takes at most one part in this many of what it and the free disk have together


@dataclass(frozen=True, slots=True)
class EvictablePack:
    """A pack that may be removed. `last_used` orders them: the lowest was not needed for longest."""

    name: str
    size: int
    peer: str
    last_used: int


def limit_now(limit: int, *, store_bytes: int, free_bytes: int) -> int:
    """Return the bytes that the store may hold: the user's limit, and at most its share of the disk."""
    return min(limit, (store_bytes + max(0, free_bytes)) // FREE_SHARE)


def packs_to_evict(
    packs: Sequence[EvictablePack], *, excess_bytes: int, excess_packs: int
) -> list[str] | None:
    """Return names of packs whose removal frees so many bytes and packs; None: impossible.

    Evicts the least recently used pack of the node whose packs are largest together, and so on: a node that
    sends more than others loses its own packs first.
    """
    left = list(packs)
    evicted: list[str] = []
    while excess_bytes > 0 or excess_packs > 0:
        if not left:
            return None
        sums: dict[str, int] = {}
        for pack in left:
            sums[pack.peer] = sums.get(pack.peer, 0) + pack.size
        most = max(sums, key=lambda peer: (sums[peer], peer))
        oldest = min(
            (pack for pack in left if pack.peer == most), key=lambda pack: (pack.last_used, pack.name)
        )
        left.remove(oldest)
        evicted.append(oldest.name)
        excess_bytes -= oldest.size
        excess_packs -= 1
    return evicted
