"""Whom a head that speaks the mesh protocol blames for a load that fails: the worker, nobody, or itself."""

import asyncio
from pathlib import Path

import pytest
from meshd.gateway.interface import ReadyReport
from meshd.head.failures import TRIES
from meshd.head.leases import AFTER_HEAD_SECONDS
from meshd.model.status import ModelState

from tests.sim.loop import until
from tests.unit.head.scene import Scene
from tests.unit.head.stubs import StubChild
from tests.unit.head.test_cycle_mesh import NAMES, mesh_scene, split_of
from tests.unit.head.test_leases import held, yes

pytestmark = pytest.mark.virtual


async def test_descriptors_that_this_node_lacks_are_no_fault_of_a_worker(tmp_path: Path) -> None:
    async with mesh_scene(tmp_path) as it:
        it.bench.pairs_left = 1
        it.start()
        await asyncio.sleep(12)  # several tries
        await it.until(ModelState.LOADING, "the model cannot be run: too many open files")
        it.bench.pairs_left = 2
        await it.until(ModelState.READY, seconds=15)
        assert "left out" not in it.serve.readiness.reason
        assert {part.node for part in split_of(it) if part.layers} == set(NAMES)


async def until_started_anew(it: Scene, child: StubChild) -> None:
    """There is another llama-server."""
    await until(lambda: it.llama is not child and it.llama.spec is not None)


LEFT = "`rpc-server` ended with exit code 0 1.1 s after it was ready"


async def fail_load(it: Scene, report: str) -> asyncio.Future[ReadyReport]:
    """llama-server reports that, and ends; so do the mesh-servers, and the workers say so first.

    The next one is ready when the result is set.
    """
    child = it.llama
    ready = it.bench.ready = asyncio.get_running_loop().create_future()
    if report:
        child.report(report)
    for name in NAMES:
        servers = [one for one in it.workers[name].children if one.status.is_up]
        for server in servers:
            server.die(LEFT, code=0)
    await asyncio.sleep(0.2)
    child.die("`llama-server` ended with exit code 1")
    return ready


@pytest.mark.parametrize(
    "why", ["it has no memory for a buffer of 7 bytes, and lends 9", "its WELCOME is wrong"]
)
async def test_a_worker_that_fails_each_load_is_named_and_left_out(tmp_path: Path, why: str) -> None:
    async with mesh_scene(tmp_path, least=1) as it:
        await held(it)
        for _ in range(TRIES):
            child = it.llama
            ready = await fail_load(it, f"lost 1 {why}")
            await it.until(ModelState.LOADING, f"llama-server lost worker bert: {why}")
            await until_started_anew(it, child)
        ready.set_result(yes())
        await it.until(
            ModelState.READY,
            f"worker bert is left out for 30 s after 2 tries: llama-server lost worker bert: {why}",
        )
        assert "bert" not in {part.node for part in split_of(it) if part.layers}


async def test_what_the_plan_asked_too_much_of_is_no_fault_of_the_worker(tmp_path: Path) -> None:
    """llama-server has gone on without that buffer, or has ended for it."""
    async with mesh_scene(tmp_path) as it:
        await held(it)
        for _ in range(TRIES):
            child = it.llama
            ready = await fail_load(it, f"exceeded 1 0 {3 << 30} {2 << 30}")
            await it.until(
                ModelState.LOADING, "llama-server needs 3.0 GiB on a device of bert, 2.0 GiB are reserved"
            )
            await until_started_anew(it, child)
        it.llama.report(f"exceeded 1 0 {3 << 30} {2 << 30}")
        ready.set_result(yes())
        await it.until(ModelState.READY)
        assert {part.node for part in split_of(it) if part.layers} == set(NAMES)


async def test_a_llama_server_that_ends_by_itself_is_no_fault_of_a_worker(tmp_path: Path) -> None:
    async with mesh_scene(tmp_path) as it:
        await held(it)
        for _ in range(TRIES):
            child = it.llama
            ready = await fail_load(it, "")
            await it.until(ModelState.LOADING, "`llama-server` ended with exit code 1")
            await until_started_anew(it, child)
        ready.set_result(yes())
        await it.until(ModelState.READY)
        assert {part.node for part in split_of(it) if part.layers} == set(NAMES)


async def test_a_worker_that_says_that_its_head_had_ended_is_believed_for_some_seconds(
    tmp_path: Path,
) -> None:
    async with mesh_scene(tmp_path) as it:
        (await held(it)).set_result(yes())
        await it.until(ModelState.READY)
        child, it.bench.ready = it.llama, None
        it.workers["bert"].children[-1].die(LEFT, code=0)
        await it.until(ModelState.LOADING, f"worker bert is lost: {LEFT}", seconds=AFTER_HEAD_SECONDS + 1)
        await it.until(ModelState.READY)
        assert it.llama is not child
