"""A head and workers that end their leases soon."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.head.failures import ENDS
from meshd.head.model import Model

from tests.unit.head.rig import Bench, cpu_lines
from tests.unit.head.stubs import StubTunnel
from tests.unit.head.test_cycle_troubles import Stage, model_of, ready, stage, until

pytestmark = pytest.mark.virtual


def tunnel_to(it: Stage, worker: Bench) -> StubTunnel:
    return next(tunnel for tunnel in reversed(it.bench.tunnels) if tunnel.asked.peer == worker.mesh.key.peer)


@asynccontextmanager
async def bad_and_good(folder: Path, *, min_workers: int = 1) -> AsyncIterator[tuple[Model, Bench, Bench]]:
    """A head, and its workers of these names."""
    async with stage(folder) as it:
        bad, good = it.worker("bad"), it.worker("good")
        yield it.serve(min_workers=min_workers), bad, good


async def end_lease(serve: Model, worker: Bench) -> None:
    """As its rpc-server is ended."""
    worker.children[-1].die("exit code 1")
    await until(serve, lambda model: model.state != "ready")


async def test_a_worker_that_ends_its_leases_soon_is_done_without(tmp_path: Path) -> None:
    """And a new connection does not help it."""
    async with bad_and_good(tmp_path) as (serve, bad, _good):
        for _ in range(ENDS):
            assert await ready(serve) == {"head", "bad", "good"}
            bad.mesh.since += 1.0
            await end_lease(serve, bad)
        assert await ready(serve) == {"head", "good"}
        reason = model_of(serve).reason
        assert "worker bad is left out for 60 s: it failed 3 times soon after loading" in reason
        assert "exit code 1" in reason


async def test_what_the_gateway_sees_first_is_the_workers_doing_all_the_same(tmp_path: Path) -> None:
    """llama-server ends with its worker; the lease tells why a moment later."""
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


async def test_its_time_out_ends_and_the_next_one_is_longer(tmp_path: Path) -> None:
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


async def test_with_too_few_others_it_is_used_all_the_same(tmp_path: Path) -> None:
    async with bad_and_good(tmp_path, min_workers=2) as (serve, bad, _good):
        for _ in range(4 * ENDS):
            began = asyncio.get_running_loop().time()
            assert await ready(serve) == {"head", "bad", "good"}
            assert asyncio.get_running_loop().time() - began < 10.0
            await end_lease(serve, bad)


async def test_a_model_that_does_not_fit_without_it_is_run_with_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        bad, small = it.worker("bad"), it.worker("small")
        small.device_lines = cpu_lines(free_mib=1)
        serve = it.serve()
        for _ in range(2 * ENDS):
            began = asyncio.get_running_loop().time()
            assert "bad" in await ready(serve)
            assert asyncio.get_running_loop().time() - began < 15.0
            await end_lease(serve, bad)
