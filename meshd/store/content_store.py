"""The worker's content store: tensors that came over the network once, for the next load.

Packs (pack.py) in one folder, `<cache>/tensors`, private to this user and bounded in bytes; several daemons
may share it. Like a model file a pack is believed by its state: it is whole in the state in which it was
written by this process, or read to its end.
"""

import asyncio
import functools
import os
import tempfile
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.errors import UserError
from meshd.base.tasks import Owner, in_thread
from meshd.identity.naming import SHORT_CHARS
from meshd.model.status import StoreStatus
from meshd.store.eviction import MAX_PACKS
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.hashes import hash_tensors
from meshd.store.interface import HashProgress
from meshd.store.lease_cache import DiskLeaseCache, Job, OpenPack
from meshd.store.pack import PackWriter, Sealed, Table, locked, read_table
from meshd.store.pack_folder import StoreFolder

_QUEUE_BYTES = 64 << 20  # received and not written, of all leases
BATCH_BYTES = 8 << 20  # written at a time
JOB_BYTES = 512  # what a job takes beside its data
PACK_BYTES = 256 << 20
_PROGRESS_SECONDS = 2.0
LOG = log.get("store")


@dataclass(frozen=True, slots=True)
class _Known:
    """A pack that was read to its end in this state, or written by us."""

    state: FileState
    table: Table


class DiskContentStore:
    """Implements store.interface.ContentStore. Run `serve` as long as it is used."""

    def __init__(self, path: Path, *, limit: int, cache: HashCache) -> None:
        """Keep at most `limit` bytes, or nothing if 0. `cache` says whose turn it is to read."""
        self._folder = StoreFolder(path, limit)
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
    def folder(self) -> StoreFolder:
        return self._folder

    @property
    def pack_bytes(self) -> int:
        """The size at which a pack is full, chosen so that a full store has at most half of MAX_PACKS."""
        return max(PACK_BYTES, 2 * self._folder.limit // MAX_PACKS)

    def has(self, digest: bytes) -> bool:
        return digest in self.digests or any(
            digest in lease_cache.begun for lease_cache in self._lease_caches
        )

    def queue(self, job: Job) -> bool:
        if job.data is not None and self._queued + _cost(job) > _QUEUE_BYTES:
            return False
        self._closing += job.tensor is None
        self._queued += _cost(job)
        self._jobs.append(job)
        self._work.set()
        return True

    async def until_room(self, size: int) -> None:
        while self._queued + JOB_BYTES + size > _QUEUE_BYTES:
            await self._written.wait()

    def full(self, lease_cache: DiskLeaseCache, writer: PackWriter) -> None:
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
        held = sum(size for _, size in self._folder.packs()) if self._folder.limit else 0
        tensors = sum(len(known.table.tensors) for known in self._known.values())
        return StoreStatus(
            path=str(self._folder.path),
            bytes=held,
            limit=self._folder.limit_now(held),
            tensors=tensors,
            problem=self._folder.problem,
        )

    async def take(
        self, *, peer: str, on_progress: Callable[[str], Awaitable[None]]
    ) -> DiskLeaseCache | None:
        if not self._folder.limit or not self._folder.usable:
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
            empty_file = None if packs else tempfile.TemporaryFile(dir=self._folder.path)  # noqa: SIM115 - kept
        except OSError as error:  # the disk is full, say: this lease does without the store
            _close_all(packs)
            self._folder.unusable(error.strerror or str(error))
            return None
        except BaseException:
            _close_all(packs)
            raise
        lease_cache = DiskLeaseCache(self, packs, peer=peer, empty_file=empty_file)
        self._lease_caches.append(lease_cache)
        return lease_cache

    def _open(self, name: str) -> OpenPack | None:
        """Open a pack under a shared lock; None if it has changed since it was read."""
        path, known = self._folder.path / name, self._known[name]
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
        if (self._folder.limit or self._folder.path.exists()) and self._folder.usable:
            await in_thread(self._folder.clean)
        if not self._folder.limit:  # kept weights belong to other nodes of this user
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
            names = {name for name, _ in self._folder.packs()}
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
        path = self._folder.path / name
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
            self._folder.discard(name)

    async def _why_not(self, name: str, descriptor: int) -> str:
        """Return why this open pack is unusable, or nothing. Raises ValueError, UserError, OSError."""
        state = FileState.of(descriptor)
        known = self._known.get(name)
        if known is not None and known.state == state:
            return ""
        self._forget(name)
        table = read_table(descriptor)
        if self._folder.noted(name) != state.line and not await self._read(name, descriptor, table, state):
            return "its content differs from what was written"
        self._know(name, _Known(state, table))
        return ""

    async def _read(self, name: str, descriptor: int, table: Table, state: FileState) -> bool:
        clock = self._clock_ns()
        total = sum(kept.size for kept in table.tensors)

        def on_progress(done: int, seconds: float) -> None:
            rate = done / seconds if seconds > 0 else 0.0
            self._text = HashProgress("kept weights", done, total, rate).text

        async with self._reading:
            digests = await hash_tensors(descriptor, table.infos, label=name, on_progress=on_progress)
        if FileState.of(descriptor) != state or digests != tuple(kept.digest for kept in table.tensors):
            return False
        if clock is not None and state.settled_at(clock):
            self._folder.note(name, state)
        return True

    # Writing.

    async def _write_forever(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while self._jobs:
                batch = self._next_batch()
                await in_thread(functools.partial(_write, batch))
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
                sealed = await in_thread(functools.partial(_seal, lease_cache, writer))
                if sealed is not None:
                    self._know(sealed.name, _Known(sealed.state, sealed.table))
                    self._folder.touch(sealed.name)
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
