"""Keep the results of `python -m tests.bench.gpu`, written after every cell, and read to go on. Pure."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace

from meshd.base.errors import UserError
from meshd.bench.distance import as_json
from meshd.bench.figures import ENDS_ON_CPU, LOCAL, MESHD, STOCK, BenchRun, Figures, promises

from tests.bench.gpu_page import GpuRunFacts

_SAME = ("machine", "backend", "devices", "pin")  # without which two runs are not one


@dataclass(slots=True)
class Found:
    """The results of one model, so far; `faults`: cells that came to nothing, and why."""

    model: str
    size: int
    runs: list[BenchRun] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    one_way: dict[float, float] = field(default_factory=dict)  # as Figures.one_way

    @property
    def figures(self) -> Figures:
        """As the tables want them."""
        return Figures(tuple(self.runs), self.one_way)

    def times(self, workers: int, rtt_ms: float) -> int:
        """Return how often this cell was measured, stock and meshd."""
        setups = Counter(run.setup for run in self.runs if (run.workers, run.rtt_ms) == (workers, rtt_ms))
        return min(setups[STOCK], setups[MESHD])

    @property
    def alone(self) -> int:
        """Return how often one node alone was measured, with its ends where stock and meshd have them."""
        setups = Counter(run.setup for run in self.runs)
        return min(setups[LOCAL], setups[ENDS_ON_CPU])


def encode(made: GpuRunFacts, found: Sequence[Found]) -> str:
    """All of it, as JSON."""
    results = [
        {
            "model": one.model,
            "bytes": one.size,
            **as_json(one.figures, promises(one.figures)),
            "faults": one.faults,
        }
        for one in found
    ]
    return json.dumps({**asdict(made), "results": results}, indent=1)


def decode(text: str, made: GpuRunFacts, *, label: str) -> tuple[GpuRunFacts, list[Found]]:
    """Read an earlier run, to go on with as `made` says; its day stays.

    What failed then is left out, as is a meshd without its stock, so that both are measured again. Raises
    UserError, also where it was another machine, other devices or another llama.cpp.
    """
    try:
        document = json.loads(text)
        then = {name: _plain(document[name]) for name in _SAME}
        found = [
            _whole(
                Found(
                    str(one["model"]),
                    int(one["bytes"]),
                    [BenchRun(setup=run.pop("way"), **run) for run in one["runs"]],
                    one_way={float(rtt): float(seconds) for rtt, seconds in one["ways"].items()},
                )
            )
            for one in document["results"]
        ]
        workers = tuple(sorted({*made.workers, *map(int, document["workers"])}))
        earlier = replace(made, when=str(document["when"]), workers=workers)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UserError(
            f"`{label}` is not what `python -m tests.bench.gpu` writes: {error!r}",
            hint="choose another name for `--write`, or omit `--resume` to start over",
        ) from None
    for name, value in then.items():
        now = _plain(getattr(made, name))
        if value != now:
            raise UserError(
                f"`{label}` has a different {name.removesuffix('s')}: `{value}` there, `{now}` here",
                hint="a run can only be resumed on the same machine and build: omit `--resume` to start over",
            )
    return earlier, found


def _plain(value: str | Sequence[str]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _whole(every: Found) -> Found:
    """Without what has no counterpart, and without what failed."""
    found = Found(every.model, every.size, one_way=every.one_way)
    kept: Counter[tuple[str, int, float]] = Counter()
    for run in every.runs:
        cell = run.setup, run.workers, run.rtt_ms
        if not run.workers or kept[cell] < every.times(run.workers, run.rtt_ms):
            kept[cell] += 1
            found.runs.append(run)
    return found
