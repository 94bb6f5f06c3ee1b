"""Test what a head's llama-server inherits, what is seen of that, and whom the head blames for a load."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.config.forms import HostPort
from meshd.gateway.interface import ReadyReport
from meshd.head import model as model_module
from meshd.head.failures import TRIES
from meshd.head.leases import AFTER_HEAD_SECONDS, UNCONNECTED
from meshd.model.status import ModelState, SplitPart
from meshd.plan.machines import PlainRpc
from meshd.rpc import mesh_protocol as wire
from meshd.wire.lease import OfferedDevice

from tests.sim.loop import until
from tests.unit.head.scene import Scene, scene, view
from tests.unit.head.stubs import StubChild
from tests.unit.head.test_leases import held, pushes, yes
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import Server

pytestmark = pytest.mark.virtual

NAMES = ("anna", "bert")


@asynccontextmanager
async def mesh_scene(
    folder: Path, *, no_push: bool = False, least: int = 2, rpc: tuple[HostPort, ...] = ()
) -> AsyncIterator[Scene]:
    async with scene(folder, min_workers=least, devices=("none",), no_push=no_push, rpc=rpc) as it:
        for name in NAMES:
            it.worker(name)
        yield it


def inherited(it: Scene) -> list[socket.socket]:
    """llama-server's ends, in their order."""
    assert it.llama.spec is not None
    numbers = it.llama.spec.env["GGML_MESH_FDS"].split(",")
    return [socket.socket(fileno=os.dup(int(number))) for number in numbers]


def split_of(it: Scene) -> tuple[SplitPart, ...]:
    """As the status has it."""
    return it.model.split


async def test_llama_server_gets_a_connection_with_each_worker_and_loads_our_module(tmp_path: Path) -> None:
    async with mesh_scene(tmp_path) as it:
        (await held(it)).set_result(yes())
        await it.until(ModelState.READY)
        assert it.llama.spec is not None
        argv, env = list(it.llama.spec.argv), it.llama.spec.env
        assert "--rpc" not in argv
        assert it.argument("-dev") == "MESH0,MESH1"
        assert env["GGML_BACKEND_PATH"] == env["LD_PRELOAD"] == "libggml-mesh.so"
        assert env["GGML_MESH_DEVICES"] == "1,1"
        assert env["GGML_MESH_ACTIVATIONS"] == "f32"
        reserved = [[*it.workers[name].children[-1].spec.argv] for name in NAMES]  # type: ignore[union-attr]
        memory = [argv[argv.index("--memory") + 1] for argv in reserved]
        assert env["GGML_MESH_MEMORY"] == ",".join(memory)
        assert not [name for name in env if name.startswith("GGML_RPC")]
        weights = os.read(int(env["GGML_MESH_WEIGHTS_FD"]), 1 << 16)
        assert weights.startswith(b"meshd-weights 1\n")
        for number, end in enumerate(inherited(it)):
            asked = it.bench.tunnels[number].asked
            assert asked.peer == it.workers[NAMES[number]].mesh.key.peer
            assert asked.endpoint == str(number)
            ours = asked.end
            with ours, end:
                ours.send(b"x")
                assert end.recv(10) == b"x"


async def test_plain_rpc_servers_come_behind_the_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test llama.cpp's own protocol: what it sends crosses, and our module does not see it."""
    lent = OfferedDevice("RPC0", "gpu", "", 4 << 30, 4 << 30)

    async def ask(endpoints: Sequence[str], *, protocol: str) -> tuple[PlainRpc, ...]:
        assert protocol == "7.0.0"
        return tuple(PlainRpc(endpoint, (lent,)) for endpoint in endpoints)

    monkeypatch.setattr(model_module, "ask_plain", ask)

    async with mesh_scene(tmp_path, rpc=(HostPort("10.0.0.9", 50052),)) as it:
        (await held(it)).set_result(yes())
        await it.until(ModelState.READY)
        assert it.argument("--rpc") == "10.0.0.9:50052"
        assert it.argument("-dev") == "MESH0,MESH1,RPC0"
        assert "RPC0" not in it.argument("-ot")
        status = it.model
        assert not status.tensors_from_network
        sent = {part.node: part.bytes for part in split_of(it)}["10.0.0.9:50052"]
        assert status.weights_network_bytes == sent > 0


async def test_llama_server_is_told_how_many_devices_each_worker_is_to_have(tmp_path: Path) -> None:
    def card(number: int, free_mib: int) -> str:
        return f"device GPU{number} gpu 0000:0{number}:00.0 {4096 << 20} {free_mib << 20} some card"

    async with mesh_scene(tmp_path) as it:
        it.workers["anna"].device_lines = [card(0, 3000)]
        it.workers["bert"].device_lines = [card(0, 3000), card(1, 0), card(2, 3000)]
        (await held(it)).set_result(yes())
        await it.until(ModelState.READY)
        assert it.llama.spec is not None
        assert it.argument("-dev") == "MESH0,MESH1,MESH2"
        assert it.llama.spec.env["GGML_MESH_DEVICES"] == "1,2", "one without memory is not started"
        argv = list(it.workers["bert"].children[-1].spec.argv)  # type: ignore[union-attr]
        assert [word for word in argv if word.startswith("GPU")] == ["GPU0", "GPU2"]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [((1,), (0,), (True, "")), ((1,), (), (False, UNCONNECTED)), ((), (0,), (False, UNCONNECTED))],
)
async def test_a_push_is_what_both_workers_say_in_met(
    tmp_path: Path, first: tuple[int, ...], second: tuple[int, ...], expected: tuple[bool, str]
) -> None:
    async with mesh_scene(tmp_path) as it:
        ready = await held(it)
        servers = [Server(it.workers[name].children[-1]) for name in NAMES]
        (kind, number, way), last = servers[0].arrivals()
        assert (kind, number, last) == (1, 1, (2, 0, None)), "the first opens the connection"
        assert way is not None
        way.close()
        view(it.bench, 0).from_peer(talk.welcome() + talk.met(*first))
        view(it.bench, 1).from_peer(talk.welcome() + talk.met(*second))
        ready.set_result(yes())
        await it.until(ModelState.READY)
        assert pushes(it)["bert"] == expected
        for server in servers:
            server.close()


async def test_without_pushes_the_servers_are_told_that_there_are_no_neighbours(tmp_path: Path) -> None:
    async with mesh_scene(tmp_path, no_push=True) as it:
        (await held(it)).set_result(yes())
        await it.until(ModelState.READY)
        for name in NAMES:
            server = Server(it.workers[name].children[-1])
            assert server.arrivals() == [(2, 0, None)]
            server.close()
        assert pushes(it)["bert"] == (False, "disabled (`no_push`)")


async def test_weights_are_counted_by_what_was_asked_and_answered(tmp_path: Path) -> None:
    async with mesh_scene(tmp_path) as it:
        ready = await held(it)
        seen = view(it.bench, 0)
        seen.to_peer(talk.load(talk.load_entry(size=100), talk.load_entry(size=30)))
        seen.from_peer(talk.message(wire.LOADED, rest=b"\0\1", identity=4))
        ready.set_result(yes())
        await it.until(ModelState.READY)
        model = it.model
        assert (model.weights_local_bytes, model.weights_network_bytes) == (100, 30)
        (weight,) = model.tensors_from_network
        assert (weight.node, weight.reason) == ("anna", "no such hash")
        assert [load.missing_bytes for load in model.workers] == [30, 0]


async def test_the_last_word_of_a_llama_server_that_has_ended_is_read(tmp_path: Path) -> None:
    async with mesh_scene(tmp_path) as it:
        (await held(it)).set_result(yes())
        await it.until(ModelState.READY)
        child = it.llama
        report = os.dup(child.report_end)
        child.die("`llama-server` ended with exit code 86")
        await asyncio.sleep(0.5)
        os.write(report, b"lost 1 it ended\n")
        os.close(report)
        await it.until(ModelState.LOADING, "llama-server lost worker bert: it ended")


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


LEFT = "`mesh-server` ended with exit code 0 1.1 s after it was ready"


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
