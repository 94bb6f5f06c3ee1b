"""Compare an answer by layers and by tensors over daemons: `python -m tests.bench.split_ways --json FILE`.

Each worker computes with `--threads` threads, and the head computes nothing. For each distance there is one
worker alone, then each number of workers by layers and by tensors. Shown: tokens a second of a prompt and of
an answer by llama-server's clock, medians and ranges, the answer that `meshd plan` predicts for its choice of
workers, the answer's ratio to the same workers by layers, and how sums cross: `local`, `sealed`, or
`socketpair`, which is through both daemons. With `--wire` packets are delayed between TUN devices, as on a
cable, and mesh-servers on two of them can connect; else the links are. JSON is written after every cell. A
cell that fails is named, and the exit code is 1.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from meshd.admin.client import ask
from meshd.admin.plan_api import PlanRequest
from meshd.base import log
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import measure
from meshd.cli.plan import MEASURE_SECONDS
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, FleetSpec
from meshd.fleet.proxy import run_loop
from meshd.wire.lease import PUSH_SERVICE

from tests.bench.networks import WiredFleet, workers_alike
from tests.bench.random_model import SHAPES, random_model

ONE, LAYERS, TENSORS = "alone", "layers", "tensors"
_OPTIONS = {ONE: "always", LAYERS: "layers", TENSORS: "tensor"}
_WARM_TOKENS = 8


@dataclass(slots=True, kw_only=True)
class SplitCell:
    """One way to split, and tokens a second of each try."""

    workers: int
    rtt_ms: float
    way: str
    prompt: list[float] = field(default_factory=list)
    answer: list[float] = field(default_factory=list)
    predicted: float = 0.0  # tokens a second of an answer, 0: not known
    both_ways: str = ""  # as `meshd plan` says it
    between: list[str] = field(default_factory=list)  # how the workers exchange what they push and add
    fault: str = ""


def line_of(cell: SplitCell, by_layers: SplitCell | None) -> str:
    """Describe a cell, and how much faster it answers than the same workers by layers."""
    text = f"RTT {cell.rtt_ms:g} ms, {cell.workers} workers, {cell.way:7}"
    if cell.fault:
        return f"{text} failed: {cell.fault}"
    for what, rates in (("prompt", cell.prompt), ("answer", cell.answer)):
        text += f"  {what} {statistics.median(rates):.1f} ({min(rates):.1f} to {max(rates):.1f})"
    text += f", predicted {cell.predicted:.1f}" if cell.predicted else ""
    text += f"  {', '.join(cell.between)}" if cell.between else ""
    if by_layers is not None and by_layers.answer and cell.way == TENSORS:
        text += f"  {statistics.median(cell.answer) / statistics.median(by_layers.answer):.2f} of layers"
    return text


def _spec(args: argparse.Namespace, cell: SplitCell, folder: Path, cache: Path, model: Path) -> FleetSpec:
    context = str(args.prompt + args.tokens + 64)
    # what the program between TUN devices carries is less than a cable does, and would be compressed
    plain = ("--set", "links.compress=off") if args.wire else ()
    spec = workers_alike(
        folder,
        cache,
        model,
        count=cell.workers,
        round_trip=cell.rtt_ms / 1000,
        threads=args.threads,
        head_options=("--device", "none", "--ctx-size", context, "--split", _OPTIONS[cell.way], *plain),
    )
    alike = ("--device", args.device, "--threads", str(args.threads), *plain)
    return replace(spec, worker_options=[alike] * cell.workers)


async def _measured(args: argparse.Namespace, cell: SplitCell, spec: FleetSpec) -> None:
    """Fill in a cell. Raises MeshdError."""
    async with Owner() as owner:
        fleet = WiredFleet(spec) if args.wire else Fleet(spec)
        await fleet.start_workers(owner)
        head = await fleet.start_head(owner)
        await until_head_serves(fleet, head)
        asked = PlanRequest(model=str(spec.model))
        planned = await asyncio.to_thread(ask, head.spec.home, asked, seconds=MEASURE_SECONDS)
        ways = planned.ways
        if ways is not None:
            cell.predicted = (ways.tensors_tok_s if cell.way == TENSORS else ways.layers_tok_s) or 0.0
            cell.both_ways = ways.text
        place = head.spec.home / "llama.sock"
        await measure(place, prompt_tokens=_WARM_TOKENS, tokens=_WARM_TOKENS)
        for _ in range(args.tries):
            cell.prompt.append((await measure(place, prompt_tokens=args.prompt, tokens=1)).prompt)
            answer = await measure(place, prompt_tokens=_WARM_TOKENS, tokens=args.tokens)
            cell.answer.append(answer.generate)
        statuses = [await worker.status() for worker in fleet.workers]
        pushes = [way for status in statuses for way in status.tunnels if way.service == PUSH_SERVICE]
        cell.between = sorted({way.listen for way in pushes})
        owner.cancel()


def _cells(args: argparse.Namespace) -> list[SplitCell]:
    cells = []
    for rtt in args.rtt:
        cells.append(SplitCell(workers=1, rtt_ms=rtt, way=ONE))
        for workers in args.workers:
            cells += [SplitCell(workers=int(workers), rtt_ms=rtt, way=way) for way in (LAYERS, TENSORS)]
    return [cell for cell in cells if cell.way in args.ways]


def _run(args: argparse.Namespace, cache: Path, model: Path) -> int:
    done: list[SplitCell] = []
    for cell in _cells(args):
        with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
            try:
                run_loop(_measured(args, cell, _spec(args, cell, Path(folder), cache, model)))
            except MeshdError as error:
                cell.fault = error.what
            except ExceptionGroup as group:
                cell.fault = str(first_error(group))
        done.append(cell)
        alike = [
            one for one in done if (one.workers, one.rtt_ms, one.way) == (cell.workers, cell.rtt_ms, LAYERS)
        ]
        sys.stdout.write(line_of(cell, alike[0] if alike else None) + "\n")
        sys.stdout.flush()
        args.json.write_text(json.dumps([asdict(one) for one in done], indent=1) + "\n")
    return int(any(cell.fault for cell in done))


def _numbers(text: str) -> list[float]:
    return [float(word) for word in text.split(",")]


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.split_ways", description=__doc__)
    parser.add_argument("--model", default="1b", metavar="M", help=f"{', '.join(SHAPES)} (random), or a file")
    parser.add_argument("--workers", type=_numbers, default=[2, 3], metavar="N,…")
    parser.add_argument("--rtt", type=_numbers, default=[0, 0.2, 0.5], metavar="MS,…")
    parser.add_argument(
        "--ways", type=lambda text: text.split(","), default=[ONE, LAYERS, TENSORS], metavar="WAY,…"
    )
    parser.add_argument("--prompt", type=int, default=512, metavar="N", help="tokens")
    parser.add_argument("--tokens", type=int, default=64, metavar="N", help="of an answer")
    parser.add_argument("--device", default="CPU", metavar="NAME", help="of each worker")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each worker")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    parser.add_argument("--wire", action="store_true", help="delay packets; needs root")
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    log.set_up(level="error")
    args = parser.parse_args(argv)
    cache = load().config.paths.cache
    return _run(
        args,
        cache,
        random_model(args.model, cache / "bench-models") if args.model in SHAPES else Path(args.model),
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
