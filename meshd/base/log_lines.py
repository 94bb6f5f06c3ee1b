"""How many lines of the log others may cause: what they said must not rotate away what else was said. Pure.

A line that names a peer counts for the peer. One that names none (somebody who has proven nothing, a relay, a
client at a local port, this node itself) counts for its kind, so there is no line without a limit.
"""

from dataclasses import dataclass

from meshd.base.bucket import TokenBucket
from meshd.base.shares import KIND_LINES, PEER_LINES, PEER_LINES_IN_ALL, Rate

MAX_PEERS = 512  # whose lines are counted; of more the one silent longest is forgotten
MAX_KINDS = 512  # of lines; the source has fewer


@dataclass(slots=True)
class _Lines:
    bucket: TokenBucket
    left_out: int = 0


class LineShares:
    """`now` is a clock in seconds that never goes back. Both say how many lines like this one were left out
    before it; None: leave this one out, too."""

    def __init__(self) -> None:
        self._peers: dict[str, _Lines] = {}
        self._kinds: dict[str, _Lines] = {}
        self._all: TokenBucket | None = None

    def may_say(self, peer: str, now: float) -> int | None:
        """Of a line about `peer`."""
        if self._all is None:
            self._all = PEER_LINES_IN_ALL.bucket(now)
        lines = _of(self._peers, peer, PEER_LINES, MAX_PEERS, now)
        return _said(lines, lines.bucket.spend(1, now) and self._all.spend(1, now))

    def may_say_kind(self, kind: str, now: float) -> int | None:
        """Of a line that names no peer; those of peers take nothing from it."""
        lines = _of(self._kinds, kind, KIND_LINES, MAX_KINDS, now)
        return _said(lines, lines.bucket.spend(1, now))


def _of(kept: dict[str, _Lines], key: str, rate: Rate, most: int, now: float) -> _Lines:
    lines = kept.pop(key, None) or _Lines(rate.bucket(now))
    kept[key] = lines
    if len(kept) > most:
        del kept[next(iter(kept))]
    return lines


def _said(lines: _Lines, may: bool) -> int | None:
    if not may:
        lines.left_out += 1
        return None
    left_out, lines.left_out = lines.left_out, 0
    return left_out
