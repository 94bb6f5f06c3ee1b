"""A content store that has one tensor, and remembers what leases do with it."""

import os
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from meshd.model.status import StoreStatus
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.rpc.mesh_keeping import Missed

DIGEST = bytes(range(32))  # of what `talk.load_entry` asks for


class FakeLeaseCache:
    """A lease cache with one file and one tensor; remembers what happens to it."""

    def __init__(self, descriptor: int) -> None:
        self.descriptors: Sequence[int] = [descriptor]
        self.happened: list[object] = []

    @property
    def index(self) -> WeightsIndex:
        stat = os.fstat(self.descriptors[0])
        entry = FileEntry(stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
        return WeightsIndex((entry,), (TensorEntry(0, 0, 0, 4, DIGEST, DIGEST.hex()),), "")

    def loaded(self, digest: bytes) -> None:
        self.happened.append(digest)

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        self.happened.append((tensor.digest, offset, data, last))
        return True

    async def fetched(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        return self.piece(tensor, offset, data, last=last)

    def handed_over(self) -> None:
        self.happened.append("handed over")

    def allow(self, most: int) -> None:
        self.happened.append(most)

    def done(self) -> None:
        self.happened.append("done")

    def close(self) -> None:
        self.happened.append("closed")


class FakeStore:
    """Gives lease caches, or fails."""

    def __init__(self, file: Path) -> None:
        self.descriptor = os.open(file, os.O_RDONLY)
        self.lease_caches: list[FakeLeaseCache] = []
        self.peers: list[str] = []
        self.fails = False
        self.served = False

    @property
    def status(self) -> StoreStatus:
        return StoreStatus("/s", 1, 2, 3)

    @property
    def digests(self) -> Sequence[bytes]:
        return [DIGEST]

    async def serve(self) -> None:
        self.served = True

    async def take(self, *, peer: str, on_progress: Callable[[str], Awaitable[None]]) -> FakeLeaseCache:
        if self.fails:
            raise OSError(24, "Too many open files")
        self.peers.append(peer)
        self.lease_caches.append(FakeLeaseCache(self.descriptor))
        return self.lease_caches[-1]

    def close(self) -> None:
        os.close(self.descriptor)
