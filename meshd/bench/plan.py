"""Predicted beside measured speed, over set-ups of workers and distances: `python -m meshd.bench.plan`.

Each set-up is started for real; its head shares the layers over all workers and says in its status what
it predicts of that split. Then it answers `--tries` prompts of 512 tokens with 128 tokens behind them, alone,
and the medians stand beside the prediction. Workers have as many threads as their set-up says; the head
computes nothing but the output. Exits with 1 if a prediction is off by more than `--generation` or
`--prompts`.
"""

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.bench.distant_run import until_head_serves
from meshd.bench.llama import measure_api
from meshd.bench.program import run_program
from meshd.bench.random_model import random_model
from meshd.build.demo_model import demo_model
from meshd.config import load
from meshd.fleet.fleet import Fleet, FleetSpec
from meshd.model.status import Speeds
from meshd.role.head.plan_prediction import ASSUMED_PROMPT

_GENERATED = 128
_CONTEXT = "2048"


@dataclass(frozen=True, slots=True)
class Setup:
    """`threads` and `rtts` (in ms) have one entry a worker; `model`: smollm2, or one of random_model."""

    threads: tuple[int, ...]
    rtts: tuple[float, ...]
    model: str = "smollm2"

    @property
    def text(self) -> str:
        """For a line of the result."""
        workers = ", ".join(
            f"{threads} {'thread' if threads == 1 else 'threads'} at {rtt:g} ms"
            for threads, rtt in zip(self.threads, self.rtts, strict=True)
        )
        return f"{self.model}: {workers}"


SETUPS = (
    Setup((1,), (0,)),
    Setup((2,), (0,)),
    Setup((1,), (10,)),
    Setup((1,), (40,)),
    Setup((1, 1), (0, 0)),
    Setup((2, 1), (10, 10)),
    Setup((1, 1), (0, 40)),
    Setup((1, 1, 1), (10, 10, 10)),
    Setup((1, 2, 1), (0, 10, 40)),
    Setup((1, 1, 1, 1), (40, 40, 40, 40)),
    Setup((1, 1), (0, 0), "small"),
    Setup((2, 1), (10, 40), "small"),
)


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m meshd.bench.plan", description=__doc__)
    parser.add_argument("--only", default="", metavar="N,…", help="numbers of set-ups, from 1")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    parser.add_argument("--generation", type=float, default=0.2, metavar="F", help="most that may be off")
    parser.add_argument("--prompts", type=float, default=0.3, metavar="F", help="the same")
    return run_program(_run(parser.parse_args(argv)))


async def _run(args: argparse.Namespace) -> None:
    cache = load().config.paths.cache
    chosen = [int(word) for word in args.only.split(",") if word] or range(1, len(SETUPS) + 1)
    off = 0
    for number in chosen:
        setup = SETUPS[number - 1]
        model = (
            await demo_model(cache, lambda _step: None)
            if setup.model == "smollm2"
            else random_model(setup.model, cache / "bench-models")
        )
        predicted, measured = await _cell(setup, model, cache, args.tries)
        generation = _ratio(predicted.generate_tok_s, measured.generate_tok_s)
        prompts = _ratio(predicted.prompt_tok_s, measured.prompt_tok_s)
        off += abs(generation - 1) > args.generation or abs(prompts - 1) > args.prompts
        sys.stdout.write(
            f"{number:2}. {setup.text}: generation {predicted.generate_tok_s:.1f} predicted, "
            f"{measured.generate_tok_s:.1f} measured ({generation:.2f}); prompts "
            f"{predicted.prompt_tok_s:.0f}, {measured.prompt_tok_s:.0f} ({prompts:.2f})\n"
        )
        sys.stdout.flush()
    if off:
        raise SystemExit(f"{off} of {len(chosen)} predictions are off by more than is allowed")


def _ratio(predicted: float | None, measured: float | None) -> float:
    if not predicted or not measured:
        raise MeshdError("a speed is missing: a device could not be measured, or nothing was answered")
    return predicted / measured


async def _cell(setup: Setup, model: Path, cache: Path, tries: int) -> tuple[Speeds, Speeds]:
    """What one set-up predicts, and what it does. Raises MeshdError."""
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        async with Owner() as owner:
            fleet = Fleet(
                FleetSpec(
                    folder=Path(folder),
                    cache=cache,
                    model=model,
                    worker_model=model,
                    round_trips=[rtt / 1000 for rtt in setup.rtts],
                    head_options=("--split", "auto", "--device", "none", "--ctx-size", _CONTEXT),
                    worker_options=[("--threads", str(threads)) for threads in setup.threads],
                )
            )
            await fleet.start_workers(owner)
            head = await fleet.start_head(owner)
            await until_head_serves(fleet, head)
            status = await head.status()
            if status.model is None or status.model.predicted is None:
                raise MeshdError("the head predicts nothing", hint="see its log: were all devices measured?")
            url = fleet.api_url(status)
            await measure_api(url, prompt_tokens=8, tokens=4)
            found = [
                await measure_api(url, prompt_tokens=ASSUMED_PROMPT, tokens=_GENERATED) for _ in range(tries)
            ]
            owner.cancel()
    return status.model.predicted, Speeds(
        statistics.median(one.prompt for one in found), statistics.median(one.generate for one in found)
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
