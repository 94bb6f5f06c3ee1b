"""One side of `bench transport`, a process of its own: `python -m meshd.bench.transport_end JSON`.

The orders come as one JSON argument, results go to standard output as one JSON line. The processes talk
with each other over an inherited unix socket.
"""

import asyncio
import contextlib
import json
import resource
import socket
import statistics
import sys
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from meshd.base import log
from meshd.base.errors import EndOfStream
from meshd.bench import transport_kinds as kinds
from meshd.bench import wan
from meshd.bench.transport_kinds import BenchPipe, BenchPlace, BenchTransport

_BLOCK = bytes(64 << 10)
MOST_TALK = 64 << 10
PING_SIZES = (64, 10 << 10)
WARM_PINGS = 30
WARM_SECONDS = 2.0  # of a flow without end that do not count

TRANSPORTS: Mapping[str, BenchTransport] = {
    "tcp": kinds.tcp,
    "webrtc": kinds.webrtc,
    "tls": kinds.tls,
    "plain": kinds.plain,
    "quic": kinds.quic,
    "udp": kinds.udp,
}

CONTROL: Mapping[str, str] = {  # congestion control, where it is not the kernel's
    "webrtc": "model",
    "quic": "model",
    "udp": "none",
}


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


@dataclass(frozen=True, slots=True, kw_only=True)
class EndResult:
    """The result of one side: seconds to connect and to send the bulk, median round trips by size.

    `rate`: bytes per second of endless sending; `cpu`: seconds; `peak_bytes`: peak memory.
    """

    connect: float
    bulk: float
    pings: tuple[float, ...]
    rate: float
    cpu: float
    peak_bytes: int


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


async def _measure(orders: EndOrders, transport: BenchTransport) -> EndResult:
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
            # report
            usage = resource.getrusage(resource.RUSAGE_SELF)
            _say(
                EndResult(
                    connect=connected,
                    bulk=seconds,
                    pings=pings,
                    rate=rate,
                    cpu=usage.ru_utime + usage.ru_stime,
                    peak_bytes=usage.ru_maxrss << 10,
                )
            )
            if not orders.is_near:  # the near side closes first
                with contextlib.suppress(EndOfStream, asyncio.TimeoutError):
                    async with asyncio.timeout(5):
                        await asyncio.to_thread(sys.stdin.read)
        raise SystemExit(0)


def _say(result: EndResult) -> None:
    _write(json.dumps(asdict(result)))


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
