"""What a worker says of tensors that somebody else names, without a lease."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.tasks import Owner
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.store.interface import ProgressCallback
from meshd.wire.needs import mark
from meshd.worker.known_files import KnownFiles

from tests.unit.head.stubs import FakeFile
from tests.unit.worker.kept import DIGEST, FakeStore

pytestmark = pytest.mark.virtual

IN_FILE, NOWHERE = b"f" * 32, b"n" * 32
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
