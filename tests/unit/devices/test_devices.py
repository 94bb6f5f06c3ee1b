"""Devices as mesh-server lists them, and which of them are lent."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import MeshdError, UserError
from meshd.base.resource_limits import MemoryAllowance
from meshd.devices import devices as devices_of_machine
from meshd.devices.devices import card_of, list_devices, missing_library, parse_devices, pick, within
from meshd.process.interface import ChildSpec, Ended
from meshd.wire.capacity import CORE_SET_LETTERS
from meshd.wire.lease import SHARED_MEMORY, OfferedDevice, WorkerOffer, decode
from meshd.wire.limits import MAX_DEVICES

MIB = 1 << 20
OUTPUT = f"""\
ggml_cuda_init: found 1 CUDA devices:
device CUDA0 gpu 0000:c1:00.0 {143771 * MIB} {143063 * MIB} NVIDIA H200
device Vulkan0 gpu 0000:c1:00.0 {143771 * MIB} {143000 * MIB} NVIDIA H200
device Vulkan1 igpu 0000:00:02.0 {65536 * MIB} {60000 * MIB} Intel(R) Graphics (with: odd text)
device CPU cpu - {128820 * MIB} {100000 * MIB} AMD EPYC
device BLAS accel - 0 0 OpenBLAS
device CUDA0 gpu 0000:c2:00.0 1 1 a second one of this name
"""
CARD = card_of("here", "0000:c1:00.0")


def test_the_list_is_read() -> None:
    devices = parse_devices(OUTPUT.splitlines(), "here")
    assert devices == (
        OfferedDevice("CUDA0", "gpu", "NVIDIA H200", 143063 * MIB, 143771 * MIB, CARD),
        OfferedDevice("Vulkan0", "gpu", "NVIDIA H200", 143000 * MIB, 143771 * MIB, CARD),
        OfferedDevice(
            "Vulkan1", "gpu", "Intel(R) Graphics (with: odd text)", 60000 * MIB, 65536 * MIB, SHARED_MEMORY
        ),
        OfferedDevice("CPU", "cpu", "AMD EPYC", 100000 * MIB, 128820 * MIB),
        OfferedDevice("BLAS", "cpu", "OpenBLAS", 0, 0),
    )


def test_gpus_are_lent_else_the_cpu_never_half_a_device() -> None:
    devices = parse_devices(OUTPUT.splitlines(), "here")
    assert [device.name for device in pick(devices, ())] == ["CUDA0", "Vulkan0", "Vulkan1"]
    assert [device.name for device in pick(devices[3:], ())] == ["CPU"]
    assert [device.name for device in pick(devices, ("CPU", "CUDA0", "CPU"))] == ["CPU", "CUDA0"]
    with pytest.raises(UserError, match="no device `CUDA1`") as caught:
        pick(devices, ("CPU", "CUDA1"))
    assert "CUDA0, Vulkan0, Vulkan1, CPU, BLAS" in caught.value.hint


def test_no_more_of_the_machines_memory_is_offered_than_this_node_may_use() -> None:
    """ggml says that the whole memory of the machine is free."""
    devices = parse_devices(OUTPUT.splitlines(), "here")
    limited = within(devices, MemoryAllowance(700 * MIB, 650 * MIB, "/sys/fs/cgroup"))
    assert [(one.free_bytes, one.total_bytes) for one in limited if one.kind == "cpu"] == [
        (650 * MIB, 700 * MIB),
        (0, 0),
    ]
    assert [one for one in limited if one.kind == "gpu"] == [one for one in devices if one.kind == "gpu"]
    assert within(devices, None) == devices


def test_a_list_is_bounded_by_the_limit_of_this_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limit = MemoryAllowance(700 * MIB, 650 * MIB, "/sys/fs/cgroup")
    monkeypatch.setattr("meshd.devices.devices.memory_limit", lambda: limit)

    async def run_to_end(spec: ChildSpec) -> Ended:
        assert spec.on_line is not None
        spec.on_line(f"device CPU cpu - {128820 * MIB} {128820 * MIB} AMD EPYC")
        return Ended(0, None, ())

    listed = asyncio.run(
        list_devices(Path("mesh-server"), machine="", run_to_end=run_to_end, log=tmp_path / "log")
    )
    assert listed == (OfferedDevice("CPU", "cpu", "AMD EPYC", 650 * MIB, 700 * MIB),)


def test_a_card_has_a_name_of_its_own_in_each_machine() -> None:
    """The first card of most machines has the same PCI id."""
    names = {card_of(machine, card) for machine in ("a", "b") for card in ("0000:01:00.0", "0000:02:00.0")}
    assert len(names) == 4
    assert not any("0000" in name for name in names)
    assert card_of("", "0000:01:00.0") == card_of("a", "-") == ""


LISTED = st.from_regex(
    r"device [^\s]{1,70} [a-z]{1,9} [^\s]{1,20} [0-9]{1,20} [0-9]{1,20} .{0,300}", fullmatch=True
)


@given(st.lists(st.text(max_size=60) | LISTED, max_size=30))
def test_whatever_is_printed_can_be_offered(lines: list[str]) -> None:
    devices = parse_devices(lines, "here")
    assert len(devices) <= MAX_DEVICES
    offer = WorkerOffer(devices, has_model=False, machine="here", lease_id=bytes(16))
    assert decode(offer.encode()) == offer


def test_a_program_that_lists_nothing_is_an_error() -> None:
    async def run_to_end(spec: ChildSpec) -> Ended:
        assert spec.argv == ("mesh-server", "--list-devices")
        return Ended(127, None, ("one", "error while loading shared libraries"))

    with pytest.raises(MeshdError, match=r"lists no devices: one \| error while"):
        asyncio.run(list_devices(Path("mesh-server"), machine="", run_to_end=run_to_end, log=Path("x.log")))


@pytest.mark.parametrize(
    ("library", "hint"),
    [
        ("libcuda.so.1", "install NVIDIA's driver (a container: start it with `--gpus all`)"),
        ("libcublas.so.13", "run `meshd native build --backend cuda`, which finds NVIDIA's libraries again"),
        ("libgomp.so.1", "install `libgomp.so.1`, or build again on this machine"),
    ],
)
def test_a_library_that_the_loader_lacks(library: str, hint: str) -> None:
    lines = [
        "x",
        f"./p: error while loading shared libraries: {library}: cannot open shared object file: No …",
    ]
    assert missing_library(lines) == hint
    assert missing_library(lines[:1]) == missing_library(()) == ""


@pytest.mark.parametrize(
    ("siblings", "count", "threads"),
    [(["3", "3", "c", "c"], 4, 2), (["1", "2"], 2, 2), ([], 4, 4), ([], 16, 8), (["f"], 1, 1)],
)
def test_cores_count_and_not_their_halves(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, siblings: list[str], count: int, threads: int
) -> None:
    for number, text in enumerate(siblings):
        (tmp_path / str(number)).write_text(text)
    monkeypatch.setattr(devices_of_machine, "_SIBLINGS", str(tmp_path / "{}"))
    monkeypatch.setattr("os.cpu_count", lambda: count)
    assert devices_of_machine.llama_threads() == threads


def test_a_head_computes_with_no_more_threads_than_it_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices_of_machine, "llama_threads", lambda: 16)
    for usable, threads in ((2, 2), (16, 16), (32, 16)):
        monkeypatch.setattr(devices_of_machine, "usable_processors", lambda usable=usable: usable)
        assert devices_of_machine.head_threads() == threads


def test_nodes_on_other_processors_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    def may_use(*numbers: int) -> str:
        monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(numbers), raising=False)
        return devices_of_machine.core_set()

    monkeypatch.setattr("os.cpu_count", lambda: 4)
    assert may_use(0, 1, 2, 3) == ""
    assert may_use(0, 1) == may_use(1, 0) != may_use(2, 3) and len(may_use(0)) == CORE_SET_LETTERS


def one(name: str, *, free: int = 10, total: int = 10, kind: str = "gpu", card: str = "") -> OfferedDevice:
    return OfferedDevice(name, kind, "", free, total, card)


def test_devices_are_nearly_free_if_each_is() -> None:
    share = devices_of_machine.NEARLY_FREE
    at, below = one("a", free=int(1000 * share), total=1000), one("b", free=int(1000 * share) - 1, total=1000)
    assert devices_of_machine.nearly_free([]) and devices_of_machine.nearly_free([at, at])
    assert not devices_of_machine.nearly_free([at, below])


def test_a_card_is_known_by_its_machine_and_its_place() -> None:
    assert card_of("", "0000:c1:00.0") == card_of("here", "-") == ""
    names = {card_of("here", "a"), card_of("here", "b"), card_of("there", "a")}
    assert len(names) == 3 and all(len(name) == 32 for name in names)
    assert card_of("here", "a") == card_of("here", "a")


def test_a_twin_is_the_same_card_through_another_backend() -> None:
    others = [one("CUDA0", card="x"), one("CUDA1", card="y"), one("iGPU", card=SHARED_MEMORY), one("CPU")]
    assert devices_of_machine.twin(one("Vulkan1", card="y"), others) == "CUDA1"
    for alone in (one("Vulkan2", card="z"), one("Vulkan3", card=SHARED_MEMORY), one("CPU")):
        assert devices_of_machine.twin(alone, others) == ""


@pytest.mark.parametrize(
    ("asked", "names", "is_only_cpu"),
    [
        ((), ["CPU", "CUDA0", "Vulkan0", "Vulkan1"], False),
        (("none",), ["CPU"], True),
        (("CPU",), ["CPU"], True),
        (("CPU", "none"), ["CPU"], True),
        (("CUDA0",), ["CPU", "CUDA0"], False),
        (("CPU", "Vulkan0"), ["CPU", "Vulkan0"], False),
        (("BLAS",), ["CPU"], False),
    ],
)
def test_a_head_uses_its_cpu_and_the_gpus_that_it_may(
    asked: tuple[str, ...], names: list[str], is_only_cpu: bool
) -> None:
    devices = parse_devices(OUTPUT.splitlines(), "here")
    assert [device.name for device in devices_of_machine.pick_for_head(devices, asked)] == names
    assert devices_of_machine.only_cpu(asked) == is_only_cpu


def test_a_missing_version_of_a_library_is_named() -> None:
    lines = ["x", "/lib/libc.so.6: version `GLIBC_2.38' not found (required by mesh-server)"]
    assert devices_of_machine.missing_symbols(lines) == "GLIBC_2.38"
    assert devices_of_machine.missing_symbols(lines[:1]) == ""


@pytest.mark.parametrize(
    ("cores", "usable", "processors", "core_count", "threads"),
    [(8, 16, 16, 8, 8), (8, 4, 16, 4, 4), (4, 1, 8, 1, 1), (16, 2, 32, 2, 2)],
)
def test_no_more_cores_count_than_this_process_may_use(
    monkeypatch: pytest.MonkeyPatch, cores: int, usable: int, processors: int, core_count: int, threads: int
) -> None:
    monkeypatch.setattr(devices_of_machine, "llama_threads", lambda: cores)
    monkeypatch.setattr(devices_of_machine, "usable_processors", lambda: usable)
    monkeypatch.setattr("os.sched_getaffinity", lambda _pid: set(range(usable)), raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: processors)
    assert devices_of_machine.usable_cores() == core_count
    assert devices_of_machine.head_threads() == threads
    told = devices_of_machine.core_set()
    assert (told == "") == (usable >= processors)
    assert len(told) in (0, CORE_SET_LETTERS)


def test_a_set_of_processors_is_told_apart_from_another() -> None:
    digests = set()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.cpu_count", lambda: 8)
        for usable in ({0, 1}, {1, 0}, {2, 3}, {0, 1, 2}):
            patch.setattr("os.sched_getaffinity", lambda _pid, usable=usable: usable, raising=False)
            digests.add(devices_of_machine.core_set())
    assert len(digests) == 3 and "" not in digests
