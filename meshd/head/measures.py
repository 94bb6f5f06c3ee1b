"""Measure one run: its speed, the bytes of a token, when it was busy or waited, and its last answers. Pure.

The gateway tells what becomes of requests. Only answers that had all machines to themselves count as measured
speed, so that it compares with a prediction. For rounds it does not matter who runs beside whom: a round of
llama-server computes for all answers.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from meshd.gateway.interface import AnswerTimings
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.status import Speeds
from meshd.model.time_account import TokenRounds
from meshd.plan.machines import Machines
from meshd.plan.over_offers import reservations
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.prediction import PlanOutcome
from meshd.plan.split import Plan
from meshd.plan.wishes import HeadOptions
from meshd.rpc import mesh_protocol as wire

_KEPT = 8192  # intervals of each kind, the newest: about as many tokens
_ASKS = frozenset({wire.GRAPH, wire.COMPUTE, wire.READ})

Interval = tuple[float, float]


BUSY_SECONDS = 30.0  # that are looked at, the newest
_KEPT_EVENTS = 8192


_KEPT_ANSWERS = 16
_LEAST_TOKENS = 8  # of an answer that runs, or rounds of several, before it counts
_MOST_ACCOUNTED = 4000  # of which all that is remembered
_NOTHING = TokenRounds(0, 0, 0)
Span = tuple[float, float]


@dataclass(frozen=True, slots=True)
class RunFacts:
    """Describe how a model runs: its split, what that was planned with, and the prediction at load."""

    plan: Plan
    machines: Machines
    options: HeadOptions
    layers: ModelLayers
    work: LayerWork
    at_load: PlanOutcome

    @property
    def predictor(self) -> PlanPredictor:
        """Return a predictor of splits of this model on these machines."""
        return PlanPredictor(self.layers, self.work, self.machines, self.options)

    @property
    def held(self) -> dict[tuple[str, str], int]:
        """Return the memory that this takes, by node and device: reservations, and GPUs of the head.

        Of the head's CPU nothing: what it has mapped of the model's file still counts as free.
        """
        offers = [offer for offer in self.machines.offers if offer.node in self.plan.nodes]
        found = {
            (offer.node, device.name): count
            for offer, counts in zip(offers, reservations(self.plan, offers), strict=True)
            for device, count in zip(offer.offer.devices, counts, strict=True)
        }
        for share in self.plan.taking:
            if share.device.is_head and share.device.is_gpu:
                found[share.device.node, share.device.name] = share.total
        return found


class AwayTimes:
    """Note when llama-server waits for its workers, as its daemon sees the bytes pass.

    Implements tunnel.interface.Flow for all tunnels of one run together. Pure but for its clock.

    *Away* is the time from the first request of a step to the last result that was asked for. *Held* is the
    time in which bytes of llama-server waited in this daemon, as a stream took nothing more.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._away: deque[Interval] = deque(maxlen=_KEPT)
        self._held: deque[Interval] = deque(maxlen=_KEPT)
        self._began: float | None = None
        self._reads = 0
        self._holding = 0
        self._held_from = 0.0

    def seen(self, number: int) -> None:
        """Note that a message has passed, in either direction."""
        if number in _ASKS:
            if self._began is None:
                self._began = self._now()
            self._reads += number == wire.READ
        elif number == wire.DATA and self._reads:
            self._reads -= 1
            if not self._reads and self._began is not None:
                self._away.append((self._began, self._now()))
                self._began = None

    def target_waits(self, waits: bool) -> None:
        """Ignore that llama-server takes nothing more: its own doing."""

    def peer_waits(self, waits: bool) -> None:
        """Note that a stream takes nothing more, or does again."""
        if waits and not self._holding:
            self._held_from = self._now()
        self._holding = max(0, self._holding + (1 if waits else -1))
        if not waits and not self._holding:
            self._held.append((self._held_from, self._now()))

    def away(self, begin: float, end: float) -> float:
        """Return the seconds away between these times."""
        return _within(self._away, begin, end)

    def steps(self, begin: float, end: float) -> int:
        """Count the steps that ended between these times: rounds of tokens, and steps of prompts."""
        return sum(begin < two <= end for _, two in self._away)

    def held(self, begin: float, end: float) -> float:
        """Return the seconds held between these times."""
        return _within(self._held, begin, end)


def _within(intervals: deque[Interval], begin: float, end: float) -> float:
    return sum(max(0.0, min(stop, end) - max(start, begin)) for start, stop in intervals)


@dataclass(frozen=True, slots=True)
class BusySpan:
    """Count `tokens` streamed from `begin` to `end`; `more`: passed the devices as well, as far as is known.

    These are prompts, and drafts that were not accepted, of the answers that ended in it.
    """

    begin: float
    end: float
    tokens: int
    more: int


class BusyTimes:
    """Note when the model generated for streamed answers, by the clock of whoever tells, and how much."""

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
        """Return the newest span between two times without requests; None before there were tokens."""
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
    """Time one answer: it `ended` by the clock of whoever tells, `seconds` after its request came.

    Times of llama-server: its prompt, then `generated`, the first of which the prompt made.
    """

    ended: float
    seconds: float
    alone: bool
    timings: AnswerTimings

    @property
    def queue(self) -> float:
        """Return the seconds before its slot took it, with all that is neither prompt nor generation."""
        return max(0.0, self.seconds - self.timings.prompt_seconds - self.timings.generated_seconds)

    @property
    def first_token(self) -> float:
        """Return when its first token was there."""
        return self.ended - self.timings.generated_seconds

    @property
    def rounds(self) -> TokenRounds:
        """Return the rounds of the tokens behind the first."""
        timings, count = self.timings, self.timings.generated_tokens - 1
        rounds = max(1, count - min(timings.accepted, timings.drafted))
        return TokenRounds(count, rounds, rounds + timings.drafted)


@dataclass(frozen=True, slots=True)
class RunningAnswer:
    """Time a streamed answer that is alone: `tokens` from `begin`, when the first came, to `seen`."""

    begin: float
    seen: float
    tokens: int


class TimedAnswers:
    """Keep the last answers of one run."""

    def __init__(self) -> None:
        self._answers: deque[TimedAnswer] = deque(maxlen=_KEPT_ANSWERS)
        self.running: RunningAnswer | None = None
        self.busy = BusyTimes()
        self.active = 0
        """Requests under way."""

    @property
    def answers(self) -> tuple[TimedAnswer, ...]:
        """Return them, the newest last."""
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
    """Hold the spans that are looked at, and what they made."""

    token: Span | None
    made: TokenRounds
    prompt: Span | None
    prompt_tokens: int
    queue: float


@dataclass(frozen=True, slots=True)
class ChosenRounds:
    """Hold a span of rounds for all answers that ran, and what they made; or why there is none."""

    span: Span | None = None
    made: TokenRounds = _NOTHING
    why_not: str = ""


def choose_spans(log: TimedAnswers, *, drafts: bool = False) -> ChosenSpans:
    """Choose the answer that runs, once it has a few tokens; else the last that had the machines to itself.

    `drafts`: then how many rounds an answer took is said with its end, so one that runs cannot be divided.
    """
    alone = [answer for answer in log.answers if answer.alone]
    last = alone[-1] if alone else None
    span, made = None, _NOTHING
    running = log.running
    if running is not None and running.tokens > _LEAST_TOKENS and not drafts:
        count = running.tokens - 1
        span, made = (running.begin, running.seen), TokenRounds(count, count, count)
    elif longer := [answer for answer in alone if answer.timings.generated_tokens > 1]:
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


LEAST_PROMPT = 64  # tokens; shorter prompts measure a start
_LEAST_GENERATED = 8
_REMEMBERED_TOKENS = 4096


# The second token of an answer still carries the graph of its shape; those before it the prompt.
FIRST_TOKENS = 3
SAMPLE_TOKENS = 8  # between two looks at the links: a look costs more than a token is worth


class MeasuredSpeed:
    """Average the rates of one run; older answers count less."""

    def __init__(self) -> None:
        self._prompt = _Mean()
        self._generated = _Mean()
        self._undrafted = _Mean()
        self.undrafted_answers = 0
        """Those in which nothing was drafted, and of which the rate was counted."""

    def answered(self, timings: AnswerTimings) -> None:
        """Count an answer that was made alone."""
        if timings.prompt_tokens >= LEAST_PROMPT:
            self._prompt.add(timings.prompt_tokens, timings.prompt_seconds)
        if timings.generated_tokens >= _LEAST_GENERATED:
            self._generated.add(timings.generated_tokens, timings.generated_seconds)
            if not timings.drafted:
                self._undrafted.add(timings.generated_tokens, timings.generated_seconds)
                self.undrafted_answers += 1

    @property
    def undrafted_tok_s(self) -> float | None:
        """Return the rate of answers in which nothing was drafted: predictions leave drafts out as well."""
        return self._undrafted.rate

    @property
    def speeds(self) -> Speeds | None:
        """Return both speeds; None before the first answer."""
        prompt, generated = self._prompt.rate, self._generated.rate
        return None if prompt is None and generated is None else Speeds(prompt, generated)


class _Mean:
    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        if self._tokens > _REMEMBERED_TOKENS:
            self._tokens, self._seconds = self._tokens / 2, self._seconds / 2
        self._tokens += tokens
        self._seconds += seconds

    @property
    def rate(self) -> float | None:
        return round(self._tokens / self._seconds, 2) if self._seconds > 0 else None


class TokenCost:
    """Measure the bytes of a token on the wire. Tokens of several answers cross together and do not count."""

    def __init__(self, crossed: Callable[[], int]) -> None:
        """Take `crossed`: bytes on the links to the workers so far, both directions."""
        self._crossed = crossed
        self._mark: tuple[int, int] | None = None  # tokens of the answer, and bytes, at the last look
        self._tokens = 0
        self._bytes = 0

    def generated(self, total: int, *, alone: bool) -> None:
        """Look at the links: an answer has `total` tokens by now. `alone`: no other request is under way."""
        if not alone or total < FIRST_TOKENS or (self._mark is not None and total < self._mark[0]):
            self._mark = None
        if not alone or total < FIRST_TOKENS:
            return
        if self._mark is None:
            self._mark = total, self._crossed()
        elif total - self._mark[0] >= SAMPLE_TOKENS:
            now = self._crossed()
            self._tokens += total - self._mark[0]
            self._bytes += now - self._mark[1]
            self._mark = total, now

    @property
    def bytes_per_token(self) -> float | None:
        """Return the average; None until an answer was long enough."""
        return self._bytes / self._tokens if self._tokens else None


class RunMeasures:
    """Measure one run, as the gateway tells what becomes of requests (gateway.interface.Upstream)."""

    def __init__(self, now: Callable[[], float], crossed: Callable[[], int]) -> None:
        """Measure nothing yet. `crossed`: bytes on the links to the workers so far, both directions."""
        self._now = now
        self.speed = MeasuredSpeed()
        self.token_cost = TokenCost(crossed)
        self.answers = TimedAnswers()
        self.facts: RunFacts | None = None
        """How the model runs, as soon as there is a plan."""
        self.has_answered = False
        """A request got a part of its answer at least."""

    @property
    def round_seconds(self) -> Callable[[int], float] | None:
        """Return the predicted seconds of rounds; None where they are not."""
        return self.facts.predictor.rounds_of(self.facts.plan) if self.facts is not None else None

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        """Note the progress of a stream."""
        self.has_answered = True
        self.token_cost.generated(total, alone=alone)
        self.answers.generated(total, grown, self._now(), alone=alone)

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """Note the end of an answer."""
        self.has_answered = True
        if alone:
            self.speed.answered(timings)
        self.answers.answered(timings, self._now(), alone=alone, seconds=seconds)
