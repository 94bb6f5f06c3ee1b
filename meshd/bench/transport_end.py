"""One side of `bench transport`, a process of its own: `python -m meshd.bench.transport_end JSON`.

The orders come as one JSON argument, results go to standard output as one JSON line. The processes talk
with each other over an inherited unix socket.
"""

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
import statistics
import sys
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Protocol

from meshd.base import log
from meshd.base.errors import EndOfStream
from meshd.base.tasks import Owner
from meshd.bench import wan
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Chain, Role, issue
from meshd.identity.proof import Credentials
from meshd.identity.tls_certificate import make_link_certificate
from meshd.link.interface import Dialer, Link, Listener
from meshd.link.quic.links import QuicDialer, QuicListener
from meshd.link.secure.handshake import HandshakeContext
from meshd.link.secure.tls import dialer_context, listener_context
from meshd.link.tcp.links import TcpDialer, TcpListener
from meshd.link.webrtc.links import WebRtcLinks
from meshd.wire.address import Candidate
from meshd.wire.dialable import trusted

_BLOCK = bytes(64 << 10)
MOST_TALK = 64 << 10
PING_SIZES = (64, 10 << 10)
WARM_PINGS = 30
WARM_SECONDS = 2.0  # of a flow without end that do not count

CONTROL: Mapping[str, str] = {  # congestion control, where it is not the kernel's
    "webrtc": "model",
    "quic": "model",
    "udp": "none",
}
_READ_BYTES = 256 << 10


class BenchTalk(Protocol):
    """A channel for short messages between the two processes, apart from the measured one."""

    async def send(self, payload: bytes) -> None: ...
    async def receive(self) -> bytes: ...


class BenchPipe(Protocol):
    """The measured connection."""

    async def send(self, data: Sequence[bytes | memoryview]) -> None: ...
    async def receive(self) -> bytes: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchPlace:
    """The place of one side: `host` is its address, `far_host` the far side's.

    `control`: the congestion control of bare TCP.
    """

    is_near: bool
    host: str
    far_host: str
    talk: BenchTalk
    control: str = ""


BenchTransport = Callable[[BenchPlace], AbstractAsyncContextManager[BenchPipe]]


# --- meshd's links


def _mesh() -> tuple[MeshId, KeyPair, KeyPair, KeyPair]:
    root, near, far = (
        KeyPair.from_seed(hashlib.sha256(name).digest()) for name in (b"root", b"near", b"far")
    )
    return MeshId.of(root.peer), root, near, far


def _handshake(place: BenchPlace) -> tuple[Callable[[], HandshakeContext], PeerId]:
    """Return the credentials of this side for handshakes, and the id of the other."""
    mesh, root, near, far = _mesh()
    own, other = (near, far) if place.is_near else (far, near)
    certificate = issue(
        signer=root,
        mesh=mesh,
        node=own.peer,
        roles={Role.USE, Role.WORK},
        serial=bytes(16),
        invite=b"",
        issued_at=0,
    )
    chain = Chain((certificate,), root.peer)
    handshake = HandshakeContext(credentials=Credentials(own, chain), mesh=mesh)
    return lambda: handshake, other.peer


class _TalkSignals:
    """Signals to the single peer, over the talk."""

    def __init__(self, talk: BenchTalk, other: PeerId) -> None:
        self._talk = talk
        self._other = other

    async def send(self, peer: PeerId, payload: bytes) -> None:
        await self._talk.send(payload)

    async def receive(self) -> tuple[PeerId, bytes]:
        try:
            return self._other, await self._talk.receive()
        except EndOfStream:
            await asyncio.Event().wait()  # the other process is done; so are we in a moment
            raise


@asynccontextmanager
async def _accepted(listener: Listener) -> AsyncIterator[Link]:
    links: asyncio.Queue[Link] = asyncio.Queue(1)

    async def accept(link: Link) -> None:
        await links.put(link)
        await asyncio.Event().wait()

    async with Owner() as owner:
        owner.start(listener.serve(accept), name="serve")
        yield await links.get()
        owner.cancel()


@asynccontextmanager
async def _dialled(dialer: Dialer, peer: PeerId, candidates: Sequence[Candidate]) -> AsyncIterator[Link]:
    link = await dialer.dial(peer, trusted(candidates))
    yield link
    await link.aclose()


@asynccontextmanager
async def webrtc(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    handshake, other = _handshake(place)
    links = WebRtcLinks(handshake, _TalkSignals(place.talk, other), hosts=lambda: [place.host])
    if not place.is_near:
        async with _accepted(links) as link:
            yield link
        return

    async def nobody(link: Link) -> None:
        return None

    async with Owner() as owner:
        owner.start(links.serve(nobody), name="serve")
        async with _dialled(links, other, ()) as link:
            yield link
        owner.cancel()


@asynccontextmanager
async def tcp(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    handshake, other = _handshake(place)
    if place.is_near:
        port = int(await place.talk.receive())
        async with _dialled(TcpDialer(handshake), other, [Candidate(place.far_host, port)]) as link:
            yield link
    else:
        listener = TcpListener(handshake, host=place.host)
        listener.open()
        await place.talk.send(str(listener.port).encode())
        async with _accepted(listener) as link:
            yield link


@asynccontextmanager
async def quic(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    handshake, other = _handshake(place)
    if place.is_near:
        port = int(await place.talk.receive())
        where = [Candidate(place.far_host, port, "udp")]
        async with _dialled(QuicDialer(handshake), other, where) as link:
            yield link
    else:
        listener = QuicListener(handshake, host=place.host)
        listener.open()
        await place.talk.send(str(listener.port).encode())
        async with _accepted(listener) as link:
            yield link


# --- without meshd


class _BenchStreamPipe:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        self._writer.writelines(data)
        await self._writer.drain()

    async def receive(self) -> bytes:
        return await self._reader.read(_READ_BYTES)


@asynccontextmanager
async def tls(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    """Connect with asyncio's TLS 1.3 over TCP."""
    async with _streams(place, listener_context(make_link_certificate()), dialer_context()) as pipe:
        yield pipe


@asynccontextmanager
async def plain(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    """Connect with bare TCP."""
    async with _streams(place, None, None) as pipe:
        yield pipe


@asynccontextmanager
async def _streams(
    place: BenchPlace, server: ssl.SSLContext | None, client: ssl.SSLContext | None
) -> AsyncIterator[BenchPipe]:
    if place.is_near:
        port = int(await place.talk.receive())
        reader, writer = await asyncio.open_connection(place.far_host, port, ssl=client, limit=_READ_BYTES)
        if place.control and sys.platform == "linux":
            # by socket: a network of its own takes no default but the machine's (tcp_congestion_control)
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, place.control.encode())
        yield _BenchStreamPipe(reader, writer)
        writer.close()
        return
    arrived: asyncio.Queue[_BenchStreamPipe] = asyncio.Queue(1)
    listening = await asyncio.start_server(
        lambda reader, writer: arrived.put_nowait(_BenchStreamPipe(reader, writer)),
        place.host,
        0,
        ssl=server,
        limit=_READ_BYTES,
    )
    await place.talk.send(str(listening.sockets[0].getsockname()[1]).encode())
    async with listening:
        yield await arrived.get()


@asynccontextmanager
async def udp(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    """Exchange bare datagrams, which show the cost of a round trip without any layer. Not for bulk."""
    arrived: asyncio.Queue[bytes] = asyncio.Queue(64)
    others: list[tuple[str, int]] = []

    class Receiver(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
            others[:] = [addr]
            arrived.put_nowait(data)

    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Receiver, local_addr=(place.host, 0))
    if place.is_near:
        others.append((place.far_host, int(await place.talk.receive())))
    else:
        await place.talk.send(str(transport.get_extra_info("sockname")[1]).encode())

    class Datagrams:
        async def send(self, data: Sequence[bytes | memoryview]) -> None:
            transport.sendto(b"".join(data), others[0])

        async def receive(self) -> bytes:
            return await arrived.get()

    yield Datagrams()
    transport.close()


TRANSPORTS: Mapping[str, BenchTransport] = {
    "tcp": tcp,
    "webrtc": webrtc,
    "tls": tls,
    "plain": plain,
    "quic": quic,
    "udp": udp,
}


# --- one side of a measurement


@dataclass(frozen=True, slots=True, kw_only=True)
class EndOrders:
    """The orders for one side of a measurement. `talk` and `device` are descriptors of sockets.

    `device`: where to send the TUN device; -1: use loopback. `join`: the process whose network to enter
    instead. `bulk` bytes are sent, then `pings` of each size.
    """

    transport: str
    is_near: bool
    talk: int
    device: int = -1
    join: int = 0
    control: str = ""  # congestion control of TCP; empty: the system's
    bulk: int = 0
    pings: int = 0
    seconds: float = 0.0  # send without end, for so long


class _SocketTalk:
    """Talk over a unix socket of packets."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    async def send(self, payload: bytes) -> None:
        await asyncio.get_running_loop().sock_sendall(self._sock, payload)

    async def receive(self) -> bytes:
        data = await asyncio.get_running_loop().sock_recv(self._sock, MOST_TALK)
        if not data:
            raise EndOfStream("the other process has ended")
        return data


async def _near(pipe: BenchPipe, orders: EndOrders) -> tuple[float, tuple[float, ...]]:
    loop = asyncio.get_running_loop()
    await pipe.send([b"!"])  # a stream may exist over there only once it carries something
    await _read(pipe, 1)
    seconds = 0.0
    if orders.bulk:
        began = loop.time()
        for _ in range(orders.bulk // len(_BLOCK)):
            await pipe.send([_BLOCK])
        await _read(pipe, 1)
        seconds = loop.time() - began
    end = loop.time() + orders.seconds
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout_at(end):  # the far side stops reading before: a send may wait for good
            while loop.time() < end:
                await pipe.send([_BLOCK])
    medians = []
    for size in PING_SIZES if orders.pings else ():
        times = []
        data = bytes(size)
        for _ in range(WARM_PINGS + orders.pings):
            began = loop.time()
            await pipe.send([data])
            await _read(pipe, size)
            times.append(loop.time() - began)
        medians.append(statistics.median(times[WARM_PINGS:]))
    return seconds, tuple(medians)


async def _far(pipe: BenchPipe, orders: EndOrders) -> float:
    """Play the far side; return the bytes per second that arrive, if the near side sends without end."""
    loop = asyncio.get_running_loop()
    await _read(pipe, 1)
    await pipe.send([b"!"])
    if orders.bulk:
        await _read(pipe, orders.bulk // len(_BLOCK) * len(_BLOCK))
        await pipe.send([b"!"])
    for size in PING_SIZES if orders.pings else ():
        for _ in range(WARM_PINGS + orders.pings):
            await _read(pipe, size)
            await pipe.send([bytes(size)])
    if not orders.seconds:
        return 0.0
    count, began, end = 0, loop.time() + WARM_SECONDS, loop.time() + orders.seconds - 0.2
    while (now := loop.time()) < end:
        size = len(await pipe.receive())
        count += size if now >= began else 0
    return count / (end - began)


async def _read(pipe: BenchPipe, count: int) -> None:
    while count > 0:
        count -= len(await pipe.receive())
    if count:
        raise RuntimeError("more came than was sent")


async def _measure(orders: EndOrders, transport: BenchTransport) -> None:
    with socket.socket(fileno=orders.talk) as sock:
        sock.setblocking(False)
        talk = _SocketTalk(sock)
        # where both sides are
        isolated = orders.device >= 0 or orders.join > 0
        own, other = (wan.NEAR_HOST, wan.FAR_HOST) if orders.is_near else (wan.FAR_HOST, wan.NEAR_HOST)
        place = BenchPlace(
            is_near=orders.is_near,
            host=own if isolated else "127.0.0.1",
            far_host=(other if orders.is_near else own) if isolated else "127.0.0.1",
            talk=talk,
            control=orders.control,
        )
        _write("ready")
        await asyncio.to_thread(sys.stdin.readline)  # all pairs begin together
        # connect, and measure
        began = asyncio.get_running_loop().time()
        async with transport(place) as pipe:
            connected = asyncio.get_running_loop().time() - began
            seconds, rate = 0.0, 0.0
            pings: tuple[float, ...] = ()
            if orders.is_near:
                seconds, pings = await _near(pipe, orders)
            else:
                rate = await _far(pipe, orders)
            # report seconds, the median round trips by size, and bytes per second of endless sending
            _write(json.dumps({"connect": connected, "bulk": seconds, "pings": pings, "rate": rate}))
            if not orders.is_near:  # the near side closes first
                with contextlib.suppress(EndOfStream, asyncio.TimeoutError):
                    async with asyncio.timeout(5):
                        await asyncio.to_thread(sys.stdin.read)
        raise SystemExit(0)


def _write(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _settle(orders: EndOrders) -> deque[int]:
    """Enter the ordered network, if any; return the descriptors that must stay open."""
    kept: deque[int] = deque()
    if orders.join:
        wan.join(orders.join)
    elif orders.device >= 0:
        own, other = (wan.NEAR_HOST, wan.FAR_HOST) if orders.is_near else (wan.FAR_HOST, wan.NEAR_HOST)
        device = wan.enter(own, other)
        kept.append(device)
        with socket.socket(fileno=orders.device) as sock:
            wan.hand_over(device, sock)
    return kept


def main(given: str, transports: Mapping[str, BenchTransport]) -> None:
    """Follow the orders that are `given` as JSON, with one of the transports."""
    log.set_up(level="error")
    orders = EndOrders(**json.loads(given))
    held = _settle(orders)
    try:
        asyncio.run(_measure(orders, transports[orders.transport]))
    finally:
        held.clear()


if __name__ == "__main__":
    main(sys.argv[1], TRANSPORTS)
