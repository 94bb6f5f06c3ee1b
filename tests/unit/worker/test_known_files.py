"""Test what a worker says of tensors that somebody else names, without a lease."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.base.processes import Outgoing
from meshd.base.tasks import Owner
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.store.interface import ProgressCallback
from meshd.wire.lease import mark
from meshd.worker.known_files import KnownFiles, Weights

from tests.unit.head.stubs import FakeFile
from tests.unit.worker.kept import DIGEST, FakeStore

pytestmark = pytest.mark.virtual

MINE, IN_FILE, NOWHERE = b"m" * 32, b"f" * 32, b"n" * 32
MARKS = b"".join(map(mark, (IN_FILE, NOWHERE, DIGEST)))


class OneTensor(FakeFile):
    """With the tensor IN_FILE."""

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        await self.hashed.wait()
        tensor = TensorEntry(0, 0, 0, 4, IN_FILE, "blk.0.ffn_up.weight")
        return WeightsIndex((FileEntry(1, 1, 1, 1),), (tensor,), "f" * 64)


async def test_it_lacks_what_is_in_no_file_and_not_kept_once_that_is_known(tmp_path: Path) -> None:
    (tmp_path / "pack").write_bytes(b"kept")

    file, store = OneTensor(), FakeStore(tmp_path / "pack")
    file.hashed.clear()
    with_both, only_file, nothing = KnownFiles([file], store), KnownFiles([file]), KnownFiles([])
    async with Owner() as owner:
        for one in (with_both, only_file, nothing):
            owner.start(one.serve(), name="files")
        await asyncio.sleep(0.1)
        assert with_both.lacks(MARKS) == b"", "it reads the file still"
        assert nothing.lacks(MARKS) == b"\x07"
        file.hashed.set()
        await asyncio.sleep(0.1)
        assert with_both.lacks(MARKS) == b"\x02" and only_file.lacks(MARKS) == b"\x06"
        owner.cancel()
    store.close()


class Pulled(OneTensor):
    """A model of the library, with the tensor MINE, and IN_FILE as well; `opens` counts those left open."""

    def __init__(self, library: "FakeLibrary", path: Path) -> None:
        super().__init__()
        self._library = library
        self.descriptors = (os.open(path, os.O_RDONLY),)
        library.opens += 1

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        await asyncio.sleep(self._library.read_seconds)
        self._library.reads += 1
        self._library.is_read = self._library.keeps
        return self._index()

    def known_index(self) -> WeightsIndex | None:
        return self._index() if self._library.is_read else None

    @staticmethod
    def _index() -> WeightsIndex:
        tensors = [TensorEntry(0, 0, 0, 4, digest, "x") for digest in (MINE, IN_FILE)]
        return WeightsIndex((FileEntry(1, 1, 1, 1),), tuple(tensors), "e" * 64)

    def close(self) -> None:
        os.close(self.descriptors[0])
        self._library.opens -= 1


class FakeLibrary:
    """One model, as long as its file is there."""

    def __init__(self, path: Path, *, is_read: bool) -> None:
        self.path, self.is_read = path, is_read
        self.read_seconds, self.opens, self.opened, self.reads = 0.0, 0, 0, 0
        self.keeps = True  # hashes, for the next time

    async def paths(self) -> Sequence[Path]:
        return [self.path]

    async def open(self, path: Path) -> Pulled:
        self.opened += 1
        try:
            return Pulled(self, path)
        except OSError as error:
            raise UserError("it is gone") from error


@contextlib.asynccontextmanager
async def with_library(
    folder: Path, *files: OneTensor, is_read: bool = True, seconds: float = 0.0
) -> AsyncIterator[tuple[KnownFiles, FakeLibrary]]:
    (folder / "model.gguf").write_bytes(b"data")
    library = FakeLibrary(folder / "model.gguf", is_read=is_read)
    library.read_seconds = seconds
    known = KnownFiles(files, None, library)
    async with Owner() as owner:
        owner.start(known.serve(), name="files")
        owner.start(known.library.serve(), name="library")
        yield known, library
        owner.cancel()
    assert not library.opens, "it holds no descriptor"


async def taken(known: KnownFiles, *digests: bytes) -> Weights | None:
    """Return what a lease for these tensors gets."""

    async def on_progress(text: str) -> None:
        pass

    with contextlib.closing(Outgoing()) as outgoing:
        return await known.take(outgoing, on_progress, peer="p", marks=b"".join(map(mark, digests)))


@pytest.mark.parametrize("is_read", [True, False])
async def test_a_model_of_the_library_lends_its_tensors(tmp_path: Path, is_read: bool) -> None:
    async with with_library(tmp_path, is_read=is_read, seconds=2.0) as (known, _):
        weights = await taken(known, MINE, NOWHERE)
        assert weights is not None and weights.has_model and MINE in weights.sizes
        assert known.lacks(mark(MINE) + mark(NOWHERE)) == b"\x02"


async def test_the_library_is_left_alone_if_it_has_nothing_that_is_lacking(tmp_path: Path) -> None:
    async with with_library(tmp_path, OneTensor()) as (known, library):
        await asyncio.sleep(1)
        looked = library.opened
        assert await taken(known, NOWHERE, IN_FILE) is not None, "of its own file"
        assert await taken(known, IN_FILE) is not None
        assert library.opened == looked


async def test_a_lease_does_not_wait_until_a_large_model_is_read(tmp_path: Path) -> None:
    async with with_library(tmp_path, is_read=False, seconds=100.0) as (known, _):
        began = asyncio.get_running_loop().time()
        assert await taken(known, MINE) is None
        assert asyncio.get_running_loop().time() - began < 10
        await asyncio.sleep(100)
        assert await taken(known, MINE) is not None


async def test_a_model_whose_hashes_cannot_be_kept_is_read_once_and_not_lent(tmp_path: Path) -> None:
    async with with_library(tmp_path, is_read=False, seconds=1.0) as (known, library):
        library.keeps = False
        for _ in range(3):
            assert await taken(known, MINE) is None
            await asyncio.sleep(10)
        assert library.reads == 1 and known.lacks(mark(MINE)) == b"\x01"


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_model_that_was_changed_is_not_lent(tmp_path: Path, how: str) -> None:
    async with with_library(tmp_path) as (known, library):
        await asyncio.sleep(1)
        if how == "removed":
            library.path.unlink()
        else:
            library.is_read = False
        assert await taken(known, MINE) is None
        await asyncio.sleep(1)
        is_lent = await taken(known, MINE) is not None
        assert is_lent == (how == "replaced"), "it was read again"
