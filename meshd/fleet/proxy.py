"""A TCP proxy that adds distance: bytes come out as much later as they would from far away (delay_line.py).

A connection costs its round trip, too: the target is connected to when a SYN, its answer and the first byte
would have come there. Half-close and reset are passed on. With `rpc` it listens to llama.cpp's RPC and
counts; `compute` delays nothing but requests for computing, as a worker that takes longer would.

It wants a loop with a fine clock: asyncio's usual one rounds waits up to whole milliseconds (`run_loop`).
"""

import asyncio
import contextlib
import selectors
import socket
import struct
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from meshd.base.tasks import Owner
from meshd.fleet.delay_line import HELD_BYTES, DelayLine
from meshd.fleet.rpc_count import RpcCounts, RpcListener

_READ_BYTES = 256 << 10
MOST_LATE_SECONDS = 0.001  # seconds; what is later has been held up by something else
LEARN = 0.2
MOST_CONNECTIONS = 400  # two sockets each; select(2) knows 1024
_RESET, _NO_RESET = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)  # SO_LINGER: what closing does

T = TypeVar("T")
Connect = Callable[[], socket.socket]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyRules:
    """`one_way`: seconds that all bytes take; `compute`: that requests for computing take. `rpc`: count."""

    one_way: float = 0.0
    compute: float = 0.0
    rpc: bool = False
    held_bytes: int = HELD_BYTES  # in each direction of a connection


@dataclass(slots=True)
class Counts:
    """The traffic that has passed. `up` is from the side that connected."""

    connections: int = 0
    up: int = 0
    down: int = 0
    rpc: RpcCounts = field(default_factory=RpcCounts)


class ProxyClock(Protocol):
    """A clock that proxies share instead of the loop's."""

    def time(self) -> float: ...

    async def until(self, at: float) -> None:
        """Wait until the clock shows `at`, or is about to."""
        ...


class _LoopClock:
    """The seconds of the running loop; learns how late timers come here, and sets them so much earlier."""

    def __init__(self) -> None:
        self._late = 0.0

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    async def until(self, at: float) -> None:
        wanted = at - self._late
        await asyncio.sleep(wanted - self.time())
        self._late += LEARN * (min(self.time() - wanted, MOST_LATE_SECONDS) - self._late)


class DelayingProxy:
    """Takes connections on `listener` and passes them on to new ones of `connect`.

    `connect` returns at once, with a socket that is connecting. Several proxies may share `counts`, and a
    `clock` in which `rules` are then.
    """

    def __init__(
        self,
        listener: socket.socket,
        connect: Connect,
        *,
        rules: ProxyRules,
        counts: Counts | None = None,
        clock: ProxyClock | None = None,
    ) -> None:
        listener.setblocking(False)
        self._listener = listener
        self._connect = connect
        self._rules = rules
        self._clock = clock
        self.counts = Counts() if counts is None else counts
        self._free = asyncio.Semaphore(MOST_CONNECTIONS)

    async def serve(self) -> None:
        """Serve until cancelled; then reset every connection, and close the listener."""
        loop = asyncio.get_running_loop()
        try:
            async with Owner() as owner:
                while True:
                    await self._free.acquire()
                    near, _ = await loop.sock_accept(self._listener)
                    owner.start(self._connection(near), name="delayed connection")
        finally:
            self._listener.close()

    async def _connection(self, near: socket.socket) -> None:
        try:
            with near, self._connect() as far:
                for sock in (near, far):
                    sock.setblocking(False)
                    if sock.family in (socket.AF_INET, socket.AF_INET6):
                        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)  # unless both ends end well
                await self._pass(near, far)
                for sock in (near, far):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_RESET)
        except OSError:
            near.close()  # there is nobody to connect to
        except ExceptionGroup as group:
            if group.split(OSError)[1] is not None:
                raise
        finally:
            self._free.release()

    async def _pass(self, near: socket.socket, far: socket.socket) -> None:
        clock, rules = self._clock or _LoopClock(), self._rules
        self.counts.connections += 1
        counted = RpcListener(self.counts.rpc) if rules.rpc or rules.compute else None
        up = _OneWay(near, far, rules, clock, self.counts, counted, up=True)
        down = _OneWay(far, near, rules, clock, self.counts, counted, up=False)
        open_at = clock.time() + 3 * rules.one_way
        async with Owner() as owner:
            owner.start(up.read(), name="read up")
            await clock.until(open_at)
            await _until_connected(far)
            owner.start(up.write(), name="write up")
            owner.start(down.read(), name="read down")
            owner.start(down.write(), name="write down")


class _OneWay:
    """One direction of one connection."""

    def __init__(
        self,
        source: socket.socket,
        target: socket.socket,
        rules: ProxyRules,
        clock: ProxyClock,
        counts: Counts,
        listener: RpcListener | None,
        *,
        up: bool,
    ) -> None:
        self._source = source
        self._target = target
        self._compute = rules.compute if up else 0.0
        self._clock = clock
        self._counts = counts
        self._listener = listener
        self._up = up
        self._line = DelayLine(rules.one_way, limit=rules.held_bytes)
        self._changed = asyncio.Event()
        self._room = asyncio.Event()

    async def read(self) -> None:
        loop = asyncio.get_running_loop()
        data = b"-"
        while data:
            while not self._line.room:
                self._room.clear()
                await self._room.wait()
            data = await loop.sock_recv(self._source, _READ_BYTES)
            self._put(data, self._clock.time())
            self._changed.set()

    def _put(self, data: bytes, now: float) -> None:
        counts, listener = self._counts, self._listener
        if not self._up:
            counts.down += len(data)
            if listener is not None:
                listener.answered(data)
            self._line.put(data, now)
            return
        counts.up += len(data)
        done = 0
        for begin in listener.sent(data) if listener is not None else ():
            if self._compute:
                if begin > done:
                    self._line.put(data[done:begin], now)
                self._line.hold(self._compute, now)
                done = max(begin, done)
        if done < len(data) or not data:
            self._line.put(data[done:], now)

    async def write(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            if (at := self._line.next_at) is None:
                self._changed.clear()
                await self._changed.wait()
                continue
            if at > self._clock.time():
                await self._clock.until(at)
            data = self._line.take(at)
            assert data is not None
            self._room.set()
            if not data:
                with contextlib.suppress(OSError):  # gone already
                    self._target.shutdown(socket.SHUT_WR)
                return
            await loop.sock_sendall(self._target, data)


async def _until_connected(sock: socket.socket) -> None:
    """Wait for the connection. Raises OSError when it was refused."""
    loop = asyncio.get_running_loop()
    writable = asyncio.Event()
    loop.add_writer(sock, writable.set)
    try:
        await writable.wait()
    finally:
        loop.remove_writer(sock)
    error = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    if error:
        raise OSError(error, "not connected")


def connect_to(host: str, port: int) -> socket.socket:
    """Return a socket that is connecting. Raises OSError."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    return connecting(sock, (host, port))


def connecting(sock: socket.socket, place: tuple[str, int]) -> socket.socket:
    """Begin to connect the socket. Raises OSError."""
    sock.setblocking(False)
    try:
        with contextlib.suppress(BlockingIOError):
            sock.connect(place)
    except BaseException:
        sock.close()
        raise
    return sock


def run_loop(work: Coroutine[object, object, T]) -> T:
    """Run like asyncio.run, with a clock that is as fine as the system's."""

    def fine() -> asyncio.SelectorEventLoop:
        return asyncio.SelectorEventLoop(selectors.SelectSelector())

    with asyncio.Runner(loop_factory=fine) as runner:
        return runner.run(work)
