"""Test how little, and how briefly, somebody who has proven nothing can harm a TCP listener."""

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncIterator

import pytest
from meshd.base.unproven_connections import MAX_UNPROVEN, MAX_UNPROVEN_OF_ONE
from meshd.identity.proof import MARK_NONCE_BYTES, caller_mark
from meshd.link.secure.tls import TlsEngine, dialer_context
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

from tests.conformance.links import serving
from tests.conformance.nodes import Node, TestMesh
from tests.conformance.run import DEADLINE, until

LOOPBACK = "127.0.0.1"
LONG = 2 * DEADLINE  # seconds: "never" for a test that waits for something else
SHORT = 0.2

# the first record of a ClientHello that announces 100,000 bytes: TLS itself would wait for the rest
LONG_HELLO = b"\x16\x03\x01\x40\x00" + b"\x01\x01\x86\xa0" + bytes(16380)


class House:
    """A listener, and connections that tests make to it."""

    def __init__(self, listener: TcpListener, near: Node, far: Node) -> None:
        self.listener = listener
        self.near = near
        self.far = far
        self.guests: list[socket.socket] = []

    async def knock(self, source: str = LOOPBACK) -> socket.socket:
        """Connect from `source`; the listener has taken it in when this returns."""
        sock = socket.socket()
        self.guests.append(sock)
        sock.setblocking(False)
        sock.bind((source, 0))
        await asyncio.get_running_loop().sock_connect(sock, (LOOPBACK, self.listener.port))
        return sock

    async def tls(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect and speak TLS, nothing more."""
        return await asyncio.open_connection(LOOPBACK, self.listener.port, ssl=dialer_context())

    async def honest_dial(self) -> None:
        place = Candidate(LOOPBACK, self.listener.port)
        link = await TcpDialer(self.near.now).dial(self.far.peer, trusted([place]))
        await link.aclose()


@contextlib.asynccontextmanager
async def house(*, proof_seconds: float = LONG) -> AsyncIterator[House]:
    mesh = TestMesh()
    near, far = mesh.node(), mesh.node()
    listener = TcpListener(far.now, host=LOOPBACK, proof_seconds=proof_seconds)
    listener.open()
    async with serving(listener):
        made = House(listener, near, far)
        try:
            yield made
        finally:
            for sock in made.guests:
                sock.close()


async def ended(sock: socket.socket) -> None:
    """The listener has closed this connection."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.get_running_loop().sock_recv(sock, 4096):
            pass


def client_hello(name: str) -> bytes:
    engine = TlsEngine(dialer_context(), server_side=False, server_hostname=name)
    assert not engine.advance()
    return engine.outgoing()


def closed(guests: list[socket.socket]) -> int:
    """The connections that the listener has closed."""
    count = 0
    for sock in guests:
        with contextlib.suppress(BlockingIOError):
            try:
                count += not sock.recv(1, socket.MSG_PEEK)
            except ConnectionError:
                count += 1
    return count


async def test_one_address_has_eight_places() -> None:
    async with house() as home:
        guests = [await home.knock() for _ in range(MAX_UNPROVEN_OF_ONE + 5)]
        await until(lambda: closed(guests) == 5)
        assert home.listener.unproven == MAX_UNPROVEN_OF_ONE
        await home.honest_dial()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and on are not local addresses here")
async def test_all_addresses_together_are_bounded() -> None:
    async with house() as home:
        sources = [f"127.0.0.{2 + number // 4}" for number in range(MAX_UNPROVEN + 8)]
        guests = [await home.knock(source) for source in sources]
        await until(lambda: closed(guests) == 8)
        assert home.listener.unproven == MAX_UNPROVEN
        await home.honest_dial()


@pytest.mark.skipif(sys.platform != "linux", reason="127.0.0.2 and on are not local addresses here")
async def test_a_caller_with_a_mark_is_not_displaced_by_strangers() -> None:
    async with house() as home:
        reader, writer = await asyncio.open_connection(LOOPBACK, home.listener.port)
        mark = caller_mark(home.near.handshake.mesh, home.far.peer, bytes(MARK_NONCE_BYTES))
        writer.write(client_hello(mark)[:-1])
        await until(lambda: home.listener.unproven == 1)
        for number in range(MAX_UNPROVEN + 20):
            await home.knock(f"127.1.{number}.1")
        await until(lambda: closed(home.guests) == 20)
        assert home.listener.unproven == MAX_UNPROVEN + 1
        writer.write(b"not TLS any more")
        await reader.read()
        writer.transport.abort()


async def test_a_silent_connection_is_closed_in_time() -> None:
    async with house(proof_seconds=SHORT) as home:
        await ended(await home.knock())
        await until(lambda: home.listener.unproven == 0)


async def test_tls_and_then_silence_is_closed_in_time() -> None:
    async with house(proof_seconds=1.5) as home:  # TLS is to be through by then
        reader, writer = await home.tls()
        assert await reader.read() == b""
        writer.close()
        await until(lambda: home.listener.unproven == 0)


@pytest.mark.parametrize(
    "words",
    [b"GET / HTTP/1.1\r\n\r\n", LONG_HELLO, b"\x00" * 20_000],
    ids=["http", "endless hello", "zeros"],
)
async def test_other_languages_are_hung_up_on(words: bytes) -> None:
    async with house() as home:
        sock = await home.knock()
        with contextlib.suppress(ConnectionError):
            await asyncio.get_running_loop().sock_sendall(sock, words)
        await ended(sock)
        await until(lambda: home.listener.unproven == 0)


@pytest.mark.parametrize(
    "words",
    [b"HELLO", b"MESHD\xff\xff", b"MESHD\x00\x01\xc0", b"MESHD" + b"\x00\x02\x80\x80" * 4096],
    ids=["magic", "too long", "not a message", "trickle"],
)
async def test_no_proof_in_four_kibibytes(words: bytes) -> None:
    async with house() as home:
        reader, writer = await home.tls()
        writer.write(words)
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await reader.read()
        writer.transport.abort()
        await until(lambda: home.listener.unproven == 0)


async def test_a_flood_before_the_proof_is_not_taken_in() -> None:
    """A listener whose proof waits reads 4 KiB and what TLS needs for a record, then leaves the socket."""

    async with house() as home:
        reader, writer = await home.tls()
        writer.write(b"MESHD\x0f\xff")  # a message of 4095 bytes is announced …
        for _ in range(64):
            writer.write(bytes(64 << 10))  # … and 4 MiB come
        with contextlib.suppress(ConnectionError, ssl.SSLError):
            await reader.read()
        writer.transport.abort()
        await until(lambda: home.listener.unproven == 0)
        await home.honest_dial()


async def test_tls_12_is_not_spoken() -> None:
    async with house() as home:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.maximum_version = ssl.TLSVersion.TLSv1_2
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.open_connection(LOOPBACK, home.listener.port, ssl=context)
        await until(lambda: home.listener.unproven == 0)


async def test_a_node_without_a_mesh_lets_nobody_in() -> None:
    async with house() as home:
        home.far.handshake = TestMesh().stranger().handshake
        reader, writer = await home.tls()
        assert await reader.read() == b""
        writer.close()
