"""Count the round trips that a start of `meshd serve` waits for: `python -m tests.bench.start_trips`.

Counted by a clock that stands still while anybody computes (fleet/networks.py), with windows that are
wide from the start, so neither the machine nor the growth of windows matters: what is counted are messages
that wait for one another. Two kinds of start, over workers that are up:

- `new`: a head with a new home, which joins with a token (`serve --join`).
- `old`: the same head, started again.

The first begins when the process is started, the second when the role is, as workers dial a head that they
know before it is there. Both end when the model is ready. For each phase the fewest round trips of all tries
are printed, as a node that computes for long makes a count higher.
"""

import argparse
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path

from meshd.admin.status import Status
from meshd.base.tasks import Owner
from meshd.build.fetch import demo_model
from meshd.config.load import load
from meshd.fleet.fleet import HEAD_NAME, FleetSpec, ready_or_raise, worker_names

from tests.bench.networks import SteppedFleet
from tests.bench.program import run_program
from tests.bench.readiness import REMOTE
from tests.bench.stepped import Step, steps_of

# Windows never limit; nodes that seem to be on one machine offer each other no connection past the links
WIDE = {"PYTHONPATH": str(Path(__file__).parents[1] / "netns" / "wide"), "MESHD_NO_LOCAL": "1"}
_LINE = re.compile(r"^(\d{4}-\d\d-\d\dT[\d:.]+Z) \[\w+ +\] (\S+) ?(.*)$")
# The last event of each phase, in order, and what its line contains beside that
PHASES: Mapping[str, tuple[str, str]] = {
    "joined": ("mesh_joined", ""),
    "first link": ("link_up", ""),
    "asking": ("load_started", ""),
    "plan": ("plan", ""),
    "ready": ("model_state", "state=ready"),
}


def main(argv: Sequence[str]) -> int:
    """Count, and print a line for each kind of start and phase."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.start_trips", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--workers", default="1,2", metavar="N,…")
    parser.add_argument("--tries", type=int, default=3, metavar="N", help="of each kind")
    return run_program(_run(parser.parse_args(argv)))


async def _run(args: argparse.Namespace) -> None:
    cache = load().config.paths.cache
    model = args.model or await demo_model(cache, lambda _step: None)
    for workers in map(int, args.workers.split(",")):
        found: dict[str, list[Mapping[str, float]]] = {"new": [], "old": []}
        for number in range(args.tries):
            with tempfile.TemporaryDirectory(prefix="meshd-bench-") as name:
                sys.stderr.write(f"{workers} workers: {number + 1} of {args.tries}\n")
                await _try(Path(name), cache, model, workers, found)
        for kind, tries in found.items():
            for line in lines(kind, workers, tries):
                sys.stdout.write(line + "\n")
        sys.stdout.flush()


async def _try(
    folder: Path, cache: Path, model: Path, workers: int, found: Mapping[str, list[Mapping[str, float]]]
) -> None:
    """Start a head in a new home, and again."""
    spec = FleetSpec(
        folder=folder,
        cache=cache,
        model=model,
        worker_model=model,
        round_trips=[0.0] * workers,
        head_options=REMOTE,
        environments=dict.fromkeys([HEAD_NAME, *worker_names(workers)], WIDE),
    )
    async with Owner() as owner:
        fleet = SteppedFleet(spec)
        await fleet.start_workers(owner)
        for worker in fleet.workers:  # what the inviter welcomes the head with names all of them
            await worker.until(lambda status: len(status.peers) == workers - 1 and _all_connected(status))
        for kind in found:
            began = time.time()
            head = await fleet.start_head(owner)
            await head.until(ready_or_raise)
            log = (head.spec.home / "node.log").read_text(encoding="utf-8")
            steps = steps_of((folder / "networks.log").read_text(encoding="utf-8"))
            found[kind].append(trips(log, steps, began if kind == "new" else role_began(log, began)))
            await head.stop()
        owner.cancel()


def _all_connected(status: Status) -> bool:
    return all(peer.state == "connected" for peer in status.peers)


def role_began(log: str, since: float) -> float:
    """Return when a head that was started at `since` (unix seconds) began to look for its workers."""
    return next(at for at, event, _ in _events(log, since) if event == "model_state")


def _events(log: str, since: float) -> Iterator[tuple[float, str, str]]:
    """Yield when each event was logged, its name, and the rest of its line."""
    for line in log.splitlines():
        if (match := _LINE.match(line)) is not None:
            at = datetime.fromisoformat(match[1]).timestamp()
            if at >= since:
                yield at, match[2], match[3]


def trips(log: str, steps: Sequence[Step], began: float) -> dict[str, float]:
    """Return the round trips from `began` (unix seconds) to the first event of each phase in a head's log."""
    events: dict[str, float] = {}
    for at, event, rest in _events(log, began):
        for name, (wanted, part) in PHASES.items():
            if event == wanted and part in rest:
                events.setdefault(name, at)
    return {
        name: sum(step.counts for step in steps if began <= step.at <= at) / 2 for name, at in events.items()
    }


def lines(kind: str, workers: int, tries: Sequence[Mapping[str, float]]) -> list[str]:
    """Return what is printed of a kind of start: the fewest round trips until the end of each phase."""
    shown = []
    for name in PHASES:
        counts = [one[name] for one in tries if name in one]
        if counts:
            every = ", ".join(f"{count:g}" for count in counts)
            shown.append(f"{kind} home, {workers} workers, until {name}: {min(counts):g} ({every})")
    return shown


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
