"""How many lines of the log one peer may cause: what others said must not rotate away. Pure."""

from dataclasses import dataclass

from meshd.base.bucket import TokenBucket
from meshd.base.shares import PEER_LINES, PEER_LINES_IN_ALL

MAX_PEERS = 512  # whose lines are counted; of more the one silent longest is forgotten


@dataclass(slots=True)
class _Lines:
    bucket: TokenBucket
    left_out: int = 0


class LineShares:
    """`now` is a clock in seconds that never goes back."""

    def __init__(self) -> None:
        self._peers: dict[str, _Lines] = {}
        self._all: TokenBucket | None = None

    def may_say(self, peer: str, now: float) -> int | None:
        """How many lines about `peer` were left out before this one; None: leave this one out, too."""
        if self._all is None:
            self._all = PEER_LINES_IN_ALL.bucket(now)
        lines = self._peers.pop(peer, None) or _Lines(PEER_LINES.bucket(now))
        self._peers[peer] = lines
        if len(self._peers) > MAX_PEERS:
            del self._peers[next(iter(self._peers))]
        if not (lines.bucket.spend(1, now) and self._all.spend(1, now)):
            lines.left_out += 1
            return None
        left_out, lines.left_out = lines.left_out, 0
        return left_out
