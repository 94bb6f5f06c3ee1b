"""Measure how workers speed up a long prompt, through the daemons: `python -m tests.bench.prompt`.

Each worker computes with `--threads` threads; the head computes nothing, so a prompt is a pipeline of
micro batches over the workers; how large these are the plan decides, unless `--ubatch` does. SmolLM2 unless
`--model` names a file. A line for each number of workers and distance: its tries, the ratio of the median to
one worker at no distance, if that was measured too, and the micro batch of llama-server.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from meshd.admin.status import Status
from meshd.base.tasks import Owner
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import arguments_of, measure
from meshd.build.fetch import demo_model
from meshd.config.load import load
from meshd.fleet.fleet import Fleet
from meshd.plan.over_offers import MOST

from tests.bench.networks import workers_alike
from tests.bench.program import run_program


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    return run_program(_run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.prompt", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--workers", default="1,2", metavar="N,…")
    parser.add_argument("--rtt", default="0", metavar="MS,…")
    parser.add_argument("--prompt", type=int, default=2048, metavar="N", help="tokens")
    parser.add_argument("--ubatch", type=int, metavar="N", help="tokens of a micro batch")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each worker")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    parser.add_argument("llama", nargs="*", metavar="-- OPTION", help="of llama-server")
    return parser


async def _run(args: argparse.Namespace) -> None:
    cache = load().config.paths.cache
    model = args.model or await demo_model(cache, lambda _step: None)
    alone = 0.0
    for workers in map(int, args.workers.split(",")):
        for rtt in map(float, args.rtt.split(",")):
            tries, chosen = await _cell(args, model, cache, workers, rtt)
            middle = statistics.median(tries)
            alone = alone or (middle if workers == 1 and rtt == 0 else 0.0)
            shown = ", ".join(f"{seconds:.2f}" for seconds in tries)
            ratio = f"; {alone / middle:.2f} times one worker" if alone else ""
            sys.stdout.write(f"{workers} workers, RTT {rtt:g} ms: {shown} s{ratio}; -ub {chosen}\n")
            sys.stdout.flush()


async def _cell(
    args: argparse.Namespace, model: Path, cache: Path, workers: int, rtt: float
) -> tuple[list[float], int]:
    """Seconds of each try, and the micro batch. Raises MeshdError."""
    context = str(args.prompt + MOST)
    given = ("-ub", str(args.ubatch)) if args.ubatch is not None else ()
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        async with Owner() as owner:
            fleet = Fleet(
                workers_alike(
                    Path(folder),
                    cache,
                    model,
                    count=workers,
                    round_trip=rtt / 1000,
                    threads=args.threads,
                    head_options=(
                        *("--device", "none", "--set", "serve.output=worker", "--ctx-size", context),
                        *("--", *given, *args.llama),
                    ),
                )
            )
            await fleet.start_workers(owner)
            head = await fleet.start_head(owner)
            await until_head_serves(fleet, head)
            chosen = _micro_batch(await head.status())
            place = head.spec.home / "llama.sock"
            await measure(place, prompt_tokens=8, tokens=4)
            tries = []
            for _ in range(args.tries):
                answer = await measure(place, prompt_tokens=args.prompt, tokens=1)
                tries.append(args.prompt / answer.prompt)
            owner.cancel()
    return tries, chosen


def _micro_batch(head: Status) -> int:
    """Return the micro batch that llama-server was started with."""
    (pid,) = (child.pid for child in head.children if child.name == "llama-server" and child.pid is not None)
    argv = arguments_of(pid)
    return int(argv[argv.index("-ub") + 1]) if "-ub" in argv else MOST


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
