"""Round trips from asking the workers to ready, counted by a clock that stands still while anybody computes.

So the speed of the machine does not matter, and windows are wide (wide/sitecustomize.py): what is counted
are messages that wait for one another. A node that computes for longer than the clock stands still makes a
count higher, so starts are counted until one has no round trip too many. A machine so busy that nearly
every start is disturbed cannot tell, and the test is skipped. What TCP and windows add by the bytes of a
load is measured by tests/bench/readiness.py and tests/netns/test_ready.py, with a clock of seconds.
"""

import asyncio
import math
import re
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from pathlib import Path

import pytest
from meshd.base.tasks import Owner
from meshd.fleet.fleet import HEAD_NAME, FleetSpec, worker_names

from tests.bench.networks import SteppedFleet
from tests.bench.readiness import REMOTE, Serving
from tests.bench.ready_figures import ROUND_TRIPS, asked_at
from tests.bench.start_trips import WIDE
from tests.bench.stepped import LITTLE, Step, steps_of
from tests.e2e.models import cache_folder, native, smollm2

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

MOST_SECONDS = 180.0  # until one start is undisturbed
ENOUGH = 3  # undisturbed starts, of which none has as few as the protocol needs: then that is so
_READY = re.compile(r"^(\S+) \[info +\] model_state .* state=ready", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Start:
    """One start's round trips, and whether nobody computed when a step was made."""

    round_trips: float
    undisturbed: bool


def counted(asked: Sequence[float], ready: Sequence[float], steps: Sequence[Step]) -> list[Start]:
    """Return each start: from one asking to the first ready behind it."""
    found = []
    for began in asked:
        ended = next((at for at in ready if at > began), None)
        if ended is not None:
            within = [step for step in steps if began <= step.at <= ended]
            found.append(Start(sum(step.counts for step in within) / 2, all(step.quiet for step in within)))
    return found


def least(workers: int) -> float:
    """Return what the protocol needs (docs/decisions/0033-ready.md): offers, servers, weights and neighbours,
    and a token that goes from worker to worker."""
    weights = 1.0 if workers == 1 else 1.5
    return 1 + 1 + weights + (workers + 1) / 2


async def starts(workers: int, folder: Path) -> list[Start]:
    spec = FleetSpec(
        folder=folder,
        cache=cache_folder(),
        model=smollm2(),
        worker_model=smollm2(),
        round_trips=[0.0] * workers,
        head_options=REMOTE,
        environments=dict.fromkeys([HEAD_NAME, *worker_names(workers)], WIDE),
    )
    found: list[Start] = []
    began = time.monotonic()
    async with Owner() as owner:
        serving = await Serving.start(owner, SteppedFleet(spec))
        while not any(one.round_trips < least(workers) + 1 for one in found):
            if time.monotonic() - began > MOST_SECONDS:
                break
            await serving.again()
            head = (folder / HEAD_NAME / "node.log").read_text(encoding="utf-8")
            steps = steps_of((folder / "networks.log").read_text(encoding="utf-8"))
            ready = [datetime.fromisoformat(at).timestamp() for at in _READY.findall(head)]
            found = counted(asked_at(head), ready, steps)[1:]  # links are still made during the first one
        owner.cancel()
    return found


@cache
def fewest(workers: int) -> float:
    """Return the round trips of the start that was disturbed least; NaN if all were disturbed too much."""
    native()
    with tempfile.TemporaryDirectory(prefix="meshd-steps-") as name:
        found = asyncio.run(starts(workers, Path(name)))
    print(f"{workers} workers: {found}, by the protocol {least(workers):g}")  # noqa: T201
    best = min((one.round_trips for one in found), default=math.inf)
    tells = sum(one.undisturbed for one in found) >= ENOUGH or best < least(workers) + 1
    return best if tells else math.nan


def round_trips(workers: int) -> float:
    """Return `fewest`, or skip the test."""
    found = fewest(workers)
    if math.isnan(found):
        pytest.skip(f"this machine was too busy: in {MOST_SECONDS:g} s nearly every start was disturbed")
    return found


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_start_needs_what_the_protocol_needs(workers: int) -> None:
    """One more question that waits for its answer would be a whole round trip."""
    assert least(workers) <= round_trips(workers) < least(workers) + 1


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_ready_is_eight_round_trips_away(workers: int) -> None:
    assert round_trips(workers) <= ROUND_TRIPS


def test_only_what_lies_between_asking_and_ready_counts() -> None:
    steps = [Step(at, True, 0) for at in (0.5, 1.0, 1.5, 2.0, 2.5)]
    busy = [Step(1.2, False, LITTLE), Step(1.3, False, LITTLE + 1)]
    assert counted([0.9, 2.2], [2.1], steps) == [Start(1.5, undisturbed=True)]
    assert counted([0.9], [2.1], [*steps, *busy]) == [Start(2.0, undisturbed=False)]
