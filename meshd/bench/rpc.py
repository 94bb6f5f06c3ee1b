"""`meshd bench rpc`: the speed of a model through meshd, compared with a direct RPC connection.

All run the same llama.cpp with the same split at the same time and are asked in turn, so that a ratio
compares neighbours in time. The bounds are meshd's own targets (docs/lab/benchmarks.md). Rows of the bare
pump have none: they show what any two hops in Python cost. Direct connections use llama.cpp's own RPC.
"""

import asyncio
import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.tasks import first_error
from meshd.bench.figures import Table, with_spread
from meshd.bench.inputs import programs_and_model
from meshd.bench.interface import BenchOutput, RpcBenchArgs
from meshd.bench.llama import measure
from meshd.bench.rig import Trio, trio
from meshd.bench.tunnel import TunnelResult
from meshd.bench.tunnel import measure as measure_tunnel
from meshd.build.interface import NativeInfo

PROMPT_TOKENS = 512
DECODE_TOKENS = 96
BOUND = 1.0  # the least tokens per second relative to a direct connection
LOGITS_ON_WORKER = ("-ot", "^no such tensor$=CPU")  # replaces the plan's own: the output stays on the worker


@dataclass(frozen=True, slots=True)
class RpcRow:
    """One comparison: `ours` and `theirs` in `unit`, and the `ratios` of the pairs, in the order of the runs.

    `bound` None: the row is only for comparison.
    """

    what: str
    unit: str
    ours: Sequence[float]
    theirs: Sequence[float]
    ratios: Sequence[float]
    bound: float | None
    at_most: bool = False

    @property
    def ratio(self) -> float:
        """The median of the pairs' ratios."""
        return statistics.median(self.ratios)

    @property
    def held(self) -> bool:
        """True if the bound is kept."""
        if self.bound is None:
            return True
        return self.ratio <= self.bound if self.at_most else self.ratio >= self.bound


def run(args: RpcBenchArgs, out: BenchOutput) -> int:
    """Measure and print. Returns 0 if every bound was kept, else 1. Raises MeshdError."""
    rows = measure_all(args, out)
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores"
    if args.as_json:
        shown = [_as_json(row) for row in rows]
        out.json({"machine": machine, "pairs": args.pairs, "rows": shown})
    else:
        out.table(*as_table(rows))
        out.note(f"{machine}; {args.pairs} pairs, median of their ratios")
    return 0 if all(row.held for row in rows) else 1


def measure_all(args: RpcBenchArgs, out: BenchOutput) -> list[RpcRow]:
    """Measure every row. Raises MeshdError."""
    log.set_up(level="warning")
    try:
        return asyncio.run(_rows(args, out))
    except ExceptionGroup as group:
        raise first_error(group) from None


def as_table(rows: Sequence[RpcRow]) -> Table:
    """Return the rows as a table for people."""
    cells: list[Sequence[str]] = [
        (
            row.what,
            f"{with_spread(row.ours)} {row.unit}",
            f"{with_spread(row.theirs)} {row.unit}",
            with_spread(row.ratios, ".3f"),
            "" if row.bound is None else f"{'≤' if row.at_most else '≥'} {row.bound}",
            "" if row.bound is None else "yes" if row.held else "no",
        )
        for row in rows
    ]
    return ("WHAT", "MESHD", "WITHOUT", "RATIO", "BOUND", "HELD"), cells


def _as_json(row: RpcRow) -> dict[str, str | float | bool | None]:
    return {
        "what": row.what,
        "unit": row.unit,
        "meshd": statistics.median(row.ours),
        "without": statistics.median(row.theirs),
        "ratio": row.ratio,
        "bound": row.bound,
        "at_most": row.at_most,
        "held": row.held,
    }


async def _rows(args: RpcBenchArgs, out: BenchOutput) -> list[RpcRow]:
    native, model = await programs_and_model(args.cache, args.model, out)
    out.progress("measuring the tunnel")
    rows = _tunnel_rows(await measure_tunnel(args.pairs))
    rows += await _model_rows(args, model, native, out)
    return rows


def _tunnel_rows(result: TunnelResult) -> list[RpcRow]:
    ours, theirs = ([path.rate / 1e6 for path in paths] for paths in (result.meshd, result.bare))
    added, added_bare = ([seconds * 1e6 for seconds in path] for path in result.added)
    return [
        RpcRow("tunnel, bytes (bare: TLS pump)", "MB/s", ours, theirs, result.rate_ratios, 0.6),
        RpcRow("tunnel, added round trip", "µs", added, added_bare, result.added_ratios, 1.5, at_most=True),
    ]


async def _model_rows(args: RpcBenchArgs, model: Path, native: NativeInfo, out: BenchOutput) -> list[RpcRow]:
    rows = []
    out.progress("loading the model three times, output on the head")
    async with trio(model, args.cache, native) as loaded:
        rows += await _prompt(loaded, args.pairs, out)
        rows += await _decode(loaded, args.pairs, "decode, output on the head", out)
    out.progress("loading the model three times, output on the worker")
    async with trio(model, args.cache, native, extra=LOGITS_ON_WORKER) as loaded:
        rows += await _decode(loaded, args.pairs, "decode, logits over the wire", out)
    return rows


async def _prompt(loaded: Trio, pairs: int, out: BenchOutput) -> list[RpcRow]:
    """Measure the prompt; if the plan chose a micro batch, also against llama.cpp's own."""
    out.progress(f"prompt of {PROMPT_TOKENS} tokens")
    what = f"prompt of {PROMPT_TOKENS} tokens, output on the head"
    places = {what: loaded.direct}
    if loaded.own_batch is not None:
        places[f"{what}; without: its own micro batch"] = loaded.own_batch
    ours: list[float] = []
    theirs: dict[str, list[float]] = {name: [] for name in places}
    for _ in range(pairs + 1):
        ours.append((await measure(loaded.meshd, prompt_tokens=PROMPT_TOKENS, tokens=1)).prompt)
        for name, place in places.items():
            theirs[name].append((await measure(place, prompt_tokens=PROMPT_TOKENS, tokens=1)).prompt)
    return [_row(name, ours, speeds, BOUND) for name, speeds in theirs.items()]


async def _decode(loaded: Trio, pairs: int, what: str, out: BenchOutput) -> list[RpcRow]:
    out.progress(what)
    ours: list[float] = []
    theirs: list[float] = []
    pumped: list[float] = []
    for _ in range(pairs + 1):
        for speeds, server in ((ours, loaded.meshd), (theirs, loaded.direct), (pumped, loaded.pump)):
            speeds.append((await measure(server, prompt_tokens=8, tokens=DECODE_TOKENS)).generate)
    return [_row(what, ours, theirs, BOUND), _row(f"{what}, bare TLS pump", pumped, theirs, None)]


def _row(what: str, ours: list[float], theirs: list[float], bound: float | None) -> RpcRow:
    """Make a row without the first pair, which was for warming up."""
    ratios = [mine / other for mine, other in zip(ours[1:], theirs[1:], strict=True)]
    return RpcRow(what, "tok/s", ours[1:], theirs[1:], ratios, bound)
