"""Which packs make room for more. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

MAX_PACKS = 32  # each is a descriptor of every lease, and of every rpc-server
FREE_SHARE = 2  # the store takes at most one part in this many of what it and the free disk have together


@dataclass(frozen=True, slots=True)
class Held:
    """A pack that may be removed. `used` orders them: the lowest was not needed for longest."""

    name: str
    size: int
    peer: str
    used: int


def limit_now(limit: int, *, held: int, free: int) -> int:
    """Bytes that the store may have: what the user allows, and no more than its share of the disk."""
    return min(limit, (held + max(0, free)) // FREE_SHARE)


def make_room(packs: Sequence[Held], *, over: int, packs_over: int) -> list[str] | None:
    """Names of packs to remove so that `over` bytes and `packs_over` packs fewer are there; None: impossible.

    Of the node whose packs are largest together goes what was not used for longest, and so on: a node that
    sends more than others throws out its own first.
    """
    left = list(packs)
    gone: list[str] = []
    while over > 0 or packs_over > 0:
        if not left:
            return None
        sums: dict[str, int] = {}
        for pack in left:
            sums[pack.peer] = sums.get(pack.peer, 0) + pack.size
        most = max(sums, key=lambda peer: (sums[peer], peer))
        oldest = min((pack for pack in left if pack.peer == most), key=lambda pack: (pack.used, pack.name))
        left.remove(oldest)
        gone.append(oldest.name)
        over -= oldest.size
        packs_over -= 1
    return gone
