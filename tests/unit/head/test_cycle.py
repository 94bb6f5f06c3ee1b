"""The head with real workers between fakes: waits, asks, chooses workers and loads."""

import asyncio
import io
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base import log
from meshd.head import run as run_module
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState
from meshd.plan.choice import SplitChoice, plan_model
from meshd.plan.machines import Machines
from meshd.plan.wishes import HeadOptions

from tests.sim.loop import run
from tests.unit.head.rig import COMPRESSED_VERSION, cpu_lines
from tests.unit.head.scene import LITTLE, scene
from tests.unit.head.stubs import FakeFile, StubChild

pytestmark = pytest.mark.virtual


def test_no_line_tells_of_hashing_where_nothing_is_hashed(tmp_path: Path) -> None:
    lines = io.StringIO()
    log.set_up(form="text", stream=lines)

    async def main() -> None:
        async with scene(tmp_path, min_workers=0) as it:
            it.start()
            await it.until(ModelState.READY)

    try:
        run(main())
    finally:
        log.set_up(level="warning")
    assert "state=ready" in lines.getvalue() and "hash" not in lines.getvalue()


async def test_it_waits_for_a_worker_then_loads_and_is_ready(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.file.hashed.clear()
        it.start()
        await it.until(ModelState.LOADING, "25 %")
        await asyncio.sleep(0.001)
        assert it.serve.readiness.progress == 0.25
        assert [one.name for one in it.serve.status.listed.devices] == ["CPU"], "asked meanwhile"
        it.file.hashed.set()
        await it.until(ModelState.WAITING, "0 of 1 ready")
        it.worker("anna")
        await it.until(ModelState.READY)
        assert it.bench.listings == 1
        status = it.serve.status
        assert [device.name for device in status.listed.devices] == ["CPU"] and status.listed.at > 0
        assert status.model is not None
        assert {part.node for part in status.model.split} == {"anna", "head"}
        assert sum(part.layers for part in status.model.split) == 4
        assert (it.argument("-dev"), it.bench.tunnels[0].endpoint) == ("MESH0", "0")
        assert it.bench.tunnels[0].asked.compressed == COMPRESSED_VERSION
        assert [child.state.value for child in status.children] == ["ready"]
        assert len(status.tunnels) == 1


async def test_two_workers_in_the_order_of_their_names(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("zoe")
        it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        assert [tunnel.endpoint for tunnel in it.bench.tunnels] == ["0", "1"]
        names = [it.net.meshes[tunnel.asked.peer].name for tunnel in it.bench.tunnels]
        assert names == ["anna", "zoe"]


def argv_of(child: StubChild) -> list[str]:
    assert child.spec is not None
    return list(child.spec.argv)


async def test_workers_in_the_order_of_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is asked for what the plan gives it, in the places that the plan has."""

    def backwards(
        layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
    ) -> SplitChoice:
        return plan_model(layers, work, replace(machines, offers=machines.offers[::-1]), options)

    monkeypatch.setattr(run_module, "plan_model", backwards)

    async with scene(tmp_path, devices=("none",)) as it:
        it.worker("anna")
        it.worker("zoe")
        it.workers["anna"].device_lines = cpu_lines(free_mib=1000)
        it.start()
        await it.until(ModelState.READY)
        names = [it.net.meshes[tunnel.asked.peer].name for tunnel in it.bench.tunnels]
        assert names == ["zoe", "anna"]
        assert [tunnel.endpoint for tunnel in it.bench.tunnels] == ["0", "1"]
        assert it.serve.status.model is not None
        layers = {part.node: part.layers for part in it.serve.status.model.split}
        assert [node for node in layers if node != "head"] == ["zoe", "anna"]
        assert layers["zoe"] > layers["anna"]
        lent = {name: argv_of(it.workers[name].children[-1]) for name in layers if name != "head"}
        given = {name: int(argv[argv.index("--memory") + 1]) for name, argv in lent.items()}
        assert given["zoe"] > given["anna"], "each by its own part"


async def test_workers_whose_names_are_made_to_look_alike_are_told_apart(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        one, other, third = (it.worker(name) for name in ("one", "two", "three"))
        one.name = other.name = "w"
        third.name = f"w-{one.key.peer.short[:4]}"
        it.start()
        await it.until(ModelState.READY)
        assert it.serve.status.model is not None
        assert {part.node for part in it.serve.status.model.split} == {
            f"w ({one.key.peer.short})",
            f"w ({other.key.peer.short})",
            third.name,
            "head",
        }


async def test_a_head_with_the_name_of_a_worker_is_told_apart(tmp_path: Path) -> None:
    async with scene(tmp_path, node_id="h" * 52) as it:
        worker = it.worker("one")
        worker.name = "head"
        it.start()
        await it.until(ModelState.READY)
        assert it.serve.status.model is not None
        nodes = {part.node for part in it.serve.status.model.split}
        assert nodes == {f"head ({worker.key.peer.short})", "head (hhhhhhhhhh)"}


async def test_another_known_worker_gets_three_seconds(tmp_path: Path) -> None:
    for comes in (True, False):
        async with scene(tmp_path) as it:
            it.worker("anna")
            late = it.worker("bert", there=False)
            it.start()
            began = asyncio.get_running_loop().time()
            if comes:
                await asyncio.sleep(1)
                late.say(PeerState.CONNECTED)
            await it.until(ModelState.READY)
            took = asyncio.get_running_loop().time() - began
            assert (1 <= took < 2) if comes else (3 <= took < 4)
            assert len(it.bench.tunnels) == 1 + comes


async def test_a_worker_that_refuses_is_left_out(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna", pin="another")
        it.worker("bert")
        it.start()
        await it.until(ModelState.READY)
        assert len(it.bench.tunnels) == 1


async def test_when_all_refuse_the_reason_is_told_and_another_worker_helps(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna", pin="another")
        it.start()
        await it.until(ModelState.WAITING, "this worker another")
        it.worker("bert")
        await it.until(ModelState.READY)


async def test_too_little_memory_fails_with_numbers_until_the_peers_change(tmp_path: Path) -> None:
    async with scene(tmp_path, devices=("none",)) as it:
        it.worker("anna")
        it.workers["anna"].device_lines = LITTLE
        it.start()
        await it.until(ModelState.FAILED)
        assert "MiB" in it.serve.readiness.reason
        assert it.bench.children == []
        it.worker("bert")
        await it.until(ModelState.READY, seconds=10)


async def test_a_worker_that_comes_later_is_used_at_the_next_load(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        it.worker("bert")
        await asyncio.sleep(20)
        assert len(it.bench.tunnels) == 1
        it.llama.die("ended")
        await it.until(ModelState.LOADING)
        await it.until(ModelState.READY)
        assert len(it.bench.tunnels) == 3


async def test_a_head_alone_starts_at_once_where_the_model_fits(tmp_path: Path) -> None:
    async with scene(tmp_path, split="auto") as it:
        it.start()
        await it.until(ModelState.READY, seconds=1)
        assert it.serve.status.model is not None
        assert {part.node for part in it.serve.status.model.split} == {"head"}


async def test_a_worker_that_is_known_has_three_seconds_before_the_head_starts_alone(tmp_path: Path) -> None:
    for least, seconds in ((None, 3.0), (0, 0.0)):
        async with scene(tmp_path, split="auto", min_workers=least) as it:
            it.worker("anna", there=False)
            it.start()
            began = asyncio.get_running_loop().time()
            await it.until(ModelState.READY)
            assert seconds <= asyncio.get_running_loop().time() - began < seconds + 1


async def test_a_model_that_does_not_fit_here_waits_for_a_worker_and_says_what_to_do(tmp_path: Path) -> None:
    async with scene(tmp_path, split="auto") as it:
        it.head(file=FakeFile(layers=400))
        it.bench.device_lines = cpu_lines(free_mib=60)  # enough for the output alone
        it.start()
        await it.until(ModelState.WAITING, "waiting for a worker (run `meshd worker --join INVITE`")
        assert "does not fit" in it.serve.readiness.reason and "MiB" in it.serve.readiness.reason
        assert it.bench.children == []
        it.worker("anna")
        await it.until(ModelState.READY, seconds=10)


async def test_what_does_not_fit_on_workers_either_has_failed(tmp_path: Path) -> None:
    async with scene(tmp_path, split="auto") as it:
        it.bench.device_lines = LITTLE
        it.worker("anna")
        it.workers["anna"].device_lines = LITTLE
        it.start()
        await it.until(ModelState.FAILED, "does not fit")


async def test_a_number_of_workers_that_its_user_demands_is_waited_for(tmp_path: Path) -> None:
    async with scene(tmp_path, split="auto", min_workers=2) as it:
        it.worker("anna")
        it.start()
        await it.until(ModelState.WAITING, "1 of 2 ready")
        it.worker("bert")
        await it.until(ModelState.READY, seconds=10)


async def test_alone_without_any_worker(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=0) as it:
        it.start()
        await it.until(ModelState.READY)
        assert it.llama.spec is not None and it.llama.spec.env["GGML_MESH_FDS"] == ""


async def test_a_name_that_no_worker_has_is_told_beside_a_model_that_is_ready(tmp_path: Path) -> None:
    async with scene(tmp_path, workers=("anna", "nobody")) as it:
        it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        assert it.serve.status.unknown == ("no worker is called `nobody` (known: `anna`)",)
