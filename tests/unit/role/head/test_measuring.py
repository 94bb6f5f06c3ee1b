"""What a head measures before a load, and that it is no part of the load."""

from dataclasses import replace
from pathlib import Path

from meshd.gateway.interface import Readiness
from meshd.model.layer_work import LayerWork
from meshd.model.status import ModelState
from meshd.role.head.cycle import Serve
from meshd.role.head.measuring import own_timed
from meshd.role.head.split_plan import HeadOptions
from meshd.role.head.state_news import is_news
from meshd.role.native.device_speeds import DeviceSpeeds

from tests.sim.loop import run
from tests.unit.role.head.scene import Scene, scene

WORK = LayerWork(kinds=(0,), scales=(1.0,), texts=("layer", "output"), output=1)


def measuring_head(it: Scene, folder: Path) -> None:
    """The head of the scene, whose devices were never measured."""
    bench = it.bench
    runtime = bench.runtime
    paths = replace(runtime.paths, speed_cache=folder / "speeds")
    end = runtime.processes.run_to_end
    it.serve = Serve(
        runtime,
        it.file,
        it.options,
        DeviceSpeeds(runtime.native, end, paths, machine="m", threads=1),
    )


def test_a_first_start_says_how_long_it_measures_and_does_not_count_that_as_loading(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, min_workers=0, split="auto") as it:
            it.bench.timing_seconds = 20.0
            measuring_head(it, tmp_path)
            it.start()
            await it.until(ModelState.LOADING, "head: measuring CPU")
            await it.until(ModelState.LOADING, "measuring CPU for 8 s, once for each kind of model: ")
            await it.until(ModelState.READY)
            status = it.serve.model_status
            assert status.load_seconds is not None and status.load_seconds < 5.0
            assert 19.9 < status.measuring_seconds < 21.0
            it.llama.die("aborted")
            await it.until(ModelState.LOADING)
            await it.until(ModelState.READY)
            assert it.serve.model_status.measuring_seconds == 0.0, "once"

    run(main())


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
