"""Measures what docs/lab/performance.md is made of (page.py), and writes it: `make bench`.

`python -m tests.bench.performance --write FILE [--pairs N] [--only ready]`; `--only ready` measures that
alone, and leaves the rest of the page as it is.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.bench import distance, rpc
from meshd.bench.figures import LOCAL, BenchRun, Figures, promises
from meshd.bench.interface import WITHOUT, DistanceArgs, Json, RpcBenchArgs
from meshd.config.load import load

from tests.bench import readiness
from tests.bench.page import Made, page, ready_section, with_ready_section
from tests.bench.published_figures import DELAYED
from tests.bench.ready_figures import ReadinessFigures
from tests.bench.ready_figures import promises as ready_promises
from tests.bench.speed_curve import draw_speeds

WORKERS, DELAYS_MS = (1, 2, 4), (0.0, 20.0, 50.0)
RUNS = 3  # of each cell
DEFAULTS_WORKERS = 2  # with so many stock is measured as upstream ships it, too


class _Console:
    """Progress to stderr; what the measurements would print is in the page."""

    def line(self, text: str = "") -> None:
        """Nothing."""

    def json(self, value: Mapping[str, Json], *, compact: bool = False) -> None:
        """Nothing."""

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Nothing."""

    def note(self, text: str) -> None:
        """As a line."""
        sys.stderr.write(text + "\n")

    def progress(self, step: str, share: float | None = None) -> None:
        """As a line, without shares."""
        if share is None:
            sys.stderr.write(step + "\n")


def main(argv: Sequence[str]) -> int:
    """Measure and write. Returns 1 when a promise was not kept."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.performance", description=__doc__)
    parser.add_argument("--write", type=Path, required=True, metavar="FILE")
    parser.add_argument("--pairs", type=int, default=RUNS, metavar="N")
    parser.add_argument("--only", choices=("ready",), help="measure this alone; the page is there already")
    parser.add_argument("--short", action="store_true", help="two cells only: to see that it works")
    args = parser.parse_args(argv)
    out = _Console()
    cache = load().config.paths.cache
    asked = DistanceArgs(
        what="latency",
        model=None,
        cache=cache,
        workers=WORKERS,
        round_trips=DELAYS_MS,
        pairs=args.pairs,
        without=tuple(WITHOUT),
        defaults=DEFAULTS_WORKERS,
    )
    if args.short:
        asked = replace(asked, workers=(2,), round_trips=(0.0, 20.0))
    made = _made(args.write, args.pairs, short=args.short)
    try:
        ready = _ready(asked, out)
        if args.only:
            section = with_ready_section(args.write.read_text(encoding="utf-8"), ready_section(made, ready))
            args.write.write_text(section, encoding="utf-8")
            return _code(ready)
        far = distance.measure(asked, out)
        delayed = _delayed(asked, out, short=args.short)
        rows = rpc.measure_all(RpcBenchArgs(model=None, cache=cache, pairs=args.pairs), out)
    except MeshdError as error:
        raise SystemExit(f"error: {error.what}\n\nhint: {error.hint}") from None
    args.write.write_text(page(made, far, delayed, rpc.as_table(rows), ready), encoding="utf-8")
    args.write.with_name(made.picture).write_text(draw_speeds("latency", far), encoding="utf-8")
    return _code(ready, far)


def _made(place: Path, pairs: int, *, short: bool) -> Made:
    return Made(
        when=datetime.now(UTC).strftime("%Y-%m-%d"),
        machine=distance.machine(),
        pin=distance.programs(),
        pairs=pairs,
        picture=place.with_suffix(".svg").name,
        short=short,
    )


def _code(ready: ReadinessFigures, far: Figures | None = None) -> int:
    """1 when a promise was not kept."""
    kept = ready_promises(ready) + (promises(far) if far is not None else [])
    return 0 if all(one.held for one in kept) else 1


def _ready(asked: DistanceArgs, out: _Console) -> ReadinessFigures:
    return readiness.measure(
        readiness.ReadyArgs(
            model=None,
            cache=asked.cache,
            workers=asked.workers,
            round_trips=asked.round_trips,
            runs=asked.pairs,
        ),
        out,
    )


def _delayed(asked: DistanceArgs, out: _Console, *, short: bool) -> Figures:
    """The cells of DELAYED: not every delay for every number of nodes."""
    runs: list[BenchRun] = []
    for nodes in sorted({one.nodes for one in DELAYED}):
        delays = tuple(one.ms for one in DELAYED if one.nodes == nodes)
        if short and nodes > asked.workers[0] + 1:
            break
        cells = replace(
            asked,
            workers=(nodes - 1,),
            round_trips=delays[:2] if short else delays,
            without=(),
            defaults=0,
            prompts=False,
        )
        runs += distance.measure(cells, out).runs
    return Figures(tuple(run for run in runs if run.setup != LOCAL))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
