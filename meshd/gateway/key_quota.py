"""What one API key has used, and whether it may have more. Pure.

An answer that has begun is finished: tokens are known when they are there.
"""

import math
from dataclasses import dataclass

from meshd.base.byte_format import in_number
from meshd.base.time_format import in_time
from meshd.base.token_bucket import TokenBucket
from meshd.gateway.api_key import ApiKey

DAY_SECONDS = 86400
_ANOTHER_SECONDS = 2  # before a client whose requests are too many at a time tries again


@dataclass(frozen=True, slots=True)
class Excess:
    """Why a request is refused; `is_quota`: it is not for its rate. `retry_after` in seconds."""

    message: str
    retry_after: int
    is_quota: bool = False


class KeyQuota:
    """Of one key. `now` is a clock in seconds that never goes back, `wall` unix seconds."""

    def __init__(self, key: ApiKey, now: float) -> None:
        self._limits = key.limits
        self._name = key.name
        minute = key.limits.requests_per_minute
        self._bucket = None if minute is None else TokenBucket(rate=minute / 60, burst=minute, now=now)
        self._day = 0
        self._tokens = 0
        self.active = 0

    def tokens_today(self, wall: float) -> int:
        """Counted since midnight UTC."""
        return self._tokens if self._day == int(wall // DAY_SECONDS) else 0

    def add_tokens(self, tokens: int, wall: float) -> None:
        """An answer has ended at `wall`."""
        self._tokens = self.tokens_today(wall) + tokens
        self._day = int(wall // DAY_SECONDS)

    def begin(self, now: float, wall: float) -> Excess | None:
        """A request is there: it counts until `end`, unless the answer says why it may not be."""
        limits, of = self._limits, f"of the key `{self._name}`"
        if limits.tokens_per_day is not None and self.tokens_today(wall) >= limits.tokens_per_day:
            rest = math.ceil(DAY_SECONDS - wall % DAY_SECONDS)
            spent = f"the {limits.tokens_per_day} tokens per day {of} are used up"
            return Excess(f"{spent}: more in {in_time(rest)}", max(1, rest), is_quota=True)
        if limits.concurrent is not None and self.active >= limits.concurrent:
            are = "is" if self.active == 1 else "are"
            what = f"{in_number(self.active, 'request')} {of} {are} already in progress"
            return Excess(what, _ANOTHER_SECONDS)
        if self._bucket is not None and not self._bucket.spend(1, now):
            minute = limits.requests_per_minute
            assert minute is not None
            rest = max(1, math.ceil(60 / minute))
            what = (
                f"more than {in_number(minute, 'request')} per minute {of}: the next one in {in_time(rest)}"
            )
            return Excess(what, rest)
        self.active += 1
        return None

    def end(self) -> None:
        """A request that counted is over."""
        self.active -= 1
