"""One TCP connection to a relay, from its first byte on: STUN; TLS, and then control or a circuit's end; or
HTTP, and then a browser's end of a circuit as a WebSocket.

All connections read into two buffers that the relay has once: a turn of the loop handles what it has read
before the next one reads. What a connection holds itself is what its TLS and the kernel hold, and at most the
high-water mark that waits to go out; a circuit whose one end does not take more is not read at the other.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from enum import Enum, Flag, auto
from typing import Protocol, TypeVar

from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError, RemoteProtocolError
from meshd.base.unproven_connections import origin
from meshd.identity.keys import from_base32
from meshd.identity.proof import MAGIC as PROOF_MAGIC
from meshd.link.secure.tls import MAX_HANDSHAKE_BYTES, TlsEngine
from meshd.wire.limits import MAX_UNPROVEN_BYTES
from meshd.wire.relay import BROWSER_PATH, TICKET_MAGIC, TICKET_PREFACE_BYTES
from meshd.wire.stun import Endpoint, StreamAnswers
from meshd.wire.websocket import (
    MAX_REQUEST_BYTES,
    FrameReader,
    accept,
    close_frame,
    frame,
    read_request,
    refuse,
)

C = TypeVar("C", contravariant=True)
_NOT_SENT_BYTES = 128 << 10  # what the kernel takes before it has sent what it has
_READ_BYTES = 64 << 10
_CIRCUIT_HIGH_BYTES = 64 << 10  # plus one read: what waits here for one end of a circuit
_CIRCUIT_LOW_BYTES = 16 << 10
_MAX_CONTROL_UNREAD = 16 << 10
_MAX_BACKLOG = 512 << 10
_HTTP = 0x47  # the G of GET
_TLS_HANDSHAKE = 0x16  # RFC 8446 5.1; STUN begins with two zero bits (RFC 8489 5)


class RelayStage(Enum):
    """The other side's progress on a connection."""

    FIRST = auto()  # nothing has come
    STUN = auto()
    SHAKING = auto()
    PREFACE = auto()  # TLS stands, neither proof nor ticket has begun
    WEB = auto()  # a browser asks
    CONTROL = auto()
    WAITING = auto()  # for the other end of its circuit
    JOINED = auto()
    OVER = auto()


class Hold(Flag):
    """The reason why a connection is not read."""

    NOTHING = 0
    WAITING = auto()
    FULL = auto()  # the other end takes no more
    OWED = auto()  # its node has used more than its rate
    UNREAD = auto()  # control messages wait


class RelayExchange(Protocol[C]):
    """The relay as its connections see it. No method raises."""

    def arrived(self, connection: C) -> bool:
        """Admit a connection; False if there is no room for it."""
        ...

    def control(self, connection: C) -> None:
        """Begin the proof of a control connection."""
        ...

    def ticket(self, connection: C, ticket: bytes) -> None:
        """Redeem a ticket."""
        ...

    def browser(self, connection: C, box: bytes) -> bool:
        """Ring a box for a browser; False if nobody is there, or there is no room."""
        ...

    def carried(self, connection: C, size: int) -> None:
        """Count `size` bytes of a circuit that came on it and were passed on."""
        ...

    def lost(self, connection: C) -> None:
        """Forget a connection whose socket is closed."""
        ...


def tune(sock: socket.socket) -> None:
    """Tune the socket: quick to send, quick to notice a dead peer, little buffered in the kernel."""
    for name, value in (
        ("TCP_NODELAY", 1),
        ("TCP_KEEPIDLE", 15),
        ("TCP_KEEPINTVL", 5),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 30_000),  # ms; also for a node that takes nothing any more
        ("TCP_NOTSENT_LOWAT", _NOT_SENT_BYTES),
    ):
        number = getattr(socket, name, None)
        if number is not None:
            try:
                sock.setsockopt(socket.IPPROTO_TCP, number, value)
            except OSError:
                continue  # the other side has disconnected already
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except OSError:
        return


class Spaces:
    """The two buffers that all connections of a relay share, and their copy of the context."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self.context = context
        self.raw = memoryview(bytearray(_READ_BYTES))
        self.plain = memoryview(bytearray(_READ_BYTES))


class Connection(asyncio.BufferedProtocol):
    """Also a RawPipe (link/secure/handshake.py) once its stage is CONTROL."""

    def __init__(self, spaces: Spaces, exchange: "RelayExchange[Connection]", *, number: int) -> None:
        self.number = number
        self.stage = RelayStage.FIRST
        self.host = self.remote = ""  # where it comes from, as it counts; and as people read it
        self._seen: Endpoint | None = None
        self.since = 0.0
        self.heard = 0.0
        self.other: Connection | None = None
        self.circuit = self.side = 0
        self.bound = 0  # bytes that may still come for its circuit; 0 at the start: no bound
        self._bounded = False
        self._spaces = spaces
        self._exchange = exchange
        self._engine: TlsEngine | None = None
        self._answers: StreamAnswers | None = None
        self._frames: FrameReader | None = None  # of a browser
        self._transport: asyncio.Transport | None = None
        self._held = Hold.NOTHING
        self._full = False
        self._head = bytearray()  # before the stage is known, and what came before the other end did
        self._early = 0
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._readable = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._end: MeshdError | None = None
        self._lost = asyncio.Event()

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note where it comes from; let the relay count it."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.since = self.heard = asyncio.get_running_loop().time()
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple) and len(peer) >= 2:
            self.host = origin(str(peer[0]))
            self._seen = Endpoint(str(peer[0]).partition("%")[0], int(peer[1]))
            self.remote = str(self._seen)
        transport.set_write_buffer_limits(high=_CIRCUIT_HIGH_BYTES, low=_CIRCUIT_LOW_BYTES)
        tune(transport.get_extra_info("socket"))
        if not self._exchange.arrived(self):
            self.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the relay's buffer; a small part of it while nothing is proven."""
        if self.stage is RelayStage.JOINED:
            return self._spaces.raw
        return self._spaces.raw[:MAX_UNPROVEN_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes according to the stage."""
        self.heard = asyncio.get_running_loop().time()
        data = self._spaces.raw[:nbytes]
        if self.stage is RelayStage.FIRST:
            if data[0] == _TLS_HANDSHAKE:
                self._engine = TlsEngine(self._spaces.context, server_side=True)
                self.stage = RelayStage.SHAKING
            elif data[0] < 4 and self._seen is not None:
                self._answers = StreamAnswers(self._seen)
                self.stage = RelayStage.STUN
            elif data[0] == _HTTP:
                self._frames = FrameReader()
                self.stage = RelayStage.WEB
            else:
                self.abort()
        if self._answers is not None:
            self._stun(self._answers, data)
        elif self._engine is not None and self.stage is not RelayStage.OVER:
            self._secret(self._engine, data)
        elif self._frames is not None and self.stage is not RelayStage.OVER:
            self._web(self._frames, data)

    def eof_received(self) -> bool:
        """Handle the peer's half-close: a node says goodbye inside TLS before it does that."""
        self._finish(Broken(f"the connection to `{self.remote}` ended without a goodbye"))
        if self.stage is not RelayStage.STUN:
            self.end_other(clean=False)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the socket."""
        self._finish(Broken(f"the connection to `{self.remote}` broke"))
        self.end_other(clean=False)
        self.stage = RelayStage.OVER
        self._lost.set()
        self._exchange.lost(self)

    def pause_writing(self) -> None:
        """Stop the senders: the high-water mark is exceeded."""
        self._full = True
        self._writable.clear()
        if self.other is not None:
            self.other.hold(Hold.FULL)

    def resume_writing(self) -> None:
        """Resume the senders: the buffer has drained."""
        self._full = False
        self._writable.set()
        if self.other is not None:
            self.other.release(Hold.FULL)

    # --- for the relay: circuits

    def bind(self, circuit: int, side: int, *, bound: int) -> None:
        """Bind to a circuit whose other end is not there yet. It carries at most `bound` bytes, if not 0."""
        self.circuit, self.side, self.bound, self._bounded = circuit, side, bound, bound > 0
        self.stage = RelayStage.WAITING
        self.hold(Hold.WAITING)

    def join(self, other: "Connection") -> None:
        """Pass bytes to and from `other` from here on; called on both ends."""
        self.other = other
        self.stage = RelayStage.JOINED

    def begin(self) -> None:
        """Start passing on: both ends know each other. Bytes that came early go first."""
        early, self._head = self._head, bytearray()
        if early:
            self._carry(memoryview(early))
        self.release(Hold.WAITING)

    def hold(self, why: Hold) -> None:
        """Stop reading, for this reason too."""
        self._held |= why
        if self._transport is not None:
            self._transport.pause_reading()

    def holds(self, why: Hold) -> bool:
        """Return True if it is not read for this reason."""
        return why in self._held

    def release(self, why: Hold) -> None:
        """Remove a reason for not reading; read again after the last one."""
        self._held &= ~why
        if not self._held and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def end_other(self, *, clean: bool) -> None:
        """End the circuit: deliver the bytes on their way to the other end, and close it."""
        other, self.other = self.other, None
        if other is not None:
            other.other = None
            if clean:
                other.close()
            else:
                other.cut()

    def close(self) -> None:
        """Say goodbye after all that waits to go out."""
        self._finish(Closed("closed by the relay"))
        if self._engine is not None and self.stage not in (RelayStage.SHAKING, RelayStage.OVER):
            self._engine.finish()
            self._write(self._engine.outgoing())
        elif self._frames is not None and self.stage is not RelayStage.OVER:
            self._write(close_frame())
        self._over()

    def cut(self) -> None:
        """Close without a goodbye, after all that waits to go out."""
        self._finish(Broken("cut by the relay"))
        self._over()

    def abort(self) -> None:
        """Drop the connection at once."""
        self._finish(Closed("dropped by the relay"))
        self.stage = RelayStage.OVER
        if self._transport is not None:
            self._transport.abort()

    # --- for the relay: control (a RawPipe)

    async def send(self, data: Sequence[bytes | memoryview]) -> None:
        """Send like `Link.send`."""
        if not self.try_send(data):
            await self._writable.wait()

    def try_send(self, data: Sequence[bytes | memoryview]) -> bool:
        """Send always; return False when the caller should wait for the other side."""
        if self._end is not None:
            raise self._end.afresh()
        if self._engine is not None:
            self._write(self._engine.seal(data))
        return not self._full

    def divert(self, take: Callable[[bytes], bool]) -> None:
        """Do nothing: a relay never asks."""

    async def receive(self) -> bytes:
        """Return the next chunk. Raises EndOfStream, Broken, Closed."""
        while not self._chunks:
            if self._end is not None:
                raise self._end.afresh()
            self._readable.clear()
            await self._readable.wait()
        chunk = self._chunks.popleft()
        self._unread -= len(chunk)
        if not self._chunks:
            self.release(Hold.UNREAD)
        return chunk

    async def aclose(self) -> None:
        """Say goodbye; what does not go out at once is dropped."""
        self.close()
        if self._transport is not None and self._transport.get_write_buffer_size():
            self._transport.abort()

    @property
    def backlog(self) -> int:
        """The bytes that wait to go out."""
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    # --- inside

    def _stun(self, answers: StreamAnswers, data: memoryview) -> None:
        try:
            self._write(answers.feed(data))
        except RemoteProtocolError:
            self.abort()

    def _secret(self, engine: TlsEngine, data: memoryview) -> None:
        engine.feed(data)
        try:
            if self.stage is RelayStage.SHAKING:
                self._early += len(data)
                done = engine.advance()
                self._write(engine.outgoing())
                if not done:
                    if self._early > MAX_HANDSHAKE_BYTES:
                        self.abort()
                    return
                self.stage = RelayStage.PREFACE
            while self.stage is not RelayStage.OVER and (count := engine.unseal(self._spaces.plain)):
                self._take(self._spaces.plain[:count])
                if engine.drained:
                    break
        except EndOfStream:
            self._finish(EndOfStream("the node ended the connection"))
            self.end_other(clean=True)
            self._over()
        except RemoteProtocolError:
            self._write(engine.outgoing())  # the alert that says why
            self.end_other(clean=False)
            self._finish(Broken("the node's TLS is broken"))
            self._over()
        else:
            self._write(engine.outgoing())  # answers of TLS itself

    def _web(self, frames: FrameReader, data: memoryview) -> None:
        """Handle what a browser sends: its request, then frames."""
        rest: bytes | memoryview = data
        if self.stage is RelayStage.WEB:
            self._head += data
            head, end, after = self._head.partition(b"\r\n\r\n")
            if not end:
                if len(self._head) > MAX_REQUEST_BYTES:
                    self._refuse_browser()
                return
            self._head = bytearray()
            try:
                path, key = read_request(bytes(head))
                box = from_base32(path.removeprefix(BROWSER_PATH)) if path.startswith(BROWSER_PATH) else b""
            except (RemoteProtocolError, ValueError):
                box, key = b"", b""
            if not box or not self._exchange.browser(self, box):
                self._refuse_browser()
                return
            self._write(accept(key))
            rest = bytes(after)
        payloads, reply = frames.feed(rest)
        for payload in payloads:
            self._take(memoryview(payload))
        self._write(reply)
        if frames.is_over:
            self.end_other(clean=True)
            self._finish(EndOfStream("the browser ended the connection"))
            self._over()

    def _refuse_browser(self) -> None:
        self._write(refuse())
        self._over()

    def _take(self, data: memoryview) -> None:
        """Handle plain bytes of any stage."""
        if self.stage is RelayStage.JOINED:
            self._carry(data)
        elif self.stage is RelayStage.CONTROL:
            self._chunk(bytes(data))
        else:
            self._head += data
            if self.stage is RelayStage.PREFACE:
                self._look()

    def _look(self) -> None:
        """Tell control from data by the first five bytes."""
        head = bytes(self._head)
        if head.startswith(TICKET_MAGIC):
            if len(head) >= TICKET_PREFACE_BYTES:
                del self._head[:TICKET_PREFACE_BYTES]
                self._exchange.ticket(self, head[len(TICKET_MAGIC) : TICKET_PREFACE_BYTES])
        elif head.startswith(PROOF_MAGIC):
            self._head.clear()
            self.stage = RelayStage.CONTROL
            self._chunk(head)
            self._exchange.control(self)
        elif not (TICKET_MAGIC.startswith(head) or PROOF_MAGIC.startswith(head)):
            self.abort()

    def _chunk(self, data: bytes) -> None:
        self._chunks.append(data)
        self._unread += len(data)
        self._readable.set()
        if self._unread > _MAX_CONTROL_UNREAD:
            self.hold(Hold.UNREAD)

    def _carry(self, data: memoryview) -> None:
        other = self.other
        if other is None:
            return
        if self._bounded:
            self.bound -= len(data)
            if self.bound < 0:
                self.end_other(clean=False)
                self.cut()
                return
        if other._engine is not None:
            other._write(other._engine.seal([data]))
        elif other._frames is not None:
            other._write(frame([data]))
        self._exchange.carried(self, len(data))

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > _MAX_BACKLOG:
                self.abort()  # only who makes TLS answer (key updates) and never reads gets here

    def _over(self) -> None:
        self.stage = RelayStage.OVER
        if self._transport is not None:
            self._transport.close()  # sends what waits first

    def _finish(self, why: MeshdError) -> None:
        if self._end is None:
            self._end = why
            self._readable.set()
            self._writable.set()
