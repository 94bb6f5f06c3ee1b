"""A device that cannot run the model is left out, and no load is tried with it again and again."""

import asyncio
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.gateway.interface import ReadyReport
from meshd.head.failures import FIRST_SECONDS, TRIES
from meshd.peer.interface import PeerState

from tests.sim import loop
from tests.unit.head.fake_mesh import NATIVE
from tests.unit.head.rig import GPU_LINE, Bench, cpu_lines
from tests.unit.head.test_cycle_troubles import Stage, model_of, ready, stage, until

pytestmark = pytest.mark.virtual

ABORTED = "`rpc-server` was ended by SIGABRT while it ran"


async def until_loading(it: Stage, number: int) -> None:
    children = it.bench.children
    await loop.until(lambda: len(children) > number and children[number].spec is not None)


def with_a_bad_card(worker: Bench) -> None:
    worker.device_lines = (GPU_LINE,)
    worker.trial_lines = ("failed device it cannot be opened",)


async def test_the_others_serve_without_it(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        half, _good = it.worker("a-half"), it.worker("b-good")
        with_a_bad_card(half)
        serve = it.serve()
        assert await ready(serve) == {"head", "b-good"}
        model = model_of(serve)
        assert "a-half GPU0 left out: it cannot be opened" in model.reason
        assert "output on" not in model.reason and "output on" in model.split_why
        assert (len(it.bench.children), len(half.children)) == (1, 0)


async def test_alone_it_is_waited_for_and_no_load_is_tried(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        half = it.worker("half")
        with_a_bad_card(half)
        serve = it.serve()
        await until(serve, lambda model: "half GPU0: it cannot be opened" in model.reason)
        await asyncio.sleep(3600)
        assert (len(it.bench.children), len(half.children)) == (0, 0)
        await until(serve, lambda model: model.state == "waiting")


async def test_a_crash_in_the_load_is_tried_once_more(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        half, good = it.worker("a-half"), it.worker("b-good")
        it.bench.ready = asyncio.get_running_loop().create_future()
        serve = it.serve()
        for number in (0, 1):
            await until_loading(it, number)
            asked = it.bench.ready
            it.bench.ready = None if number else asyncio.get_running_loop().create_future()
            half.children[number].die(ABORTED, signal=signal.SIGABRT)
            assert asked is not None
            asked.cancel()
        assert await ready(serve) == {"head", "b-good"}
        reason = model_of(serve).reason
        assert "worker a-half is left out for 30 s after 2 tries" in reason and "SIGABRT" in reason
        await asyncio.sleep(FIRST_SECONDS)
        good.children[-1].die("ended by signal 9")
        await until(serve, lambda model: model.state != "ready")
        assert await ready(serve) == {"head", "b-good"}
        assert "a-half CPU left out: its server crashed 2 times" in model_of(serve).reason
        assert len(half.children) == 2


async def test_a_worker_with_other_devices_each_time_that_crashes_each_time_is_done_without(
    tmp_path: Path,
) -> None:
    """What its devices are is its own word: a new one is no new beginning."""
    async with stage(tmp_path) as it:
        bad, _good = it.worker("a-bad"), it.worker("b-good")
        it.bench.ready = asyncio.get_running_loop().create_future()
        serve = it.serve()
        for number in range(TRIES):
            await until_loading(it, number)
            total = (4096 + number) << 20
            bad.device_lines = (f"device CPU cpu - {total} {3000 << 20} some processor",)
            asked, it.bench.ready = it.bench.ready, asyncio.get_running_loop().create_future()
            bad.children[number].die(ABORTED, signal=signal.SIGABRT)
            asked.cancel()
        it.bench.ready.set_result(ReadyReport(True, "", 0.1))
        assert await ready(serve) == {"head", "b-good"}
        assert "worker a-bad is left out for 30 s after 2 tries" in model_of(serve).reason


def _newer_native_part(worker: Bench) -> None:
    worker.mesh.native = replace(NATIVE, sources="newer")
    worker.mesh.say(PeerState.CONNECTED)


def _card_put_in(worker: Bench) -> None:
    card = f"device CARD0 gpu 0000:01:00.0 {8 << 30} {8 << 30} a card"
    worker.device_lines = (*cpu_lines(free_mib=3000), card)


@pytest.mark.parametrize("change", [_newer_native_part, _card_put_in])
async def test_another_native_part_or_device_list_is_tried_again(
    tmp_path: Path, change: Callable[[Bench], None]
) -> None:
    async with stage(tmp_path) as it:
        half = it.worker("half")
        it.bench.ready = asyncio.get_running_loop().create_future()
        serve = it.serve()
        for number in range(TRIES):
            await until_loading(it, number)
            half.children[number].die(ABORTED, signal=signal.SIGABRT)
        await until(serve, lambda model: "its server crashed 2 times" in model.reason)
        it.bench.ready = None
        change(half)
        assert "half" in await ready(serve)
