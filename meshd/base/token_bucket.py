"""A token bucket: taking too much causes a pause (`take`) or a refusal (`spend`). Pure."""

_ROUNDING = 1e-6  # of one unit: who waits as long as it takes is not refused for the last bit of a float


class TokenBucket:
    """`rate` units a second, at most `burst` saved up; `now` is a clock in seconds that never goes back."""

    def __init__(self, *, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._level = burst
        self._at = now

    def take(self, amount: float, now: float) -> float:
        """Take `amount`; returns how many seconds the caller has to pause (0: not at all)."""
        self._fill(now)
        self._level -= amount
        return -self._level / self._rate if self._level < 0 else 0.0

    def spend(self, amount: float, now: float) -> bool:
        """Take `amount` if available; otherwise take nothing and return False."""
        if not self.has(amount, now):
            return False
        self._level -= amount
        return True

    def has(self, amount: float, now: float) -> bool:
        """Return True if `spend` would succeed now; take nothing."""
        self._fill(now)
        return self._level + _ROUNDING >= amount

    def full(self, now: float) -> bool:
        """Return True if nothing is owed: the bucket can be dropped and recreated."""
        return self._level + (now - self._at) * self._rate >= self._burst

    def _fill(self, now: float) -> None:
        self._level = min(self._burst, self._level + (now - self._at) * self._rate)
        self._at = now
