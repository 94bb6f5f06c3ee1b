"""A worker that comes while the model runs: it is loaded again with it, once nobody asks."""

import asyncio
from pathlib import Path

from meshd.identity.membership import Role
from meshd.peer.interface import PeerState
from meshd.role.head.quiet_moments import SETTLED_SECONDS, UNASKED_SECONDS, QuietMoments
from meshd.role.head.split_plan import HeadOptions

from tests.sim.loop import run
from tests.unit.role.head.test_cycle_troubles import Stage, model_of, ready, stage, until
from tests.unit.role.rig import Bench

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


def test_a_worker_that_comes_is_taken_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as it:
            it.worker("one")
            serve = it.serve()
            assert await ready(serve) == {"head", "one"}
            comes(it, "two")
            await until(serve, lambda model: "worker two is here" in model.reason)
            assert await ready(serve) == {"head", "one", "two"}
            assert serve.status.children[0].restarts == 0, "that was no failure"

    run(main())


def test_not_while_somebody_asks(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


def test_not_one_that_may_not_work_or_does_not_stay(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


def test_a_stranger_is_not_taken_in_where_the_plan_decides_but_one_that_was_used_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as it:
            it.worker("one")
            back = it.worker("back")
            serve = it.serve_with(HeadOptions(split="auto", incarnation=bytes(16)))
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

    run(main())


def test_a_worker_that_is_paused_is_let_go_when_no_answer_is_open_and_taken_in_later(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


def test_the_only_worker_is_waited_for_while_it_is_paused(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as it:
            only = it.worker("only")
            serve = it.serve()
            await ready(serve)
            only.mesh.paused = True
            await until(
                serve, lambda model: "only is paused (`meshd resume` there ends that)" in model.reason
            )
            only.mesh.paused = False
            only.mesh.say(PeerState.CONNECTED)
            assert await ready(serve) == {"head", "only"}

    run(main())
