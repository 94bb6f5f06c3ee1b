"""Weights that are read to be in memory."""

import os
import sys
from pathlib import Path

import pytest
from meshd.worker.held_weights import FilePart, HeldWeights

from tests.conformance.run import run
from tests.e2e.residency import drop, resident_bytes

MB = 1 << 20
KNOWS = sys.platform == "linux" and [int(part) for part in os.uname().release.split(".")[:2]] >= [5, 14]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(40 * MB))
    return path


def parts_of(descriptor: int) -> list[FilePart]:
    return [FilePart(descriptor, MB, 5 * MB), FilePart(descriptor, 10 * MB, 20 * MB)]


async def test_they_are_in_memory_once_they_are_read(file: Path) -> None:
    told: list[str] = []
    with file.open("rb") as opened:
        drop(file)
        held = HeldWeights(parts_of(opened.fileno()))
        assert await held.read(told.append) == 25 * MB
    if sys.platform == "linux":
        assert resident_bytes(file, [(MB, 5 * MB), (10 * MB, 20 * MB)]) == 25 * MB
    assert told[0] == "reads its weights: 0 B of 26.2 MB" and len(told) == 3


@pytest.mark.skipif(not KNOWS, reason="only Linux 5.14 is asked for what it has dropped")
async def test_what_the_kernel_has_dropped_is_asked_for_again(file: Path) -> None:
    with file.open("rb") as opened:
        held = HeldWeights(parts_of(opened.fileno()))
        drop(file)
        if resident_bytes(file, [(10 * MB, 20 * MB)]) == 20 * MB:
            pytest.skip("the temporary files are in memory, from which nothing is dropped")
        await held.refresh()
        assert resident_bytes(file, [(MB, 5 * MB), (10 * MB, 20 * MB)]) == 25 * MB
        os.truncate(file, 12 * MB)
        await held.refresh()


async def test_a_file_that_was_cut_gives_what_it_has(file: Path) -> None:
    with file.open("rb") as opened:
        os.truncate(file, 12 * MB)
        assert await HeldWeights(parts_of(opened.fileno())).read(lambda _: None) == 7 * MB


def test_nothing_is_held_at_once() -> None:
    assert run(HeldWeights(()).read(lambda _: None)) == 0
