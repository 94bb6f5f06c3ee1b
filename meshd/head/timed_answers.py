"""The last answers of a model, when it was busy, and the spans whose time is divided into parts. Pure.

The gateway tells what becomes of requests. For rounds it does not matter who runs beside whom: a round of
llama-server computes for all answers.
"""

from collections import deque
from dataclasses import dataclass

from meshd.gateway.interface import AnswerTimings
from meshd.head.away_times import AwayTimes
from meshd.model.time_account import TokenRounds

BUSY_SECONDS = 30.0  # that are looked at, the newest
_KEPT_EVENTS = 8192


_KEPT_ANSWERS = 16
_LEAST_TOKENS = 8  # of an answer that runs, or rounds of several, before it counts
_MOST_ACCOUNTED = 4000  # of which all that is remembered
_NOTHING = TokenRounds(0, 0, 0)
Span = tuple[float, float]


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
    """When the model generated for streamed answers, by the clock of whoever tells, and how much."""

    def __init__(self) -> None:
        self._streamed: deque[tuple[float, int]] = deque(maxlen=_KEPT_EVENTS)
        self._ended: deque[tuple[float, int]] = deque(maxlen=_KEPT_EVENTS)
        self._is_idle = True

    def requested(self, active: int) -> None:
        """Note how many requests are under way now."""
        self._is_idle = self._is_idle or not active

    def generated(self, grown: int, now: float) -> None:
        """Count so many more tokens of an answer."""
        if self._is_idle:
            self._is_idle = False
            self._streamed.clear()
            self._ended.clear()
        self._streamed.append((now, grown))

    def answered(self, timings: AnswerTimings, now: float) -> None:
        """Count an answer that is whole."""
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
    """The answers of one life of the model."""

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
        """Note how many requests are under way now."""
        self.active = active
        self.busy.requested(active)
        if active != 1:
            self.running = None

    def generated(self, total: int, grown: int, now: float, *, alone: bool) -> None:
        """Note that a streamed answer has so many tokens, `grown` of them new."""
        self.busy.generated(grown, now)
        if not alone:
            self.running = None
        elif self.running is None or total < self.running.tokens:
            self.running = RunningAnswer(now, now, total)
        else:
            self.running = RunningAnswer(self.running.begin, now, total)

    def answered(self, timings: AnswerTimings, now: float, *, alone: bool, seconds: float) -> None:
        """Keep an answer that is whole."""
        self.running = None
        self.busy.answered(timings, now)
        self._answers.append(TimedAnswer(now, seconds, alone, timings))


@dataclass(frozen=True, slots=True)
class ChosenSpans:
    """The spans that are looked at, and what they made."""

    token: Span | None
    made: TokenRounds
    prompt: Span | None
    prompt_tokens: int
    queue: float


@dataclass(frozen=True, slots=True)
class ChosenRounds:
    """A span of rounds for all answers that ran, and what they made; or why there is none."""

    span: Span | None = None
    made: TokenRounds = _NOTHING
    why_not: str = ""


def choose_spans(log: TimedAnswers, *, drafts: bool = False) -> ChosenSpans:
    """Choose the answer that runs, once it has a few tokens; else the last that had the machines to itself.

    `drafts`: then how many rounds an answer took is said with its end, so one that runs cannot be divided.
    """
    alone = [one for one in log.answers if one.alone]
    last = alone[-1] if alone else None
    span, made = None, _NOTHING
    running = log.running
    if running is not None and running.tokens > _LEAST_TOKENS and not drafts:
        count = running.tokens - 1
        span, made = (running.begin, running.seen), TokenRounds(count, count, count)
    elif longer := [one for one in alone if one.timings.generated_tokens > 1]:
        span, made = (longer[-1].first_token, longer[-1].ended), longer[-1].rounds
    if span is not None and made.tokens > _MOST_ACCOUNTED:
        span = span[1] - (span[1] - span[0]) * _MOST_ACCOUNTED / made.tokens, span[1]
        made = made.part(_MOST_ACCOUNTED)
    if last is None or not last.timings.prompt_tokens:
        return ChosenSpans(span, made, None, 0, 0.0)
    begin = last.first_token - last.timings.prompt_seconds
    return ChosenSpans(span, made, (begin, last.first_token), last.timings.prompt_tokens, last.queue)


def choose_rounds(log: TimedAnswers, away: AwayTimes, token: Span | None) -> ChosenRounds:
    """Choose the newest busy time, unless `token` is of that or a later one."""
    busy = log.busy.span
    if busy is None:
        return ChosenRounds(why_not="no answer was streamed, so nobody saw when tokens came")
    if token is not None and token[1] >= busy.end:
        return ChosenRounds(why_not="the account of a token is of the same time")
    rounds = away.steps(busy.begin, busy.end)
    if not rounds:
        return ChosenRounds(
            why_not="the model runs on this node alone, and llama-server does not say in how many rounds"
        )
    if rounds < _LEAST_TOKENS:
        return ChosenRounds(why_not=f"of {rounds} rounds no mean is worth anything")
    made = TokenRounds(busy.tokens, rounds, busy.tokens + busy.more)
    return ChosenRounds((busy.begin, busy.end), made)
