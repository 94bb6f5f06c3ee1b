"""The content store as one lease uses it: packs that it was given, and tensors that come for it and are kept.

Pieces are taken on the event loop and written in the store's thread, from a queue with a limit: what the disk
cannot keep up with is not kept, and nobody waits for it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol

from meshd.base import log
from meshd.base.errors import UserError
from meshd.identity.naming import SHORT_CHARS
from meshd.model.weights_index import TensorEntry, WeightsIndex
from meshd.rpc.mesh_keeping import Missed
from meshd.store.hash_cache import FileState
from meshd.store.pack import MAX_PACK_TENSORS, PackWriter, Table, locked
from meshd.store.pack_folder import StoreFolder

MAX_CACHED_TENSORS = 16384  # kept of one lease
ROOM_STEP_BYTES = 1 << 20  # written between two looks at the room
LOG = log.get("store")


@dataclass(slots=True)
class OpenPack:
    """A pack of a lease cache. `lock` keeps it from being removed, `file` is for reading; -1 once closed."""

    name: str
    lock: int
    file: int
    state: FileState
    table: Table
    used: bool = False

    def close_file(self) -> None:
        if self.file >= 0:
            os.close(self.file)
        self.file = -1

    def release(self) -> None:
        """Unlock the pack: it may be removed."""
        if self.lock >= 0:
            os.close(self.lock)
        self.lock = -1

    def close(self) -> None:
        self.close_file()
        self.release()


@dataclass(frozen=True, slots=True)
class Job:
    """A job for the store's thread: a piece of a tensor; no more of it (`data` None); or, without a tensor,
    the end.
    """

    lease_cache: "DiskLeaseCache"
    tensor: Missed | None = None
    offset: int = 0
    data: bytes | None = None
    last: bool = False


class LeaseCacheStore(Protocol):
    """The part of its store that a lease cache uses."""

    @property
    def folder(self) -> StoreFolder: ...
    @property
    def pack_bytes(self) -> int:
        """The size at which a pack is full."""
        ...

    def has(self, digest: bytes) -> bool:
        """Return True if the tensor is kept, or is coming for a lease."""
        ...

    def queue(self, job: Job) -> bool:
        """Queue the job; False when too much is waiting: a piece is not taken then."""
        ...

    async def until_room(self, size: int) -> None:
        """Wait until `queue` takes a piece of `size` bytes."""
        ...

    def full(self, lease_cache: "DiskLeaseCache", writer: PackWriter) -> None:
        """Hand over a full pack to be sealed. Called in the thread."""
        ...

    def over(self, lease_cache: "DiskLeaseCache") -> None: ...


class DiskLeaseCache:
    """The content store on the disk, for one lease. Implements store.interface.LeaseCache."""

    def __init__(
        self, store: LeaseCacheStore, packs: Sequence[OpenPack], *, peer: str, empty_file: BinaryIO | None
    ) -> None:
        """Set up for one lease. `empty_file`: for a server that has no other file, so that it is asked by
        content all the same.
        """
        self._store = store
        self._packs = tuple(packs)
        self._empty_file = empty_file
        self._where = {kept.digest: pack for pack in packs for kept in pack.table.tensors}
        self._limit = 0
        self._taken = 0
        self._lost = 0
        self._done = self._closed = False
        self._own: list[int] = []  # locks of packs that this lease has filled
        self._writer: PackWriter | None = None  # of the thread
        self._unasked = ROOM_STEP_BYTES  # bytes since room was looked for: the first ask at once
        self._stopped = ""  # by the thread
        self.peer = peer
        self.begun: dict[bytes, Missed] = {}

    @property
    def index(self) -> WeightsIndex:
        files = [pack.state.entry for pack in self._packs]
        if self._empty_file is not None:
            files.append(FileState.of(self._empty_file.fileno()).entry)
        tensors = tuple(
            TensorEntry(number, kept.kind, kept.offset, kept.size, kept.digest, kept.digest.hex())
            for number, pack in enumerate(self._packs)
            for kept in pack.table.tensors
        )
        return WeightsIndex(tuple(files), tensors, "")

    @property
    def descriptors(self) -> Sequence[int]:
        files = [pack.file for pack in self._packs]
        return [*files, self._empty_file.fileno()] if self._empty_file is not None else files

    def handed_over(self) -> None:
        for pack in self._packs:
            pack.close_file()
        if self._empty_file is not None:
            self._empty_file.close()

    def allow(self, limit: int) -> None:
        self._limit = limit

    # What MeshKeeping recognises.

    def loaded(self, digest: bytes) -> None:
        """Mark the pack of this tensor as used."""
        pack = self._where.get(digest)
        if pack is not None and not pack.used:
            pack.used = True
            self._store.folder.touch(pack.name)

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        """Queue a piece; False to take no more of this tensor."""
        if self._done or self._stopped:
            return False
        begun = self.begun.get(tensor.digest)
        if begun is None:
            if len(self.begun) >= MAX_CACHED_TENSORS or self._store.has(tensor.digest):
                return False
            self._release_unused()  # it has asked for what it needs: the rest may make room
            self.begun[tensor.digest] = tensor
        elif begun is not tensor:  # the same content for another place: one of them is enough
            return False
        self._taken += len(data)
        fits = self._taken <= self._limit
        if fits and self._store.queue(Job(self, tensor, offset, data, last)):
            return True
        self._lost += 1
        self._store.queue(Job(self, tensor))
        return False

    async def fetched(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        await self._store.until_room(len(data))
        if self._stopped:
            raise UserError(
                f"weights cannot be kept: {self._stopped}", hint="free some space, or raise --keep-weights"
            )
        return self.piece(tensor, offset, data, last=last)

    def _release_unused(self) -> None:
        for pack in self._packs:
            if not pack.used:
                pack.release()

    def done(self) -> None:
        if self._done:
            return
        self._done = True
        self._release_unused()
        if self._lost:
            why = "the disk is too slow" if self._taken <= self._limit else "it exceeds the lease's memory"
            LOG.warning("weights_not_kept", peer=self.peer[:SHORT_CHARS], count=self._lost, why=why)
        self._store.queue(Job(self))

    def close(self) -> None:
        self.done()
        self.handed_over()
        for pack in self._packs:
            pack.release()
        self._closed = True
        while self._own:
            os.close(self._own.pop())
        self._store.over(self)

    # What the store says.

    def hold(self, name: str) -> None:
        """Lock a complete pack of this lease, so that it stays as long as the lease."""
        lock = None if self._closed else locked(self._store.folder.path / name, alone=False)
        if lock is not None:
            self._own.append(lock)

    def settle(self) -> None:
        """Forget the tensors of this lease once all are sealed, or will not be.

        Otherwise a tensor found damaged later would not be kept again during this lease.
        """
        if self._done:
            self.begun.clear()

    def write(self, job: Job) -> None:
        """Do one job, in the store's thread. Raises nothing."""
        try:
            if job.tensor is None:
                self._finish()
            elif not self._stopped:
                self._write(job.tensor, job)
        except OSError as error:
            self._stop_for_disk(error.strerror or str(error))
            self.abandon()

    def _write(self, tensor: Missed, job: Job) -> None:
        if job.data is None:
            if self._writer is not None:
                self._writer.drop(tensor)
            return
        self._unasked += len(job.data)
        if self._unasked >= ROOM_STEP_BYTES:
            if not self._store.folder.make_room(len(job.data)):
                self._stop_for_disk("there is no space: the rest of the store is in use")
                return
            self._unasked = 0
        if self._writer is None:
            self._writer = PackWriter(self._store.folder.path, self.peer)
            self._store.folder.problem = ""
        writer = self._writer
        writer.write(tensor, job.offset, job.data)
        if job.last and not writer.complete(tensor):
            self._stop("the head sent different bytes than it had announced")
        is_full = writer.written >= self._store.pack_bytes or writer.count >= MAX_PACK_TENSORS // 2
        if is_full and writer.between:
            self._finish()

    def _stop_for_disk(self, why: str) -> None:
        self._store.folder.problem = why
        self._stop(why)

    def _stop(self, why: str) -> None:
        if not self._stopped:
            LOG.warning("weights_not_kept", peer=self.peer[:SHORT_CHARS], why=why)
        self._stopped = why

    def _finish(self) -> None:
        if self._writer is not None:
            self._store.full(self, self._writer)
            self._writer = None

    def abandon(self) -> None:
        """Drop the incomplete tensors. Call it in the thread, or when that has ended."""
        if self._writer is not None:
            self._writer.abandon()
            self._writer = None
