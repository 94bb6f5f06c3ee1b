"""Measure what several answers at once gain, through the daemons: `python -m tests.bench.streams`.

Each of some clients asks the head's API for an answer at the same time; all have a slot of their own, so a
round over the workers makes a token for each. SmolLM2 unless `--model` names a file. A line for each number
of streams: tokens a second of all together from the first request to the last answer, of each try; the ratio
of the best to that of one stream, if that was measured too; and what a token of a stream costs on the head's
links, by how much more a longer answer is than a shorter one.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import api_connection, completion
from meshd.build.fetch import demo_model
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, LocalNode, crossed_bytes, model_ready

from tests.bench.networks import workers_alike
from tests.bench.program import run_program

_PROMPT_TOKENS = 8
_SHORT_SHARE = 4  # of the tokens of a short answer in those of a long one
_ANSWER_SECONDS = 900.0


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    return run_program(_run(_parser().parse_args(argv)))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.streams", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--rtt", type=float, default=50.0, metavar="MS")
    parser.add_argument("--streams", default="1,8", metavar="N,…")
    parser.add_argument("--tokens", type=int, default=96, metavar="N", help="of an answer")
    parser.add_argument("--output-on", choices=("auto", "head", "worker"), default="worker")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="of each worker")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    return parser


async def _run(args: argparse.Namespace) -> None:
    cache = load().config.paths.cache
    model = args.model or await demo_model(cache, lambda _step: None)
    counts = [int(count) for count in args.streams.split(",")]
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        async with Owner() as owner:
            fleet = _fleet(args, model, cache, Path(folder), max(counts))
            await fleet.start_workers(owner)
            head = await fleet.start_head(owner)
            await until_head_serves(fleet, head)
            await _measure(args, fleet, head, counts)
            owner.cancel()


def _fleet(args: argparse.Namespace, model: Path, cache: Path, folder: Path, slots: int) -> Fleet:
    context = str(_PROMPT_TOKENS + args.tokens + 1)
    return Fleet(
        workers_alike(
            folder,
            cache,
            model,
            count=args.workers,
            round_trip=args.rtt / 1000,
            threads=args.threads,
            head_options=(
                *("--device", "none", "--set", f"serve.output={args.output_on}", "--ctx-size", context),
                *("--", "-np", str(slots)),
            ),
        )
    )


async def _measure(args: argparse.Namespace, fleet: Fleet, head: LocalNode, counts: Sequence[int]) -> None:
    url = fleet.api_url(await head.until(model_ready))
    alone = 0.0
    for streams in counts:
        await _answers(url, streams, args.tokens // _SHORT_SHARE)
        rates, costs = [], []
        for _ in range(args.tries):
            sent = crossed_bytes(await head.status())
            await _answers(url, streams, args.tokens // _SHORT_SHARE)
            short = crossed_bytes(await head.status())
            seconds = await _answers(url, streams, args.tokens)
            long = crossed_bytes(await head.status())
            rates.append(streams * args.tokens / seconds)
            more = streams * (args.tokens - args.tokens // _SHORT_SHARE)
            costs.append(((long - short) - (short - sent)) / more)
        alone = alone or (max(rates) if streams == 1 else 0.0)
        sys.stdout.write(line(streams, rates, costs, alone) + "\n")
        sys.stdout.flush()


def line(streams: int, rates: Sequence[float], costs: Sequence[float], alone: float) -> str:
    """Return the line that is printed of a number of streams."""
    shown = ", ".join(f"{rate:.1f}" for rate in rates)
    ratio = f"; {max(rates) / alone:.2f} times one stream" if alone else ""
    each = ", ".join(f"{cost:.0f}" for cost in costs)
    return f"{streams} streams: {shown} tokens/s{ratio}; {each} bytes for a token of each"


async def _answers(url: str, streams: int, tokens: int) -> float:
    """Seconds until all have their answer. Raises MeshdError."""
    began = time.monotonic()
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(streams) as pool:  # the loop's own has fewer threads than there may be streams

        async def answered(number: int) -> None:
            await loop.run_in_executor(pool, _answer, url, number, tokens)

        async with Owner() as owner:
            for number in range(streams):
                owner.start(answered(number), name=f"stream {number}")
    return time.monotonic() - began


def _answer(url: str, number: int, tokens: int) -> None:
    """Sampled, of exactly so many tokens. Raises MeshdError."""
    connection = api_connection(url, _ANSWER_SECONDS)
    answer = completion(connection, _PROMPT_TOKENS, tokens, number=number, seed=number, temperature=0.8)
    if answer.tokens != tokens:
        raise MeshdError(f"the API answered with {answer.tokens} tokens, not {tokens}")


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
