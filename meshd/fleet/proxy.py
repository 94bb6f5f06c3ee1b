"""A TCP proxy that adds distance: bytes come out as much later as they would from far away.

A connection costs its round trip, too: the target is connected to when a SYN, its answer and the first byte
would have come there. Half-close and reset are passed on. With `rpc` it listens to llama.cpp's RPC and
counts; `compute` delays nothing but requests for computing, as a worker that takes longer would.

It wants a loop with a fine clock: asyncio's usual one rounds waits up to whole milliseconds (`run_loop`).

Bytes in transit over a distance: each comes out after the delay of the distance.

It is a delay of the wire and not a sleep for each message: many may be under way at once, so throughput and
pipelining stay as they are. `hold` is the other kind, of a worker that computes longer: what comes after it
waits as well.

Counts what llama.cpp's RPC says on one connection: round trips, and bytes by what they are for.

It only listens: whatever it does not understand is counted as `control`, never refused. Numbers and layouts
are those of ggml/src/ggml-rpc/ggml-rpc.cpp of the pinned upstream, protocol 7.0, little endian. A request:
command (1 byte), size (8), body; an answer: size (8), body; answers come in the order of the requests.

Ports for children: a socket that already listens, handed to the child as a descriptor.

Nothing can come between, as it could with the number of a port that was free at the moment of asking.
"""

import asyncio
import contextlib
import selectors
import socket
import struct
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from meshd.base.errors import UserError
from meshd.base.sockets import LOOPBACK_HOST, listen_at
from meshd.base.tasks import Owner
from meshd.rpc.probe import RPC_ANSWER, RPC_REQUEST

HELD_BYTES = 64 << 20  # what 1 GB/s puts on a way of 60 ms; more is not read from the sender
FREE_BUFFER, BUFFER_CLEAR, SET_TENSOR = 4, 5, 6
GET_TENSOR, GRAPH_COMPUTE, INIT_TENSOR = 8, 10, 12
GRAPH_RECOMPUTE, MEMSET_TENSOR = 16, 17
NO_ANSWER = frozenset(
    {FREE_BUFFER, BUFFER_CLEAR, SET_TENSOR, GRAPH_COMPUTE, INIT_TENSOR, GRAPH_RECOMPUTE, MEMSET_TENSOR}
)
_NAME_OFFSET, _NAME_BYTES = 228, 64  # of the name in rpc_tensor, with which SET_TENSOR begins
_WEIGHT_ENDS = (b".weight", b".bias")
_COMPUTE = (GRAPH_COMPUTE, GRAPH_RECOMPUTE)
_READ_BYTES = 256 << 10
MOST_LATE_SECONDS = 0.001  # seconds; what is later has been held up by something else
LEARN = 0.2
MOST_CONNECTIONS = 400  # two sockets each; select(2) knows 1024
_RESET, _NO_RESET = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)  # SO_LINGER: what closing does
T = TypeVar("T")
Connect = Callable[[], socket.socket]


class DelayLine:
    """One direction of one connection. `now` is in seconds of any monotonic clock."""

    def __init__(self, seconds: float, *, limit: int = HELD_BYTES) -> None:
        """Set up an empty line. `limit`: bytes that may be under way; the last chunk may go beyond it."""
        self._seconds = seconds
        self._limit = limit
        self._under_way: deque[tuple[float, bytes]] = deque()
        self._latest = 0.0
        self.held = 0

    @property
    def room(self) -> bool:
        """True if more may be put in."""
        return self.held < self._limit

    @property
    def next_at(self) -> float | None:
        """The time when the next bytes come out; None: nothing is under way."""
        return self._under_way[0][0] if self._under_way else None

    def put(self, data: bytes, now: float) -> None:
        """Put bytes in; `b""` is the end, which travels as bytes do."""
        self._latest = max(self._latest, now + self._seconds)
        self._under_way.append((self._latest, data))
        self.held += len(data)

    def hold(self, seconds: float, now: float) -> None:
        """Delay whatever is put in from now on by `seconds` more than the distance."""
        self._latest = max(self._latest, now + self._seconds) + seconds

    def take(self, now: float) -> bytes | None:
        """Return the next bytes that have arrived by now; None: nothing has."""
        if not self._under_way or self._under_way[0][0] > now:
            return None
        data = self._under_way.popleft()[1]
        self.held -= len(data)
        return data


@dataclass(slots=True)
class RpcCounts:
    """Sums over connections; bytes of both directions, with headers.

    `round_trips`: how often an answer had to come before the next request was sent, whatever was sent
    together before it. `weights`: of tensors that are weights, `tensors`: of others (activations, masks,
    results), `graphs`: what is to be computed. All else is `control`.
    """

    connections: int = 0
    requests: int = 0
    round_trips: int = 0
    weights: int = 0
    tensors: int = 0
    graphs: int = 0
    control: int = 0

    @property
    def bytes(self) -> int:
        """The bytes of all kinds."""
        return self.weights + self.tensors + self.graphs + self.control


class RpcListener:
    """One connection. Tell it all bytes of both directions in the order in which they pass."""

    def __init__(self, counts: RpcCounts) -> None:
        self._counts = counts
        self._left = 0  # bytes of this request that are still to come
        self._kind = "control"
        self._header = bytearray()
        self._answers: deque[str] = deque()
        self._answer_left = 0
        self._answer_kind = "control"
        self._answer_header = bytearray()
        self._asked = False
        counts.connections += 1

    def sent(self, data: bytes) -> list[int]:
        """Count the client's data; return where in it requests for computing begin (0: there, or
        before it).
        """
        self._asked = True
        computing = []
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
                self._add(self._kind, step)
                at += step
                continue
            begin = at - len(self._header)
            at += self._take(self._header, data[at:], self._header_bytes())
            if len(self._header) == self._header_bytes() and self._request():
                computing.append(max(begin, 0))
        return computing

    def _header_bytes(self) -> int:
        """Return how much of a request tells what its bytes are: with SET_TENSOR, up to the tensor's name."""
        header = self._header
        if len(header) < RPC_REQUEST.size or header[0] != SET_TENSOR:
            return RPC_REQUEST.size
        size: int = RPC_REQUEST.unpack_from(header)[1]
        return RPC_REQUEST.size + min(size, _NAME_OFFSET + _NAME_BYTES)

    def _request(self) -> bool:
        """Handle a complete header; return True if it requests computing."""
        header = bytes(self._header)
        self._header.clear()
        command, size = RPC_REQUEST.unpack_from(header)
        self._left = RPC_REQUEST.size + size - len(header)
        self._kind = _kind_of(command, header)
        self._counts.requests += 1
        self._add(self._kind, len(header))
        if command not in NO_ANSWER:
            self._answers.append("tensors" if command == GET_TENSOR else "control")
        return command in _COMPUTE

    def answered(self, data: bytes) -> None:
        """Count the server's data."""
        if self._asked and data:
            self._counts.round_trips += 1
            self._asked = False
        at = 0
        while at < len(data):
            if self._answer_left:
                step = min(self._answer_left, len(data) - at)
                self._answer_left -= step
                self._add(self._answer_kind, step)
                at += step
                continue
            at += self._take(self._answer_header, data[at:], RPC_ANSWER.size)
            if len(self._answer_header) == RPC_ANSWER.size:
                (self._answer_left,) = RPC_ANSWER.unpack(self._answer_header)
                self._answer_header.clear()
                self._answer_kind = self._answers.popleft() if self._answers else "control"
                self._add(self._answer_kind, RPC_ANSWER.size)

    @staticmethod
    def _take(header: bytearray, data: bytes, whole: int) -> int:
        step = min(whole - len(header), len(data))
        header += data[:step]
        return step

    def _add(self, kind: str, count: int) -> None:
        setattr(self._counts, kind, getattr(self._counts, kind) + count)


def _kind_of(command: int, header: bytes) -> str:
    if command in _COMPUTE:
        return "graphs"
    if command != SET_TENSOR:
        return "control"
    name = header[RPC_REQUEST.size + _NAME_OFFSET :].split(b"\0")[0]
    return "weights" if name.endswith(_WEIGHT_ENDS) else "tensors"


def listening_socket() -> socket.socket:
    """Return a TCP socket that listens on any free port of 127.0.0.1, not inheritable until it is passed.

    Give its number in ChildSpec.pass_fds, and close it here when the child is to be its only holder. Raises
    UserError when the system has none left.
    """
    try:
        return listen_at(socket.AF_INET, LOOPBACK_HOST, 0)
    except OSError as error:
        raise UserError(f"cannot listen on `{LOOPBACK_HOST}`: {error.strerror or error}") from error


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
