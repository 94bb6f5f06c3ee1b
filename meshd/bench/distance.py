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
from meshd.bench.distant_run import count_both, run_meshd, run_near, run_stock
from meshd.bench.figures import (
    LOCAL,
    MESHD,
    STOCK,
    BenchRun,
    Counted,
    Figures,
    Promise,
    cell_table,
    count_of,
    count_table,
    defaults_table,
    near_table,
    promise_table,
    promises,
)
from meshd.bench.interface import BenchOutput, DistanceArgs, Json
from meshd.bench.one_way_delay import measure_one_way
from meshd.build import mesh
from meshd.build.demo_model import demo_model
from meshd.build.interface import BuildProgress
from meshd.build.native import build
from meshd.config import RPC
from meshd.fleet.networks import need_namespaces
from meshd.fleet.proxy import run_loop


def run(args: DistanceArgs, out: BenchOutput) -> int:
    """Returns 0 when every promise was kept, else 1. Raises MeshdError."""
    log.set_up(level="error")
    figures = measure(args, out)
    kept = promises(figures, compute_only=args.compute_only)
    if args.svg is not None:
        args.svg.write_text(picture(args.what, figures, compute_only=args.compute_only), encoding="utf-8")
    if args.as_json:
        out.json({"machine": machine(), "what": args.what, **as_json(figures, kept)})
    else:
        show(figures, kept, out)
        out.note(f"{machine()}; {args.pairs} of each, medians")
    return 0 if all(one.held for one in kept) and not figures.texts_differ() else 1


def measure(args: DistanceArgs, out: BenchOutput) -> Figures:
    """All cells. Raises MeshdError."""
    try:
        return run_loop(_figures(args, out))
    except ExceptionGroup as group:
        raise first_error(group) from None


async def _figures(args: DistanceArgs, out: BenchOutput) -> Figures:
    def progress(step: BuildProgress) -> None:
        out.progress(step.text, step.done / step.total if step.total else None)

    if any(args.round_trips) and not args.compute_only:
        need_namespaces()
    stock = await build(args.cache, patched=False, progress=progress)
    by_rpc = args.protocol == RPC
    patched = await (build if by_rpc else mesh.build)(args.cache, progress=progress)
    model = args.model if args.model is not None else await demo_model(args.cache, progress)
    decodes = 1 if args.pairs >= DECODES else DECODES
    rig = Rig(
        model,
        args.cache,
        patched,
        stock,
        speed=args.what != "load",
        decodes=decodes,
        prompts=args.prompts,
        protocol=args.protocol,
    )
    runs: list[BenchRun] = []
    counted: list[Counted] = []
    one_way: dict[float, list[float]] = {}
    for number in range(args.pairs):
        alone = True
        for workers in args.workers:
            for rtt in args.round_trips:
                cell = Cell(workers, rtt, args.compute_only)
                out.progress(f"{number + 1} of {args.pairs}: {count_of(workers, 'worker')}, {rtt:g} ms")
                ours, argv = await run_meshd(rig, cell)
                runs += [ours, await run_stock(rig, cell, argv)]
                if workers == args.defaults:
                    runs.append(await run_stock(rig, replace(cell, defaults=True), argv))
                if by_rpc and rig.speed and not rtt and not args.compute_only:
                    runs += await run_near(rig, workers, argv)
                for what in args.without if workers > 1 and rtt else ():  # with one there is nothing to push
                    runs.append((await run_meshd(rig, replace(cell, without=what)))[0])
                if alone:
                    runs.append(await run_stock(rig, Cell(0, 0.0), argv))
                    alone = False
        if rig.speed and not args.compute_only:
            for rtt, seconds in (await measure_one_way(args.round_trips)).items():
                one_way.setdefault(rtt, []).append(seconds)
    for workers in args.workers if args.count and by_rpc else ():
        out.progress(f"counting what is said, {count_of(workers, 'worker')}")
        counted += await count_both(rig, workers)
    middle = {rtt: statistics.median(measured) for rtt, measured in one_way.items()}
    return Figures(tuple(runs), tuple(counted), middle)


def show(figures: Figures, kept: Sequence[Promise], out: BenchOutput) -> None:
    """Tables, for people."""
    for headers, rows in (
        cell_table(figures),
        near_table(figures),
        defaults_table(figures),
        count_table(figures),
        promise_table(kept),
    ):
        if rows:
            out.table(headers, rows)
            out.line()
    for run in figures.texts_differ():
        out.line(f"another text than one node's: {run}")


def picture(what: str, figures: Figures, *, compute_only: bool = False) -> str:
    """The curve: load or token by round trip, or token by nodes."""
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
    delay = "added to each computation" if compute_only else "round trip"
    x_title = "nodes" if by_nodes else f"{delay}, ms"
    return draw(f"{unit}, stock and meshd", x_title, unit, lines)


def machine() -> str:
    """In a few words."""
    model = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        pass  # no Linux, or no x86
    return f"{platform.system()} {platform.release().split('-')[0]}, {os.cpu_count()} cores of {model}"


def as_json(figures: Figures, kept: Sequence[Promise]) -> Mapping[str, Json]:
    """For scripts."""
    return {
        "runs": [_of_setup(run) for run in figures.runs],
        "ways": {f"{rtt:g}": seconds for rtt, seconds in figures.one_way.items()},
        "counted": [_of_setup(one) for one in figures.counted],
        "promises": [{**asdict(one), "held": one.held} for one in kept],
    }


def _of_setup(one: BenchRun | Counted) -> dict[str, Json]:
    fields = asdict(one)
    return {"way": fields.pop("setup"), **fields}
