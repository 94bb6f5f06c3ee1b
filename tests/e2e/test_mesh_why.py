"""`meshd why` over real daemons: where a token's time goes, with a worker that is far away."""

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from meshd.base.tasks import Owner
from meshd.fleet.fleet import Fleet as ApartFleet
from meshd.fleet.fleet import FleetSpec, ready_or_raise

from tests.e2e.api_client import Api, Streamed
from tests.e2e.models import own_cache, smollm2
from tests.e2e.nodes import PROMPT, cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(3000)]
NEAR, FAR = 0.004, 0.6  # round trips; computing must stay below half of FAR on a busy machine too
TOKENS = 24
FEW_TOKENS = 8


def test_the_slow_way_is_named(tmp_path: Path) -> None:
    async def check() -> None:
        cache = own_cache(tmp_path)
        async with Owner() as owner:
            fleet = ApartFleet(
                FleetSpec(
                    folder=tmp_path,
                    cache=cache,
                    model=smollm2(),
                    worker_model=smollm2(),
                    round_trips=[NEAR, FAR],
                    head_options=("--device", "none"),
                    worker_options=[("--threads", "1")] * 2,
                )
            )
            await fleet.start_workers(owner)
            lender = await cli(fleet.workers[0].spec.home, "why")
            assert lender.returncode == 1 and "this node serves no model" in lender.stderr
            head = await fleet.start_head(owner)
            status = await head.until(ready_or_raise)
            early = await cli(head.spec.home, "why", "--json")
            assert early.returncode == 1 and "nothing was answered" in early.stderr and early.stdout == ""
            await Api(fleet.api_url(status)).complete(PROMPT * 20, FEW_TOKENS)
            asked = await cli(head.spec.home, "why", "--json")
            assert asked.returncode == 0, asked.stderr
            found = json.loads(asked.stdout)
            adds_up(found["token"])
            adds_up(found["prompt"])
            parts = {(part["kind"], part["where"]): part for part in found["token"]["parts"]}
            ways = [where for kind, where in parts if kind == "way"]
            assert ways == ["head → worker-1", "worker-1 → worker-2", "worker-2 → head"]
            slowest = max(found["token"]["parts"], key=lambda part: part["seconds"])
            # both ways of the far worker take about as long
            assert slowest["kind"] == "way" and "worker-2" in slowest["where"], found["token"]
            for name in ("worker-1 CPU", "worker-2 CPU"):
                computing = parts["computing", name]
                assert computing["source"] == "measured" and 0 < computing["seconds"] < FAR
            assert found["token"]["tokens"] == FEW_TOKENS - 1
            assert [one["generated_tokens"] for one in found["answers"]] == [FEW_TOKENS]
            assert found["advice"]["change"], "alone the head is nearer to itself"
            shown = await cli(head.spec.home, "why")
            assert shown.returncode == 0 and "not explained" in shown.stdout
            owner.cancel()

    play(check())


def test_answers_that_run_at_once_are_divided_by_rounds(tmp_path: Path) -> None:
    """With drafts, as is usual. Nothing was ever alone."""

    async def check() -> None:
        cache = own_cache(tmp_path)
        async with Owner() as owner:
            fleet = ApartFleet(
                FleetSpec(
                    folder=tmp_path,
                    cache=cache,
                    model=smollm2(),
                    worker_model=smollm2(),
                    round_trips=[NEAR, FAR],
                    head_options=("--device", "none", "--speculate", "auto", "--ctx-size", "2048"),
                    worker_options=[("--threads", "1")] * 2,
                )
            )
            await fleet.start_workers(owner)
            head = await fleet.start_head(owner)
            status = await head.until(ready_or_raise)
            api = Api(fleet.api_url(status))
            far = asyncio.Event()
            loop, pieces = asyncio.get_running_loop(), [0, 0, 0]

            def count(number: int, so_far: Streamed) -> None:
                pieces[number] = so_far.pieces
                if min(pieces) >= TOKENS:
                    loop.call_soon_threadsafe(far.set)

            words = ("trees", "rivers", "stars")
            streams = [
                asyncio.ensure_future(
                    api.stream(f"Tell me about {word}.", 400, on_piece=partial(count, number))
                )
                for number, word in enumerate(words)
            ]
            await far.wait()
            asked = await cli(head.spec.home, "why", "--json")
            assert asked.returncode == 0, asked.stderr
            found = json.loads(asked.stdout)
            for stream in streams:
                stream.cancel()
            assert found["token"] is None and found["requests"] == 3 and not found["why_no_round"]
            adds_up(found["round"])
            made = found["round"]["tokens"] / found["round"]["rounds"]
            assert found["round"]["rounds"] >= TOKENS / 2 and 1.5 < made < 20, found["round"]
            parts = {(part["kind"], part["where"]): part for part in found["round"]["parts"]}
            for name in ("worker-1 CPU", "worker-2 CPU"):
                assert parts["computing", name]["source"] == "measured"
            ways = sum(part["seconds"] for (kind, _), part in parts.items() if kind == "way")
            assert (NEAR + FAR) / 2 < ways < 1.5 * (NEAR + FAR), "of a round: there, on, and back"
            assert abs(found["round"]["unexplained"]) < 0.5 * found["round"]["seconds"], found["round"]
            owner.cancel()

    play(check())


def adds_up(account: dict[str, Any]) -> None:
    """Check that the parts shown are the whole."""
    parts = sum(part["seconds"] for part in account["parts"])
    assert account["seconds"] == pytest.approx(parts + account["unexplained"])
    assert account["seconds"] > 0
