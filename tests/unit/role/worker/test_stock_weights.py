"""OpenWeights: the right bytes by content, and a changed file is seen."""

import asyncio
import os
from pathlib import Path

from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.role.worker.stock_weights import OpenWeights

ONE, TWO = b"1" * 32, b"2" * 32


def opened(file: Path) -> OpenWeights:
    file.write_bytes(b"head" + b"abcdef" + b"0123456789")
    stat = file.stat()
    entry = FileEntry(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
    tensors = (TensorEntry(0, 0, 4, 6, ONE, "a"), TensorEntry(0, 0, 10, 10, TWO, "b"))
    return OpenWeights(WeightsIndex((entry,), tensors, ""), [os.open(file, os.O_RDONLY)])


def test_a_tensor_is_read_by_its_content(tmp_path: Path) -> None:
    weights = opened(tmp_path / "m")
    try:
        tensor = weights.find(TWO)
        assert tensor is not None
        assert asyncio.run(weights.read(tensor, 2, 5)) == b"23456"
        assert asyncio.run(weights.read(tensor, 8, 5)) == b"89"  # cut
        assert weights.find(bytes(32)) is None
    finally:
        weights.close()


def test_a_file_that_was_written_to_is_another(tmp_path: Path) -> None:
    weights = opened(tmp_path / "m")
    try:
        assert weights.unchanged()
        with (tmp_path / "m").open("ab") as file:
            file.write(b"!")
        assert not weights.unchanged()
    finally:
        weights.close()


def test_a_file_that_is_removed_counts_once_it_was_read(tmp_path: Path) -> None:
    weights = opened(tmp_path / "m")
    try:
        (tmp_path / "m").unlink()
        assert weights.unchanged(), "a pack that made room, and was not needed"
        tensor = weights.find(ONE)
        assert tensor is not None
        asyncio.run(weights.read(tensor, 0, 1))
        assert not weights.unchanged()
    finally:
        weights.close()


def test_what_is_closed_is_not_trusted(tmp_path: Path) -> None:
    weights = opened(tmp_path / "m")
    weights.close()
    assert not weights.unchanged()
