"""The last answers of a model, as the gateway tells of them, and the one that runs. Pure."""

from collections import deque
from dataclasses import dataclass

from meshd.gateway.interface import AnswerTimings
from meshd.model.time_account import TokenRounds
from meshd.role.head.busy_times import BusyTimes

_KEPT_ANSWERS = 16


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """`ended`, by the clock of whoever tells; `seconds` since its request came.

    Times of llama-server: its prompt, then `generated`, the first of which the prompt made.
    """

    ended: float
    seconds: float
    alone: bool
    timings: AnswerTimings

    @property
    def queue(self) -> float:
        """Seconds before its slot took it, with all that is neither prompt nor generation."""
        return max(0.0, self.seconds - self.timings.prompt_seconds - self.timings.generated_seconds)

    @property
    def first_token(self) -> float:
        """When it was there."""
        return self.ended - self.timings.generated_seconds

    @property
    def rounds(self) -> TokenRounds:
        """Of the tokens behind the first."""
        timings, count = self.timings, self.timings.generated_tokens - 1
        rounds = max(1, count - min(timings.accepted, timings.drafted))
        return TokenRounds(count, rounds, rounds + timings.drafted)


@dataclass(frozen=True, slots=True)
class RunningAnswer:
    """A streamed one that is alone: `tokens` from `begin`, when the first came, to `seen`."""

    begin: float
    seen: float
    tokens: int


class TimedAnswers:
    """Of one life of the model."""

    def __init__(self) -> None:
        self._answers: deque[TimedAnswer] = deque(maxlen=_KEPT_ANSWERS)
        self.running: RunningAnswer | None = None
        self.busy = BusyTimes()
        self.active = 0
        """Requests under way."""

    @property
    def answers(self) -> tuple[TimedAnswer, ...]:
        """The newest last."""
        return tuple(self._answers)

    def requested(self, active: int) -> None:
        """So many are under way now."""
        self.active = active
        self.busy.requested(active)
        if active != 1:
            self.running = None

    def generated(self, total: int, grown: int, now: float, *, alone: bool) -> None:
        """An answer that is streamed has so many tokens, `grown` of them new."""
        self.busy.generated(grown, now)
        if not alone:
            self.running = None
        elif self.running is None or total < self.running.tokens:
            self.running = RunningAnswer(now, now, total)
        else:
            self.running = RunningAnswer(self.running.begin, now, total)

    def answered(self, timings: AnswerTimings, now: float, *, alone: bool, seconds: float) -> None:
        """A whole one."""
        self.running = None
        self.busy.answered(timings, now)
        self._answers.append(TimedAnswer(now, seconds, alone, timings))
