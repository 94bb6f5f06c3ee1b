"""One listing at a time, shared by those who may share it; what is free is never older than was agreed.

A lease may have an older one, where more cannot be free by now.
"""

import asyncio
from pathlib import Path

import pytest
from meshd.base.errors import MeshdError
from meshd.base.resource_limits import MemoryAllowance
from meshd.base.tasks import Owner
from meshd.devices import device_list
from meshd.devices.device_list import AHEAD_SECONDS, CpuCache, Listing, hardware_names
from meshd.wire.lease import OfferedDevice

from tests.unit.head.fake_mesh import Net
from tests.unit.head.rig import GPU_LINE, Bench, cpu_lines

pytestmark = pytest.mark.virtual

TAKES = 0.7  # seconds of a listing
HARDWARE: list[str] = []


def listing(owner: Owner, folder: Path) -> tuple[Listing, Bench]:
    bench = Bench(Net(owner).mesh("head", "serve"), folder)
    bench.listing_seconds = TAKES
    runtime = bench.runtime
    bench.device_lines = cpu_lines(free_mib=4096)
    return Listing(
        runtime.native,
        runtime.processes.run_to_end,
        runtime.paths,
        machine="m",
        choose=tuple,
        hardware=lambda: tuple(HARDWARE),
    ), bench


@pytest.fixture(autouse=True)
def one_card() -> None:
    HARDWARE[:] = ["0000:01:00.0"]


def now() -> float:
    return asyncio.get_running_loop().time()


async def test_a_listing_that_was_begun_ahead_answers_the_next_question(tmp_path: Path) -> None:
    async with Owner() as owner:
        devices, bench = listing(owner, tmp_path)
        owner.start(devices.ahead(), name="ahead")
        await asyncio.sleep(TAKES / 2)
        began = now()
        assert [one.name for one in await devices.as_ahead()] == ["CPU"]
        assert now() - began == pytest.approx(TAKES / 2)
        assert bench.listings == 1


async def test_it_answers_one_question_and_an_old_one_none(tmp_path: Path) -> None:
    async with Owner() as owner:
        devices, bench = listing(owner, tmp_path)
        await devices.ahead()
        await devices.as_ahead()
        bench.device_lines = cpu_lines(free_mib=7)
        assert [one.free_bytes >> 20 for one in await devices.as_ahead()] == [7]
        assert bench.listings == 2
        await devices.ahead()
        await asyncio.sleep(AHEAD_SECONDS)
        bench.device_lines = cpu_lines(free_mib=5)
        assert [one.free_bytes >> 20 for one in await devices.as_ahead()] == [5]


async def test_who_wants_to_know_what_is_free_now_gets_no_listing_of_before(tmp_path: Path) -> None:
    async with Owner() as owner:
        devices, bench = listing(owner, tmp_path)
        owner.start(devices.ahead(), name="ahead")
        await asyncio.sleep(TAKES / 2)
        bench.device_lines = cpu_lines(free_mib=7)
        await devices.devices()
        assert bench.listings == 2


async def test_a_listing_that_fails_ahead_is_told_to_those_who_ask(tmp_path: Path) -> None:
    async with Owner() as owner:
        devices, bench = listing(owner, tmp_path)
        bench.device_lines = ("cannot open the driver",)
        await devices.ahead()
        with pytest.raises(MeshdError, match="cannot open the driver"):
            await devices.as_ahead()


async def test_a_lease_has_the_listing_of_before_and_the_next_one_if_that_held(tmp_path: Path) -> None:
    async with Owner() as owner:
        devices, bench = listing(owner, tmp_path)
        before = await devices.devices()
        began = now()
        assert await devices.for_lease(alone=True) == (before, True)
        assert now() == began
        assert await devices.for_lease(alone=True) == (before, False), "the lease before did not hold"
        devices.held()
        assert (await devices.for_lease(alone=True))[1]
        assert bench.listings == 2


async def test_beside_other_leases_the_devices_are_listed(tmp_path: Path) -> None:
    async with Owner() as owner:
        devices, bench = listing(owner, tmp_path)
        await devices.devices()
        bench.device_lines = cpu_lines(free_mib=7)
        [found], is_kept = await devices.for_lease(alone=False)
        assert (found.free_bytes >> 20, is_kept) == (7, False)


async def test_a_card_that_came_or_went_is_noticed(tmp_path: Path) -> None:
    async with Owner() as owner:
        devices, _ = listing(owner, tmp_path)
        await devices.devices()
        HARDWARE.append("0000:02:00.0")
        assert not (await devices.for_lease(alone=True))[1]
        devices.held()
        HARDWARE.pop()
        assert not (await devices.for_lease(alone=True))[1]
        devices.held()
        assert (await devices.for_lease(alone=True))[1]


async def test_devices_that_something_uses_are_listed_each_time(tmp_path: Path) -> None:
    """It may have ended since, and a model that fits now must not be refused."""
    async with Owner() as owner:
        devices, bench = listing(owner, tmp_path)
        bench.device_lines = (*cpu_lines(free_mib=4096), GPU_LINE)
        await devices.devices()
        assert not (await devices.for_lease(alone=True))[1]
        devices.held()
        assert not (await devices.for_lease(alone=True))[1]
        assert bench.listings == 3


async def test_what_this_node_may_use_is_looked_at_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Owner() as owner:
        devices, _ = listing(owner, tmp_path)
        await devices.devices()
        limit = MemoryAllowance(2048 << 20, 1000 << 20, "group")
        monkeypatch.setattr(device_list, "memory_limit", lambda: limit)
        [found], is_kept = await devices.for_lease(alone=True)
        assert (found.free_bytes >> 20, found.total_bytes >> 20, is_kept) == (1000, 2048, True)


def test_hardware_is_seen_in_the_names_of_files(tmp_path: Path) -> None:
    assert hardware_names(tmp_path) == ()
    for path in ("sys/bus/pci/devices/0000:01:00.0", "dev/dri/renderD128", "dev/nvidia0", "dev/null"):
        (tmp_path / path).mkdir(parents=True)
    assert hardware_names(tmp_path) == ("0000:01:00.0", "nvidia0", "renderD128")


async def test_who_needs_the_cpu_alone_lists_once_and_never_again(tmp_path: Path) -> None:
    async with Owner() as owner:
        bench = Bench(Net(owner).mesh("head", "serve"), tmp_path)
        runtime, path = bench.runtime, tmp_path / "device-cpu"
        for _ in range(3):
            devices = Listing(
                runtime.native,
                runtime.processes.run_to_end,
                runtime.paths,
                machine="m",
                choose=tuple,
                cpu=CpuCache(path, "key"),
            )
            await devices.ahead()
            assert [one.name for one in await devices.as_ahead()] == ["CPU"]
        assert bench.listings == 1


CPU = OfferedDevice("CPU", "cpu", "some processor", 3 << 30, 4 << 30, "")
GPU = OfferedDevice("GPU0", "gpu", "some card", 3 << 30, 4 << 30, "c")


def test_the_next_daemon_knows_the_cpu(tmp_path: Path) -> None:
    path = tmp_path / "device-cpu"
    assert CpuCache(path, "key").cpu is None
    cache = CpuCache(path, "key")
    cache.keep((GPU, CPU))
    assert cache.cpu == CPU
    assert CpuCache(path, "key").cpu == CPU


def test_another_program_or_machine_lists_anew(tmp_path: Path) -> None:
    path = tmp_path / "device-cpu"
    CpuCache(path, "key").keep((CPU,))
    assert CpuCache(path, "another").cpu is None


@pytest.mark.parametrize(
    "text",
    [b"", b"key", b"key\n", b"key\ndevice GPU0 gpu - 1 1 x\n", b"key\ndevice CPU cpu\n", b"\xff" * 9999],
)
def test_a_damaged_file_is_none(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "device-cpu"
    path.write_bytes(text)
    assert CpuCache(path, "key").cpu is None


def test_without_a_file_nothing_is_kept(tmp_path: Path) -> None:
    cache = CpuCache(None, "key")
    cache.keep((CPU,))
    assert cache.cpu is None


def test_a_file_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    cache = CpuCache(tmp_path / "missing" / "device-cpu", "key")
    cache.keep((CPU,))
    assert cache.cpu == CPU
