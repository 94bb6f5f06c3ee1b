"""What became of each run in which a worker was lost: facts that tests note, and the table of their sums."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

STATES = ("load", "prompt", "decode", "idle", "shutdown")
HANG_SECONDS = 10.0
_NOTED: list["Loss"] = []


@dataclass(slots=True)
class Loss:
    """`place`: what has to notice it.

    `seconds`: how long a client waited to be told or answered, or a line needed to come back, once it could.
    `again`: until the next right answer, or the end of this one.

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

    @property
    def hung(self) -> bool:
        return self.seconds > HANG_SECONDS

    def since(self, moment: float) -> None:
        """It is known now; `moment` is of time.monotonic(). Earlier than that counts as at once."""
        self.seconds = max(self.seconds, time.monotonic() - moment, 0.0)


@contextmanager
def noted(place: str, state: str, kind: str) -> Iterator[Loss]:
    """One run. It is noted however it ends; afterwards none of the three may have happened."""
    loss = Loss(place, state, kind)
    _NOTED.append(loss)
    began = time.monotonic()
    try:
        yield loss
    except BaseException as error:
        loss.failed = True
        if isinstance(error, TimeoutError):
            loss.since(began)
        raise
    assert not (loss.aborted or loss.wrong or loss.hung), loss


def noted_losses() -> Sequence[Loss]:
    """Of this process, so far."""
    return _NOTED


def table(losses: Sequence[Loss]) -> list[str]:
    """A line for each place, kind and state, and one for all; of times the slowest."""

    def key(loss: Loss) -> tuple[str, str, int]:
        return loss.place, loss.kind, STATES.index(loss.state)

    lines = [
        _line("place", "kind", "state", "runs", "aborts", "hangs", "wrong", "failed", "told s", "again s")
    ]
    for (place, kind, state), group in groupby(sorted(losses, key=key), key):
        lines.append(_sums(place, kind, STATES[state], list(group)))
    return [*lines, _sums("all", "", "", losses)]


def _sums(place: str, kind: str, state: str, losses: Sequence[Loss]) -> str:
    counts = (
        len(losses),
        sum(loss.aborted for loss in losses),
        sum(loss.hung for loss in losses),
        sum(loss.wrong for loss in losses),
        sum(loss.failed for loss in losses),
    )
    slowest = [max(loss.seconds for loss in losses), max(loss.again for loss in losses)]
    return _line(place, kind, state, *map(str, counts), *(f"{seconds:.2f}" for seconds in slowest))


def _line(place: str, kind: str, state: str, *numbers: str) -> str:
    return f"{place:<13} {kind:<10} {state:<9}" + "".join(f"{number:>10}" for number in numbers)
