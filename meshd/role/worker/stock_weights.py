"""A worker's model files as a stock rpc-server gets them: read by us, tensor by tensor, by content."""

import asyncio
import os
from collections.abc import Sequence

from meshd.model.weights_index import TensorEntry, WeightsIndex


class OpenWeights:
    """Implements LocalWeights; the descriptors are its own from now on, until `close`."""

    def __init__(self, index: WeightsIndex, descriptors: Sequence[int]) -> None:
        self._files = tuple(zip(index.files, descriptors, strict=True))
        self._read: set[int] = set()
        self._tensors = {tensor.digest: tensor for tensor in index.tensors}

    def find(self, digest: bytes) -> TensorEntry | None:
        """Any tensor of this content."""
        return self._tensors.get(digest)

    async def read(self, tensor: TensorEntry, offset: int, size: int) -> bytes:
        """See LocalWeights."""
        _, descriptor = self._files[tensor.file]
        self._read.add(tensor.file)
        return await asyncio.to_thread(os.pread, descriptor, size, tensor.offset + offset)

    def unchanged(self) -> bool:
        """See LocalWeights: by size, times and inode; what was removed and never read does not count."""
        for number, (entry, descriptor) in enumerate(self._files):
            try:
                stat = os.fstat(descriptor)
            except OSError:
                return False  # closed: the lease has ended
            if not stat.st_nlink and number not in self._read:
                continue  # made room in the content store
            now = (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino)
            if now != (entry.size, entry.mtime_ns, entry.ctime_ns, entry.inode):
                return False
        return True

    def close(self) -> None:
        """Once, when no tunnel uses it any more."""
        for _, descriptor in self._files:
            os.close(descriptor)
