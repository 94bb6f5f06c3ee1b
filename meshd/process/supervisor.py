"""Decides when to restart a child. Pure.

Two questions are kept apart. *Did it ever work?* A child that was ready for a while and then died (a worker
that was killed) is wanted back at once. One that never gets that far fails for a reason that waiting does
not cure: it gets a few quick tries, then pauses of 15 s that grow to minutes, and is called a crash loop.
"""

from dataclasses import dataclass

HALF_LIFE = 30.0  # seconds in which a failure loses half its weight
THRESHOLD = 5.0  # weight from which failures are a loop
WORKED_AFTER = 1.0  # seconds of READY after which a run counts as one that worked
QUICK_FIRST = 0.25  # seconds before the first new try: the kernel has released ports and memory by then
QUICK_MOST = 2.0  # a child that works when it is up: its users are waiting
LOOP_FIRST = 15.0
LOOP_MOST = 300.0
DOUBLINGS = 32  # enough to reach any limit; keeps the power small


@dataclass(frozen=True, slots=True)
class FailureRecord:
    """Failures of one child: decayed `weight` as of `as_of` (seconds), `streak` of runs that never worked."""

    weight: float = 0.0
    as_of: float = 0.0
    streak: int = 0
    total: int = 0

    def add(self, now: float, *, was_stable: bool) -> "FailureRecord":
        """One more failure at `now`; `was_stable` says whether that run had been ready long enough."""
        age = max(0.0, now - self.as_of)
        return FailureRecord(
            weight=self.weight * 0.5 ** (age / HALF_LIFE) + 1.0,
            as_of=now,
            streak=0 if was_stable else self.streak + 1,
            total=self.total + 1,
        )

    @property
    def looping(self) -> bool:
        """True when trying again soon is pointless."""
        return self.streak > 0 and (self.weight >= THRESHOLD or self.streak >= THRESHOLD)

    @property
    def delay(self) -> float:
        """Seconds to wait before the next start."""
        if self.looping:
            beyond = max(0, self.streak - int(THRESHOLD))
            return min(LOOP_MOST, LOOP_FIRST * 2.0 ** min(beyond, DOUBLINGS))
        tries = max(self.streak, int(self.weight)) - 1
        return min(QUICK_MOST, QUICK_FIRST * 2.0 ** min(max(0, tries), DOUBLINGS))


def was_stable(ready_at: float | None, now: float) -> bool:
    """Whether a run that was ready since `ready_at` (None: never) and ended `now` is one that worked."""
    return ready_at is not None and now - ready_at >= WORKED_AFTER
