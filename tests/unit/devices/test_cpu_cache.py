"""The file with the CPU, from one daemon to the next."""

from pathlib import Path

import pytest
from meshd.devices.cpu_cache import CpuCache
from meshd.wire.lease import OfferedDevice

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
