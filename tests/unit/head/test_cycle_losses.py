"""The head loses a worker, a program or a connection, or is cancelled: it starts over and leaves nothing."""

import asyncio
import signal
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.base.processes import ProcessWork
from meshd.base.tasks import cancel_and_wait
from meshd.head.llama_server import LOAD_STILL_SECONDS, STUCK
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState

from tests.unit.head.scene import scene

pytestmark = pytest.mark.virtual


async def test_a_worker_out_of_reach_is_told_after_ten_seconds_and_needs_no_load(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        anna = it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        ready, llama = it.serve.readiness, it.llama
        anna.since = began = asyncio.get_running_loop().time()
        anna.say(PeerState.SUSPENDED)
        await asyncio.sleep(9.9)
        assert it.serve.readiness == ready
        await it.until(ModelState.DEGRADED, "no connection to worker anna for 10 s", seconds=1)
        assert asyncio.get_running_loop().time() - began == pytest.approx(10.0, abs=0.01)
        model = it.serve.status.model
        assert model is not None
        assert (model.state, model.reason) == ("degraded", "no connection to worker anna for 10 s")
        assert model.split, "the split is shown"
        anna.say(PeerState.CONNECTED)
        assert it.serve.readiness == ready
        assert it.llama is llama


async def test_a_worker_that_is_back_for_moments_only_is_done_without(tmp_path: Path) -> None:
    """Each time before the grace is over, so that its session lives on."""
    async with scene(tmp_path) as it:
        anna = it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        for state in (PeerState.SUSPENDED, PeerState.CONNECTED, PeerState.SUSPENDED):
            anna.since = asyncio.get_running_loop().time()
            anna.say(state)
            await asyncio.sleep(1.0 if state is PeerState.CONNECTED else 110.0)
            if state is PeerState.CONNECTED:
                assert it.serve.readiness.state is ModelState.READY
        assert it.serve.readiness.state is ModelState.WAITING
        model = it.serve.status.model
        assert model is not None and not model.split
        anna.since = asyncio.get_running_loop().time()
        anna.say(PeerState.CONNECTED)
        await it.until(ModelState.READY)


@pytest.mark.parametrize("what", ["rpc-server", "worker", "llama-server", "gateway"])
async def test_a_loss_is_loading_at_once_and_ready_again(tmp_path: Path, what: str) -> None:
    async with scene(tmp_path) as it:
        worker = it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        first, broke = it.llama, None
        match what:
            case "rpc-server":
                it.workers["anna"].children[0].die("ended by signal 9")
            case "worker":
                worker.net.meshes[it.bench.mesh.key.peer].streams[0].reset(8, "no link for 120 s")
            case "llama-server":
                it.llama.die("ended by signal 6")
            case "gateway":
                broke = asyncio.ensure_future(it.serve.upstream_broke("the connection was reset"))
                await asyncio.sleep(0)
                assert it.serve.readiness.state is ModelState.LOADING
        began = asyncio.get_running_loop().time()
        await it.until(ModelState.LOADING, seconds=0.1)
        assert asyncio.get_running_loop().time() - began < 0.1
        await it.until(ModelState.READY, seconds=2)
        assert broke is None or await broke == "the connection was reset"
        assert first.ended and it.llama is not first
        assert it.bench.tunnels[0].closed and not it.bench.tunnels[1].closed
        assert it.workers["anna"].children[0].ended
        assert [child.ended for child in it.workers["anna"].children] == [True, False]


@pytest.mark.parametrize(
    ("ended_by", "seconds"), [(signal.SIGKILL, 0.1), (signal.SIGTERM, 0.1), (signal.SIGABRT, 1.1)]
)
async def test_a_llama_server_that_somebody_ended_is_started_again_without_the_word_of_a_lease(
    tmp_path: Path, ended_by: signal.Signals, seconds: float
) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        first, began = it.llama, asyncio.get_running_loop().time()
        it.llama.die("ended", signal=ended_by)
        broke = asyncio.ensure_future(it.serve.upstream_broke("the connection was reset"))
        await it.until(ModelState.LOADING, seconds=0.1)
        await it.until(ModelState.READY)
        took = asyncio.get_running_loop().time() - began
        assert seconds - 0.1 <= took < seconds + 0.1 and it.llama is not first
        assert "llama-server ended" in await broke


@pytest.mark.parametrize("state", [ModelState.LOADING, ModelState.READY])
async def test_a_llama_server_that_is_suspended_is_killed_and_started_again(
    tmp_path: Path, state: ModelState
) -> None:
    """It would keep its clients for ever, or the load."""
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.start()
        if state is ModelState.LOADING:
            it.bench.ready = asyncio.get_running_loop().create_future()  # no first token comes
        await it.until(state, "loading the model" if state is ModelState.LOADING else "")
        first = it.llama
        assert first.status.pid is not None
        it.bench.stopped.add(first.status.pid)
        why = "llama-server ended: it is suspended (SIGSTOP), and does not answer"
        await it.until(ModelState.LOADING, why, seconds=1.1)
        it.bench.stopped.clear()
        it.bench.ready = None
        await it.until(ModelState.READY, seconds=5)
        assert first.killed and first.ended and it.llama is not first


async def test_a_llama_server_whose_load_never_ends_is_killed_and_says_why(tmp_path: Path) -> None:
    """A chat template that loops: it computes, and nothing else happens."""
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.bench.work = lambda: ProcessWork(asyncio.get_running_loop().time(), 1000)
        it.bench.start_seconds = 100 * LOAD_STILL_SECONDS
        it.start()
        await it.until(ModelState.LOADING, STUCK, seconds=LOAD_STILL_SECONDS + 10)
        assert it.llama.killed
        it.bench.start_seconds = 0.0
        await it.until(ModelState.READY, seconds=60)


@pytest.mark.parametrize("trouble", ["report", "child", 0])
async def test_a_llama_server_that_cannot_start_is_tried_again_and_leaks_nothing(
    tmp_path: Path, trouble: str | int
) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.bench.report_fails = trouble == "report"
        it.bench.child_refuses = UserError("it cannot start") if trouble == "child" else None
        it.bench.hand_over_fails_at = trouble if isinstance(trouble, int) else None
        it.start()
        why = "it cannot start" if trouble == "child" else "open files"
        state = ModelState.FAILED if trouble == "child" else ModelState.LOADING
        await it.until(state, why)
        it.bench.report_fails = False
        it.bench.child_refuses = it.bench.hand_over_fails_at = None
        await it.until(ModelState.READY, seconds=600)


async def test_cancelled_at_any_turn_nothing_is_left(tmp_path: Path) -> None:
    """Tasks, descriptors and leases: the first two are looked for after every test."""
    for turns in range(0, 120, 3):
        async with scene(tmp_path) as it:
            it.worker("anna")
            await asyncio.sleep(0)
            it.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            assert it.task is not None
            await cancel_and_wait(it.task)
            await asyncio.sleep(1)
            assert all(child.ended for child in it.workers["anna"].children)
            assert all(tunnel.closed for tunnel in it.bench.tunnels)


async def test_a_lost_lease_in_the_turn_of_the_start_leaks_nothing(tmp_path: Path) -> None:
    for turns in range(60):
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            for stream in it.bench.mesh.streams:
                stream.reset(8, "lost")
            await it.until(ModelState.READY, seconds=60)
