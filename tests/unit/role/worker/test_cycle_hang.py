"""An rpc-server that hangs with its connection open: its lease ends, and it is killed."""

import asyncio
from pathlib import Path

import pytest
from meshd.process.interface import ChildState
from meshd.rpc.hang_detector import LOOK_SECONDS
from meshd.wire.lease import Grant, Loaded, Lost, Reserve

from tests.sim.loop import run
from tests.unit.role.calls import scene
from tests.unit.role.rig import GPU_LINE
from tests.unit.rpc import talk

OTHER_GPU_LINE = GPU_LINE.replace("GPU0", "GPU1").replace("01:00.0", "02:00.0")


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
            assert lost.text.startswith("it hangs: requests are waiting, and for 26 s")
            assert asyncio.get_running_loop().time() - began <= 30.0
            (child,) = it.bench.children
            assert child.killed
            await call.is_over()

    run(main())


@pytest.mark.parametrize(("lines", "shared"), [((GPU_LINE,), 1), ((GPU_LINE, OTHER_GPU_LINE), 0)])
def test_who_has_work_on_the_same_gpu_counts(tmp_path: Path, lines: tuple[str, ...], shared: int) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.bench.device_lines = lines
            it.bench.head_says = talk.hello()
            it.bench.head_stays = True
            memory = 100 << 20, *(0 for _ in lines[1:])
            grants = []
            for name, reserved in (("one", memory), ("another", memory[::-1])):
                call = it.call(name)
                await call.offer()
                await call.says(Reserve(reserved))
                grant = await call.hears()
                assert isinstance(grant, Grant), grant
                grants.append((call, grant))
            (call, grant), _ = grants
            call.rpc(grant)  # the other one is idle
            await asyncio.sleep(3 * LOOK_SECONDS)
            one, another = (it.worker._running[grant.lease_id].lease for _, grant in grants)
            assert (it.worker._sharers(one), it.worker._sharers(another)) == (0, shared)

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
