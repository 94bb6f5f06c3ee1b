"""Limits a node's upload over all links together: a token bucket that sessions share fairly.

Each session has a count of what it was given (self-clocked fair queueing: one that comes back begins where
those are that waited meanwhile). Of those that wait, the one given least goes first; one that comes when
there is enough for all before it, and for itself, need not wait for them. So none starves another, a slow
link waits for no fast one, and what one does not use the others get. Control frames are never held back: they
count, and the data behind them waits a little longer for it.
"""

from meshd.wire.limits import MAX_FRAME_BYTES

_BURST_TIME = 0.2  # seconds of the rate that may leave at once after a pause
_SHARE_TIME = 0.02  # what one session takes at once while others wait
_LEAST_SHARE = 4 << 10  # bytes; a frame is not cut smaller
_ABSENT = 0.25  # who does not come for so long after its time has lost its turn
_SOON = 0.001
_MOST_SESSIONS = 512  # sessions whose count is remembered; a node has 256 peers


class Upload:
    """`rate` is bytes a second, above 0; times are loop time. `who` is any number that names a session."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.share = max(int(rate * _SHARE_TIME), _LEAST_SHARE)
        self._most = max(rate * _BURST_TIME, 2.0 * self.share)
        self._tokens = self._most
        self._at: float | None = None
        self._given: dict[int, float] = {}  # bytes, counted from where `_floor` was
        self._floor = 0.0  # the least count of those who want something
        self._waiting: dict[int, float] = {}  # when each was told to come again

    def room(self, who: int, want: int, now: float) -> int:
        """Return how many of `want` bytes (above 0) `who` may send now. 0 means: call `wait` for when to try
        again.
        """
        self._fill(now)
        self._drop_absent(now)
        given = self._given[who] = max(self._given.get(who, 0.0), self._floor)
        if self._tokens < self._wanted(who, want):
            return 0
        self._waiting.pop(who, None)
        self._floor = max(self._floor, min([given, *(self._given[other] for other in self._waiting)]))
        return min(want, self.share if self._waiting else int(self._tokens))

    def spend(self, who: int, count: int, now: float) -> None:
        """Charge `count` bytes of data to `who`."""
        self.spend_control(count, now)
        if who in self._given:
            self._given[who] += count
        if len(self._given) > _MOST_SESSIONS:
            self._given = {
                session: given for session, given in self._given.items() if session in self._waiting
            }

    def spend_control(self, count: int, now: float) -> None:
        """Charge `count` bytes of control frames, which nothing holds back."""
        self._fill(now)
        self._tokens = max(self._tokens - count, -self._most - MAX_FRAME_BYTES)

    def wait(self, who: int, want: int, now: float) -> float:
        """Register that `who` has more to send; return when to try again, at the earliest (no callback)."""
        missing = self._wanted(who, want) - self._tokens
        due = self._waiting[who] = now + max(missing / self.rate, _SOON)
        return due

    def leave(self, who: int) -> None:
        """Stop waiting for the bucket."""
        self._waiting.pop(who, None)

    def _wanted(self, who: int, want: int) -> float:
        """Return the tokens for `who`, and for all that wait and were given less."""
        mine = (self._given[who], who)
        before = sum((self._given[other], other) < mine for other in self._waiting if other != who)
        return min(before * self.share + min(want, self.share), self._most)

    def _drop_absent(self, now: float) -> None:
        for other in [other for other, due in self._waiting.items() if now - due >= _ABSENT]:
            del self._waiting[other]

    def _fill(self, now: float) -> None:
        if self._at is not None:
            self._tokens = min(self._tokens + (now - self._at) * self.rate, self._most)
        self._at = now
