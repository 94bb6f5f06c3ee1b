"""The pump between a real socket and a stream: exact, in order, with back-pressure, ends and resets."""

import asyncio
import random
import socket
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import Broken, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.mux.events import Code
from meshd.peer.interface import Stream
from meshd.peer.streams import MeshStream
from meshd.tunnel.interface import Flow, Inspector
from meshd.tunnel.local import LocalSocket
from meshd.tunnel.pump import Counter, Unwatched, pump

from tests.conformance.run import run, until
from tests.unit.tunnel.far import read_all, streams


class Scene:
    """A client, its connection, and a stream whose far end the test holds."""

    def __init__(self, client: socket.socket, local: LocalSocket, window: int, most: int) -> None:
        self.client = client
        self.local = local
        self.near: Stream
        self.far: Stream
        self.near, self.far, self.near_port, self.far_port = streams(window=window, most=most)
        self.counter = Counter()
        self.broken: list[MeshdError] = []
        self.task: asyncio.Task[None] | None = None

    def pump(self, owner: Owner, inspector: Inspector | None = None, flow: Flow | None = None) -> None:
        self.task = owner.start(
            pump(
                self.local,
                self.near,
                counter=self.counter,
                inspector=inspector,
                flow=flow,
                on_broken=self.broken.append,
            ),
            name="pump",
        )

    async def client_sends(self, data: bytes, *, piece: int = 1 << 16) -> None:
        loop = asyncio.get_running_loop()
        for at in range(0, len(data), piece):
            await loop.sock_sendall(self.client, data[at : at + piece])

    async def client_sends_all(self, data: bytes, *, pieces: Sequence[int], pauses: Sequence[int]) -> None:
        """In pieces of these sizes, with so many turns of the loop behind each; then the end."""
        at = 0
        for number, size in enumerate(pieces):
            await self.client_sends(data[at : at + size])
            at += size
            for _ in range(pauses[number % len(pauses)]):
                await asyncio.sleep(0)
        self.client.shutdown(socket.SHUT_WR)

    async def client_reads(self) -> bytes:
        loop = asyncio.get_running_loop()
        received = bytearray()
        while chunk := await loop.sock_recv(self.client, 1 << 16):
            received += chunk
        return bytes(received)


@asynccontextmanager
async def scene(*, window: int = 256 << 10, most: int = 64 << 10) -> AsyncIterator[tuple[Scene, Owner]]:
    loop = asyncio.get_running_loop()
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        client = socket.socket()
        client.setblocking(False)
        await loop.sock_connect(client, server.getsockname())
        taken, _ = await loop.sock_accept(server)
    _, local = await loop.connect_accepted_socket(LocalSocket, taken)
    made = Scene(client, local, window, most)
    try:
        async with Owner() as owner:
            yield made, owner
            owner.cancel()
    finally:
        client.close()
        local.abort()
        await local.wait_closed()


async def stands_still(count: Callable[[], int]) -> None:
    """Until `count` has grown, and then does not any more: kernel buffers are full."""
    before = 0
    while before != count() or not before:
        before = count()
        await asyncio.sleep(0.05)


def rst(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("inspected", [False, True])
@pytest.mark.parametrize(("piece", "most"), [(1, 1), (7, 3), (64 << 10, 256 << 10), (256 << 10, 64 << 10)])
async def test_every_byte_arrives_in_order_both_ways(piece: int, most: int, inspected: bool) -> None:
    size = 3000 if piece < 100 else 3 << 20
    out, back = random.Random(1).randbytes(size), random.Random(2).randbytes(size)
    async with scene(window=64 << 10 if piece < 100 else 256 << 10, most=most) as (it, owner):
        it.pump(owner, Unwatched() if inspected else None)

        async def client() -> None:
            await it.client_sends(out, piece=piece)
            it.client.shutdown(socket.SHUT_WR)

        async def far() -> None:
            for at in range(0, size, 1000):
                await it.far.write(back[at : at + 1000])
            it.far.write_eof()

        sending = owner.start(client(), name="client")
        writing = owner.start(far(), name="far")
        reading = owner.start(it.client_reads(), name="client reads")
        assert await read_all(it.far) == out
        assert await reading == back
        await asyncio.wait([sending, writing])
        assert it.task is not None
        await it.task
        assert (it.counter.sent, it.counter.received) == (size, size)
        assert it.near_port.unread == it.far_port.unread == 0  # all credit came back
        assert it.broken == []


@settings(max_examples=30)
@given(
    window=st.integers(1, 5000),
    pieces=st.lists(st.integers(1, 3000), min_size=1, max_size=15),
    pauses=st.lists(st.integers(0, 4), min_size=1, max_size=10),
)
def test_order_is_kept_when_the_stream_takes_part_of_a_chunk(
    window: int, pieces: list[int], pauses: list[int]
) -> None:
    async def main() -> None:
        data = random.Random(len(pieces)).randbytes(sum(pieces))
        async with scene(window=window) as (it, owner):
            it.pump(owner)
            owner.start(it.client_sends_all(data, pieces=pieces, pauses=pauses), name="client")
            received = bytearray()
            turn = 0
            try:
                while True:
                    chunk = await it.far.read()
                    received += chunk
                    for _ in range(pauses[turn % len(pauses)]):
                        await asyncio.sleep(0)
                    turn += 1
                    it.far.consumed(len(chunk))
            except EndOfStream:
                pass
            assert bytes(received) == data

    run(main())


async def test_a_client_that_does_not_read_gives_no_credit_back() -> None:
    async with scene(window=64 << 10) as (it, owner):
        it.pump(owner)
        data = random.Random(3).randbytes(32 << 20)
        writer = owner.start(it.far.write(data), name="far")
        await stands_still(lambda: it.counter.received)
        assert not writer.done()
        assert it.far_port.unread == 64 << 10  # the window is full
        got = bytearray()
        loop = asyncio.get_running_loop()
        while len(got) < len(data):
            got += await loop.sock_recv(it.client, 1 << 20)
        assert bytes(got) == data


async def test_a_peer_that_does_not_read_stops_the_client() -> None:
    async with scene(window=64 << 10) as (it, owner):
        it.pump(owner)
        data = random.Random(4).randbytes(32 << 20)
        sender = owner.start(it.client_sends(data), name="client")
        await stands_still(lambda: it.counter.sent)
        assert not sender.done()
        assert len(it.near_port.sent) == 64 << 10
        got = bytearray()
        while len(got) < len(data):
            chunk = await it.far.read()
            got += chunk
            it.far.consumed(len(chunk))
        assert bytes(got) == data


@pytest.mark.parametrize("client_first", [True, False])
async def test_half_close_in_either_order(client_first: bool) -> None:
    async with scene() as (it, owner):
        it.pump(owner)
        if client_first:
            await it.client_sends(b"question")
            it.client.shutdown(socket.SHUT_WR)
            assert await read_all(it.far) == b"question"
            await it.far.write(b"answer")
            it.far.write_eof()
            assert await it.client_reads() == b"answer"
        else:
            await it.far.write(b"banner")
            it.far.write_eof()
            assert await it.client_reads() == b"banner"
            await it.client_sends(b"thanks")
            it.client.shutdown(socket.SHUT_WR)
            assert await read_all(it.far) == b"thanks"
        assert it.task is not None
        await it.task
        assert it.near_port.resets == []


async def test_a_reset_of_the_client_is_a_reset_of_the_stream() -> None:
    async with scene() as (it, owner):
        it.pump(owner)
        await it.client_sends(b"hello")
        assert bytes(await it.far.read()) == b"hello"
        rst(it.client)
        with pytest.raises(Broken, match="local connection lost"):
            await it.far.read()


async def test_a_reset_of_the_stream_is_a_reset_of_the_client() -> None:
    async with scene() as (it, owner):
        it.pump(owner)
        await it.far.write(b"hello")
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(it.client, 100) == b"hello"
        it.far.reset(5, "the server died")
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(it.client, 100)
        await until(lambda: len(it.broken) == 1)
        assert it.broken[0].what == "the peer reset the stream: the server died"


async def test_a_session_that_is_lost_resets_the_client() -> None:
    async with scene() as (it, owner):
        it.pump(owner)
        await asyncio.sleep(0)
        assert isinstance(it.near, MeshStream)
        it.near.break_with(Broken("no link for 120 s"))
        with pytest.raises(ConnectionResetError):
            await asyncio.get_running_loop().sock_recv(it.client, 100)


async def test_an_inspector_may_end_it() -> None:
    class Strict(Unwatched):
        def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
            raise RemoteProtocolError("command 99 is not allowed")

    async with scene() as (it, owner):
        it.pump(owner, Strict())
        await it.client_sends(b"\x63")
        with pytest.raises(Broken, match="command 99"):
            await it.far.read()
        with pytest.raises(ConnectionResetError):
            await asyncio.get_running_loop().sock_recv(it.client, 100)
        assert it.near_port.sent == b""


async def test_bytes_that_waited_ask_again_whether_they_may_pass() -> None:
    """Another connection may have used the budget meanwhile."""
    pauses = [0.001, 0.001, 0.0]
    passed: list[int] = []

    class Budget(Unwatched):
        def pause(self, _now: float) -> float:
            return pauses.pop(0) if pauses else 0.0

        def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
            passed.append(len(pauses))
            return data

    async with scene() as (it, owner):
        await it.far.write(b"late")
        it.pump(owner, Budget())
        assert await asyncio.get_running_loop().sock_recv(it.client, 100) == b"late"
    assert passed == [0]


async def test_cancelled_at_any_turn_both_sides_are_reset() -> None:
    for turns in range(15):
        async with scene(window=100) as (it, owner):
            it.pump(owner)
            await it.client_sends(bytes(1000))
            await asyncio.sleep(0)
            for _ in range(turns):
                await asyncio.sleep(0)
            assert it.task is not None
            started = turns > 0
            await cancel_and_wait(it.task)
            if started:
                assert [code for code, _ in it.near_port.resets] == [Code.CANCELLED]


class Upper(Unwatched):
    """Makes letters capital, holds back an odd byte until the next comes; an x ends it. Notes what it saw."""

    def __init__(self) -> None:
        self.seen = {"to": b"", "from": b""}
        self._held = {"to": b"", "from": b""}
        self.waits: Callable[[], float] = lambda: 0.0

    def pause(self, _now: float) -> float:
        return self.waits()

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        return self._pass("to", bytes(data))

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        return self._pass("from", bytes(data))

    def _pass(self, way: str, data: bytes) -> bytes:
        if b"x" in self.seen[way] + data:
            raise RemoteProtocolError("an x")
        self.seen[way] += data
        whole = self._held[way] + data
        even = len(whole) // 2 * 2
        self._held[way] = whole[even:]
        return whole[:even].upper()


@pytest.mark.parametrize(("window", "most"), [(1, 1), (7, 3), (256 << 10, 64 << 10)])
async def test_each_byte_is_inspected_once_however_little_is_taken(window: int, most: int) -> None:
    data = bytes(random.Random(3).choices(b"abcdef", k=4000))
    async with scene(window=window, most=most) as (it, owner):
        inspector = Upper()
        it.pump(owner, inspector)

        async def client() -> None:
            await it.client_sends(data, piece=333)
            it.client.shutdown(socket.SHUT_WR)

        async def far() -> None:
            for at in range(0, len(data), 100):
                await it.far.write(data[at : at + 100])
            it.far.write_eof()

        owner.start(client(), name="client")
        owner.start(far(), name="far")
        reading = owner.start(it.client_reads(), name="client reads")
        assert await read_all(it.far) == data.upper()
        assert await reading == data.upper()
        assert inspector.seen == {"to": data, "from": data}
        assert it.counter == Counter(sent=len(data), received=len(data))


async def test_what_the_peer_sends_may_end_it_by_the_short_cut() -> None:
    async with scene() as (it, owner):
        it.pump(owner, Upper())
        await asyncio.sleep(0)
        await it.far.write(b"abcd")
        loop = asyncio.get_running_loop()
        assert await loop.sock_recv(it.client, 100) == b"ABCD"
        await it.far.write(b"ax")
        with pytest.raises(ConnectionResetError):
            await loop.sock_recv(it.client, 100)
        await until(lambda: len(it.broken) == 1)
        assert it.broken[0].what == "an x"
        with pytest.raises(Broken, match="an x"):
            await it.far.read()


class Waits(Unwatched):
    """A Flow that notes who waits now."""

    def __init__(self) -> None:
        self.target = self.peer = False

    def target_waits(self, waits: bool) -> None:
        self.target = waits

    def peer_waits(self, waits: bool) -> None:
        self.peer = waits


async def test_a_side_that_takes_nothing_more_is_told_of_until_it_does() -> None:
    async with scene(window=64 << 10) as (it, owner):
        waits = Waits()
        it.pump(owner, flow=waits)
        sending = owner.start(it.client_sends(bytes(8 << 20)), name="client")
        await until(lambda: waits.peer)
        assert not waits.target
        received = 0
        while received < 8 << 20:
            chunk = await it.far.read()
            received += len(chunk)
            it.far.consumed(len(chunk))
        await sending
        await until(lambda: not waits.peer)
        writing = owner.start(it.far.write(bytes(8 << 20)), name="far")
        await until(lambda: waits.target)
        received = 0
        while received < 8 << 20:
            received += len(await asyncio.get_running_loop().sock_recv(it.client, 1 << 16))
        await writing
        await until(lambda: not waits.target)


class Told(Unwatched):
    """A Passage."""

    def __init__(self, words: list[str]) -> None:
        self._words = words

    def sent(self) -> None:
        self._words.append("sent")

    def received(self) -> None:
        self._words.append("received")


async def test_only_what_passes_is_told_as_a_message() -> None:
    async with scene() as (it, owner):
        told: list[str] = []
        inspector = Upper()
        copying = pump(it.local, it.near, counter=it.counter, inspector=inspector, passage=Told(told))
        owner.start(copying, name="pump")
        loop = asyncio.get_running_loop()
        await it.client_sends(b"aa")
        assert await it.far.read() == b"AA"  # by now it copies
        told.clear()
        await it.far.write(b"c")
        await until(lambda: it.counter.received == 1)
        assert told == [], "a part of a message is kept"
        await it.far.write(b"d")
        assert await loop.sock_recv(it.client, 100) == b"CD"
        assert told == ["received"]
        await it.client_sends(b"a")
        await until(lambda: inspector.seen["to"] == b"aaa")
        assert told == ["received"]
        await it.client_sends(b"b")
        assert await it.far.read() == b"AB"
        assert told == ["received", "sent"]
        owner.cancel()


@pytest.mark.parametrize("seconds", [0.001, 3600.0])
async def test_what_a_peer_sends_waits_as_long_as_it_has_to(seconds: float) -> None:
    async with scene() as (it, owner):
        asked = 0

        def pause() -> float:
            nonlocal asked
            asked += 1
            return seconds if seconds > 1 or asked % 2 else 0.0  # it waits once for each chunk

        inspector = Upper()
        inspector.waits = pause
        copying = pump(it.local, it.near, counter=it.counter, inspector=inspector)
        owner.start(copying, name="pump")
        await it.client_sends(b"aa")
        assert await it.far.read() == b"AA", "the other way goes on"
        for _ in range(10):
            await it.far.write(b"cd" * 10)
        if seconds < 1:
            loop, got = asyncio.get_running_loop(), b""
            while len(got) < 200:
                got += await loop.sock_recv(it.client, 1000)
            assert got == b"CD" * 100
        else:
            await until(lambda: asked > 1)
            assert inspector.seen["from"] == b""
        owner.cancel()


async def test_nothing_overtakes_what_waits() -> None:
    """Its time may be over before the task that waits runs again: more can arrive in between."""
    async with scene() as (it, owner):
        loop, pauses = asyncio.get_running_loop(), [0.05, 0.05]

        def pause() -> float:
            if len(pauses) == 1:  # the first one is about to wait, and the second one comes late enough
                loop.call_soon(it.far.try_write, b"ef")
            return pauses.pop() if pauses else 0.0

        inspector = Upper()
        inspector.waits = pause
        copying = pump(it.local, it.near, counter=it.counter, inspector=inspector)
        owner.start(copying, name="pump")
        await it.client_sends(b"aa")
        assert await it.far.read() == b"AA"  # by now it copies
        await it.far.write(b"cd")
        got = b""
        while len(got) < 4:
            got += await loop.sock_recv(it.client, 100)
        assert got == b"CDEF"
        owner.cancel()
