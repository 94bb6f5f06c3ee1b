"""Who computes, copies and waits, for each step of a model: from what native/mesh wrote down. Pure.

A *span* is one thing that a device did (native/mesh/trace.h). A *step* is one micro batch of a prompt, or
one token: each device computes as many graphs in each. What comes in belongs to the next computation, and
what goes out to the one before. Times are nanoseconds of a clock that all share.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from meshd.base.errors import MeshdError


class Doing(StrEnum):
    """The kind of a span, as in the file."""

    COMPUTE = "compute"
    WAIT = "wait"  # for what another worker computes; a head: for any worker
    IN = "in"  # copies what the next computation needs
    OUT = "out"  # copies results


@dataclass(frozen=True, slots=True)
class Span:
    """`number` is a device of a worker; of a head that of the worker it waits for."""

    doing: Doing
    number: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class TraceStep:
    """The work of one device for one step, from the end of the step before to its own end."""

    begin: int
    end: int
    spans: tuple[Span, ...]

    def sum(self, *doings: Doing) -> int:
        """Nanoseconds of these."""
        return sum(span.end - span.begin for span in self.spans if span.doing in doings)

    @property
    def idle(self) -> int:
        """Nanoseconds without any: the head had asked for nothing more."""
        return self.end - self.begin - self.sum(*Doing)

    @property
    def computes_from(self) -> int:
        """When its first graph began."""
        return next(span.begin for span in self.spans if span.doing is Doing.COMPUTE)


@dataclass(frozen=True, slots=True)
class Lane:
    """A device. `steps` are those of the prompt, then one for each further token."""

    name: str
    steps: tuple[TraceStep, ...]


def read_spans(text: str) -> list[Span]:
    """The lines of one file; a last one without its end is left out. Raises MeshdError."""
    spans = []
    for line in text.splitlines(keepends=True):
        words = line.split(" ")
        if not line.endswith("\n"):
            break  # its writer was ended
        try:
            doing, *numbers = words
            number, begin, end = map(int, numbers)
            spans.append(Span(Doing(doing), number, begin, end))
        except ValueError:
            raise MeshdError(f"a trace has the line `{line.strip()[:80]}`, which is none") from None
        if not 0 <= begin <= end:
            raise MeshdError(f"a trace says that something ended before it began: `{line.strip()[:80]}`")
    return spans


def within(spans: Iterable[Span], begin: int, end: int) -> list[Span]:
    """Return the spans that began there, cut at `end`."""
    return [replace(span, end=min(span.end, end)) for span in spans if begin <= span.begin < end]


def in_turn(spans: Iterable[Span]) -> list[Span]:
    """One after the other: each begins when the one before has ended, at the earliest.

    A GPU is given graphs while it computes; what lies wholly in the time of another is left out.
    """
    result: list[Span] = []
    for span in sorted(spans, key=lambda one: (one.begin, one.end)):
        begin = max(span.begin, result[-1].end) if result else span.begin
        if begin < span.end or span.doing is Doing.COMPUTE:
            result.append(replace(span, begin=begin, end=max(begin, span.end)))
    return result


def micro_batches(tokens: int, *, batch: int, micro_batch: int) -> int:
    """Return the micro batches of a prompt: llama-server hands over batches, and llama.cpp divides each."""
    whole, rest = divmod(tokens, batch)
    return whole * -(-batch // micro_batch) + -(-rest // micro_batch)


def make_lane(name: str, spans: Iterable[Span], steps: int, *, begin: int) -> Lane:
    """One device's spans from `begin` on, by step.

    Raises MeshdError where its graphs are not the same number in each step.
    """
    spans = in_turn(spans)
    graphs = sum(span.doing is Doing.COMPUTE for span in spans)
    if not steps or not graphs or graphs % steps:
        raise MeshdError(
            f"{name} computed {graphs} graphs in {steps} steps, so they cannot be told apart",
            hint="recurrent models, and windowed ones without --swa-full, divide prompts otherwise",
        )
    return Lane(name, _steps(spans, graphs // steps, begin))


def _steps(spans: Sequence[Span], graphs: int, begin: int) -> tuple[TraceStep, ...]:
    """`graphs` belong to each step."""
    parts: list[list[Span]] = [[]]
    computed = 0
    for span in spans:
        if computed == graphs and span.doing is not Doing.OUT:
            parts.append([])
            computed = 0
        computed += span.doing is Doing.COMPUTE
        parts[-1].append(span)
    if computed < graphs:  # what came in for a step that was not computed
        parts.pop()
    ends = [part[-1].end for part in parts]
    return tuple(map(TraceStep, [begin, *ends], ends, map(tuple, parts)))


def stages(lanes: Iterable[Lane]) -> list[Lane]:
    """In the order in which the first step passes them."""
    return sorted(lanes, key=lambda one: one.steps[0].computes_from)


def prompt_end(lanes: Iterable[Lane], steps: int) -> int:
    """When the last of the prompt's `steps` was done."""
    return max(one.steps[steps - 1].end for one in lanes)


@dataclass(frozen=True, slots=True)
class TraceSums:
    """Nanoseconds of one device in one part of the time."""

    computes: int
    waits: int
    copies: int
    idle: int


def sums(steps: Sequence[TraceStep], begin: int, end: int) -> TraceSums:
    """From `begin` to `end`, which contain these steps."""
    computes, waits = (sum(step.sum(doing) for step in steps) for doing in (Doing.COMPUTE, Doing.WAIT))
    copies = sum(step.sum(Doing.IN, Doing.OUT) for step in steps)
    return TraceSums(computes, waits, copies, end - begin - computes - waits - copies)
