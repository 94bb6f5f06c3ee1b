"""Measure what speculation gains, through the daemons: `python -m tests.bench.speculation`.

Three fleets stand side by side, one for each way of drafting: none, repeated tokens, and those and a draft
model (the model itself, unless `--draft-model` names a smaller one). Each try asks one after the other for
the same answers: one that repeats its prompt (JSON, greedy), and prose (sampled, with a seed). What is
printed: tokens a second of each try, the ratio of the medians to those without drafts, rounds over the
workers, and whether the text is the same. With `--streams` so many clients ask at once: tokens a second are
the sum of those that llama-server counts for each answer behind its prompt, and rounds those of one answer.
Other load on the machine falls on all three alike, as their tries alternate; the tables of two runs differ.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from types import MappingProxyType

from meshd.base.tasks import Owner
from meshd.bench.distance import until_head_serves
from meshd.bench.llama import ChatAnswer, api_connection, completed
from meshd.build.fetch import demo_model
from meshd.config.load import load
from meshd.fleet.fleet import Fleet, LocalNode, model_ready

from tests.bench.networks import workers_alike
from tests.bench.program import run_program

_ANSWER_SECONDS = 900.0
_USERS = [{"id": number, "name": f"user-{number}", "active": True} for number in range(5)]
_FILE = f"The same file again:\n```json\n{json.dumps(_USERS, indent=1)}\n```\n"
PROMPTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {
        "repetitive": {"prompt": _FILE * 3 + "The same file again:\n```json\n[", "temperature": 0},
        "prose": {
            "prompt": "The keeper of the lighthouse woke before dawn, as he had for thirty years, and",
            "temperature": 0.8,  # the most likely text of a small model repeats itself
            "seed": 5,
        },
    }
)


@dataclass(frozen=True, slots=True)
class Tried:
    """Answers that were asked for at once, and tokens a second of all together, behind their prompts."""

    rate: float
    answers: tuple[ChatAnswer, ...]


@dataclass(slots=True)
class DraftingMode:
    """One fleet and what it has answered, by kind of text and number of streams."""

    name: str
    options: tuple[str, ...]
    url: str = ""
    tries: dict[tuple[str, int], list[Tried]] = field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.speculation", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--draft-model", type=Path, metavar="FILE")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--rtt", type=float, default=50.0, metavar="MS")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="of an answer")
    parser.add_argument("--streams", default="1", metavar="N,…", help="clients that ask at once")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    return run_program(_run(parser.parse_args(argv)))


async def _run(args: argparse.Namespace) -> None:
    cache = load().config.paths.cache
    model = args.model or await demo_model(cache, lambda _step: None)
    draft = str(args.draft_model or model)
    counts = [int(count) for count in args.streams.split(",")]
    modes = [
        DraftingMode("off", ("--speculate", "off")),
        DraftingMode("repeated tokens", ("--speculate", "auto")),
        DraftingMode("draft model", ("--speculate", "auto", "--draft-model", draft)),
    ]
    async with AsyncExitStack() as stack:
        owner = await stack.enter_async_context(Owner())
        heads = []
        for mode in modes:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="meshd-bench-")))
            heads.append(await _start(args, mode, model, cache, folder, owner, slots=max(counts)))
        for number in range(args.tries + 1):  # the first one brings graphs to the workers
            for (kind, asked), streams in product(PROMPTS.items(), counts):
                for mode in modes:
                    tried = await _try(mode.url, asked, args.tokens, streams)
                    if number:
                        mode.tries.setdefault((kind, streams), []).append(tried)
        for kind, streams in product(PROMPTS, counts):
            for mode in modes:
                sys.stdout.write(line(kind, streams, mode, modes[0]) + "\n")
        for mode, head in zip(modes, heads, strict=True):
            status = await head.status()
            found = status.model.speculation if status.model is not None else None
            sys.stdout.write(f"{mode.name}, by `meshd status`: {found}\n")
        owner.cancel()


async def _start(
    args: argparse.Namespace,
    mode: DraftingMode,
    model: Path,
    cache: Path,
    folder: Path,
    owner: Owner,
    *,
    slots: int,
) -> LocalNode:
    fleet = Fleet(
        workers_alike(
            folder,
            cache,
            model,
            count=args.workers,
            round_trip=args.rtt / 1000,
            threads=1,
            head_options=(
                *("--device", "none", "--set", "serve.output=worker", "--ctx-size", "2048"),
                *mode.options,
                *(("--", "-np", str(slots)) if slots > 1 else ()),
            ),
        )
    )
    await fleet.start_workers(owner)
    head = await fleet.start_head(owner)
    await until_head_serves(fleet, head)
    mode.url = fleet.api_url(await head.until(model_ready))
    return head


async def _try(url: str, asked: Mapping[str, object], tokens: int, streams: int) -> Tried:
    """Ask for so many answers at once; of a sampled one each has a seed of its own. Raises MeshdError."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(streams) as pool:  # the loop's own has fewer threads than there may be streams

        async def answered(number: int) -> ChatAnswer:
            return await loop.run_in_executor(pool, _answer, url, {**asked, **_seed(asked, number)}, tokens)

        async with Owner() as owner:
            tasks = [owner.start(answered(number), name=f"stream {number}") for number in range(streams)]
    answers = tuple(task.result() for task in tasks)
    return Tried(sum(one.generate for one in answers), answers)


def _seed(asked: Mapping[str, object], number: int) -> Mapping[str, object]:
    seed = asked.get("seed")
    return {"seed": seed + number} if isinstance(seed, int) else {}


def _answer(url: str, asked: Mapping[str, object], tokens: int) -> ChatAnswer:
    """Raises MeshdError."""
    body = {"n_predict": tokens, "ignore_eos": True, "cache_prompt": False, **asked}
    return completed(api_connection(url, _ANSWER_SECONDS), body)


def line(kind: str, streams: int, mode: DraftingMode, off: DraftingMode) -> str:
    """Return the line that is printed of one kind of text and one way of drafting, beside `off`."""
    tries, without = mode.tries[kind, streams], off.tries[kind, streams]
    rates = ", ".join(f"{one.rate:.1f}" for one in tries)
    mine, theirs = (statistics.median(one.rate for one in found) for found in (tries, without))
    same = "the same text" if _texts(tries) == _texts(without) else "OTHER text"
    answers = [answer for one in tries for answer in one.answers]
    drafted, accepted = sum(one.drafted for one in answers), sum(one.accepted for one in answers)
    rounds = statistics.median(one.rounds for one in answers)
    at_once = f", {streams} streams" if streams > 1 else ""
    return (
        f"{kind}, {mode.name}{at_once}: {rates} tokens/s ({mine / theirs:.2f}), {rounds:.0f} rounds, "
        f"{accepted} of {drafted} accepted, {same}"
    )


def _texts(tries: Sequence[Tried]) -> set[tuple[str, ...]]:
    return {tuple(answer.text for answer in one.answers) for one in tries}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
