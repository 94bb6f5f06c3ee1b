"""While the head loads: how far each worker is, what came over the network, and whether it holds."""

import asyncio
import io
import json
import os
from pathlib import Path

import pytest
from meshd.base import log
from meshd.gateway.interface import ReadyReport
from meshd.head.leases import SILENT_SECONDS
from meshd.head.served_files import ServedFiles
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState
from meshd.rpc import mesh_protocol as wire

from tests.sim.loop import run
from tests.unit.head.scene import Scene, scene, view
from tests.unit.rpc import mesh_talk as talk

pytestmark = pytest.mark.virtual

DIGEST = bytes(range(32))  # of each entry in mesh_talk.py


def loaded(it: Scene, *, local: int, missed: int) -> None:
    """The first worker is asked for two tensors of so many bytes; it has the first one."""
    seen = view(it.bench, 0)
    seen.to_peer(talk.load(talk.load_entry(size=local), talk.load_entry(size=missed)))
    seen.from_peer(talk.message(wire.LOADED, rest=b"\0\1", identity=4))


async def test_what_came_over_the_network_is_in_the_status(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model")
        await asyncio.sleep(1)
        loaded(it, local=100, missed=7)
        it.bench.ready.set_result(ReadyReport(True, "", 0.1))
        await it.until(ModelState.READY)
        model = it.serve.status.model
        assert model is not None
        assert (model.weights_local_bytes, model.weights_network_bytes) == (100, 7)
        (tensor,) = model.tensors_from_network
        assert (tensor.name, tensor.node, tensor.reason) == (DIGEST.hex(), "anna", "no such hash")
        assert model.bytes_per_token is None, "nobody has asked for anything yet"


def test_only_copies_that_a_worker_cannot_use_are_warnings(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.worker("anna")
            it.bench.ready = asyncio.get_running_loop().create_future()
            it.start()
            await it.until(ModelState.LOADING, "loading the model")
            await asyncio.sleep(1)
            seen = view(it.bench, 0)
            seen.to_peer(talk.load(talk.load_entry(size=100), talk.load_entry(size=7)))
            seen.from_peer(talk.message(wire.LOADED, rest=b"\1\3", identity=4))
            it.bench.ready.set_result(ReadyReport(True, "", 0.1))
            await it.until(ModelState.READY)

    told = io.StringIO()
    log.set_up(level="info", form="json", stream=told)
    try:
        run(main())
    finally:
        log.set_up(level="warning")
    lines = [json.loads(line) for line in told.getvalue().splitlines()]
    crossed = [
        {key: line[key] for key in ("event", "level", "node", "why", "bytes") if key in line}
        for line in lines
        if line["event"].startswith("weight")
    ]
    assert crossed == [
        {"event": "weight_from_network", "level": "warning", "node": "anna", "why": "unreadable"},
        {"event": "weights_from_network", "level": "info", "node": "anna", "bytes": 107},
    ]


async def test_how_far_each_worker_is_shows_while_the_model_is_loaded(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.worker("zoe")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model; anna 0 B of")
        anna, zoe = it.serve.readiness.workers
        assert (anna.node, anna.share, zoe.node, zoe.share) == ("anna", 0, "zoe", 0)
        assert it.serve.readiness.progress == 0
        total = anna.total_bytes
        assert total > 10 and zoe.total_bytes > 10
        first = it.bench.tunnels[0]
        loaded(it, local=total - 10, missed=10)
        first.sent = 4
        anna, zoe = it.serve.readiness.workers
        assert (anna.local_bytes, anna.missing_bytes, anna.sent_bytes) == (total - 10, 10, 4)
        assert zoe.share == 0
        progress = it.serve.readiness.progress
        assert progress is not None
        assert progress == pytest.approx((total - 6) / (total + zoe.total_bytes))
        assert "over the network" in it.serve.readiness.reason
        first.sent = 10_000_000
        assert it.serve.readiness.workers[0].share == 1, "what else goes through the tunnel is no weight"
        facts = it.serve.facts
        assert facts.context == 0 and facts.trained_context > 0 and facts.size > 0
        props = {"default_generation_settings": {"n_ctx": 777}, "chat_template": "<think>"}
        it.bench.ready.set_result(ReadyReport(True, "", 0.1, props=props))
        await it.until(ModelState.READY)
        assert (it.serve.facts.context, it.serve.facts.capabilities) == (777, ("completion", "thinking"))
        assert it.serve.facts.fingerprint == it.serve.model_status.fingerprint != ""
        ready = it.serve.readiness
        assert (ready.workers, ready.progress) == ((), None)
        model = it.serve.status.model
        assert model is not None
        assert [load.node for load in model.workers] == ["anna", "zoe"]


async def test_a_model_was_created_when_its_file_was_written(tmp_path: Path) -> None:
    written = tmp_path / "model.gguf"
    written.touch()
    os.utime(written, (5, 1_700_000_000))
    async with scene(tmp_path) as it:
        it.file.paths = (written,)
        assert ServedFiles(it.file).facts(()).created == 1_700_000_000
        it.file.paths = (tmp_path / "gone.gguf",)
        assert ServedFiles(it.file).facts(()).created == 0


async def test_a_load_that_waits_for_a_silent_worker_says_so_beside_how_far_each_is(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        anna = it.worker("anna")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model; anna 0 B of")
        anna.since = asyncio.get_running_loop().time() - SILENT_SECONDS
        anna.say(PeerState.SUSPENDED)
        now = it.serve.readiness
        assert now.state is ModelState.LOADING and now.workers[0].node == "anna"
        assert now.reason.startswith("loading the model; anna 0 B of")
        assert now.reason.endswith(f"; no connection to worker anna for {SILENT_SECONDS:.0f} s")


@pytest.mark.parametrize(
    ("report", "why"),
    [
        (ReadyReport(False, "no token came"), "no token came"),
        (ReadyReport(True, ""), "was changed while it was loaded"),
    ],
)
async def test_a_load_that_does_not_hold_is_done_again(tmp_path: Path, report: ReadyReport, why: str) -> None:
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model")
        it.file.unchanged = not report.ready
        it.bench.ready.set_result(report)
        await it.until(ModelState.LOADING, why)
        it.file.unchanged = True
        it.bench.ready = None
        await it.until(ModelState.READY)
