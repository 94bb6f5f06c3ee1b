"""A worker that comes while the model runs: it is loaded again with it, once nobody asks."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.gateway.turns import Turns
from meshd.head.load_again import (
    HELD_SECONDS,
    LONG_ASKED_SECONDS,
    SETTLED_SECONDS,
    UNASKED_SECONDS,
    QuietMoments,
    is_held,
)
from meshd.head.model import Model
from meshd.identity.membership import Role
from meshd.peer.interface import PeerState

from tests.unit.head.rig import Bench
from tests.unit.head.test_cycle_troubles import Stage, model_of, ready, stage, until
from tests.unit.plan.plain_options import PLAIN

pytestmark = pytest.mark.virtual

LONG = UNASKED_SECONDS + SETTLED_SECONDS + 5.0


def test_it_is_quiet_when_nobody_has_asked_for_a_while() -> None:
    moments = QuietMoments(list, list)
    assert moments.idle_seconds(0.0) > UNASKED_SECONDS
    moments.requests(1, 10.0)
    assert moments.idle_seconds(1000.0) == 0.0
    moments.requests(0, 1000.0)
    assert moments.idle_seconds(1005.0) == 5.0


def comes(it: Stage, name: str, *, roles: frozenset[Role] = frozenset(Role)) -> Bench:
    """A worker that connects now."""
    worker = it.worker(name, roles=roles)
    worker.mesh.since = asyncio.get_running_loop().time()
    return worker


async def test_a_worker_that_comes_is_taken_in(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        assert await ready(serve) == {"head", "one"}
        comes(it, "two")
        await until(serve, lambda model: "worker two is here" in model.reason)
        assert await ready(serve) == {"head", "one", "two"}
        assert serve.status.children[0].restarts == 0, "that was no failure"


async def test_not_while_somebody_asks(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        assert await ready(serve) == {"head", "one"}
        serve.requested(1)
        comes(it, "two")
        await asyncio.sleep(5 * LONG)
        assert model_of(serve).state == "ready" and await ready(serve) == {"head", "one"}
        serve.requested(0)
        await asyncio.sleep(UNASKED_SECONDS / 2)
        assert await ready(serve) == {"head", "one"}
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "one", "two"}


async def test_not_one_that_may_not_work_or_does_not_stay(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        await ready(serve)
        comes(it, "guest", roles=frozenset({Role.USE}))
        short = comes(it, "short")
        await asyncio.sleep(SETTLED_SECONDS / 2)
        short.mesh.say(PeerState.SUSPENDED)
        await asyncio.sleep(LONG)
        assert model_of(serve).state == "ready" and await ready(serve) == {"head", "one"}


async def test_a_stranger_is_not_taken_in_where_the_plan_decides_but_one_that_was_used_is(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        back = it.worker("back")
        serve = it.serve_with(replace(PLAIN, split="auto", incarnation=bytes(16)))
        assert await ready(serve) == {"head", "one", "back"}
        back.mesh.say(PeerState.LOST)
        back.children[-1].die("exit code 1")
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "one"}
        comes(it, "stranger")
        await asyncio.sleep(LONG)
        assert await ready(serve) == {"head", "one"}
        back.mesh.since = asyncio.get_running_loop().time()
        back.mesh.say(PeerState.CONNECTED)
        await until(serve, lambda model: "worker back is here" in model.reason)
        assert {"one", "back"} <= await ready(serve)


async def test_a_worker_that_is_paused_is_let_go_when_no_answer_is_open_and_taken_in_later(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        two = it.worker("two")
        serve = it.serve()
        assert await ready(serve) == {"head", "one", "two"}
        serve.requested(1)
        two.mesh.paused = True
        await asyncio.sleep(LONG)
        assert await ready(serve) == {"head", "one", "two"}
        serve.requested(0)
        await until(serve, lambda model: "worker two is paused" in model.reason)
        assert await ready(serve) == {"head", "one"}
        await asyncio.sleep(LONG)
        assert await ready(serve) == {"head", "one"}
        two.mesh.paused = False
        await until(serve, lambda model: "worker two is here" in model.reason)
        assert await ready(serve) == {"head", "one", "two"}
        assert serve.status.children[0].restarts == 0


async def test_the_only_worker_is_waited_for_while_it_is_paused(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        only = it.worker("only")
        serve = it.serve()
        await ready(serve)
        only.mesh.paused = True
        await until(serve, lambda model: "only is paused (`meshd resume` there ends that)" in model.reason)
        only.mesh.paused = False
        only.mesh.say(PeerState.CONNECTED)
        assert await ready(serve) == {"head", "only"}


def test_turns_are_held_after_ten_minutes_and_not_for_long() -> None:
    assert [is_held(at) for at in (0.0, LONG_ASKED_SECONDS - 1, LONG_ASKED_SECONDS)] == [False, False, True]
    over = LONG_ASKED_SECONDS + HELD_SECONDS
    assert [is_held(at) for at in (over - 1, over, over + LONG_ASKED_SECONDS)] == [True, False, True]


@asynccontextmanager
async def overlapping(serve: Model, seconds: float, users: int = 3) -> AsyncIterator[list[float]]:
    """Answers of so many seconds, one after another, of more users than there are slots.

    Yields the times when one began.
    """
    loop = asyncio.get_running_loop()
    turns = Turns(serve)
    began: list[float] = []
    active = 0

    def asks(change: int) -> None:
        nonlocal active
        active += change
        serve.requested(active)

    async def user(number: int) -> None:
        await asyncio.sleep(number * seconds / users)
        while True:
            asks(1)
            with turns.enter(number) as turn:
                await turn.come()
                await ready(serve)
                began.append(loop.time())
                await asyncio.sleep(seconds)
            asks(-1)

    tasks = [asyncio.ensure_future(user(number)) for number in range(users)]
    await asyncio.sleep(2 * seconds)
    try:
        yield began
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_worker_that_is_paused_is_let_go_under_overlapping_answers(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        two = it.worker("two")
        serve = it.serve()
        assert await ready(serve) == {"head", "one", "two"}
        async with overlapping(serve, 20.0) as began:
            two.mesh.paused = True
            at = asyncio.get_running_loop().time()
            await asyncio.sleep(5.0)
            assert "worker two is paused" in serve.holds_turns
            await until(serve, lambda model: "worker two is paused" in model.reason)
            assert asyncio.get_running_loop().time() - at < 25.0, "the answers that were open have ended"
            assert max(began) < at + 2.0, "none began meanwhile"
            assert await ready(serve) == {"head", "one"}
            assert serve.holds_turns == ""
            await asyncio.sleep(60.0)
            assert max(began) > at + 30.0, "those that waited have their turns"
            assert model_of(serve).state == "ready"


async def test_a_worker_that_comes_is_taken_in_under_overlapping_answers(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        assert await ready(serve) == {"head", "one"}
        async with overlapping(serve, 20.0) as began:
            comes(it, "two")
            at = asyncio.get_running_loop().time()
            await asyncio.sleep(LONG_ASKED_SECONDS - 5.0)
            assert serve.holds_turns == "" and max(began) > at + LONG_ASKED_SECONDS - 30.0
            await until(serve, lambda model: "worker two is here" in model.reason)
            assert LONG_ASKED_SECONDS <= asyncio.get_running_loop().time() - at < LONG_ASKED_SECONDS + 25.0
            assert await ready(serve) == {"head", "one", "two"}


async def test_a_long_answer_holds_up_the_others_for_minutes_only(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        serve = it.serve()
        assert await ready(serve) == {"head", "one"}
        serve.requested(1)
        comes(it, "two")
        await asyncio.sleep(LONG_ASKED_SECONDS + 2.0)
        assert "worker two is here" in serve.holds_turns
        await asyncio.sleep(HELD_SECONDS)
        assert serve.holds_turns == "" and await ready(serve) == {"head", "one"}
        await asyncio.sleep(LONG_ASKED_SECONDS)
        assert "worker two is here" in serve.holds_turns
        serve.requested(0)
        await until(serve, lambda model: "worker two is here" in model.reason)


async def test_turns_go_on_where_the_worker_is_resumed_or_lost_before_the_answers_end(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.worker("one")
        two = it.worker("two")
        serve = it.serve()
        await ready(serve)
        serve.requested(1)
        two.mesh.paused = True
        await asyncio.sleep(2.0)
        assert serve.holds_turns
        two.mesh.paused = False
        await asyncio.sleep(2.0)
        assert serve.holds_turns == "" and await ready(serve) == {"head", "one", "two"}
        two.mesh.paused = True
        await asyncio.sleep(2.0)
        assert serve.holds_turns
        two.children[-1].die("exit code 1")
        await until(serve, lambda model: model.state != "ready")
        assert serve.holds_turns == ""
        assert await ready(serve) == {"head", "one"} and serve.holds_turns == ""
