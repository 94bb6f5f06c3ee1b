"""`meshd capacity` shows what nodes could contribute, and who contributes nothing."""

from dataclasses import replace
from pathlib import Path

import pytest
from meshd.daemon.planning import Planning
from meshd.role.native.device_speeds import DeviceSpeeds
from meshd.store.hash_cache import HashCache

from tests.sim.loop import run
from tests.unit.role.capacity.capacity_scene import scene
from tests.unit.role.head.test_survey import OPTIONS, surveyor


@pytest.mark.parametrize("computes", [True, False])
def test_a_node_that_computes_no_layers_is_not_measured_and_contributes_nothing(
    tmp_path: Path, *, computes: bool
) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.teller("a")
            options = OPTIONS if computes else replace(OPTIONS, devices=("none",))
            looks, bench = surveyor(it, tmp_path, options)
            end = bench.runtime.processes.run_to_end
            speeds = DeviceSpeeds(bench.runtime.native, end, bench.runtime.paths, machine="", threads=1)
            cache = HashCache(tmp_path / "weights")
            planning = Planning(looks, speeds, options, cache, dict, lambda _path: None)
            reply = await planning.capacity(again=False)
            assert [one.node for one in reply.devices] == (["head", "a"] if computes else ["a"])
            assert [one.node for one in reply.left_out] == ([] if computes else ["head"])
            assert len(bench.timings) == int(computes)

    run(main())
