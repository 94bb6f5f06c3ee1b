"""Reports how far a transfer is, a few times a second and at its end."""

import time

from meshd.library.interface import ReportProgress, TransferProgress

_SECONDS = 0.5


class Meter:
    """Counts bytes of one activity; `begin_at` of them were there before it began."""

    def __init__(self, report: ReportProgress, activity: str, total: int, *, begin_at: int = 0) -> None:
        self._report = report
        self._activity = activity
        self._total = total
        self._first = begin_at
        self._began = self._told = time.monotonic()
        self.done = begin_at
        self._tell(0.0)

    def add(self, count: int) -> None:
        """So many bytes more; negative when some have to come again."""
        self.done += count
        now = time.monotonic()
        if now - self._told >= _SECONDS or self.done == self._total:
            self._told = now
            self._tell(now - self._began)

    def _tell(self, seconds: float) -> None:
        rate = (self.done - self._first) / seconds if seconds > 0 else 0.0
        self._report(TransferProgress(self._activity, self.done, self._total, max(0.0, rate)))
