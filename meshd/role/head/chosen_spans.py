"""Which of a model's time is looked at to say where it went: of an answer, or of rounds for several. Pure."""

from dataclasses import dataclass

from meshd.model.time_account import TokenRounds
from meshd.role.head.away_times import AwayTimes
from meshd.role.head.timed_answers import TimedAnswers

_LEAST_TOKENS = 8  # of an answer that runs, or rounds of several, before it counts
_MOST_ACCOUNTED = 4000  # of which all that is remembered
_NOTHING = TokenRounds(0, 0, 0)

Span = tuple[float, float]


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
    """The answer that runs, once it has a few tokens; else the last that had the machines to itself.

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
    """Of the newest busy time, unless `token` is of that or a later one."""
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
