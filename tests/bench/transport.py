"""The libraries below meshd's links and iroh, unmodified: `python -m tests.bench.transport --ways iroh`.

To be compared with `meshd bench transport` of the same machine. With orders as its one argument it is one
side of a measurement (meshd/bench/transport_end.py).
"""

import argparse
import asyncio
import ssl
import sys
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from meshd.base.errors import MeshdError
from meshd.bench import transport_end
from meshd.bench.interface import TransportBenchArgs
from meshd.bench.transport import measure_all, show
from meshd.bench.transport_end import BenchPipe, BenchPlace, BenchTransport
from meshd.cli.output import standard
from meshd.identity.tls_certificate import make_link_certificate

MESSAGE_BYTES = 16 << 10
_HIGH_BYTES = 1 << 20  # what is queued inside the library before the sender waits
_READ_BYTES = 256 << 10


@asynccontextmanager
async def aiortc(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    """Connect with a data channel of aiortc, including SDP."""
    from aiortc import RTCConfiguration, RTCDataChannel, RTCPeerConnection, RTCSessionDescription

    connection = RTCPeerConnection(RTCConfiguration(iceServers=[]))
    opened: asyncio.Queue[RTCDataChannel] = asyncio.Queue(1)
    if place.is_near:
        channel = connection.createDataChannel("bench")
        channel.on("open", lambda: opened.put_nowait(channel))
        await connection.setLocalDescription(await connection.createOffer())
        await _tell(place, connection.localDescription.sdp)
        answer = RTCSessionDescription(await _hear(place), "answer")
        await connection.setRemoteDescription(answer)
    else:
        connection.on("datachannel", opened.put_nowait)
        await connection.setRemoteDescription(RTCSessionDescription(await _hear(place), "offer"))
        await connection.setLocalDescription(await connection.createAnswer())
        await _tell(place, connection.localDescription.sdp)
    yield _ChannelPipe(await opened.get())
    await connection.close()


async def _tell(place: BenchPlace, text: str) -> None:
    await place.talk.send(text.encode())


async def _hear(place: BenchPlace) -> str:
    return (await place.talk.receive()).decode()


class _ChannelPipe:
    def __init__(self, channel: "RTCDataChannel") -> None:  # type: ignore[name-defined]  # noqa: F821
        self._channel = channel
        self._chunks: deque[bytes] = deque()
        self._readable, self._writable = asyncio.Event(), asyncio.Event()
        channel.bufferedAmountLowThreshold = _HIGH_BYTES // 2
        channel.on("message", self._arrived)
        channel.on("bufferedamountlow", self._writable.set)

    def _arrived(self, message: bytes) -> None:
        self._chunks.append(message)
        self._readable.set()

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        whole = b"".join(data)
        for at in range(0, len(whole), MESSAGE_BYTES):
            self._channel.send(whole[at : at + MESSAGE_BYTES])
        while self._channel.bufferedAmount > _HIGH_BYTES:
            self._writable.clear()
            await self._writable.wait()

    async def receive(self) -> bytes:
        while not self._chunks:
            self._readable.clear()
            await self._readable.wait()
        return self._chunks.popleft()


@asynccontextmanager
async def aioquic(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    """Connect with one stream of aioquic with its defaults (Reno)."""
    from aioquic.asyncio.client import connect
    from aioquic.asyncio.server import serve
    from aioquic.quic.configuration import QuicConfiguration

    # the near side dials
    if place.is_near:
        port = int(await place.talk.receive())
        settings = QuicConfiguration(is_client=True, alpn_protocols=["bench"], verify_mode=ssl.CERT_NONE)
        async with connect(place.far_host, port, configuration=settings) as connection:
            reader, writer = await connection.create_stream()
            yield _StockQuicPipe(reader, writer)
        return
    # the far side listens, with a certificate from files
    arrived: asyncio.Queue[_StockQuicPipe] = asyncio.Queue(1)
    settings = QuicConfiguration(is_client=False, alpn_protocols=["bench"])
    with tempfile.TemporaryDirectory(prefix="meshd-bench-") as folder:
        made = make_link_certificate()
        files = Path(folder) / "certificate", Path(folder) / "key"
        files[0].write_bytes(made.cert_pem)
        files[1].write_bytes(made.key_pem)
        settings.load_cert_chain(*files)
    server = await serve(
        place.host,
        0,
        configuration=settings,
        stream_handler=lambda reader, writer: arrived.put_nowait(_StockQuicPipe(reader, writer)),
    )
    transport = server._transport
    assert transport is not None
    await place.talk.send(str(transport.get_extra_info("sockname")[1]).encode())
    yield await arrived.get()
    server.close()


class _StockQuicPipe:
    """A stream of aioquic that waits while its buffer is full, because aioquic's writer never does."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        self._writer.write(b"".join(data))
        transport = self._writer.transport
        connection = transport.protocol._quic  # type: ignore[attr-defined]
        sender = connection._streams[transport.stream_id].sender  # type: ignore[attr-defined]
        while len(sender._buffer) > _HIGH_BYTES:  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.001)

    async def receive(self) -> bytes:
        data = await self._reader.read(_READ_BYTES)
        if not data:
            raise MeshdError("the connection ended")
        return data


@asynccontextmanager
async def iroh(place: BenchPlace) -> AsyncIterator[BenchPipe]:
    """Connect with one stream of iroh (QUIC in Rust, by its Python bindings), without relays and lookups."""
    import iroh as library

    options = library.EndpointOptions(
        preset=library.preset_minimal(), alpns=[b"bench"], relay_mode=library.RelayMode.disabled()
    )
    endpoint = await library.Endpoint.bind(options)
    # the near side dials the id and port that the far side sends
    if place.is_near:
        key, port = (await _hear(place)).split()
        address = library.EndpointAddr(
            library.EndpointId.from_string(key), None, [f"{place.far_host}:{port}"]
        )
        connection = await endpoint.connect(address, b"bench")
        stream = await connection.open_bi()
    else:
        port = next(bound.rpartition(":")[2] for bound in endpoint.bound_sockets() if "[" not in bound)
        await _tell(place, f"{endpoint.id()} {port}")
        # the far side sends both, and accepts
        incoming = await endpoint.accept_next()
        if incoming is None:
            raise MeshdError("iroh stopped listening")
        connection = await (await incoming.accept()).connect()
        stream = await connection.accept_bi()

    class StockStream:
        async def send(self, data: Sequence[bytes | memoryview]) -> None:
            await stream.send().write_all(b"".join(data))

        async def receive(self) -> bytes:
            return bytes(await stream.recv().read(_READ_BYTES))

    yield StockStream()
    await endpoint.close()


STOCK: Mapping[str, BenchTransport] = {"aiortc": aiortc, "aioquic": aioquic, "iroh": iroh}
END = "tests.bench.transport"
_CONTROL = {"aiortc": "RFC 9260", "aioquic": "Reno", "iroh": "Cubic"}  # congestion control


def main(argv: Sequence[str]) -> None:
    """Measure the stock transports, and print tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ways", default=",".join(STOCK))
    parser.add_argument("--only", choices=("loopback", "lines"))
    given = parser.parse_args(argv)
    args = TransportBenchArgs(
        transports=tuple(given.ways.split(",")),
        loopback=given.only in (None, "loopback"),
        lines=given.only in (None, "lines"),
        beside=False,
    )
    out = standard()
    figures = asyncio.run(measure_all(END, args, out))
    show([replace(figure, control=_CONTROL[figure.transport]) for figure in figures], out)


if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].startswith("{"):
        transport_end.main(sys.argv[1], STOCK)
    else:
        main(sys.argv[1:])
