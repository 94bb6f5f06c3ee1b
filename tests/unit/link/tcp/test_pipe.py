"""The pipe over a transport that is not one: what it pauses, drops and says, call by call."""

import asyncio
import functools
import ssl
from collections.abc import Iterable

import pytest
from meshd.base.errors import Broken, EndOfStream, RemoteProtocolError
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.secure.tls import TlsEngine, dialer_context, listener_context
from meshd.link.tcp.pipe import RECEIVE_HIGH_BYTES, LentSpace, TcpPipe


@functools.cache
def server_context() -> ssl.SSLContext:
    return listener_context(make_link_certificate())


class FakeSocket:
    """Takes options."""

    def setsockopt(self, *option: object) -> None:
        raise OSError("the other side has disconnected already")  # a pipe must not mind


class FakeTransport(asyncio.Transport):
    """Keeps what is written and notes what it is asked to do."""

    def __init__(self) -> None:
        super().__init__({"sockname": ("10.0.0.1", 1), "peername": ("fd00::2", 2), "socket": FakeSocket()})
        self.written = bytearray()
        self.backlog = 0
        self.paused = self.closed = self.aborted = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        raise AssertionError

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        assert high is not None and low is not None and low < high

    def get_write_buffer_size(self) -> int:
        return self.backlog

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True


def deliver(pipe: TcpPipe, data: bytes) -> None:
    """As the loop does: into the pipe's buffer, part by part."""
    while data:
        space = pipe.get_buffer(-1)
        part = data[: len(space)]
        space[: len(part)] = part
        pipe.buffer_updated(len(part))
        data = data[len(part) :]


def taken(transport: FakeTransport) -> bytes:
    data = bytes(transport.written)
    transport.written.clear()
    return data


async def secured() -> tuple[TcpPipe, FakeTransport, TlsEngine]:
    """A listener's pipe behind the TLS handshake, and the engine at its other end."""
    pipe, transport = TcpPipe(server_context(), server_side=True), FakeTransport()
    pipe.connection_made(transport)
    other = TlsEngine(dialer_context(), server_side=False)
    while not other.advance():
        deliver(pipe, other.outgoing())
        other.feed(taken(transport))
    deliver(pipe, other.outgoing())
    await pipe.secure()
    return pipe, transport, other


async def test_its_places_are_as_people_write_them() -> None:
    pipe, _, _ = await secured()
    assert (pipe.local, pipe.remote) == ("10.0.0.1:1", "[fd00::2]:2")


async def test_before_the_proof_it_buffers_four_kibibytes() -> None:
    pipe, transport, other = await secured()
    deliver(pipe, other.seal([bytes(3000)]))
    before = transport.paused
    deliver(pipe, other.seal([bytes(2000)]))
    assert (before, transport.paused) == (False, True)
    assert len(pipe.get_buffer(-1)) == 4096
    assert len(await pipe.receive()) == 3000
    assert transport.paused is False
    assert len(await pipe.receive()) == 2000


async def test_tiny_chunks_are_bounded_like_large_ones() -> None:
    pipe, transport, other = await secured()
    pipe.widen()
    count = 0
    while not transport.paused and count < RECEIVE_HIGH_BYTES:
        deliver(pipe, other.seal([b"x"]))
        count += 1
    assert count < RECEIVE_HIGH_BYTES // 64
    while transport.paused:
        assert await pipe.receive() == b"x"
        count -= 1
    assert count > 0  # reading goes on before all is read


async def test_the_buffer_grows_only_for_who_is_proven_and_busy() -> None:
    pipe, _, other = await secured()
    pipe.widen()
    first = len(pipe.get_buffer(-1))
    deliver(pipe, other.seal([b"small"]))
    assert len(pipe.get_buffer(-1)) == first
    for _ in range(4):
        deliver(pipe, other.seal([bytes(100_000)]))
    assert len(pipe.get_buffer(-1)) == 256 << 10
    for _ in range(3):
        deliver(pipe, other.seal([bytes(600_000)]))
    assert len(pipe.get_buffer(-1)) == 512 << 10
    assert len(await pipe.receive()) == 5


async def test_the_buffer_is_given_back_when_little_comes_for_long() -> None:
    pipe, _, other = await secured()
    pipe.widen()
    pipe.divert(lambda _data: True)
    first = len(pipe.get_buffer(-1))
    deliver(pipe, other.seal([bytes(100_000)]))
    grown = len(pipe.get_buffer(-1))
    for _ in range(999):
        deliver(pipe, other.seal([b"small"]))
    deliver(pipe, other.seal([bytes(20_000)]))  # not so little
    for _ in range(999):
        deliver(pipe, other.seal([b"small"]))
    assert len(pipe.get_buffer(-1)) == grown > first
    deliver(pipe, other.seal([b"small"]))
    assert len(pipe.get_buffer(-1)) == first


async def diverted(*sizes: int) -> list[bytes | memoryview]:
    """Return what a taker that keeps everything gets of messages of these sizes, each of another letter."""
    pipe, _, other = await secured()
    pipe.widen()
    kept: list[bytes | memoryview] = []

    def take(data: bytes | memoryview) -> bool:
        kept.append(data)
        return True

    pipe.divert(take)
    deliver(pipe, other.seal([bytes(100_000)]))  # it is busy
    kept.clear()
    for at, size in enumerate(sizes):
        deliver(pipe, other.seal([bytes([ord("a") + at]) * size]))
    return kept


async def test_what_a_taker_keeps_is_not_written_over() -> None:
    kept = await diverted(70_000, 70_000, 70_000)
    assert [bytes(chunk) for chunk in kept] == [letter * 70_000 for letter in (b"a", b"b", b"c")]


async def test_a_taker_gets_much_as_a_view_that_it_cannot_change_and_little_as_its_own() -> None:
    much, little = await diverted(70_000, 10)
    assert isinstance(much, memoryview)
    assert much.readonly
    assert isinstance(little, bytes)


async def test_what_a_taker_leaves_waits_as_it_was() -> None:
    pipe, _, other = await secured()
    pipe.widen()
    deliver(pipe, other.seal([bytes(100_000)]))
    while pipe.unread_bytes:
        await pipe.receive()
    pipe.divert(lambda _data: False)
    for letter in (b"a", b"b"):
        deliver(pipe, other.seal([letter * 70_000]))
    assert [await pipe.receive() for _ in range(2)] == [b"a" * 70_000, b"b" * 70_000]


async def test_tcp_ending_without_a_goodbye_is_broken() -> None:
    pipe, _, other = await secured()
    deliver(pipe, other.seal([b"last words"]))
    assert not pipe.eof_received()
    assert await pipe.receive() == b"last words"
    with pytest.raises(Broken):
        await pipe.receive()
    with pytest.raises(Broken):
        await pipe.send([b"x"])


async def test_a_goodbye_is_answered_and_the_socket_closed() -> None:
    pipe, transport, other = await secured()
    taken(transport)
    other.finish()
    deliver(pipe, other.outgoing())
    assert transport.closed
    other.feed(taken(transport))
    with pytest.raises(EndOfStream):
        other.unseal(memoryview(bytearray(10)))
    with pytest.raises(EndOfStream):
        await pipe.receive()


async def test_a_forged_record_is_broken() -> None:
    pipe, transport, other = await secured()
    record = bytearray(other.seal([b"pay 10"]))
    record[-1] ^= 1
    deliver(pipe, bytes(record))
    assert transport.closed
    with pytest.raises(Broken):
        await pipe.receive()


async def test_who_never_reads_what_it_asks_for_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe, transport, other = await secured()
    transport.backlog = 100 << 20
    asking = other.seal([b"one more"])
    monkeypatch.setattr(TlsEngine, "outgoing", lambda _engine: b"the answer to a key update")
    deliver(pipe, asking)
    assert await pipe.receive() == b"one more"
    assert transport.closed
    with pytest.raises(Broken):
        await pipe.receive()


async def test_what_would_have_to_wait_is_not_taken() -> None:
    pipe, transport, other = await secured()
    taken(transport)
    pipe.pause_writing()
    assert not pipe.try_send([b"more"])
    assert not transport.written
    pipe.resume_writing()
    assert pipe.try_send([b"more"])
    other.feed(taken(transport))
    space = memoryview(bytearray(10))
    assert bytes(space[: other.unseal(space)]) == b"more"


async def test_another_language_is_told_from_a_break() -> None:
    pipe, transport = TcpPipe(server_context(), server_side=True), FakeTransport()
    pipe.connection_made(transport)
    deliver(pipe, b"GET / HTTP/1.1\r\n\r\n")
    with pytest.raises(RemoteProtocolError) as caught:
        await pipe.secure()
    assert caught.value.code == "tls"
    assert transport.closed
    gone = TcpPipe(server_context(), server_side=True)
    gone.connection_made(FakeTransport())
    gone.connection_lost(ConnectionResetError(104, "Connection reset by peer"))
    with pytest.raises(Broken) as broken:
        await gone.secure()
    assert "connection reset by peer" in broken.value.what


def test_it_is_used_again_when_no_part_of_it_is_kept() -> None:
    space = LentSpace(1000)
    view = space.open()
    view[:5] = b"first"
    part = view[2:4].toreadonly()
    del view, part
    again = space.open()
    assert len(again) == len(space) == 1000
    assert bytes(again[:5]) == b"first"  # the same memory
