"""Predicted beside measured speed, over set-ups of workers and distances: `python -m tests.bench.plan`.

Each set-up (plan_setups.py) is started for real, on this machine. Its head divides the layers over all
workers by their speed, and predicts in its status how fast that is. It answers `--tries` prompts of 512
tokens with `--tokens` behind them, one at a time; the medians stand beside the prediction. The head of half
of them may compute layers as well, that of the others nothing but the output.

With `--choices` the head may also choose among the workers, and each worker is measured alone: the choice
is good if the answer by which splits are compared takes at most 5 % longer than on the fastest set of
workers. `--every-set` measures all sets.

At the end a table says which set-ups are within `--generation` and `--prompts`. Exits with 1 if one is not,
if a choice is not good, or if `--minutes` were not enough for all set-ups.
"""

import argparse
import asyncio
import itertools
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import ANSWER_SECONDS, ChatAnswer, api_connection, completion
from meshd.build.fetch import demo_model
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, FleetSpec, worker_names
from meshd.model.status import Speeds
from meshd.plan.prediction import ASSUMED_PROMPT

from tests.bench.page import markdown
from tests.bench.plan_figures import PlanRun, SetupFigures, Tolerance, result_table, run_line
from tests.bench.plan_setups import SETUPS, Setup, folder_of_cache, setups_of_devices
from tests.bench.program import run_program
from tests.bench.random_model import random_model

_CONTEXT = "2048"
_LOOK_SECONDS = 0.5
_JUDGED = re.compile(r" split_judged .*")
_NOT_JUDGED = re.compile(r" split_not_judged .*")  # for now: a head tries again
_JUDGED_SECONDS = 120.0
_LOADED_AGAIN_SECONDS = 3.0  # within which a head begins to load its model again, if it does


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.plan", description=__doc__)
    parser.add_argument("--only", default="", metavar="N,…", help="numbers of set-ups, from 1")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    parser.add_argument("--tokens", type=int, default=128, metavar="N", help="of an answer")
    parser.add_argument("--generation", type=float, default=0.2, metavar="F", help="most that may be off")
    parser.add_argument("--prompts", type=float, default=0.3, metavar="F", help="the same")
    parser.add_argument("--choices", action="store_true", help="is the chosen set of workers the fastest?")
    parser.add_argument("--every-set", action="store_true", help="measure all sets of workers for that")
    parser.add_argument("--minutes", type=float, metavar="M", help="begin no further set-up after that")
    parser.add_argument("--devices", default="", metavar="LIST", help="such as CUDA0,CUDA1: a worker each")
    parser.add_argument("--model", metavar="NAME", help="instead of the set-ups' own; 8b with --devices")
    return run_program(_run(parser.parse_args(argv)))


async def _run(args: argparse.Namespace) -> None:
    cache, limits = load().config.paths.cache, Tolerance(args.generation, args.prompts)
    setups: Sequence[Setup] = setups_of_devices(args.devices.split(",")) if args.devices else SETUPS
    if args.model:
        setups = [replace(setup, model=args.model) for setup in setups]
    numbers = [int(word) for word in args.only.split(",") if word] or list(range(1, len(setups) + 1))
    files = {name: await _file(name, cache) for name in {setups[number - 1].model for number in numbers}}
    found: list[tuple[int, SetupFigures]] = []
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        own_cache = folder_of_cache(cache, Path(folder))
        for number in numbers:
            if args.minutes is not None and time.monotonic() - began > 60 * args.minutes:
                break
            setup = setups[number - 1]
            sys.stdout.write(f"{number}. {setup.text}\n")
            found.append((number, await _measured(setup, files[setup.model], own_cache, args)))
    sys.stdout.write(f"\n{markdown(result_table(found, limits))}\n")
    left = numbers[len(found) :]
    bad = [number for number, one in found if not one.is_good(limits)]
    if left or bad:
        raise SystemExit(
            f"off by more than is allowed: {_listed(bad)}; not measured, for lack of time: {_listed(left)}"
        )


def _listed(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers)) or "none"


async def _file(name: str, cache: Path) -> Path:
    if name == "smollm2":
        return await demo_model(cache, lambda _step: None)
    return random_model(name, cache / "bench-models")


async def _measured(setup: Setup, model: Path, cache: Path, args: argparse.Namespace) -> SetupFigures:
    """Raises MeshdError."""
    names = worker_names(len(setup.rtts))
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        async with Owner() as owner:
            fleet = Fleet(
                FleetSpec(
                    folder=Path(folder),
                    cache=cache,
                    model=model,
                    worker_model=model,
                    round_trips=[rtt / 1000 for rtt in setup.rtts],
                    head_options=(*setup.head_options, "--ctx-size", _CONTEXT),
                    worker_options=setup.worker_options,
                    cores=setup.cores,
                )
            )
            await fleet.start_workers(owner)
            for worker in fleet.workers:  # the head shall know all of them
                await worker.until(lambda status: len(status.peers) == len(setup.rtts) - 1)
            answered = partial(_answered, fleet, args, setup.llama_args)
            whole = await answered()
            runs, chosen = [whole], None
            if args.choices and len(names) == 1:
                chosen = whole
            elif args.choices:
                chosen = await answered("--min-workers", "1")
                runs.append(chosen)
                for some in _sets(names, every=args.every_set):
                    if {*some} not in [{*run.nodes} for run in runs]:
                        only = ("--workers", ",".join(some), "--min-workers", str(len(some)))
                        runs.append(await answered(*only))
            owner.cancel()
    return SetupFigures(setup, whole, tuple(runs), chosen)


async def _measure(url: str, *, prompt_tokens: int, tokens: int) -> ChatAnswer:
    """Measure a completion by a node's API, whose gateway decides where to sample. Raises MeshdError."""
    connection = api_connection(url, ANSWER_SECONDS)
    return await asyncio.to_thread(completion, connection, prompt_tokens, tokens)


def _last(event: re.Pattern[str], log: str) -> str:
    return next(reversed(event.findall(log)), " nothing")


def _sets(names: Sequence[str], *, every: bool) -> list[tuple[str, ...]]:
    counts = range(1, len(names) + 1) if every else (1,)
    return [some for count in counts for some in itertools.combinations(names, count)]


async def _answered(fleet: Fleet, args: argparse.Namespace, llama_args: Sequence[str], *more: str) -> PlanRun:
    """Return what a head with these options predicts and does. Raises MeshdError."""
    async with Owner() as owner:
        head = await fleet.start_head(owner, *more, *llama_args)
        await until_head_serves(fleet, head)
        # what the load has estimated is measured after it, and may lead to another load
        log_file = head.spec.home / "node.log"
        try:
            async with asyncio.timeout(_JUDGED_SECONDS):
                while not _JUDGED.search(log_file.read_text(encoding="utf-8")):  # noqa: ASYNC110 - a file
                    await asyncio.sleep(_LOOK_SECONDS)
        except TimeoutError:
            why = _last(_NOT_JUDGED, log_file.read_text(encoding="utf-8"))
            raise MeshdError(
                f"the devices were not measured within {_JUDGED_SECONDS:g} s of the load:{why}"
            ) from None
        await asyncio.sleep(_LOADED_AGAIN_SECONDS)
        await until_head_serves(fleet, head)
        status = await head.status()
        if status.model is None:
            raise MeshdError("the head has no model")
        url = fleet.api_url(status)
        await _measure(url, prompt_tokens=8, tokens=4)
        found = [
            await _measure(url, prompt_tokens=ASSUMED_PROMPT, tokens=args.tokens) for _ in range(args.tries)
        ]
        log = log_file.read_text(encoding="utf-8")
        owner.cancel()
    if status.model.predicted is None:
        raise MeshdError(f"the head predicts nothing; its log says:{_last(_JUDGED, log)}")
    measured = Speeds(
        statistics.median(one.prompt for one in found), statistics.median(one.generate for one in found)
    )
    nodes = tuple(dict.fromkeys(part.node for part in status.model.split if part.layers))
    run = PlanRun(nodes, status.model.predicted, measured)
    sys.stdout.write(f"    {run_line(run)}\n")
    sys.stdout.flush()
    return run


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
