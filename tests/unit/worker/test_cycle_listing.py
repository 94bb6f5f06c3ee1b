"""A worker that offers what was listed before, and its mesh-server, which says what is free now."""

import asyncio
from pathlib import Path

import pytest
from meshd.wire.lease import NO_MEMORY, Loaded, Lost, WorkerOffer

from tests.unit.head.calls import ACQUIRE, MIB, Scene, scene
from tests.unit.head.rig import cpu_lines

pytestmark = pytest.mark.virtual

TAKES = 0.5  # seconds of a listing


async def lends_nearly_all(it: Scene) -> None:
    """List an idle machine, as the worker does at its start."""
    it.bench.device_lines = cpu_lines(free_mib=4096)
    await it.worker.devices(recent=False)
    it.bench.listings, it.bench.listing_seconds = 0, TAKES


async def offered(it: Scene, name: str) -> float:
    """Return the seconds until a head has an offer; it gives up then."""
    call, began = it.call(name), asyncio.get_running_loop().time()
    await call.says(ACQUIRE)
    assert isinstance(await call.hears(), WorkerOffer)
    seconds = asyncio.get_running_loop().time() - began
    call.stream.write_eof()
    await asyncio.sleep(0.1)
    return seconds


async def test_an_idle_worker_offers_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await lends_nearly_all(it)
        assert await offered(it, "one") < 0.1
        assert await offered(it, "another") >= TAKES, "the one before has loaded nothing"
        assert it.bench.listings == 1


@pytest.mark.parametrize("is_loaded", [True, False])
async def test_after_a_lease_of_use_the_next_one_is_offered_at_once(tmp_path: Path, is_loaded: bool) -> None:
    async with scene(tmp_path) as it:
        await lends_nearly_all(it)
        one = it.call("one")
        await one.lease(1000)
        if is_loaded:
            await one.says(Loaded())
            await asyncio.sleep(0.1)
        await one.release()
        seconds = await offered(it, "one")
        assert seconds < 0.2 if is_loaded else seconds >= TAKES


async def test_beside_a_lease_devices_are_listed(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await lends_nearly_all(it)
        one = it.call("one")
        await one.lease(1000)
        await one.says(Loaded())
        assert await offered(it, "another") >= TAKES
        await one.release()


async def test_a_mesh_server_that_finds_less_ends_the_lease_and_the_devices_are_listed(
    tmp_path: Path,
) -> None:
    async with scene(tmp_path) as it:
        await lends_nearly_all(it)
        one = it.call("one")
        await one.lease(1000)
        (child,) = it.bench.children
        child.report(f"free CPU {900 * MIB}")
        answer = await one.hears()
        what = "device CPU has 900 MiB left, 1000 MiB were requested"
        assert answer == Lost(NO_MEMORY, what, "ask again: the free memory has changed")
        await one.release()
        it.bench.device_lines = cpu_lines(free_mib=900)
        again = it.call("one")
        assert (await again.offer()).devices[0].free_bytes == 900 * MIB
        again.stream.write_eof()


@pytest.mark.parametrize(
    "line", [f"free CPU {950 * MIB}", f"free GPU7 {1 * MIB}", "free CPU", "free CPU much", "free CPU 1 2"]
)
async def test_a_driver_that_counts_differently_ends_none(tmp_path: Path, line: str) -> None:
    async with scene(tmp_path) as it:
        await lends_nearly_all(it)
        one = it.call("one")
        await one.lease(1000)
        (child,) = it.bench.children
        child.report(line)
        await asyncio.sleep(1)
        assert it.worker.is_lending
        await one.release()


async def test_devices_that_were_listed_for_the_lease_are_not_doubted(tmp_path: Path) -> None:
    """The head would ask again, get the same offer, and so on for ever."""
    async with scene(tmp_path) as it:
        one = it.call("one")
        await one.lease(1000)
        (child,) = it.bench.children
        child.report(f"free CPU {1 * MIB}")
        await asyncio.sleep(1)
        assert it.worker.is_lending
        await one.release()
