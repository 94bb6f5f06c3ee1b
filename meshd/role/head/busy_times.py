"""When a model generated for streamed answers, however many at once, and how many tokens came. Pure.

Who runs beside whom does not matter: a round of llama-server computes for all of them.
"""

from collections import deque
from dataclasses import dataclass

from meshd.gateway.interface import AnswerTimings

BUSY_SECONDS = 30.0  # that are looked at, the newest
_KEPT_EVENTS = 8192


@dataclass(frozen=True, slots=True)
class BusySpan:
    """`tokens` were streamed from `begin` to `end`; `more`: passed the devices as well, as far as is known.

    These are prompts, and drafts that were not accepted, of the answers that ended in it.
    """

    begin: float
    end: float
    tokens: int
    more: int


class BusyTimes:
    """Of one life of the model. Times by the clock of whoever tells."""

    def __init__(self) -> None:
        self._streamed: deque[tuple[float, int]] = deque(maxlen=_KEPT_EVENTS)
        self._ended: deque[tuple[float, int]] = deque(maxlen=_KEPT_EVENTS)
        self._is_idle = True

    def requested(self, active: int) -> None:
        """So many are under way now."""
        self._is_idle = self._is_idle or not active

    def generated(self, grown: int, now: float) -> None:
        """An answer has so many tokens more."""
        if self._is_idle:
            self._is_idle = False
            self._streamed.clear()
            self._ended.clear()
        self._streamed.append((now, grown))

    def answered(self, timings: AnswerTimings, now: float) -> None:
        """One is whole."""
        unused = max(0, timings.drafted - timings.accepted)
        prompt_is_old = timings.generated_seconds > BUSY_SECONDS
        self._ended.append((now, unused + (0 if prompt_is_old else timings.prompt_tokens)))

    @property
    def span(self) -> BusySpan | None:
        """The newest that lies between two times without requests; None before there were tokens."""
        if not self._streamed:
            return None
        end = self._streamed[-1][0]
        looked_at = [(at, grown) for at, grown in self._streamed if at >= end - BUSY_SECONDS]
        begin = looked_at[0][0]  # its tokens came before
        tokens = sum(grown for at, grown in looked_at if at > begin)
        more = sum(count for at, count in self._ended if begin < at)
        return BusySpan(begin, end, tokens, more) if tokens else None
