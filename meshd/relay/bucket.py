"""A token bucket that owes instead of refusing: who has taken too much waits, nothing is dropped. Pure."""


class TokenBucket:
    """`rate` units a second, at most `burst` saved up; `now` is a clock in seconds that never goes back."""

    def __init__(self, *, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; returns for how many seconds the taker then has to pause (0: not at all)."""
        self._level = min(self._burst, self._level + (now - self._at) * self._rate) - amount
        self._at = now
        return -self._level / self._rate if self._level < 0 else 0.0

    def full(self, now: float) -> bool:
        """True when nothing is owed: it can be forgotten and made anew."""
        return self._level + (now - self._at) * self._rate >= self._burst
