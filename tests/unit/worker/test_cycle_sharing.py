"""A worker with several heads and a file that changes: what each gets, and what is never shared."""

import asyncio
import os
from contextlib import closing
from pathlib import Path

import pytest
from meshd.base.peer_limits import LEASE_MESSAGES, LEASES_OF_PEER
from meshd.model.weights_index import FileEntry, WeightsIndex
from meshd.mux.events import Code
from meshd.rpc import frames
from meshd.rpc import mesh_protocol as wire
from meshd.store.interface import ProgressCallback
from meshd.wire.lease import Admit, Grant, Loaded, Lost, Progress, Reserve, WorkerOffer

from tests.unit.head.calls import ACQUIRE, MIB, scene
from tests.unit.head.stubs import FakeFile
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import Other, Server, head_stream, says

pytestmark = pytest.mark.virtual


async def test_few_leases_are_negotiated_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:

        async def is_refused(name: str) -> bool:
            more = it.call(name)
            await more.says(ACQUIRE)
            answer = await more.hears()
            return isinstance(answer, Lost) and answer.code == "busy"

        calls = [it.call(f"head-{number // 2}") for number in range(8)]
        for call in calls[:2]:
            await call.offer()
        assert await is_refused("head-0"), "of one head, two"
        for call in calls[2:]:
            await call.offer()
        assert await is_refused("another")
        calls[0].stream.write_eof()
        await calls[0].is_over()
        await it.call("head-0").offer()


async def test_one_head_cannot_take_all_leases_of_a_worker(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        held = []
        for _ in range(LEASES_OF_PEER.most):
            held.append(it.call())
            await held[-1].lease(1)
        more = it.call()
        await more.offer()
        await more.says(Reserve((MIB,)))
        answer = await more.hears()
        assert isinstance(answer, Lost) and f"already has {LEASES_OF_PEER.most} leases" in answer.text
        await it.call("another").lease()
        await held[0].release()
        await it.call().lease()  # a head that starts over


async def test_those_who_ask_at_once_share_a_listing(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        before = it.bench.listings
        it.bench.listing_seconds = 1.0
        calls = [it.call(f"head-{number}") for number in range(6)]
        for call in calls:
            await call.says(ACQUIRE)
        for call in calls:
            assert isinstance(await call.hears(), WorkerOffer)
        assert it.bench.listings - before == 2  # one for the first, one for those who came meanwhile


@pytest.mark.parametrize(("ends", "waits"), [(1.5, 1.5), (60.0, 3.0)])
async def test_a_head_that_starts_over_is_offered_what_its_former_lease_gives_back(
    tmp_path: Path, ends: float, waits: float
) -> None:
    async with scene(tmp_path) as it:
        one = it.call("one")
        await one.lease(1000)
        it.bench.children[0].end_seconds = ends
        one.stream.write_eof()
        began = asyncio.get_running_loop().time()
        other = await it.call("another").offer()
        assert asyncio.get_running_loop().time() - began < 0.1, "others wait for nothing"
        mine = await it.call("one").offer()
        assert asyncio.get_running_loop().time() - began == pytest.approx(waits, abs=0.1)
        back = mine.devices[0].free_bytes - other.devices[0].free_bytes
        assert back == (1000 * MIB if ends == waits else 0)
        await asyncio.sleep(ends)


async def test_memory_that_is_promised_and_not_yet_taken_is_held_back(tmp_path: Path) -> None:
    """No limit is set: the device shows 3000 MiB as free, whatever the first head loads."""
    async with scene(tmp_path) as it:
        one = it.call("one")
        grant = await one.lease(1000)

        async def free(head: str) -> int:
            await asyncio.sleep(1)
            return (await it.call(head).offer()).devices[0].free_bytes // MIB

        assert await free("two") == 2000
        await one.says(Loaded())
        it.bench.children[0].report(f"loaded 1 {750 * MIB}")
        assert await free("two") == 2000, "a head's word is no memory"
        stream = head_stream(it, one, grant)
        with closing(Server(it.bench.children[0])) as server:
            await stream.write(talk.hello())
            await asyncio.sleep(1)
            server.head.send(talk.welcome())
            await asyncio.sleep(1)
            await stream.write(talk.allocate(size=750 * MIB))
            assert await free("three") == 2000, "which is not answered"
            server.head.send(talk.allocated())
            assert await free("three") == 2750
            await stream.write(talk.message(wire.FREE, talk.BUFFER))
            assert await free("four") == 2000
            await stream.write(talk.allocate(size=500 * MIB))
            await asyncio.sleep(1)
            server.head.send(talk.allocated())
            assert await free("four") == 2500
        stream.reset(Code.LOST, "gone")
        assert await free("five") == 2000, "its server gives it back first"
        await one.release()
        assert await free("five") == 3000


async def test_two_heads_that_ask_at_once_get_different_memory(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        one, two = it.call("one"), it.call("two")
        for call in (one, two):
            assert (await call.offer()).devices[0].free_bytes == 3000 * MIB
        await one.says(Reserve((2000 * MIB,)))
        assert isinstance(await one.hears(), Grant)
        await two.says(Reserve((2000 * MIB,)))
        answer = await two.hears()
        assert isinstance(answer, Lost) and answer.code == "memory"


async def test_no_log_is_shared_with_a_live_lease(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        await it.call("kept").lease(1)
        for _ in range(12):
            call = it.call("short")
            await call.lease(1)
            call.stream.write_eof()
            await call.is_over()
        specs = [child.spec for child in it.bench.children]
        logs = [spec.log for spec in specs if spec is not None]
        assert len(logs) == 13 and logs[0] not in logs[1:]


async def test_a_replaced_file_is_followed_and_said(tmp_path: Path) -> None:
    file = FakeFile()
    async with scene(tmp_path, file=file) as it:
        await it.call("one").lease()
        assert (file.follows, it.worker.status.notes) == (0, ())
        file.replaced = True
        file.hashed.clear()
        two = it.call("two")
        await two.says(ACQUIRE)
        assert isinstance(await two.hears(), Progress)  # the new file is read first
        file.hashed.set()
        assert isinstance(await two.hears(), WorkerOffer)
        (note,) = it.worker.status.notes
        assert file.follows == 1 and "tiny.gguf" in note and "replaced" in note


async def test_hashing_anew_does_not_touch_a_lease_that_is_being_granted(tmp_path: Path) -> None:
    file = FakeFile()
    async with scene(tmp_path, file=file) as it:
        one = it.call("one")
        await one.offer()
        file.replaced = True
        file.hashed.clear()
        await it.call("two").says(ACQUIRE)
        await asyncio.sleep(1)
        await one.says(Reserve((100 * MIB,)))
        assert isinstance(await one.hears(), Grant)
        spec = it.bench.children[0].spec
        assert spec is not None and "--weights-fd" in spec.argv


class OpenFile(FakeFile):
    """With a real descriptor, that of `path`."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        path.write_bytes(b"weights")
        self.held = os.open(path, os.O_RDONLY)
        self.descriptors = (self.held,)

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        return WeightsIndex((FileEntry(7, 1, 1, 1),), (), "f" * 64)


async def test_a_lease_keeps_the_files_of_its_offer(tmp_path: Path) -> None:
    """Following a replaced file closes the old one; a lease that was offered it has it still."""
    file = OpenFile(tmp_path / "model.gguf")
    async with scene(tmp_path, file=file) as it:
        call = it.call()
        await call.offer()
        os.close(file.held)
        await call.says(Reserve((100 * MIB,)))
        assert isinstance(await call.hears(), Grant)
        spec = it.bench.children[0].spec
        assert spec is not None
        argv = list(spec.argv)
        text = os.read(int(argv[argv.index("--weights-fd") + 1]), 1 << 16).decode()
        (line,) = [line for line in text.splitlines() if line.startswith("file 0 ")]
        descriptor = int(line.split()[2])
        assert descriptor in spec.hand_over and os.pread(descriptor, 7, 0) == b"weights"


async def test_a_head_that_goes_while_the_server_starts_leaves_nothing(tmp_path: Path) -> None:
    async with scene(tmp_path, memory=100 * MIB) as it:
        it.bench.start_seconds = 1000.0
        call = it.call()
        await call.offer()
        await call.says(Reserve((100 * MIB,)))
        assert isinstance(await call.hears(), Progress)
        call.stream.reset(Code.LOST, "gone")
        await asyncio.sleep(1)
        assert [child.ended for child in it.bench.children] == [True]
        it.bench.start_seconds = 0.0
        await it.call().lease(100)


async def test_a_head_that_floods_its_lease_is_read_at_the_rate_of_its_messages(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        call = it.call()
        await call.lease()
        began = asyncio.get_running_loop().time()
        for _ in range(2 * int(LEASE_MESSAGES.burst)):
            await call.says(Loaded())
        await call.release()
        took = asyncio.get_running_loop().time() - began
        assert took > 0.9 * LEASE_MESSAGES.burst / LEASE_MESSAGES.per_second


async def test_all_leases_share_one_reading_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One head has had much read. What another head and a neighbour say afterwards waits with it."""
    monkeypatch.setattr(frames, "SECONDS_AT_ONCE", 6 * frames.MESSAGE_SECONDS)
    monkeypatch.setattr(frames, "SHARE", 2 * frames.MESSAGE_SECONDS)
    monkeypatch.setattr(frames, "LITTLE_SECONDS", 0.0)

    async with scene(tmp_path) as it:
        neighbour = Other(it)
        one, two = it.call("one"), it.call("two")
        mine, theirs = await one.lease(), await two.lease()
        await says(two, Admit(neighbour.peer.raw, 2))
        first, second = it.bench.children
        with closing(Server(first)) as server, closing(Server(second)) as another:
            busy, calm = head_stream(it, one, mine), head_stream(it, two, theirs)
            pushing = neighbour.push(it, theirs)
            for stream, end in ((busy, server), (calm, another)):
                await stream.write(talk.hello())
                await asyncio.sleep(1)
                end.head.send(talk.welcome())
                await asyncio.sleep(1)
                assert end.hears() == talk.hello()
            ((_, _, arrived),) = another.arrivals()
            assert arrived is not None
            arrived.setblocking(False)
            await busy.write(talk.allocate() + talk.graph() * 20)
            await asyncio.sleep(1)
            assert server.hears() == talk.allocate() + talk.graph() * 20
            # each has little read itself: 6 messages at once are for all of them
            for buffer in (1, 2):
                await calm.write(talk.allocate(buffer, identity=buffer))
                await pushing.write(talk.pushed())
                await asyncio.sleep(0.05)  # in which little is forgiven
            await asyncio.sleep(1)
            assert another.hears() == talk.allocate(1, identity=1)
            assert arrived.recv(1 << 16) == talk.pushed()
            await asyncio.sleep(12)
            assert another.hears() == talk.allocate(2, identity=2)
            assert arrived.recv(1 << 16) == talk.pushed()
            arrived.close()
