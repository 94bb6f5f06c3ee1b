"""Leases of a content store, as heads and workers make them."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from blake3 import blake3
from meshd.base.tasks import Owner
from meshd.rpc.mesh_keeping import Missed
from meshd.store.content_store import DiskContentStore
from meshd.store.hash_cache import HashCache
from meshd.store.interface import LeaseCache

LARGE = 1 << 40
KIB = 1024


def content(number: int, size: int = 4 * KIB) -> bytes:
    return bytes([number]) * size


def missed(data: bytes) -> Missed:
    return Missed(blake3(data).digest(), 0, len(data))


@asynccontextmanager
async def opened(path: Path, *, limit: int = LARGE) -> AsyncIterator[DiskContentStore]:
    store = DiskContentStore(path, limit=limit, cache=HashCache(path.parent / "weights"))
    async with Owner() as owner:
        owner.start(store.serve(), name="store")
        yield store
        owner.cancel()


async def took(store: DiskContentStore, peer: str = "peer", *, most: int = LARGE) -> LeaseCache:
    async def on_progress(_text: str) -> None: ...

    taken = await store.take(peer=peer, on_progress=on_progress)
    assert taken is not None
    taken.allow(most)
    return taken


def sends(it: LeaseCache, *tensors: bytes) -> list[bool]:
    """As a head does, in two pieces each."""
    took_all = []
    for data in tensors:
        tensor, half = missed(data), len(data) // 2
        first = it.piece(tensor, 0, data[:half], last=False)
        took_all.append(first and it.piece(tensor, half, data[half:], last=True))
    return took_all


async def keeps(store: DiskContentStore, *tensors: bytes, peer: str = "peer") -> None:
    """One lease that brings these, from begin to end; they are on the disk then."""
    it = await took(store, peer)
    assert all(sends(it, *tensors))
    it.done()
    it.close()
    (await took(store)).close()


def held(it: LeaseCache) -> set[bytes]:
    """Return what its index names, read through its descriptors."""
    found = set()
    for tensor in it.index.tensors:
        data = os.pread(it.descriptors[tensor.file], tensor.size, tensor.offset)
        assert (blake3(data).digest(), tensor.digest.hex()) == (tensor.digest, tensor.name)
        found.add(data)
    return found


async def has(store: DiskContentStore) -> set[bytes]:
    it = await took(store)
    found = held(it)
    it.close()
    return found


def packs(path: Path) -> list[Path]:
    return sorted(path.glob("*.tensors"))


def new(path: Path) -> list[Path]:
    return list(path.glob(".new-*"))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - a file says it
            await asyncio.sleep(0)


A, B, C = content(1), content(2), content(3)
