"""Devices as rpc-server lists them, and which of them are lent."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import MeshdError, UserError
from meshd.process.interface import ChildSpec, Ended
from meshd.role.interface import MeshPrograms, NativeBuild
from meshd.role.native.devices import (
    SHARED_MEMORY,
    card_of,
    list_devices,
    parse_devices,
    parse_listed,
    pick,
)
from meshd.wire.lease import OfferedDevice, WorkerOffer, decode
from meshd.wire.limits import MAX_DEVICES
from meshd.wire.native import NativeVersion

MIB = 1 << 20
OUTPUT = """\
ggml_cuda_init: found 1 CUDA devices:
Available devices:
  CUDA0: NVIDIA H200 (143771 MiB, 143063 MiB free)
  CPU: AMD EPYC (with: odd text) (128820 MiB, 100000 MiB free)
  BLAS: OpenBLAS (0 MiB, 0 MiB free)
error: unknown device
"""


def test_the_list_is_read() -> None:
    devices = parse_devices(OUTPUT.splitlines())
    assert devices == (
        OfferedDevice("CUDA0", "gpu", "NVIDIA H200", 143063 * MIB, 143771 * MIB),
        OfferedDevice("CPU", "cpu", "AMD EPYC (with: odd text)", 100000 * MIB, 128820 * MIB),
        OfferedDevice("BLAS", "cpu", "OpenBLAS", 0, 0),
    )


def test_gpus_are_lent_else_the_cpu_never_half_a_device() -> None:
    devices = parse_devices(OUTPUT.splitlines())
    assert [device.name for device in pick(devices, ())] == ["CUDA0"]
    assert [device.name for device in pick(devices[1:], ())] == ["CPU"]
    assert [device.name for device in pick(devices, ("CPU", "CUDA0", "CPU"))] == ["CPU", "CUDA0"]
    with pytest.raises(UserError, match="no device `CUDA1`") as caught:
        pick(devices, ("CPU", "CUDA1"))
    assert "CUDA0, CPU, BLAS" in caught.value.hint


LINE = st.from_regex(r"  [^\s:]{1,70}: .{0,30} \([0-9]{1,9} MiB, [0-9]{1,9} MiB free\)", fullmatch=True)


@given(st.lists(st.text(max_size=60) | LINE, max_size=30))
def test_whatever_is_printed_can_be_offered(lines: list[str]) -> None:
    devices = parse_devices(lines)
    assert len(devices) <= MAX_DEVICES
    offer = WorkerOffer(devices, has_model=False, machine="")
    assert decode(offer.encode()) == offer


PATCHED = """\
ggml_cuda_init: found 1 CUDA devices:
device CUDA0 gpu 0000:c1:00.0 150754820096 150012428288 NVIDIA H200
device Vulkan0 gpu 0000:c1:00.0 150754820096 149000000000 NVIDIA H200
device Vulkan1 igpu 0000:00:02.0 68719476736 60000000000 Intel(R) Graphics (with: odd text)
device CPU cpu - 135077560320 100000000000 AMD EPYC
device BLAS accel - 0 0 OpenBLAS
"""


def test_the_list_of_a_patched_program_tells_cards() -> None:
    cuda, vulkan, small, cpu, blas = parse_listed(PATCHED.splitlines(), "here")
    assert cuda.card == vulkan.card == card_of("here", "0000:c1:00.0")
    assert (cuda.name, cuda.kind, cuda.free_bytes, cuda.total_bytes) == (
        "CUDA0",
        "gpu",
        150012428288,
        150754820096,
    )
    assert (small.kind, small.card, small.description) == (
        "gpu",
        SHARED_MEMORY,
        "Intel(R) Graphics (with: odd text)",
    )
    assert [(device.kind, device.card) for device in (cpu, blas)] == [("cpu", ""), ("cpu", "")]


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
def test_whatever_a_patched_program_prints_can_be_offered(lines: list[str]) -> None:
    devices = parse_listed(lines, "here")
    assert len(devices) <= MAX_DEVICES
    offer = WorkerOffer(devices, has_model=False, machine="here")
    assert decode(offer.encode()) == offer


@pytest.mark.parametrize(
    ("patched", "mesh", "asked"),
    [
        (True, False, ("--list-devices",)),
        (False, False, ("--device", "?")),
        (False, True, ("--list-devices",)),
    ],
)
def test_a_program_that_lists_nothing_is_an_error(patched: bool, mesh: bool, asked: tuple[str, ...]) -> None:
    async def run_to_end(spec: ChildSpec) -> Ended:
        assert spec.argv == ("server" if mesh else "rpc", *asked)
        return Ended(127, None, ("one", "error while loading shared libraries"))

    native = NativeBuild(Path("rpc"), Path("llama"), patched, NativeVersion("7.0.0", "pin", "patches", "cpu"))
    native = replace(native, mesh=MeshPrograms(Path("server"), Path("module"), "7.0.0") if mesh else None)
    with pytest.raises(MeshdError, match=r"lists no devices: one \| error while"):
        asyncio.run(
            list_devices(
                native.device_program,
                ours=native.tries_devices,
                machine="",
                run_to_end=run_to_end,
                log=Path("x.log"),
            )
        )
