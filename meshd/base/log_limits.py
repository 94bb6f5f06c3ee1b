"""Limits the log lines that outsiders may cause, so that they cannot rotate others out of the log. Pure.

A line that names a peer counts for the peer. One that names none (an unproven connection, a relay, a client
at a local port, this node itself) counts for its kind, so there is no line without a limit.

The first lines about each peer come from a share of their own: peers that are talked about all the time use
up what all have together, and nothing of that.
"""

from dataclasses import dataclass

from meshd.base.peer_limits import (
    FIRST_LINES,
    FIRST_LINES_IN_ALL,
    KIND_LINES,
    PEER_LINES,
    PEER_LINES_IN_ALL,
    Rate,
)
from meshd.base.token_bucket import TokenBucket

MAX_LOGGED_PEERS = 512  # whose lines are counted; of more the one silent longest is forgotten
MAX_LINE_KINDS = 512  # of lines; the source has fewer


@dataclass(slots=True)
class _PeerLines:
    bucket: TokenBucket
    first: TokenBucket
    left_out: int = 0


class LineShares:
    """`now` is a clock in seconds that never goes back. Both say how many lines like this one were left out
    before it; None: leave this one out, too."""

    def __init__(self) -> None:
        self._peers: dict[str, _PeerLines] = {}
        self._kinds: dict[str, _PeerLines] = {}
        self._all: TokenBucket | None = None
        self._first: TokenBucket | None = None

    def may_say(self, peer: str, now: float) -> int | None:
        """Spend a line about `peer`: return the count suppressed before, or None to suppress it."""
        if self._all is None or self._first is None:
            self._all, self._first = PEER_LINES_IN_ALL.bucket(now), FIRST_LINES_IN_ALL.bucket(now)
        lines = _of(self._peers, peer, PEER_LINES, MAX_LOGGED_PEERS, now)
        may = lines.bucket.has(1, now) and (
            _spend_both(lines.first, self._first, now) or self._all.spend(1, now)
        )
        return _said(lines, may and lines.bucket.spend(1, now))

    def may_say_kind(self, kind: str, now: float) -> int | None:
        """Spend a line that names no peer; peers' lines do not count against it."""
        lines = _of(self._kinds, kind, KIND_LINES, MAX_LINE_KINDS, now)
        return _said(lines, lines.bucket.spend(1, now))


def _of(kept: dict[str, _PeerLines], key: str, rate: Rate, most: int, now: float) -> _PeerLines:
    lines = kept.pop(key, None) or _PeerLines(rate.bucket(now), FIRST_LINES.bucket(now))
    kept[key] = lines
    if len(kept) > most:
        del kept[next(iter(kept))]
    return lines


def _spend_both(first: TokenBucket, second: TokenBucket, now: float) -> bool:
    return first.has(1, now) and second.spend(1, now) and first.spend(1, now)


def _said(lines: _PeerLines, may: bool) -> int | None:
    if not may:
        lines.left_out += 1
        return None
    left_out, lines.left_out = lines.left_out, 0
    return left_out
