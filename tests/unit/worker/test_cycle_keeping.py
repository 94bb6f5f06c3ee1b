"""The worker and its content store: every lease gets a cache, what comes fills it, and it is closed."""

import asyncio
import io
import os
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from meshd.base import log
from meshd.peer.interface import Stream
from meshd.rpc import mesh_protocol as wire
from meshd.wire.lease import Grant, Loaded, Lost, Reserve

from tests.sim.loop import until
from tests.unit.head.calls import ACQUIRE, MIB, scene
from tests.unit.head.stubs import FakeFile
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.kept import DIGEST, FakeStore
from tests.unit.worker.lent import Server, head_stream

pytestmark = pytest.mark.virtual


@pytest.fixture
def store(tmp_path: Path) -> FakeStore:
    (tmp_path / "pack").write_bytes(b"kept")
    return FakeStore(tmp_path / "pack")


@pytest.fixture(autouse=True)
def _closed(store: FakeStore) -> object:
    yield
    store.close()


@pytest.mark.parametrize("file", [None, FakeFile()], ids=["without a model", "with a model"])
async def test_a_lease_is_given_what_is_kept_and_keeps_what_comes(
    tmp_path: Path, store: FakeStore, file: FakeFile | None
) -> None:
    async with scene(tmp_path, store=store, file=file) as it:
        call = it.call()
        offer = await call.offer()
        assert offer.has_model == (file is not None), "what was kept is no file of its own"
        await call.says(Reserve((300 * MIB,)))
        grant = await call.hears()
        assert isinstance(grant, Grant)
        [lease_cache] = store.lease_caches
        assert store.served and store.peers == [str(call.head.key.peer)]
        assert lease_cache.happened == ["handed over", 300 * MIB]
        spec = it.bench.children[0].spec
        assert spec is not None
        argv = list(spec.argv)
        index = os.read(int(argv[argv.index("--weights-fd") + 1]), 10_000).decode()
        assert f" {DIGEST.hex()} {DIGEST.hex()}\n" in index
        with closing(Server(it.bench.children[0])) as server:
            await _miss(head_stream(it, call, grant), server)
        assert lease_cache.happened[2:] == [(DIGEST, 0, b"w" * 16, True)]
        await call.says(Loaded())
        await until(lambda: lease_cache.happened[-1] == "done")
        call.stream.write_eof()
        await call.is_over()
        await until(lambda: lease_cache.happened[-1] == "closed")
        assert it.worker.status.store == store.status


async def _miss(stream: Stream, server: Server) -> None:
    """A talk in which a tensor is asked for by content, is missed, and is sent."""
    await stream.write(talk.hello())
    await asyncio.sleep(1)
    server.head.send(talk.welcome())
    await asyncio.sleep(1)
    await stream.write(talk.allocate() + talk.load(talk.load_entry()))
    await asyncio.sleep(1)
    server.head.send(talk.allocated() + talk.message(wire.LOADED, rest=b"\1", identity=4))
    await asyncio.sleep(1)
    await stream.write(talk.write(data=b"w" * 16))
    await asyncio.sleep(1)


async def test_a_lease_that_is_not_made_leaves_no_lease_cache(tmp_path: Path, store: FakeStore) -> None:
    async with scene(tmp_path, store=store) as it:
        for wanted in (None, 1 << 50):
            call = it.call()
            await call.offer()
            if wanted is None:
                call.stream.write_eof()
            else:
                await call.says(Reserve((wanted,)))
            await call.is_over()
            await until(lambda: store.lease_caches[-1].happened[-1] == "closed")
        store.fails = True
        call = it.call()
        await call.says(ACQUIRE)
        lost = await call.hears()
        assert isinstance(lost, Lost) and "Too many open files" in lost.text


@pytest.fixture
def logged() -> Iterator[io.StringIO]:
    """Return the log of the test."""
    stream = io.StringIO()
    log.set_up(level="info", stream=stream)
    yield stream
    log.set_up(level="warning")


async def test_what_a_file_lacks_is_told(tmp_path: Path, logged: io.StringIO) -> None:
    file = FakeFile()
    file.missing_shards = 1
    async with scene(tmp_path, file=file) as it:
        await asyncio.sleep(1)
        assert "model_file_incomplete" in logged.getvalue()
        file.missing_shards = 0
        assert not it.worker.status.notes
        file.missing_bytes, file.missing_shards = 5_000_000, 2
        assert it.worker.status.notes == (
            "`tiny.gguf` lacks 5.0 MB at the end and 2 of its shards: the missing part comes "
            "over the network",
        )
