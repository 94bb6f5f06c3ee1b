"""When a session needs its timer for changes since its times were last asked for."""


class DueTimer:
    """Called for every message, so it reports only changes."""

    __slots__ = ("_at",)

    def __init__(self) -> None:
        self._at: float | None = None

    def want(self, at: float) -> None:
        """Something is due at `at` now that was not before."""
        if self._at is None or at < self._at:
            self._at = at

    def take(self) -> float | None:
        """What was wanted since this was asked last."""
        at, self._at = self._at, None
        return at
