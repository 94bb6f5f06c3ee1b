"""What speculation gains, through the daemons: `python -m meshd.bench.speculation`.

Three fleets stand side by side, one for each way of drafting: none, repeated tokens, and those and a draft
model (the model itself, unless `--draft-model` names a smaller one). Each try asks one after the other for
the same answers: one that repeats its prompt (JSON, greedy), and prose (sampled, with a seed). What is
printed: tokens a second of each try, the ratio of the medians to those without drafts, rounds over the
workers, and whether the text is the same.
Other load on the machine falls on all three alike, as their tries alternate; the tables of two runs differ.
"""

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from meshd.base.tasks import Owner
from meshd.bench.distant_run import until_head_serves
from meshd.bench.llama import ChatAnswer, api_connection, completed
from meshd.bench.program import run_program
from meshd.build.demo_model import demo_model
from meshd.config import load
from meshd.fleet.fleet import Fleet, workers_alike
from meshd.fleet.node import LocalNode, model_ready

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


@dataclass(slots=True)
class DraftingMode:
    """One fleet and what it has answered, by kind of text."""

    name: str
    options: tuple[str, ...]
    url: str = ""
    answers: dict[str, list[ChatAnswer]] = field(default_factory=dict)


def main(argv: Sequence[str]) -> int:
    """Measures, prints, and returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m meshd.bench.speculation", description=__doc__)
    parser.add_argument("--model", type=Path, metavar="FILE")
    parser.add_argument("--draft-model", type=Path, metavar="FILE")
    parser.add_argument("--workers", type=int, default=4, metavar="N")
    parser.add_argument("--rtt", type=float, default=50.0, metavar="MS")
    parser.add_argument("--tokens", type=int, default=256, metavar="N", help="of an answer")
    parser.add_argument("--tries", type=int, default=3, metavar="N")
    return run_program(_run(parser.parse_args(argv)))


async def _run(args: argparse.Namespace) -> None:
    cache = load().config.paths.cache
    model = args.model or await demo_model(cache, lambda _step: None)
    draft = str(args.draft_model or model)
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
            heads.append(await _start(args, mode, model, cache, folder, owner))
        for number in range(args.tries + 1):  # the first one brings graphs to the workers
            for kind, asked in PROMPTS.items():
                for mode in modes:
                    answer = await asyncio.to_thread(_answer, mode.url, asked, args.tokens)
                    if number:
                        mode.answers.setdefault(kind, []).append(answer)
        for kind in PROMPTS:
            for mode in modes:
                sys.stdout.write(line(kind, mode, modes[0]) + "\n")
        for mode, head in zip(modes, heads, strict=True):
            status = await head.status()
            found = status.model.speculation if status.model is not None else None
            sys.stdout.write(f"{mode.name}, by `meshd status`: {found}\n")
        owner.cancel()


async def _start(
    args: argparse.Namespace, mode: DraftingMode, model: Path, cache: Path, folder: Path, owner: Owner
) -> LocalNode:
    fleet = Fleet(
        workers_alike(
            folder,
            cache,
            model,
            count=args.workers,
            round_trip=args.rtt / 1000,
            threads=1,
            head_options=("--device", "none", "--output-on", "worker", "--ctx-size", "2048", *mode.options),
        )
    )
    await fleet.start_workers(owner)
    head = await fleet.start_head(owner)
    await until_head_serves(fleet, head)
    mode.url = fleet.api_url(await head.until(model_ready))
    return head


def _answer(url: str, asked: Mapping[str, object], tokens: int) -> ChatAnswer:
    """Raises MeshdError."""
    body = {"n_predict": tokens, "ignore_eos": True, "cache_prompt": False, **asked}
    return completed(api_connection(url, _ANSWER_SECONDS), body)


def line(kind: str, mode: DraftingMode, off: DraftingMode) -> str:
    """What is printed of one kind of text and one way of drafting, beside `off`."""
    answers, without = mode.answers[kind], off.answers[kind]
    rates = ", ".join(f"{one.generate:.1f}" for one in answers)
    mine, theirs = (statistics.median(one.generate for one in found) for found in (answers, without))
    same = "the same text" if {one.text for one in answers} == {one.text for one in without} else "OTHER text"
    drafted, accepted = sum(one.drafted for one in answers), sum(one.accepted for one in answers)
    rounds = statistics.median(one.rounds for one in answers)
    return (
        f"{kind}, {mode.name}: {rates} tokens/s ({mine / theirs:.2f}), {rounds:.0f} rounds, "
        f"{accepted} of {drafted} accepted, {same}"
    )


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
