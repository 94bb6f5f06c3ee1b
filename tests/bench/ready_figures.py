"""Sum up what tests/bench/readiness.py measured: medians, spread, promises, a table. Pure."""

import re
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from meshd.bench.figures import Promise, Table, count_of

ROUND_TRIPS = 8  # with workers, beyond what one machine alone takes
_STARTED = re.compile(r"^(\S+) \[info +\] load_started ")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyTimes:
    """Seconds from the asking of a head until `/health` was 200. No workers: alone.

    `first`: of its first start, while links were still being made; the same for all runs of one head.
    """

    workers: int
    rtt_ms: float
    seconds: float
    first: float = 0.0


@dataclass(frozen=True, slots=True)
class ReadinessFigures:
    """All runs of one call."""

    runs: tuple[ReadyTimes, ...]

    def cells(self) -> list[tuple[int, float]]:
        """Workers and round trip, in order; (0, 0.0) is one machine alone."""
        return sorted({(run.workers, run.rtt_ms) for run in self.runs})

    def seconds(self, workers: int, rtt_ms: float) -> list[float]:
        """Return the seconds of each run of a cell, in order of length."""
        return sorted(run.seconds for run in self.runs if (run.workers, run.rtt_ms) == (workers, rtt_ms))

    def median(self, workers: int, rtt_ms: float) -> float | None:
        """None: not measured."""
        found = self.seconds(workers, rtt_ms)
        return statistics.median(found) if found else None

    def round_trips(self, workers: int, rtt_ms: float) -> float | None:
        """Return the round trips on the way: what it takes longer than at no distance. None: unknown."""
        far, near = self.median(workers, rtt_ms), self.median(workers, 0.0)
        return None if not rtt_ms or far is None or near is None else (far - near) * 1000 / rtt_ms


def promises(found: ReadinessFigures) -> list[Promise]:
    """Each cell at a distance against one machine alone."""
    return list(_promises(found))


def _promises(found: ReadinessFigures) -> Iterable[Promise]:
    alone = found.median(0, 0.0)
    for workers, rtt in found.cells():
        far = found.median(workers, rtt)
        if workers and rtt and alone is not None and far is not None:
            most = alone + ROUND_TRIPS * rtt / 1000
            what = f"ready, {count_of(workers, 'worker')}, RTT {rtt:g}: alone + {ROUND_TRIPS} round trips"
            yield Promise(what, far, most, "s")


def table(found: ReadinessFigures) -> Table:
    """A row for each cell; the first is one machine alone."""
    kept = {(one.value, one.most): one for one in promises(found)}
    alone = found.median(0, 0.0)
    rows: list[Sequence[str]] = []
    for workers, rtt in found.cells():
        seconds, median = found.seconds(workers, rtt), found.median(workers, rtt)
        trips = found.round_trips(workers, rtt)
        first = [run.first for run in found.runs if (run.workers, run.rtt_ms) == (workers, rtt)]
        assert median is not None
        most = None if alone is None else alone + ROUND_TRIPS * rtt / 1000
        judged = kept.get((median, most)) if most is not None else None
        rows.append(
            (
                str(workers),
                f"{rtt:g}" if workers else "-",
                f"{median:.3f}",
                f"{seconds[0]:.3f} to {seconds[-1]:.3f}",
                str(len(seconds)),
                "" if trips is None else f"{trips:.1f}",
                f"{first[0]:.3f}",
                "" if judged is None else f"≤ {judged.most:.3f}",
                "" if judged is None else "yes" if judged.held else "no",
            )
        )
    return (
        "WORKERS",
        "RTT ms",
        "READY s",
        "MIN TO MAX",
        "RUNS",
        "ROUND TRIPS",
        "FIRST s",
        "BOUND",
        "HELD",
    ), rows


def asked_at(log: str) -> list[float]:
    """When a head began to ask its workers, or to plan without any: seconds since 1970, for each start."""
    found = (match[1] for line in log.splitlines() if (match := _STARTED.match(line)))
    return [datetime.fromisoformat(time).timestamp() for time in found]
