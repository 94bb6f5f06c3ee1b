"""Predicted beside measured speed, over set-ups of workers and distances: `python -m meshd.bench.plan`.

Each set-up is started for real; its head shares the layers over all workers and says in its status what
it predicts of that split. Then it answers `--tries` prompts of 512 tokens with 128 tokens behind them, alone,
and the medians stand beside the prediction. Workers have as many threads as their set-up says, or a device
each of `--devices`; the head computes nothing but the output. Exits with 1 if a prediction is off by more
than `--generation` or `--prompts`.

With `--choices` the head may choose among the workers, and every set of them is measured: exits with 1 if
the chosen one takes over 5 % longer for such an answer than the fastest.
"""

import argparse
import itertools
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.bench.distant_run import until_head_serves
from meshd.bench.llama import measure_api
from meshd.bench.program import run_program
from meshd.bench.random_model import random_model
from meshd.build.demo_model import demo_model
from meshd.config import load
from meshd.fleet.fleet import Fleet, FleetSpec, worker_names
from meshd.model.status import Speeds
from meshd.role.head.plan_prediction import ASSUMED_ANSWER, ASSUMED_PROMPT

_GENERATED = 128
_CONTEXT = "2048"


_SLOWER = 1.05  # times the fastest: measurements of the same differ by as much


@dataclass(frozen=True, slots=True)
class Setup:
    """`rtts` (in ms) has an entry a worker, and so has `threads`, or `devices`.

    `model`: smollm2, or one of random_model.
    """

    threads: tuple[int, ...]
    rtts: tuple[float, ...]
    model: str = "smollm2"
    devices: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """For a line of the result."""
        whats = self.devices or [f"{count} {'thread' if count == 1 else 'threads'}" for count in self.threads]
        workers = ", ".join(f"{what} at {rtt:g} ms" for what, rtt in zip(whats, self.rtts, strict=True))
        return f"{self.model}: {workers}"

    @property
    def worker_options(self) -> list[tuple[str, ...]]:
        if self.devices:
            return [("--device", device) for device in self.devices]
        return [("--device", "CPU", "--threads", str(count)) for count in self.threads]


@dataclass(frozen=True, slots=True)
class PlanRun:
    """What a head was told, and came to: `nodes` have the layers."""

    nodes: tuple[str, ...]
    predicted: Speeds | None
    measured: Speeds

    @property
    def answer_seconds(self) -> float:
        """Of the answer by which splits are compared."""
        prompt, generate = self.measured.prompt_tok_s, self.measured.generate_tok_s
        if not prompt or not generate:
            raise MeshdError("a speed is missing: nothing was answered")
        return ASSUMED_PROMPT / prompt + ASSUMED_ANSWER / generate


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
    Setup((1, 1), (0, 10), "moe"),
    Setup((1, 2, 1), (10, 10, 10), "moe"),
)

CHOICES = (
    Setup((1, 2), (0, 10)),
    Setup((2, 1), (40, 0)),
    Setup((1, 2, 1), (0, 10, 40), "small"),
    Setup((1, 1, 2), (10, 10, 40), "moe"),
)


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m meshd.bench.plan", description=__doc__)
    parser.add_argument("--only", default="", metavar="N,…", help="numbers of set-ups, from 1")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    parser.add_argument("--generation", type=float, default=0.2, metavar="F", help="most that may be off")
    parser.add_argument("--prompts", type=float, default=0.3, metavar="F", help="the same")
    parser.add_argument("--choices", action="store_true", help="is the chosen set of workers the fastest?")
    parser.add_argument("--devices", default="", metavar="LIST", help="such as CUDA0,CUDA1: a worker each")
    parser.add_argument("--model", metavar="NAME", help="instead of the set-ups' own; 8b with --devices")
    return run_program(_run(parser.parse_args(argv)))


async def _run(args: argparse.Namespace) -> None:
    cache = load().config.paths.cache
    setups: Sequence[Setup] = CHOICES if args.choices else SETUPS
    if args.devices:
        devices = tuple(args.devices.split(","))
        firsts = [devices[: count + 1] for count in range(len(devices))]
        setups = tuple(
            Setup((), (rtt,) * len(some), "8b", devices=some) for some in firsts for rtt in (0, 10)
        )
    if args.model:
        setups = [replace(setup, model=args.model) for setup in setups]
    off = 0
    chosen = [int(word) for word in args.only.split(",") if word] or range(1, len(setups) + 1)
    for number in chosen:
        setup = setups[number - 1]
        model = (
            await demo_model(cache, lambda _step: None)
            if setup.model == "smollm2"
            else random_model(setup.model, cache / "bench-models")
        )
        sys.stdout.write(f"{number:2}. {setup.text}: ")
        sys.stdout.flush()
        off += not await (_choice if args.choices else _prediction)(setup, model, args)
        sys.stdout.flush()
    if off:
        raise SystemExit(f"{off} of {len(chosen)} are off by more than is allowed")


async def _prediction(setup: Setup, model: Path, args: argparse.Namespace) -> bool:
    """Whether it holds. Raises MeshdError."""
    run = await _cell(setup, model, args.tries)
    predicted, measured = run.predicted, run.measured
    if predicted is None:
        raise MeshdError("the head predicts nothing", hint="see its log: were all devices measured?")
    generation = _ratio(predicted.generate_tok_s, measured.generate_tok_s)
    prompts = _ratio(predicted.prompt_tok_s, measured.prompt_tok_s)
    sys.stdout.write(
        f"generation {predicted.generate_tok_s:.1f} predicted, {measured.generate_tok_s:.1f} measured "
        f"({generation:.2f}); prompts {predicted.prompt_tok_s:.0f}, {measured.prompt_tok_s:.0f} "
        f"({prompts:.2f})\n"
    )
    return bool(abs(generation - 1) <= args.generation and abs(prompts - 1) <= args.prompts)


async def _choice(setup: Setup, model: Path, args: argparse.Namespace) -> bool:
    """Whether what is chosen is as fast as anything else. Raises MeshdError."""
    names = worker_names(len(setup.rtts))
    chosen = await _cell(setup, model, args.tries, least=1)
    sys.stdout.write(f"chosen {'+'.join(chosen.nodes)}, {chosen.answer_seconds:.2f} s\n")
    fastest = chosen.answer_seconds
    for count in range(1, len(names) + 1):
        for some in itertools.combinations(names, count):
            run = await _cell(setup, model, args.tries, least=count, workers=some)
            sys.stdout.write(f"    {'+'.join(run.nodes)}: {run.answer_seconds:.2f} s\n")
            fastest = min(fastest, run.answer_seconds)
    return chosen.answer_seconds <= _SLOWER * fastest


def _ratio(predicted: float | None, measured: float | None) -> float:
    if not predicted or not measured:
        raise MeshdError("a speed is missing: a device could not be measured, or nothing was answered")
    return predicted / measured


async def _cell(
    setup: Setup, model: Path, tries: int, *, least: int | None = None, workers: Sequence[str] = ()
) -> PlanRun:
    """What a head predicts and does with all workers, or at `least` so many, or just `workers`.

    Raises MeshdError.
    """
    told = ("--min-workers", str(least)) if least is not None else ()
    just = ("--workers", ",".join(workers)) if workers else ()
    split = "always" if workers else "auto"
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        async with Owner() as owner:
            fleet = Fleet(
                FleetSpec(
                    folder=Path(folder),
                    cache=load().config.paths.cache,
                    model=model,
                    worker_model=model,
                    round_trips=[rtt / 1000 for rtt in setup.rtts],
                    head_options=(
                        *("--split", split, "--device", "none", "--ctx-size", _CONTEXT),
                        *(*told, *just),
                    ),
                    worker_options=setup.worker_options,
                )
            )
            await fleet.start_workers(owner)
            for worker in fleet.workers:  # the head shall know all of them
                await worker.until(lambda status: len(status.peers) == len(setup.rtts) - 1)
            head = await fleet.start_head(owner)
            await until_head_serves(fleet, head)
            status = await head.status()
            if status.model is None:
                raise MeshdError("the head has no model")
            url = fleet.api_url(status)
            await measure_api(url, prompt_tokens=8, tokens=4)
            found = [
                await measure_api(url, prompt_tokens=ASSUMED_PROMPT, tokens=_GENERATED) for _ in range(tries)
            ]
            owner.cancel()
    return PlanRun(
        tuple(part.node for part in status.model.split if part.layers),
        status.model.predicted,
        Speeds(
            statistics.median(one.prompt for one in found), statistics.median(one.generate for one in found)
        ),
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
