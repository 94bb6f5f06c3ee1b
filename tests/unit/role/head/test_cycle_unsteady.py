"""A head and workers that end their leases soon, or answer nothing and say nothing of it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.peer.interface import PeerState
from meshd.role.head.cycle import Serve
from meshd.role.head.worker_backoff import ENDS
from meshd.rpc.head_timeouts import LEAST_STEP_SECONDS, MOST_STEP_SECONDS, HeadEnd

from tests.sim.loop import run
from tests.unit.role.head.test_cycle_troubles import Stage, model_of, ready, stage, until
from tests.unit.role.rig import Bench, cpu_lines
from tests.unit.role.stubs import StubTunnel
from tests.unit.rpc import talk
from tests.unit.rpc.test_pending_work import GET, GRAPH

ANSWER = talk.answer(bytes(16))


def tunnel_to(it: Stage, worker: Bench) -> StubTunnel:
    return next(tunnel for tunnel in reversed(it.bench.tunnels) if tunnel.asked.peer == worker.mesh.key.peer)


@asynccontextmanager
async def bad_and_good(folder: Path, *, min_workers: int = 1) -> AsyncIterator[tuple[Serve, Bench, Bench]]:
    """A head, and its workers of these names."""
    async with stage(folder) as it:
        bad, good = it.worker("bad"), it.worker("good")
        yield it.serve(min_workers=min_workers), bad, good


async def end_lease(serve: Serve, worker: Bench) -> None:
    """As its rpc-server is ended."""
    worker.children[-1].die("exit code 1")
    await until(serve, lambda model: model.state != "ready")


def test_a_worker_that_ends_its_leases_soon_is_done_without(tmp_path: Path) -> None:
    """And a new connection does not help it."""

    async def main() -> None:
        async with bad_and_good(tmp_path) as (serve, bad, _good):
            for _ in range(ENDS):
                assert await ready(serve) == {"head", "bad", "good"}
                bad.mesh.since += 1.0
                await end_lease(serve, bad)
            assert await ready(serve) == {"head", "good"}
            reason = model_of(serve).reason
            assert "worker bad is left out for 60 s: it failed 3 times soon after loading" in reason
            assert "exit code 1" in reason

    run(main())


def test_what_the_gateway_sees_first_is_the_workers_doing_all_the_same(tmp_path: Path) -> None:
    """A stock llama-server ends with its worker; the lease tells why a moment later."""

    async def main() -> None:
        async with bad_and_good(tmp_path) as (serve, bad, _good):
            for _ in range(ENDS):
                assert await ready(serve) == {"head", "bad", "good"}
                told = asyncio.ensure_future(serve.upstream_broke("the connection was closed"))
                await asyncio.sleep(0)
                assert model_of(serve).state == "loading"
                await asyncio.sleep(0.1)
                await end_lease(serve, bad)
                await until(serve, lambda model: "bad is lost" in model.reason)
                assert (await told).startswith("worker bad is lost: ")
            assert await ready(serve) == {"head", "good"}

    run(main())


def test_its_time_out_ends_and_the_next_one_is_longer(tmp_path: Path) -> None:
    async def main() -> None:
        async with bad_and_good(tmp_path) as (serve, bad, good):
            for _ in range(ENDS):
                await ready(serve)
                await end_lease(serve, bad)
            assert await ready(serve) == {"head", "good"}
            await asyncio.sleep(300.0)
            good.children[-1].die("exit code 2")
            await until(serve, lambda model: model.state != "ready")
            assert await ready(serve) == {"head", "bad", "good"}
            await end_lease(serve, bad)
            assert await ready(serve) == {"head", "good"}
            assert "worker bad is left out for 120 s" in model_of(serve).reason

    run(main())


def test_with_too_few_others_it_is_used_all_the_same(tmp_path: Path) -> None:
    async def main() -> None:
        async with bad_and_good(tmp_path, min_workers=2) as (serve, bad, _good):
            for _ in range(4 * ENDS):
                began = asyncio.get_running_loop().time()
                assert await ready(serve) == {"head", "bad", "good"}
                assert asyncio.get_running_loop().time() - began < 10.0
                await end_lease(serve, bad)

    run(main())


def test_a_model_that_does_not_fit_without_it_is_run_with_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as it:
            bad, small = it.worker("bad"), it.worker("small")
            small.device_lines = cpu_lines(free_mib=1)
            serve = it.serve()
            for _ in range(2 * ENDS):
                began = asyncio.get_running_loop().time()
                assert "bad" in await ready(serve)
                assert asyncio.get_running_loop().time() - began < 15.0
                await end_lease(serve, bad)

    run(main())


def a_step(end: HeadEnd) -> None:
    end.to_peer(GRAPH)
    end.to_peer(GET)


def test_a_worker_that_answers_nothing_and_says_nothing_is_given_up(tmp_path: Path) -> None:
    async def main() -> None:
        async with stage(tmp_path) as it:
            bad, _good = it.worker("bad"), it.worker("good")
            serve = it.serve()
            await ready(serve)
            watch = tunnel_to(it, bad).asked.watch
            assert watch is not None
            with watch() as end:
                assert isinstance(end, HeadEnd)
                a_step(end)
                await asyncio.sleep(1.0)
                end.from_peer(ANSWER)
                a_step(end)
                began = asyncio.get_running_loop().time()
                model = await until(serve, lambda model: model.state != "ready")
                assert (
                    LEAST_STEP_SECONDS < asyncio.get_running_loop().time() - began <= LEAST_STEP_SECONDS + 3.0
                )
                assert "worker bad is lost: it does not answer" in model.reason
            assert await ready(serve) == {"head", "good"}
            assert "worker bad is left out for 60 s: it does not answer" in model_of(serve).reason

    run(main())


def test_a_worker_without_a_path_is_not(tmp_path: Path) -> None:
    """That is the grace's matter."""

    async def main() -> None:
        async with stage(tmp_path) as it:
            away = it.worker("away")
            serve = it.serve()
            await ready(serve)
            watch = tunnel_to(it, away).asked.watch
            assert watch is not None
            with watch() as end:
                assert isinstance(end, HeadEnd)
                a_step(end)
                end.from_peer(ANSWER)
                a_step(end)
                away.mesh.state = PeerState.SUSPENDED
                await asyncio.sleep(10 * LEAST_STEP_SECONDS)
                away.mesh.state = PeerState.CONNECTED
                end.from_peer(ANSWER)
                await asyncio.sleep(5.0)
                assert len(it.bench.children) == 1, "the model is the same"

    run(main())


@pytest.mark.parametrize("drips", [False, True], ids=["silent", "a byte a second"])
def test_a_load_that_comes_to_nothing_is_ended(tmp_path: Path, drips: bool) -> None:
    async def main() -> None:
        async with stage(tmp_path) as it:
            bad, _good = it.worker("bad"), it.worker("good")
            it.bench.ready = asyncio.get_running_loop().create_future()
            serve = it.serve()
            await until(serve, lambda _: it.bench.tokens_asked == 1)
            it.bench.ready = None  # the next one gets its token
            watch = tunnel_to(it, bad).asked.watch
            assert watch is not None
            began = asyncio.get_running_loop().time()
            with watch() as end:
                end.to_peer(talk.load(talk.load_entry()))
                end.from_peer(talk.answer(bytes(8000))[: 4000 * drips])
                while len(it.bench.tunnels) == 2:
                    await asyncio.sleep(1.0)
                    if drips:
                        end.from_peer(b"\0")
                    assert asyncio.get_running_loop().time() - began < 2 * MOST_STEP_SECONDS
            assert asyncio.get_running_loop().time() - began > MOST_STEP_SECONDS
            assert await ready(serve) == {"head", "good"}
            assert "it does not load: requests have waited" in model_of(serve).reason

    run(main())
