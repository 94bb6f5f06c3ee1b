"""The pipe over a QUIC engine: what it holds, when it wakes, how it ends. The engine is a stub."""

import asyncio
import subprocess
import sys
from collections.abc import Sequence
from typing import cast

import pytest
from meshd.base.errors import Broken, Closed, EndOfStream, RemoteProtocolError
from meshd.link.buffered_pipe import SEND_HIGH_BYTES
from meshd.link.net.udp_sockets import Origin
from meshd.link.quic.engine import QuicEngine
from meshd.link.quic.pipe import MAX_HELD_BYTES, RECEIVE_BYTES, SEND_LOW_BYTES, QuicPipe

from tests.conformance.run import ticks, until

FAR = Origin(("192.0.2.1", 1000))


class StubEngine:
    """Says what it is told to say."""

    def __init__(self) -> None:
        self.inbox: list[bytes] = []
        self.new_ids: list[bytes] = []
        self.old_ids: list[bytes] = []
        self.host_cid = b"12345678"
        self.secured = True
        self.ended = False
        self.gone: str | None = None
        self.unsent = self.held = self.consumed = 0
        self.finished = False
        self.written: list[bytes] = []
        self.closed = self.pings = self.timers = self.fins = 0
        self.credit_due = False
        self.timer: float | None = None
        self.due: list[tuple[bytes, Origin]] = []
        self.fails = False

    def receive_datagram(self, data: bytes, addr: Origin, now: float) -> None:
        if self.fails:
            raise IndexError("a bug")
        self.inbox.append(data)

    def handle_timer(self, now: float) -> None:
        self.timers += 1
        self.timer = None

    def get_timer(self) -> float | None:
        return self.timer

    def poll(self) -> None: ...

    def datagrams_to_send(self, now: float) -> list[tuple[bytes, Origin]]:
        due, self.due = self.due, []
        return due

    def get_peer_address(self) -> Origin | None:
        return FAR

    def quiet(self, now: float) -> bool:
        return not self.due

    def path_probe(self, now: float) -> bytes | None:
        return None

    def send_ping(self, uid: int) -> None:
        self.pings += 1

    def binding(self) -> bytes:
        return b""

    def consume(self, size: int) -> bool:
        self.consumed += size
        return self.credit_due

    def widen(self, mtu: int) -> None: ...

    def write(self, pieces: Sequence[bytes | memoryview]) -> None:
        self.written += map(bytes, pieces)

    def finish(self) -> None:
        self.fins += 1

    def close(self, error_code: int = 0, frame_type: int | None = None, reason_phrase: str = "") -> None:
        self.closed += 1


class StubPort:
    def __init__(self) -> None:
        self.full = False
        self.sent: list[bytes] = []
        self.names: list[bytes] = []
        self.forgotten = 0

    def send(self, datagrams: Sequence[bytes], origin: Origin) -> None:
        self.sent += datagrams

    def probe(self, datagram: bytes, origin: Origin) -> None:
        self.sent.append(datagram)

    def mtu(self, origin: Origin) -> int:
        return 1500

    def renamed(self, pipe: QuicPipe, new: Sequence[bytes], old: Sequence[bytes]) -> None:
        self.names += new

    def forget(self, pipe: QuicPipe) -> None:
        self.forgotten += 1


def made(*, idle_seconds: float = 1000.0) -> tuple[QuicPipe, StubEngine, StubPort]:
    engine, port = StubEngine(), StubPort()
    return QuicPipe(cast(QuicEngine, engine), port, place="far", idle_seconds=idle_seconds), engine, port


@pytest.mark.parametrize(
    ("name", "full", "room"),
    [("unsent", SEND_HIGH_BYTES, SEND_LOW_BYTES), ("held", MAX_HELD_BYTES, MAX_HELD_BYTES - 1)],
)
async def test_a_sender_waits_while_too_much_is_held(name: str, full: int, room: int) -> None:
    pipe, engine, _ = made()
    setattr(engine, name, full)
    sending = asyncio.get_running_loop().create_task(pipe.send([b"first"]))
    await ticks(5)
    assert engine.written == [b"first"]
    assert not sending.done()
    assert not pipe.try_send([b"second"])
    setattr(engine, name, room)
    pipe.advance()
    await sending
    assert pipe.try_send([b"second"])
    pipe.abort()


async def test_small_pieces_go_together() -> None:
    pipe, engine, _ = made()
    await pipe.send([b"a", b"b", b"c"])
    await pipe.send([b"x", bytes(100_000)])
    assert list(map(len, engine.written)) == [3, 1, 100_000]
    pipe.abort()


async def test_credit_is_given_for_what_was_read_alone() -> None:
    pipe, engine, port = made()
    pipe.datagram(bytes(RECEIVE_BYTES + 10), FAR, 1.0)
    pipe.advance()
    assert engine.consumed == 0
    assert len(await pipe.receive()) == RECEIVE_BYTES
    assert engine.consumed == RECEIVE_BYTES
    engine.credit_due, engine.due = True, [(b"credit", FAR)]
    assert len(await pipe.receive()) == 10
    assert port.sent == [b"credit"], "at once: the other side may be waiting for it"
    pipe.abort()


async def test_what_is_taken_on_the_way_is_never_waiting() -> None:
    pipe, engine, _ = made()
    taken: list[bytes | memoryview] = []
    refuse = [False]

    def take(data: bytes | memoryview) -> bool:
        if not refuse[0]:
            taken.append(data)
        return not refuse[0]

    pipe.divert(take)
    pipe.datagram(b"one", FAR, 1.0)
    pipe.advance()
    assert (taken, engine.consumed, pipe.unread_bytes) == ([b"one"], 3, 0)
    refuse[0] = True
    pipe.datagram(b"two", FAR, 1.0)
    pipe.advance()
    refuse[0] = False
    pipe.datagram(b"three", FAR, 1.0)
    pipe.advance()
    assert taken == [b"one"], "nothing overtakes what waits"
    assert await pipe.receive() == b"twothree"
    pipe.abort()


async def test_a_full_port_is_left_alone() -> None:
    pipe, engine, port = made()
    port.full, engine.due = True, [(b"later", FAR)]
    pipe.advance()
    assert port.sent == []
    port.full = False
    pipe.transmit()
    assert port.sent == [b"later"]
    pipe.abort()


async def test_a_silent_link_asks_for_a_sign_of_life() -> None:
    pipe, engine, _ = made(idle_seconds=0.05)
    pipe.advance()
    await until(lambda: engine.pings >= 3)
    pipe.abort()
    pings = engine.pings
    await asyncio.sleep(0.1)
    assert engine.pings == pings


async def test_timers_of_the_engine_are_kept() -> None:
    pipe, engine, _ = made()
    engine.timer = asyncio.get_running_loop().time() + 0.02
    pipe.advance()
    await until(lambda: engine.timers == 1)
    pipe.abort()


@pytest.mark.parametrize("secured", [True, False])
async def test_a_connection_that_is_gone_breaks_the_pipe(secured: bool) -> None:
    pipe, engine, port = made()
    engine.secured, engine.gone = secured, "idle timeout"
    pipe.datagram(b"last", FAR, 1.0)
    pipe.advance()
    assert port.forgotten == 1
    assert await pipe.receive() == b"last"
    with pytest.raises(Broken if secured else RemoteProtocolError, match="idle timeout"):
        await pipe.receive()
    with pytest.raises(Broken if secured else RemoteProtocolError):
        await pipe.send([b"x"])


async def test_an_end_comes_after_what_was_unread() -> None:
    pipe, engine, port = made()
    pipe.datagram(b"last", FAR, 1.0)
    engine.ended = True
    pipe.advance()
    assert (engine.closed, port.forgotten) == (1, 1)
    assert await pipe.receive() == b"last"
    with pytest.raises(EndOfStream):
        await pipe.receive()
    with pytest.raises(Broken):
        pipe.try_send([b"x"])


async def test_closing_waits_for_what_was_sent() -> None:
    pipe, engine, port = made()
    closing = asyncio.get_running_loop().create_task(pipe.aclose())
    await ticks(5)
    assert engine.fins == 1
    assert not closing.done()
    engine.finished = True
    pipe.advance()
    await closing
    assert (engine.closed, port.forgotten) == (1, 1)
    with pytest.raises(Closed):
        await pipe.receive()


async def test_a_defect_of_the_library_ends_this_link_and_is_seen() -> None:
    pipe, engine, port = made()
    engine.fails = True
    with pytest.raises(IndexError):
        pipe.datagram(b"x", FAR, 1.0)
    assert port.forgotten == 1
    with pytest.raises(Broken):
        await pipe.receive()


async def test_new_names_are_told_to_the_port() -> None:
    pipe, engine, port = made()
    engine.new_ids = [b"one"]
    pipe.advance()
    pipe.advance()
    assert port.names == [b"one"]
    pipe.abort()


def test_the_library_is_loaded_when_somebody_comes() -> None:
    """A node that nobody reaches by QUIC pays no memory for it, though it listens."""
    script = """
import asyncio, sys
from meshd.base.tasks import Owner
from meshd.link.quic import links
from meshd.link.quic import over_ice
from meshd.link.quic.links import QuicListener
from tests.conformance.nodes import TestMesh

async def main():
    listener = QuicListener(TestMesh().node().now, host="127.0.0.1")
    listener.open()
    async def accept(link): ...
    async with Owner() as owner:
        owner.start(listener.serve(accept), name="serve")
        await asyncio.sleep(0.05)
        owner.cancel()

asyncio.run(main())
sys.exit(any(name in sys.modules for name in ("aioquic", "aioice", "aiortc")))
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
