"""Show a trace: tables for people, JSON, panels of the picture. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from meshd.bench.figures import Table
from meshd.bench.interface import Json

from tests.bench.timeline import (
    Doing,
    Lane,
    Span,
    TraceSums,
    in_turn,
    make_lane,
    prompt_end,
    stages,
    sums,
    within,
)
from tests.bench.timeline_picture import Panel


@dataclass(frozen=True, slots=True)
class Trace:
    """Nanoseconds of one clock. `head`: when llama-server waited for a worker."""

    begin: int
    prompt_end: int
    end: int
    prompt_steps: int
    lanes: tuple[Lane, ...]
    head: tuple[Span, ...]

    @property
    def parts(self) -> list[tuple[str, int, int, slice]]:
        """The prompt, and the tokens if there were more than one: name, begin, end, steps."""
        first = ("prompt", self.begin, self.prompt_end, slice(self.prompt_steps))
        if len(self.lanes[0].steps) == self.prompt_steps:
            return [first]
        return [first, ("tokens", self.prompt_end, self.end, slice(self.prompt_steps, None))]

    def panels(self) -> list[Panel]:
        """For the picture."""
        return [
            Panel(name, begin, end, self.lanes, within(self.head, begin, end))
            for name, begin, end, _ in self.parts
        ]

    def sums(self, begin: int, end: int, steps: slice) -> dict[str, TraceSums]:
        """Return the sums of one part, by device; what the head does beside waiting is its own."""
        found = {lane.name: sums(lane.steps[steps], begin, end) for lane in self.lanes}
        waits = sum(span.end - span.begin for span in within(self.head, begin, end))
        return {"head": TraceSums(end - begin - waits, waits, 0, 0), **found}


def put_together(
    workers: Mapping[str, Sequence[Span]],
    head: Sequence[Span],
    begin: int,
    end: int,
    *,
    prompt_steps: int,
    tokens: int,
) -> Trace:
    """From all that was written down between `begin` and `end`. `tokens`: after the first, a step each.

    Raises MeshdError.
    """
    lanes = []
    for name, spans in workers.items():
        devices = sorted({span.number for span in spans if span.doing is Doing.COMPUTE} or {0})
        for number in devices:
            own = within((span for span in spans if span.number == number), begin, end)
            shown = name if len(devices) == 1 else f"{name}/{number}"
            lanes.append(make_lane(shown, own, prompt_steps + tokens, begin=begin))
    lanes = stages(lanes)
    waits = in_turn(within(head, begin, end))
    return Trace(begin, prompt_end(lanes, prompt_steps), end, prompt_steps, tuple(lanes), tuple(waits))


def sum_table(trace: Trace) -> Table:
    """Seconds and shares of each part, by device."""
    rows: list[Sequence[str]] = []
    for name, begin, end, steps in trace.parts:
        for device, one in trace.sums(begin, end, steps).items():
            whole = max(end - begin, 1)
            shown = (f"{part / 1e9:.3f} s {part / whole:4.0%}" for part in asdict(one).values())
            rows.append((name, device, *shown))
    return ("PART", "DEVICE", "COMPUTES", "WAITS", "COPIES", "IDLE"), rows


def step_table(trace: Trace) -> Table:
    """Milliseconds: since the beginning of the part, and of what a device did in each step."""
    rows: list[Sequence[str]] = []
    for part, begin, _, chosen in trace.parts:
        for number, steps in enumerate(zip(*(lane.steps[chosen] for lane in trace.lanes), strict=True), 1):
            for lane, step in zip(trace.lanes, steps, strict=True):
                times = (step.computes_from - begin, step.end - begin, step.sum(Doing.COMPUTE))
                since = step.begin if number > 1 else max(step.begin, min(begin, step.spans[0].begin))
                idle = step.idle - (since - step.begin)  # not of the part before
                more = (step.sum(Doing.WAIT), step.sum(Doing.IN, Doing.OUT), idle)
                shown = (f"{time / 1e6:.1f}" for time in (*times, *more))
                rows.append((f"{part} {number}", lane.name, *shown))
    return ("STEP", "DEVICE", "FROM", "TO", "COMPUTES", "WAITS", "COPIES", "IDLE"), rows


def as_json(trace: Trace) -> dict[str, Json]:
    """Seconds since the request."""

    def seconds(time: int) -> float:
        return (time - trace.begin) / 1e9

    def shown(spans: Sequence[Span]) -> list[Json]:
        return [
            {
                "doing": span.doing.value,
                "number": span.number,
                "begin": seconds(span.begin),
                "end": seconds(span.end),
            }
            for span in spans
        ]

    return {
        "parts": [
            {
                "name": name,
                "begin": seconds(begin),
                "end": seconds(end),
                "sums": {
                    device: {what: time / 1e9 for what, time in asdict(one).items()}
                    for device, one in trace.sums(begin, end, steps).items()
                },
            }
            for name, begin, end, steps in trace.parts
        ],
        "prompt_steps": trace.prompt_steps,
        "head": shown(trace.head),
        "devices": [
            {
                "name": lane.name,
                "steps": [
                    {"begin": seconds(step.begin), "end": seconds(step.end), "spans": shown(step.spans)}
                    for step in lane.steps
                ],
            }
            for lane in trace.lanes
        ],
    }
