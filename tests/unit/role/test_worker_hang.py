"""An rpc-server that hangs with its connection open: its lease ends, and it is killed."""

import asyncio
from pathlib import Path

import pytest
from meshd.process.interface import ChildState
from meshd.wire.lease import Loaded, Lost

from tests.sim.loop import run
from tests.unit.role.calls import scene
from tests.unit.role.rig import GPU_LINE
from tests.unit.rpc import talk


@pytest.mark.parametrize("device", ["CPU", "GPU0"])
def test_a_server_that_answers_nothing_is_killed_and_the_head_is_told(tmp_path: Path, device: str) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            if device != "CPU":
                it.bench.device_lines = [GPU_LINE]
            call = it.call()
            grant = await call.lease()
            it.bench.head_says = talk.hello()
            it.bench.head_stays = True
            began = asyncio.get_running_loop().time()
            call.rpc(grant)
            lost = await call.hears()
            assert isinstance(lost, Lost)
            assert lost.code == "rpc_server_ended"
            assert lost.text.startswith("it hangs: requests wait, and for 26 s")
            assert asyncio.get_running_loop().time() - began <= 30.0
            (child,) = it.bench.children
            assert child.killed
            await call.is_over()

    run(main())


def test_a_server_that_computes_is_not(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call = it.call()
            grant = await call.lease()
            await call.says(Loaded())
            it.bench.head_says = talk.hello()
            it.bench.head_stays = True
            call.rpc(grant)
            for second in range(300):
                it.bench.spent = (0.5 * second, 0)
                await asyncio.sleep(1.0)
            (child,) = it.bench.children
            assert not child.killed
            assert child.status.state is ChildState.READY

    run(main())
