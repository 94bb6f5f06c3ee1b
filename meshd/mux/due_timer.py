"""Collects the earliest time at which a session needs its timer, since its times were last read."""


class DueTimer:
    """Called for every message, so it reports only changes."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: float | None = None

    def want(self, at: float) -> None:
        """Request the timer at `at`, unless it is due earlier."""
        if self._at is None or at < self._at:
            self._at = at

    def take(self) -> float | None:
        """Return and clear the time requested since the last call."""
        at, self._at = self._at, None
        return at
