"""What a head measures after a load, and that neither a load nor an answer waits for it."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.path_probe import PATH_PROBE_SERVICE
from meshd.devices.tell_capacity import CapacityTeller
from meshd.gateway.interface import Readiness
from meshd.head.load_again import UNASKED_SECONDS
from meshd.head.model import Model, is_news
from meshd.head.survey import own_timed
from meshd.model.layer_work import LayerWork
from meshd.model.status import ModelState
from meshd.peer.interface import Stream
from meshd.plan.wishes import HeadOptions
from meshd.wire.capacity import TimedLayer
from meshd.wire.lease import OfferedDevice

from tests.unit.admin.test_snapshot import path
from tests.unit.devices.capacity_scene import CPU
from tests.unit.head.fake_mesh import FakeMesh
from tests.unit.head.rig import Bench
from tests.unit.head.scene import Scene, scene

pytestmark = pytest.mark.virtual

WORK = LayerWork(kinds=(0,), scales=(1.0,), texts=("layer", "output"), output=1)


def measuring_head(it: Scene, folder: Path) -> None:
    """The head of the scene, whose devices were never measured."""
    bench = it.bench
    it.serve = Model(bench.runtime, it.file, it.options, speeds_of(bench, folder / "speeds"))


def speeds_of(bench: Bench, cache: Path) -> DeviceSpeeds:
    """Those of its devices, which were never measured."""
    runtime = bench.runtime
    paths = replace(runtime.paths, speed_cache=cache)
    return DeviceSpeeds(runtime.native, runtime.processes.run_to_end, paths, machine="m", threads=1)


SLOW, FAST = (
    [f"took {kind} {tokens} {nanoseconds}" for kind in range(9) for tokens in (1, 128)]
    for nanoseconds in (900_000_000, 9_000)
)


def tells(mesh: FakeMesh, bench: Bench, cache: Path, *, is_busy: Callable[[], bool] = lambda: False) -> None:
    """Let this worker tell how fast it is, which nobody has measured yet."""

    async def devices(*, recent: bool) -> tuple[OfferedDevice, ...]:
        return (replace(CPU, free_bytes=64 << 30, total_bytes=64 << 30),)

    CapacityTeller(mesh, speeds_of(bench, cache), devices=devices, machine="a", is_busy=is_busy)


async def test_a_load_waits_for_no_measurement_and_devices_are_measured_once_nobody_asks(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        it.bench.timing_seconds = 20.0
        measuring_head(it, tmp_path)
        it.start()
        await it.until(ModelState.READY)
        status = it.serve.model_status
        assert status.load_seconds is not None and status.load_seconds < 5.0
        assert (status.estimated, status.predicted) == (("head",), None)
        it.serve.requested(1)
        await asyncio.sleep(5 * UNASKED_SECONDS)
        assert not it.bench.timings, "not while somebody asks"
        it.serve.requested(0)
        await asyncio.sleep(UNASKED_SECONDS + 5.0)
        assert len(it.bench.timings) == 1 and it.serve.model_status.estimated == ("head",)
        await asyncio.sleep(20.0)
        status = it.serve.model_status
        assert status.estimated == () and status.predicted is not None
        assert 19.9 < status.measuring_seconds < 23.0
        assert status.state is ModelState.READY and len(it.bench.children) == 1
        it.llama.die("aborted")
        await it.until(ModelState.LOADING)
        await it.until(ModelState.READY)
        status = it.serve.model_status
        assert (status.measuring_seconds, status.estimated) == (0.0, ()), "once"
        assert status.predicted is not None


async def test_a_request_ends_a_measurement_which_begins_anew(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        it.bench.timing_seconds = 20.0
        measuring_head(it, tmp_path)
        it.start()
        await it.until(ModelState.READY)
        await asyncio.sleep(5.0)
        assert (len(it.bench.timings), it.bench.timings_ended) == (1, 0), "nobody has asked yet"
        it.serve.requested(1)
        await asyncio.sleep(0.01)
        assert it.bench.timings_ended == 1, "at once"
        it.serve.requested(0)
        await asyncio.sleep(UNASKED_SECONDS - 2.0)
        assert len(it.bench.timings) == 1
        await asyncio.sleep(25.0)
        assert len(it.bench.timings) == 2 and it.serve.model_status.estimated == ()


@pytest.mark.parametrize(("own", "its", "runs_on"), [(SLOW, FAST, "a"), (FAST, SLOW, "head")])
async def test_the_model_is_loaded_again_only_where_another_split_is_clearly_faster(
    tmp_path: Path, own: list[str], its: list[str], runs_on: str
) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        mesh = it.worker("a")
        mesh.paths = (replace(path(selected=True), rate=1e9),)
        tells(mesh, it.workers["a"], tmp_path / "a")
        it.bench.timing_lines, it.workers["a"].timing_lines = own, its
        measuring_head(it, tmp_path)
        it.start()
        await it.until(ModelState.READY)
        status = it.serve.model_status
        assert [part.node for part in status.split if part.layers] == ["head"], "alike, by estimates"
        assert status.estimated == ("a", "head")
        for _ in range(3):
            await asyncio.sleep(UNASKED_SECONDS + 5.0)
            await it.until(ModelState.READY)
        status = it.serve.model_status
        assert [part.node for part in status.split if part.layers] == [runs_on]
        assert status.estimated == () and status.predicted is not None
        assert len(it.bench.children) == (2 if runs_on == "a" else 1)
        assert it.serve.status.children[0].restarts == 0, "that was no failure"


async def test_a_worker_that_is_busy_is_measured_later(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        mesh = it.worker("a")
        mesh.paths = (replace(path(selected=True), rate=1e9),)
        busy = True

        def is_busy() -> bool:
            return busy and it.serve.model_status.state is ModelState.READY

        tells(mesh, it.workers["a"], tmp_path / "a", is_busy=is_busy)
        it.bench.timing_lines = it.workers["a"].timing_lines = FAST
        measuring_head(it, tmp_path)
        it.start()
        await it.until(ModelState.READY)
        await asyncio.sleep(100.0)
        assert it.serve.model_status.estimated == ("a",), "its own devices are measured"
        busy = False
        await asyncio.sleep(200.0)
        assert not it.serve.model_status.estimated


class TwoFaced(DeviceSpeeds):
    """A worker's speeds: slow when it is asked for a load, fast when a split is judged."""

    is_asked_for_a_load = False

    def lacks(self, devices: Sequence[OfferedDevice], timed: Sequence[str]) -> bool:
        return False

    def known(self, device: OfferedDevice, timed: Sequence[str]) -> tuple[TimedLayer, ...]:
        nanoseconds = 9_000_000_000 if self.is_asked_for_a_load else 9_000
        return tuple(
            TimedLayer(kind, tokens, nanoseconds) for kind in range(len(timed)) for tokens in (1, 128)
        )


async def test_a_worker_whose_word_does_not_hold_costs_few_loads(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=0, split="auto") as it:
        mesh, bench = it.worker("a"), it.workers["a"]
        mesh.paths = (replace(path(selected=True), rate=None),)
        paths = replace(bench.runtime.paths, speed_cache=tmp_path / "a")
        speeds = TwoFaced(
            bench.runtime.native, bench.runtime.processes.run_to_end, paths, machine="m", threads=1
        )

        async def devices(*, recent: bool) -> tuple[OfferedDevice, ...]:
            speeds.is_asked_for_a_load = recent
            return (replace(CPU, free_bytes=64 << 30, total_bytes=64 << 30),)

        CapacityTeller(mesh, speeds, devices=devices, machine="a", is_busy=lambda: False)
        it.bench.timing_lines = SLOW
        measuring_head(it, tmp_path)
        it.start()
        await it.until(ModelState.READY)
        await asyncio.sleep(3600.0)
        assert 1 <= len(it.bench.children) <= 5


async def test_workers_are_asked_for_leases_at_once_and_paths_are_filled_later(tmp_path: Path) -> None:
    async with scene(tmp_path, min_workers=1, split="auto") as it:
        measuring_head(it, tmp_path)
        mesh = it.worker("a")
        it.workers["a"].timing_seconds = 20.0
        mesh.paths = (replace(path(selected=True), rate=None),)
        filled: list[float] = []

        async def fill(stream: Stream) -> None:
            filled.append(asyncio.get_running_loop().time())
            mesh.paths = (replace(path(selected=True), rate=1e9),)
            stream.write_eof()

        mesh.handle(PATH_PROBE_SERVICE, fill, allow=lambda _member, _metadata: None)
        tells(mesh, it.workers["a"], tmp_path / "a")
        it.start()
        await it.until(ModelState.READY, seconds=2)
        assert not filled and not it.workers["a"].timings
        it.serve.requested(1)
        await asyncio.sleep(2 * UNASKED_SECONDS)
        assert not filled
        it.serve.requested(0)
        await asyncio.sleep(2 * UNASKED_SECONDS + 20.0)
        assert filled
        assert it.serve.model_status.estimated == ()


def test_a_head_without_layers_times_no_more_than_the_output() -> None:
    assert list(own_timed(WORK, HeadOptions())) == ["layer", "output"]
    alone = HeadOptions(devices=("none",))
    assert list(own_timed(WORK, alone)) == ["output"]
    assert list(own_timed(WORK, replace(alone, output="worker"))) == []
    assert list(own_timed(replace(WORK, output=None), alone)) == []


def test_a_number_that_counts_on_is_no_news() -> None:
    before = Readiness(ModelState.LOADING, "measuring CPU for 2 s")
    assert not is_news(ModelState.LOADING, "measuring CPU for 4 s", before)
    assert is_news(ModelState.LOADING, "planning", before)
    assert is_news(ModelState.WAITING, "measuring CPU for 2 s", before)
