"""The worker's content store: tensors that came over the network once, for the next load.

Packs (pack.py) in one folder, `<cache>/tensors`, private to this user and bounded in bytes; several daemons
may share it. Like a model file a pack is believed by its state: it is whole in the state in which it was
written by this process, or read to its end.

A lease cache is the store as one lease uses it: packs that it was given, and tensors that come for it and are
kept. Pieces are taken on the event loop and written in the store's thread, from a queue with a limit: what
the disk cannot keep up with is not kept, and nobody waits for it.
"""

import asyncio
import os
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.tasks import Owner, in_thread
from meshd.identity.naming import SHORT_CHARS
from meshd.model.status import StoreStatus
from meshd.model.weights_index import TensorEntry, WeightsIndex
from meshd.rpc.mesh_keeping import Missed
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.hashes import hash_tensors
from meshd.store.interface import HashProgress
from meshd.store.pack import MAX_PACK_TENSORS, PackWriter, Sealed, Table, locked, read_table
from meshd.store.pack_folder import MAX_PACKS, StoreFolder

_QUEUE_BYTES = 64 << 20  # received and not written, of all leases
BATCH_BYTES = 8 << 20  # written at a time
JOB_BYTES = 512  # what a job takes beside its data
PACK_BYTES = 256 << 20
_PROGRESS_SECONDS = 2.0
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


class DiskLeaseCache:
    """The content store on the disk, for one lease. Implements store.interface.LeaseCache."""

    def __init__(
        self, store: "DiskContentStore", packs: Sequence[OpenPack], *, peer: str, empty_file: BinaryIO | None
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


@dataclass(frozen=True, slots=True)
class _Known:
    """A pack that was read to its end in this state, or written by us."""

    state: FileState
    table: Table


class DiskContentStore:
    """Implements store.interface.ContentStore. Run `serve` as long as it is used."""

    def __init__(self, path: Path, *, limit: int, cache: HashCache) -> None:
        """Keep at most `limit` bytes, or nothing if 0. `cache` says whose turn it is to read."""
        self.folder = StoreFolder(path, limit)
        self._reading = cache.reading
        self._clock_ns = HashCache(path).clock_ns
        self._known: dict[str, _Known] = {}
        self._have: frozenset[bytes] | None = None  # all of `_known`, once somebody asks
        self._lease_caches: list[DiskLeaseCache] = []
        self._jobs: deque[Job] = deque()
        self._queued = 0
        self._closing = 0  # lease caches that are done, and whose last job waits
        self._work = asyncio.Event()
        self._written = asyncio.Event()
        self._writers: deque[tuple[DiskLeaseCache, PackWriter]] = (
            deque()
        )  # to be sealed; the first one is just now
        self._full = asyncio.Event()
        self._sealed = asyncio.Event()
        self._look = asyncio.Event()
        self._asked = self._covers = 0
        self._looked = asyncio.Event()
        self._text = ""

    # What lease caches need.

    @property
    def pack_bytes(self) -> int:
        """The size at which a pack is full, chosen so that a full store has at most half of MAX_PACKS."""
        return max(PACK_BYTES, 2 * self.folder.limit // MAX_PACKS)

    def has(self, digest: bytes) -> bool:
        """Return True if the tensor is kept, or is coming for a lease."""
        return digest in self.digests or any(
            digest in lease_cache.begun for lease_cache in self._lease_caches
        )

    def queue(self, job: Job) -> bool:
        """Queue the job; False when too much is waiting: a piece is not taken then."""
        if job.data is not None and self._queued + _cost(job) > _QUEUE_BYTES:
            return False
        self._closing += job.tensor is None
        self._queued += _cost(job)
        self._jobs.append(job)
        self._work.set()
        return True

    async def until_room(self, size: int) -> None:
        """Wait until `queue` takes a piece of `size` bytes."""
        while self._queued + JOB_BYTES + size > _QUEUE_BYTES:
            await self._written.wait()

    def full(self, lease_cache: DiskLeaseCache, writer: PackWriter) -> None:
        """Take a full pack over, to be sealed. Called in the thread."""
        self._writers.append((lease_cache, writer))

    def over(self, lease_cache: DiskLeaseCache) -> None:
        if lease_cache in self._lease_caches:
            self._lease_caches.remove(lease_cache)

    # What the worker needs.

    @property
    def digests(self) -> frozenset[bytes]:
        if self._have is None:
            tables = [known.table for known in self._known.values()]
            self._have = frozenset(kept.digest for table in tables for kept in table.tensors)
        return self._have

    @property
    def status(self) -> StoreStatus:
        held = sum(size for _, size in self.folder.packs()) if self.folder.limit else 0
        tensors = sum(len(known.table.tensors) for known in self._known.values())
        return StoreStatus(
            path=str(self.folder.path),
            bytes=held,
            limit=self.folder.limit_now(held),
            tensors=tensors,
            problem=self.folder.problem,
        )

    async def take(
        self, *, peer: str, on_progress: Callable[[str], Awaitable[None]]
    ) -> DiskLeaseCache | None:
        if not self.folder.limit or not self.folder.usable:
            return None
        self._asked += 1
        mine = self._asked
        self._look.set()
        while self._covers < mine:
            try:
                async with asyncio.timeout(_PROGRESS_SECONDS):
                    await self._looked.wait()
            except TimeoutError:
                await on_progress(self._text or "reading the kept weights")
        packs: list[OpenPack] = []
        try:
            for name in sorted(self._known):
                if (pack := self._open(name)) is not None:
                    packs.append(pack)
            empty_file = None if packs else tempfile.TemporaryFile(dir=self.folder.path)  # noqa: SIM115 - kept
        except OSError as error:  # the disk is full, say: this lease does without the store
            _close_all(packs)
            self.folder.unusable(error.strerror or str(error))
            return None
        except BaseException:
            _close_all(packs)
            raise
        lease_cache = DiskLeaseCache(self, packs, peer=peer, empty_file=empty_file)
        self._lease_caches.append(lease_cache)
        return lease_cache

    def _open(self, name: str) -> OpenPack | None:
        """Open a pack under a shared lock; None if it has changed since it was read."""
        path, known = self.folder.path / name, self._known[name]
        lock = locked(path, alone=False)
        if lock is None:
            return None
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(lock)
            raise
        pack = OpenPack(name, lock, file, known.state, known.table)
        if FileState.of(file) == known.state == FileState.of(lock):
            return pack
        pack.close()
        return None

    async def serve(self) -> None:
        if (self.folder.limit or self.folder.path.exists()) and self.folder.usable:
            await in_thread(self.folder.clean)
        if not self.folder.limit:  # kept weights belong to other nodes of this user
            await asyncio.Event().wait()
        try:
            async with Owner() as owner:
                owner.start(self._look_forever(), name="look at kept weights")
                owner.start(self._write_forever(), name="keep weights")
                owner.start(self._seal_forever(), name="seal kept weights")
        finally:
            for _, writer in self._writers:
                writer.abandon()
            for lease_cache in {*self._lease_caches, *(job.lease_cache for job in self._jobs)}:
                lease_cache.abandon()

    # Looking: which packs are there, and whole.

    async def _look_forever(self) -> None:
        while True:
            covers = self._asked
            while self._closing or self._writers:
                self._text = "writing downloaded weights to disk"
                await self._sealed.wait()
            names = {name for name, _ in self.folder.packs()}
            for name in self._known.keys() - names:
                self._forget(name)
            for name in sorted(names):
                await self._check(name)
            self._covers, self._text = covers, ""
            self._looked.set()
            self._looked = asyncio.Event()
            await self._look.wait()
            self._look.clear()

    def _know(self, name: str, known: _Known) -> None:
        self._known[name] = known
        self._have = None

    def _forget(self, name: str) -> None:
        if self._known.pop(name, None) is not None:
            self._have = None

    async def _check(self, name: str) -> None:
        """Verify this pack, or remove it."""
        path = self.folder.path / name
        descriptor = locked(path, alone=False)
        if descriptor is None:
            self._forget(name)
            return
        try:
            why = await self._why_not(name, descriptor)
        except (ValueError, UserError) as error:
            why = str(error)
        except OSError as error:
            LOG.warning("weights_store_unusable", path=str(path), why=error.strerror or str(error))
            return
        finally:
            os.close(descriptor)
        if why:
            LOG.warning("kept_weights_damaged", path=str(path), why=why)
            self.folder.discard(name)

    async def _why_not(self, name: str, descriptor: int) -> str:
        """Return why this open pack is unusable, or nothing. Raises ValueError, UserError, OSError."""
        state = FileState.of(descriptor)
        known = self._known.get(name)
        if known is not None and known.state == state:
            return ""
        self._forget(name)
        table = read_table(descriptor)
        if self.folder.noted(name) != state.line and not await self._read(name, descriptor, table, state):
            return "its content differs from what was written"
        self._know(name, _Known(state, table))
        return ""

    async def _read(self, name: str, descriptor: int, table: Table, state: FileState) -> bool:
        clock = self._clock_ns()
        total = sum(kept.size for kept in table.tensors)

        def on_progress(done: int, seconds: float) -> None:
            self._text = HashProgress.after(seconds, "kept weights", done=done, total=total).text

        async with self._reading:
            digests = await hash_tensors(descriptor, table.infos, label=name, on_progress=on_progress)
        if FileState.of(descriptor) != state or digests != tuple(kept.digest for kept in table.tensors):
            return False
        if clock is not None and state.settled_at(clock):
            self.folder.note(name, state)
        return True

    # Writing.

    async def _write_forever(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._jobs:
                batch = self._next_batch()
                await in_thread(_write, batch)
                self._queued -= sum(map(_cost, batch))
                self._closing -= sum(job.tensor is None for job in batch)
                self._full.set()
                self._written.set()
                self._written = asyncio.Event()

    def _next_batch(self) -> list[Job]:
        batch: list[Job] = []
        size = 0
        while self._jobs and size < BATCH_BYTES:
            batch.append(self._jobs.popleft())
            size += _cost(batch[-1])
        return batch

    async def _seal_forever(self) -> None:
        """Seal full packs, beside the writing task, because sealing waits for the disk."""
        while True:
            await self._full.wait()
            self._full.clear()
            while self._writers:
                lease_cache, writer = self._writers[0]
                sealed = await in_thread(_seal, lease_cache, writer)
                if sealed is not None:
                    self._know(sealed.name, _Known(sealed.state, sealed.table))
                    self.folder.touch(sealed.name)
                    lease_cache.hold(sealed.name)
                self._writers.popleft()
                if all(waiting is not lease_cache for waiting, _ in self._writers):
                    lease_cache.settle()
            self._sealed.set()
            self._sealed = asyncio.Event()


def _close_all(packs: Sequence[OpenPack]) -> None:
    for pack in packs:
        pack.close()


def _write(batch: Sequence[Job]) -> None:
    for job in batch:
        job.lease_cache.write(job)


def _seal(lease_cache: DiskLeaseCache, writer: PackWriter) -> Sealed | None:
    try:
        sealed = writer.seal()
    except OSError as error:
        LOG.warning("weights_not_kept", peer=lease_cache.peer[:SHORT_CHARS], why=error.strerror or str(error))
        writer.abandon()
        return None
    if sealed is not None:
        count = len(sealed.table.tensors)
        LOG.info("weights_kept", peer=lease_cache.peer[:SHORT_CHARS], count=count, bytes=sealed.state.size)
    return sealed


def _cost(job: Job) -> int:
    return JOB_BYTES + len(job.data or b"")
