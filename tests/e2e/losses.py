"""Note what became of each run in which a worker was lost, and make the table of the sums."""

import math
import os
import platform
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from itertools import groupby

from tests.e2e.open_answers import Interruption, faults_text, interruption_table
from tests.soak import SOAK

STATES = ("load", "prompt", "decode", "idle", "shutdown")
HANG_SECONDS = 10.0
_NOTED: list["Loss"] = []
_HEAD = """# Lost workers

For contributors: how meshd handled each kind of lost worker. `make soak` writes this page;
[testing.md](../testing.md#longer-runs) describes the runs. *Short counts* means a shorter run, which may omit
kinds. *Faults* are aborts, hangs, wrong tokens, late answers and failures, and must be 0. Times are the
slowest of a row, in seconds: until the client was told, and until the next right answer. For open streams
that continued: how long each stalled, median and slowest of all streams.
"""


@dataclass(slots=True)
class Loss:
    """`place`: what has to notice it.

    `seconds`: how long a client waited to be told, a line took to come back, or a head to end.
    `again`: until the next right answer, or the end of this one; `again_within` is what was promised.

    `wrong`: a client got a token that one node alone would not have made.
    """

    place: str
    state: str
    kind: str
    seconds: float = 0.0
    again: float = 0.0
    aborted: bool = False
    wrong: bool = False
    failed: bool = False
    told_within: float = HANG_SECONDS
    again_within: float = math.inf

    @property
    def hung(self) -> bool:
        return self.seconds > self.told_within

    @property
    def late(self) -> bool:
        return self.again > self.again_within

    def since(self, moment: float) -> None:
        """It is known now; `moment` is of time.monotonic(). Earlier than that counts as at once."""
        self.seconds = max(self.seconds, time.monotonic() - moment, 0.0)


@contextmanager
def noted(place: str, state: str, kind: str, *, told_within: float = HANG_SECONDS) -> Iterator[Loss]:
    """One run. It is noted however it ends; afterwards none of the four may have happened."""
    loss = Loss(place, state, kind, told_within=told_within)
    _NOTED.append(loss)
    began = time.monotonic()
    try:
        yield loss
    except BaseException as error:
        loss.failed = True
        if isinstance(error, TimeoutError):
            loss.since(began)
        raise
    assert not (loss.aborted or loss.wrong or loss.hung or loss.late), loss


def noted_losses() -> Sequence[Loss]:
    """Return the losses of this process, so far, and those it was told of."""
    return _NOTED


def note_losses(losses: Iterable[Loss]) -> None:
    """Take over what another process has noted."""
    _NOTED.extend(losses)


def page(losses: Sequence[Loss], interruptions: Sequence[Interruption], *, seed: int, today: date) -> str:
    """Return docs/lab/soak.md for a run on this machine."""
    load = ", ".join(f"{number:.0f}" for number in os.getloadavg())
    counts = "full" if SOAK else "short"
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores, load {load} at the end"
    tables = "\n".join(_fenced(lines) for lines in tables_of(losses, interruptions))
    return f"{_HEAD}\n{today:%Y-%m-%d}, {machine}, the {counts} counts, `MESHD_SEED={seed}`.\n\n{tables}"


def tables_of(losses: Sequence[Loss], interruptions: Sequence[Interruption]) -> Iterator[list[str]]:
    """Return the tables that have lines."""
    if losses:
        yield table(losses)
    if interruptions:
        yield interruption_table(interruptions)


def _fenced(lines: Sequence[str]) -> str:
    return "\n".join(["```", *(line.rstrip() for line in lines), "```", ""])


def table(losses: Sequence[Loss]) -> list[str]:
    """A line for each place, kind and state, and one for all; of times the slowest."""

    def key(loss: Loss) -> tuple[str, str, int]:
        return loss.place, loss.kind, STATES.index(loss.state)

    lines = [
        _line("place", "kind", "state", "runs", "told s", "again s", "faults"),
    ]
    for (place, kind, state), group in groupby(sorted(losses, key=key), key):
        lines.append(_sums(place, kind, STATES[state], list(group)))
    return [*lines, _sums("all", "", "", losses)]


def _sums(place: str, kind: str, state: str, losses: Sequence[Loss]) -> str:
    faults = {
        "aborts": sum(loss.aborted for loss in losses),
        "hangs": sum(loss.hung for loss in losses),
        "wrong": sum(loss.wrong for loss in losses),
        "late": sum(loss.late for loss in losses),
        "failed": sum(loss.failed for loss in losses),
    }
    slowest = [max(loss.seconds for loss in losses), max(loss.again for loss in losses)]
    times = (f"{seconds:.2f}" for seconds in slowest)
    return _line(place, kind, state, str(len(losses)), *times, faults_text(faults))


def _line(place: str, kind: str, state: str, *numbers: str) -> str:
    return f"{place:<13} {kind:<15} {state:<9}" + "".join(f"{number:>10}" for number in numbers)
