"""A TCP proxy under a test's control: it cuts connections, refuses them for a while, slows them down, counts.

A cut is a reset of both ends after an exact number of bytes of one direction, wherever that falls in what is
said: in the TLS handshake, the proof, or the middle of a frame. Silence is a line that brings nothing any
more, and tells nobody.
"""

import asyncio
import contextlib
import random
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

from meshd.base.tasks import Owner

READ_BYTES = 64 << 10
MIN_CUT, MAX_CUT = 1 << 10, 64 << 10
SLICE_SECONDS = 0.005  # a slowed direction sends so often


@dataclass(slots=True)
class Counts:
    """The traffic so far; `up` is from the side that connected. `refused`: connections in an outage.

    `most_held`: bytes of one connection that waited for their turn on the line at once.
    """

    connections: int = 0
    cuts: int = 0
    refused: int = 0
    up: int = 0
    down: int = 0
    most_held: int = 0


def _set_event() -> asyncio.Event:
    event = asyncio.Event()
    event.set()
    return event


@dataclass(slots=True)
class Rules:
    """Rules for connections from now on. `rate` is bytes a second in each direction, None for all.

    `buffer` is how many bytes a slowed direction holds, as a router with too much memory does. While
    `flowing` is not set nothing comes out anywhere; what was held comes then.
    """

    cutting: bool = False
    outage: bool = False
    rate: float | None = None
    buffer: int = 4 << 20
    flowing: asyncio.Event = field(default_factory=_set_event)


@dataclass(slots=True)
class _Pair:
    """One connection through the proxy."""

    near: socket.socket
    far: socket.socket
    cut_up: int | None  # bytes until the cut, in the direction that has one
    cut_down: int | None
    ways: int = 2
    held: int = 0  # bytes that wait for their turn
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    def way_ended(self) -> None:
        self.ways -= 1
        if not self.ways:
            self.ended.set()

    def reset(self) -> None:
        for sock in (self.near, self.far):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.ended.set()


class Cutter:
    """Takes connections on `listener`, passes them on to what `connect` gives; both may be elsewhere.

    Several cutters may share `rules` and `counts`. `serve` owns everything until it is cancelled.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Callable[[], socket.socket],
        *,
        rules: Rules,
        counts: Counts,
        seed: int,
    ) -> None:
        self._listener = listener
        self._connect = connect
        self._rules = rules
        self._counts = counts
        self._random = random.Random(seed)
        self._live: dict[int, _Pair] = {}
        listener.setblocking(False)

    def cut_all(self) -> None:
        """Reset every connection now."""
        for pair in self._live.values():
            self._counts.cuts += 1
            pair.reset()

    async def serve(self) -> None:
        """Until cancelled; then every connection is reset."""
        loop = asyncio.get_running_loop()
        try:
            async with Owner() as owner:
                while True:
                    near, _ = await loop.sock_accept(self._listener)
                    if self._rules.outage:
                        self._counts.refused += 1
                        near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        near.close()
                        continue
                    owner.start(self._pass(near), name="cutter")
        finally:
            self._listener.close()

    async def _pass(self, near: socket.socket) -> None:
        try:
            far = self._connect()
        except OSError:
            near.close()  # nobody listens there: the other side sees it end
            return
        for sock in (near, far):
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._counts.connections += 1
        number = self._counts.connections
        pair = _Pair(near, far, *self._cuts())
        self._live[number] = pair
        try:
            async with Owner() as owner:
                owner.start(self._way(pair, up=True), name="cutter up")
                owner.start(self._way(pair, up=False), name="cutter down")
                await pair.ended.wait()
                owner.cancel()
        finally:
            del self._live[number]
            near.close()
            far.close()

    def _cuts(self) -> tuple[int | None, int | None]:
        if not self._rules.cutting:
            return None, None
        count = self._random.randint(MIN_CUT, MAX_CUT)
        return (count, None) if self._random.random() < 0.5 else (None, count)

    async def _way(self, pair: _Pair, *, up: bool) -> None:
        source, target = (pair.near, pair.far) if up else (pair.far, pair.near)
        left = pair.cut_up if up else pair.cut_down
        held: asyncio.Queue[bytes] = asyncio.Queue(maxsize=max(1, self._rules.buffer // READ_BYTES))
        async with Owner() as owner:
            owner.start(self._drain(held, target, pair), name="cutter drain")
            loop = asyncio.get_running_loop()
            while True:
                try:
                    data = await loop.sock_recv(source, READ_BYTES)
                except OSError:
                    data = b""
                if left is not None:
                    data = data[:left]
                    left -= len(data)
                self._counts.up += len(data) if up else 0
                self._counts.down += 0 if up else len(data)
                pair.held += len(data)
                self._counts.most_held = max(self._counts.most_held, pair.held)
                await held.put(data)
                if left == 0:
                    self._counts.cuts += 1
                    await held.join()
                    pair.reset()
                if not data or left == 0:
                    await held.join()
                    owner.cancel()
                    pair.way_ended()
                    return

    async def _drain(self, held: asyncio.Queue[bytes], target: socket.socket, pair: _Pair) -> None:
        loop = asyncio.get_running_loop()
        while True:
            data = await held.get()
            await self._rules.flowing.wait()
            try:
                if not data:
                    target.shutdown(socket.SHUT_WR)
                elif self._rules.rate is None:
                    await loop.sock_sendall(target, data)
                else:
                    await self._slowly(target, data, self._rules.rate)
            except OSError:
                pair.ended.set()
            pair.held -= len(data)
            held.task_done()

    async def _slowly(self, target: socket.socket, data: bytes, rate: float) -> None:
        """As a wire: all bytes take their time to arrive, the first ones after a pause as well."""
        loop = asyncio.get_running_loop()
        step = max(1, int(rate * SLICE_SECONDS))
        due = loop.time()
        for begin in range(0, len(data), step):
            part = data[begin : begin + step]
            due = max(due, loop.time() - SLICE_SECONDS) + len(part) / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
            await loop.sock_sendall(target, part)
