"""The page docs/lab/performance.md, made of what was measured. Pure."""

import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from meshd.base.errors import UserError
from meshd.bench.figures import (
    MESHD,
    STOCK,
    Figures,
    Table,
    cell_table,
    promise_table,
    promises,
    with_spread,
)

from tests.bench.published_figures import DELAYED, DELAYED_COMMAND, NOT_RUN
from tests.bench.ready_figures import ReadinessFigures
from tests.bench.ready_figures import promises as ready_promises
from tests.bench.ready_figures import table as ready_table

_PAGE = """\
# Performance

Made by {command} on {when}: {machine}; {pin}; SmolLM2-135M (Q4_1), {pairs} runs per cell: the median, with
minimum and maximum in brackets. All nodes share this machine, so ratios are more meaningful than seconds.
Method: [benchmarks.md](benchmarks.md).

{ready}

## Over a distance

Stock llama.cpp behind a delaying proxy for each worker, and meshd with the same delay between its daemons, in
turns (`meshd bench latency --workers {workers} --rtt {round_trips}`). A load ends with the first
token. The first row is one node alone.
{texts}

{cells}

![time per token, by round trip]({picture})

Targets: {verdict}. "One node alone" and a one-way delay ("way") are measured without meshd. Missed targets:

{promises}

## Compared with a direct connection

No distance; stock llama.cpp of the same build over its own RPC (`meshd bench rpc`):

{rpc}

## Compared with reports of others

Tokens per second by delay: theirs of each request to compute, with GLM-4.7-Flash on an Apple M4 Max; ours of
a round trip, with SmolLM2 here, {pairs} starts each. Compare how each declines (SHARE).
Their model on their machine, {not_here}: {delayed_command}.

{delayed}
"""
_READY = """\
<!-- ready -->
## From asking to ready

`python -m tests.bench.readiness --workers {workers} --rtt {round_trips}` on {when}: {machine}; {pin}.
Seconds from the moment a head asks its connected workers until its `/health` is 200,
which is after the first real token.
llama-server was killed {runs} times for each cell, and that of one machine alone after each (first row).
ROUND TRIPS is the additional time compared with RTT 0. FIRST is the start of `meshd serve` itself, while its
links are still being established.
{verdict}. Bounds apply to READY, not to FIRST:

{table}
<!-- end of ready -->"""
_RANGE = re.compile(r"\(([\d.]+) to ([\d.]+)\)")
_SHORT = "a short run, whose figures are not reliable (run `make bench`),"


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """When and with what."""

    when: str
    machine: str
    pin: str
    pairs: int
    picture: str
    short: bool = False


def ready_section(made: Made, ready: ReadinessFigures) -> str:
    """The section on readiness, between marks so that it can be replaced separately."""
    kept, cells = ready_promises(ready), [cell for cell in ready.cells() if cell[0]]
    lost = sum(not one.held for one in kept)
    return _READY.format(
        workers=",".join(str(one) for one in sorted({workers for workers, _ in cells})),
        round_trips=",".join(f"{one:g}" for one in sorted({rtt for _, rtt in cells})),
        when=made.when,
        machine=made.machine,
        pin=made.pin,
        runs=min((len(ready.seconds(*cell)) for cell in cells), default=0),
        verdict=f"{lost} of {len(kept)} bounds not held" if lost else "All bounds held",
        table=plain(ready_table(ready)),
    )


def with_ready_section(page_before: str, section: str) -> str:
    """A page with another section of readiness. Raises UserError when it has none."""
    begin, end = section.splitlines()[0], section.splitlines()[-1]
    before, found, rest = page_before.partition(begin)
    _, found_end, after = rest.partition(end)
    if not (found and found_end):
        raise UserError("the page has no section on readiness", hint="run `make bench` once")
    return before + section + after


def page(made: Made, far: Figures, delayed: Figures, rpc: Table, ready: ReadinessFigures) -> str:
    """All of it, in Markdown."""
    kept = promises(far)
    lost = sum(not one.held for one in kept)
    differing = far.texts_differ()
    cells = far.cells()
    return _PAGE.format(
        command=_SHORT if made.short else "`make bench`",
        when=made.when,
        machine=made.machine,
        pin=made.pin,
        pairs=made.pairs,
        picture=made.picture,
        workers=",".join(str(one) for one in sorted({workers for workers, _ in cells})),
        round_trips=",".join(f"{one:g}" for one in sorted({rtt for _, rtt in cells})),
        texts=f"Text different from one node's: {'; '.join(differing)}."
        if differing
        else "All produced the same text.",
        cells=plain(cell_table(far)),
        ready=ready_section(made, ready),
        verdict=f"{lost} of {len(kept)} not held" if lost else "all held",
        promises=plain(promise_table([one for one in kept if not one.held])),
        rpc=plain(rpc),
        not_here=NOT_RUN,
        delayed_command=DELAYED_COMMAND,
        delayed=plain(delayed_table(delayed)),
    )


def plain(table: Table) -> str:
    """Return the table as aligned text in a fence, because wide Markdown tables do not fit a page."""
    headers, rows = table
    lines = [[_RANGE.sub(r"(\1–\2)", cell) for cell in line] for line in (headers, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
    return "\n".join(["```", *text, "```"])


def markdown(table: Table) -> str:
    """Return a Markdown table."""
    headers, rows = table
    lines = [headers, ["---"] * len(headers), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)


def delayed_table(delayed: Figures) -> Table:
    """A row of theirs, and ours stock and meshd; SHARE is of the same column's first speed."""
    rows: list[Sequence[str]] = []
    first: dict[str, float] = {}
    for one in DELAYED:
        speeds = {"theirs": [one.tokens_a_second]}
        for setup in (STOCK, MESHD):
            speeds[setup] = [1 / token for token in delayed.values(setup, one.nodes - 1, one.ms, "token")]
        row = [str(one.nodes), f"{one.ms:g}"]
        for setup, measured in speeds.items():
            middle = statistics.median(measured) if measured else 0.0
            share = f"{middle / first.setdefault(setup, middle):.2f}" if measured else ""
            row += [with_spread(measured, ".1f") or NOT_RUN, share]
        rows.append(row)
    return ("NODES", "DELAY ms", "THEIRS", "SHARE", "STOCK", "SHARE", "MESHD", "SHARE"), rows
