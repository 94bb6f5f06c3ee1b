"""`meshd bench load|nodes|latency`: stock llama.cpp beside meshd over a distance, in turns, in one run."""

import os
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from meshd.base import log
from meshd.base.tasks import first_error
from meshd.bench.cells import DECODES, Cell, Rig
from meshd.bench.curve import CurveLine, draw
from meshd.bench.distant_run import run_meshd, run_stock
from meshd.bench.figures import (
    LOCAL,
    MESHD,
    STOCK,
    BenchRun,
    Figures,
    Promise,
    cell_table,
    count_of,
    defaults_table,
    promise_table,
    promises,
)
from meshd.bench.inputs import programs_and_model
from meshd.bench.interface import BenchOutput, DistanceArgs, Json
from meshd.bench.one_way_delay import measure_one_way
from meshd.build.pin import read_pin
from meshd.fleet.networks import need_namespaces
from meshd.fleet.proxy import run_loop


def run(args: DistanceArgs, out: BenchOutput) -> int:
    """Measure and print. Returns 0 if all promises held and no text differs, else 1. Raises MeshdError."""
    log.set_up(level="error")
    figures = measure(args, out)
    kept = promises(figures)
    if args.svg is not None:
        args.svg.write_text(picture(args.what, figures), encoding="utf-8")
    if args.as_json:
        out.json({"machine": machine(), "what": args.what, **as_json(figures, kept)})
    else:
        show(figures, kept, out)
        out.note(f"{machine()}; {args.pairs} of each, medians")
    return 0 if all(promise.held for promise in kept) and not figures.texts_differ() else 1


def measure(args: DistanceArgs, out: BenchOutput) -> Figures:
    """Measure all cells. Raises MeshdError."""
    try:
        return run_loop(_figures(args, out))
    except ExceptionGroup as group:
        raise first_error(group) from None


async def _figures(args: DistanceArgs, out: BenchOutput) -> Figures:
    if any(args.round_trips):
        need_namespaces()
    native, model = await programs_and_model(args.cache, args.model, out)
    decodes = 1 if args.pairs >= DECODES else DECODES
    speed = args.what != "load"
    rig = Rig(model, args.cache, native, speed=speed, decodes=decodes, prompts=args.prompts)
    runs: list[BenchRun] = []
    one_way: dict[float, list[float]] = {}
    for number in range(args.pairs):
        alone = True
        for workers in args.workers:
            for rtt in args.round_trips:
                cell = Cell(workers, rtt)
                out.progress(f"{number + 1} of {args.pairs}: {count_of(workers, 'worker')}, {rtt:g} ms")
                ours, argv = await run_meshd(rig, cell)
                runs += [ours, await run_stock(rig, cell, argv)]
                if workers == args.defaults:
                    runs.append(await run_stock(rig, replace(cell, defaults=True), argv))
                for what in args.without if workers > 1 and rtt else ():  # with one there is nothing to push
                    runs.append((await run_meshd(rig, replace(cell, without=what)))[0])
                if alone:
                    runs.append(await run_stock(rig, Cell(0, 0.0), argv))
                    alone = False
        if rig.speed:
            for rtt, seconds in (await measure_one_way(args.round_trips)).items():
                one_way.setdefault(rtt, []).append(seconds)
    middle = {rtt: statistics.median(measured) for rtt, measured in one_way.items()}
    return Figures(tuple(runs), middle)


def show(figures: Figures, kept: Sequence[Promise], out: BenchOutput) -> None:
    """Print the figures as tables."""
    for headers, rows in (cell_table(figures), defaults_table(figures), promise_table(kept)):
        if rows:
            out.table(headers, rows)
            out.line()
    for run in figures.texts_differ():
        out.line(f"another text than one node's: {run}")


def picture(what: str, figures: Figures) -> str:
    """Draw the curve: load or token by round trip, or token by nodes."""
    measured = "load" if what == "load" else "token"
    factor, unit = (1.0, "seconds to load") if measured == "load" else (1000.0, "ms for a token")
    cells = figures.cells()
    by_nodes = what == "nodes"
    groups = sorted({rtt if by_nodes else workers for workers, rtt in cells})
    lines = []
    for number, group in enumerate(groups):
        for setup in (STOCK, MESHD):
            alone = figures.median(LOCAL, 0, 0.0, measured) if by_nodes else None
            points = [(1.0, alone * factor)] if alone is not None else []
            for workers, rtt in cells:
                value = figures.median(setup, workers, rtt, measured)
                if group == (rtt if by_nodes else workers) and value is not None:
                    points.append((workers + 1.0 if by_nodes else rtt, value * factor))
            name = f"{setup}, RTT {group:g} ms" if by_nodes else f"{setup}, {count_of(int(group), 'worker')}"
            lines.append(CurveLine(name, points, group=number, dashed=setup == STOCK))
    x_title = "nodes" if by_nodes else "round trip, ms"
    return draw(f"{unit}, stock and meshd", x_title, unit, lines)


def machine() -> str:
    """Describe this machine in a few words."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # no Linux, or no x86
    return f"{platform.system()} {platform.release().split('-')[0]}, {os.cpu_count()} cores of {model}"


def programs() -> str:
    """Describe the measured programs: upstream's commit and our sources."""
    pin = read_pin()
    return f"llama.cpp {pin.commit[:9]}, sources {pin.sources_sha256[:12]}"


def as_json(figures: Figures, kept: Sequence[Promise]) -> Mapping[str, Json]:
    """Return the figures as JSON, for scripts."""
    return {
        "runs": [_of_setup(run) for run in figures.runs],
        "ways": {f"{rtt:g}": seconds for rtt, seconds in figures.one_way.items()},
        "promises": [{**asdict(promise), "held": promise.held} for promise in kept],
    }


def _of_setup(run: BenchRun) -> dict[str, Json]:
    fields = asdict(run)
    return {"way": fields.pop("setup"), **fields}
