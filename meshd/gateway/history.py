"""The history of a gateway's work: tokens and requests of the last quarter of an hour, without a timer. Pure.

A bucket is found by the time at which something is counted or read, and those that nobody has counted in
are emptied then. So an idle gateway does nothing for it.
"""

from array import array
from dataclasses import dataclass

BUCKET_SECONDS = 10
BUCKETS = 90
_COUNT = "Q"  # of 8 bytes: 1440 for all buckets


@dataclass(frozen=True, slots=True)
class WorkHistory:
    """The work done in each bucket of BUCKET_SECONDS, the oldest first.

    `seconds`: how much of the newest bucket has passed.
    """

    tokens: tuple[int, ...]
    requests: tuple[int, ...]
    seconds: float


class WorkCounts:
    """Counts tokens that were generated and requests that came, in BUCKETS buckets.

    `now` is a clock in seconds; a time before the newest bucket counts in the newest.
    """

    def __init__(self) -> None:
        self._tokens = array(_COUNT, [0] * BUCKETS)
        self._requests = array(_COUNT, [0] * BUCKETS)
        self._newest = 0  # number of the bucket, from the clock's zero

    def add_tokens(self, tokens: int, now: float) -> None:
        """Count tokens that were generated now."""
        self._tokens[self._place(now)] += tokens

    def add_request(self, now: float) -> None:
        """Count a request that came now."""
        self._requests[self._place(now)] += 1

    def read(self, now: float) -> WorkHistory:
        """Return all buckets."""
        oldest = self._place(now) + 1
        seconds = min(max(0.0, now - self._newest * BUCKET_SECONDS), float(BUCKET_SECONDS))
        tokens = (*self._tokens[oldest:], *self._tokens[:oldest])
        return WorkHistory(tokens, (*self._requests[oldest:], *self._requests[:oldest]), seconds)

    def _place(self, now: float) -> int:
        """Return the place of the bucket for `now`; empty those that have passed since the last call."""
        number = max(self._newest, int(now // BUCKET_SECONDS))
        for passed in range(max(self._newest, number - BUCKETS) + 1, number + 1):
            self._tokens[passed % BUCKETS] = self._requests[passed % BUCKETS] = 0
        self._newest = number
        return number % BUCKETS
