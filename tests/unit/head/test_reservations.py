"""A head reserves from all its workers at once: how long that takes, and what is left when one refuses."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.tasks import cancel_and_wait
from meshd.model.status import ModelState
from meshd.process.interface import ChildFailed

from tests.sim.loop import until
from tests.unit.head.scene import Scene, scene

pytestmark = pytest.mark.virtual

NAMES = ("anna", "bert", "carl", "dora")
ONE_WAY = 0.5


def nothing_is_left(it: Scene) -> None:
    """No lease, no process, no tunnel."""
    for name, role in it.roles.items():
        assert role.status.lent == () and not role.is_lending, name
        assert all(child.ended for child in it.workers[name].children), name
    assert all(tunnel.closed for tunnel in it.bench.tunnels)


def begin(it: Scene, *, one_way: float = 0.0) -> float:
    """The head asks its workers, which are so far away; returns when."""
    it.net.one_way = one_way
    it.start()
    return asyncio.get_running_loop().time()


@pytest.mark.parametrize("workers", [1, 2, 4])
async def test_ready_takes_two_round_trips_of_meshds_own_whatever_the_number_of_workers(
    tmp_path: Path, workers: int
) -> None:
    """To ask and to reserve. llama-server's own are counted elsewhere; the fake one needs none."""
    options: dict[str, object] = {"min_workers": workers, "devices": ("none",)}
    async with scene(tmp_path, **options) as it:
        for name in NAMES[:workers]:
            it.worker(name)
        since = begin(it, one_way=ONE_WAY)
        await it.until(ModelState.READY)
        took = asyncio.get_running_loop().time() - since
        assert took / (2 * ONE_WAY) == pytest.approx(2, abs=0.05)
        assert it.bench.tokens_asked == 1


@pytest.mark.parametrize("workers", [1, 4])
async def test_llama_server_is_started_while_the_workers_start_theirs(tmp_path: Path, workers: int) -> None:
    """Its first requests cross with the reservation, and so do introductions."""
    options: dict[str, object] = {"min_workers": workers, "devices": ("none",)}
    async with scene(tmp_path, **options) as it:
        for name in NAMES[:workers]:
            it.worker(name)
            it.workers[name].start_seconds = 20.0
        since = begin(it, one_way=ONE_WAY)
        await until(lambda: bool(it.bench.children) and it.llama.spec is not None)
        assert asyncio.get_running_loop().time() - since == pytest.approx(2 * ONE_WAY, abs=0.05)
        assert len(it.bench.tunnels) == workers
        assert it.serve.readiness.state is ModelState.LOADING
        await it.until(ModelState.READY, seconds=60)
        assert asyncio.get_running_loop().time() - since == pytest.approx(20 + 4 * ONE_WAY, abs=0.1)
        told = [len(it.workers[name].tunnels) for name in NAMES[:workers]]
        assert told == [1] * (workers - 1) + [0], "of its neighbour, before its own server was there"


async def test_a_slow_worker_does_not_hold_up_the_others(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=3) as it:
        for name, seconds in zip(NAMES, (7.0, 9.0, 8.0), strict=False):
            it.worker(name)
            it.workers[name].start_seconds = seconds
        since = begin(it)
        await it.until(ModelState.READY)
        assert asyncio.get_running_loop().time() - since == pytest.approx(9.0, abs=0.1)


async def test_one_refusal_releases_all_the_others(tmp_path: Path) -> None:
    """Whether they have granted before it, or are still at it."""
    async with scene(tmp_path, min_workers=3) as it:
        for name, seconds in zip(NAMES, (1.0, 5.0, 20.0), strict=False):
            it.worker(name)
            it.workers[name].start_seconds = seconds
        it.workers["bert"].child_refuses = ChildFailed("it crashed at once")
        since = begin(it)
        await it.until(ModelState.LOADING, "bert: it crashed at once")
        assert asyncio.get_running_loop().time() - since == pytest.approx(5.0, abs=0.1)
        assert it.serve.status.model is not None
        await asyncio.sleep(0.1)
        nothing_is_left(it)
        it.workers["bert"].child_refuses = None
        await it.until(ModelState.READY, seconds=60)


@pytest.mark.parametrize("after", [0.0, 0.3, 0.6, 1.1, 1.7, 3.0, 6.0])
async def test_cancelled_in_the_middle_every_lease_is_given_back(tmp_path: Path, after: float) -> None:
    async with scene(tmp_path, min_workers=3) as it:
        for name, seconds in zip(NAMES, (1.0, 2.0, 9.0), strict=False):
            it.worker(name)
            it.workers[name].start_seconds = seconds
        begin(it, one_way=ONE_WAY)
        await asyncio.sleep(after)
        assert it.serve.readiness.state is ModelState.LOADING
        assert it.task is not None
        await cancel_and_wait(it.task)
        await asyncio.sleep(2 * ONE_WAY)
        nothing_is_left(it)
