"""Devices as rpc-server lists them, and which of them are lent."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import MeshdError, UserError
from meshd.process.interface import ChildSpec, Ended
from meshd.role.devices import list_devices, parse_devices, pick
from meshd.wire.lease import MAX_DEVICES, Device, Offer, decode

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
        Device("CUDA0", "gpu", "NVIDIA H200", 143063 * MIB, 143771 * MIB),
        Device("CPU", "cpu", "AMD EPYC (with: odd text)", 100000 * MIB, 128820 * MIB),
        Device("BLAS", "cpu", "OpenBLAS", 0, 0),
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
    offer = Offer(devices, has_model=False, machine="")
    assert decode(offer.encode()) == offer


def test_a_program_that_lists_nothing_is_an_error() -> None:
    async def run_to_end(spec: ChildSpec) -> Ended:
        assert spec.argv == ("rpc", "--device", "?")
        return Ended(127, None, ("one", "error while loading shared libraries"))

    with pytest.raises(MeshdError, match=r"lists no devices: one \| error while"):
        asyncio.run(list_devices(Path("rpc"), run_to_end=run_to_end, log=Path("x.log")))
