"""One TCP connection with TLS on it, as a byte pipe: back-pressure both ways, bounded buffers.

Everything between the kernel's socket and the proof lies here. A pipe starts narrow (it buffers 4 KiB and
takes a short handshake, no more) because the other end has proven nothing yet; `widen` opens it
up. What waits where, at most: 256 KiB unread plus one read on the way in, 64 KiB plus one send on the way
out; beyond that the socket stops being read, or `send` waits.
"""

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence

from meshd.base.errors import Broken, Closed, CutOff, EndOfStream, MeshdError, RemoteProtocolError
from meshd.link.buffered_pipe import MAX_SEND_BYTES, SEND_HIGH_BYTES, BufferedPipe
from meshd.link.secure.tls import MAX_HANDSHAKE_BYTES, TlsEngine
from meshd.link.tcp.plain_visit import GREETING_BYTES, PLAIN
from meshd.link.tcp.sockets import tune
from meshd.link.tcp.visit import HTTP, Visit
from meshd.wire.limits import MAX_FRAME_BYTES, MAX_UNPROVEN_BYTES
from meshd.wire.stun import Endpoint, StreamAnswers

_SEND_LOW_BYTES = 16 << 10
RECEIVE_HIGH_BYTES = 256 << 10  # unread: then the socket is left alone
RECEIVE_LOW_BYTES = 128 << 10
_READ_BYTES = 2 * MAX_FRAME_BYTES  # one read of the socket once the pipe is wide and busy
_CALM_BYTES = 16 << 10  # until then, and after so many
_CALM_READS = 1000  # smaller ones in a row
_LENT_SHARE = 4  # a chunk that fills less than this part of the buffer is copied: a view would keep all of it
_CHUNK_COST = 128  # what a waiting chunk costs beside its bytes, so that tiny ones are bounded too


class LentSpace:
    """A buffer of `size` bytes for what is received, used again once nobody holds a view of it.

    Bytes that are consumed at once cost neither a copy nor new memory. Python counts the views of a buffer:
    if one is still held when the buffer is opened again, the next bytes go to new memory, and the view keeps
    its content.
    """

    def __init__(self, size: int) -> None:
        self._bytes = bytearray(size)

    def __len__(self) -> int:
        return len(self._bytes)

    def open(self) -> memoryview:
        """Return the whole buffer, writable. Views that are still held keep their content."""
        try:
            self._bytes.pop()  # raises while there are views: a buffer cannot change its size then
            self._bytes.append(0)
        except BufferError:
            self._bytes = bytearray(len(self._bytes))
        return memoryview(self._bytes)


class TcpPipe(BufferedPipe, asyncio.BufferedProtocol):
    """A RawPipe (secure/handshake.py) over TLS over TCP.

    `on_made` is called with it once it is connected. `on_hello` is called with it and all bytes of the
    handshake so far each time some have come, and returns True to continue. `on_http` is called with it if it
    begins with HTTP, and returns True if `as_visit` was called; `on_plain` is called with it and a tag if it
    begins with PLAIN, and returns True if `as_socket` was called. A dialler sends `server_hostname` in clear.
    """

    _code = "tls"

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_side: bool,
        server_hostname: str | None = None,
        on_made: "Callable[[TcpPipe], None] | None" = None,
        on_hello: "Callable[[TcpPipe, bytearray], bool] | None" = None,
        on_http: "Callable[[TcpPipe, bytes], bool] | None" = None,
        on_plain: "Callable[[TcpPipe, bytes], bool] | None" = None,
    ) -> None:
        super().__init__()
        self._engine = TlsEngine(context, server_side=server_side, server_hostname=server_hostname)
        self._server_side = server_side
        self._on_made = on_made
        self._on_hello = on_hello
        self._on_http = on_http
        self._on_plain = on_plain
        self._greeting = bytearray()  # of a plain connection
        self._is_visit = False
        self._hello = bytearray()  # what came before the handshake was done, up to MAX_UNPROVEN_BYTES
        self._transport: asyncio.Transport | None = None
        self.local = self.remote = ""  # host:port
        self.local_host = self.remote_host = ""
        self._raw = memoryview(bytearray(MAX_UNPROVEN_BYTES))
        self._plain = memoryview(bytearray(MAX_UNPROVEN_BYTES))
        self._lent: LentSpace | None = None  # in place of it for large reads, while the pipe is busy
        self._wide = False
        self._calm_reads = 0  # in a row that small buffers would have taken
        self._chunks: deque[bytes] = deque()
        self._handshake_bytes = 0
        self._lost = asyncio.Event()  # the socket is closed
        self._stun: StreamAnswers | None = None  # the other side asks where it comes from: no link

    # --- what the event loop calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set the socket's options, let the owner know, begin the handshake."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.local_host, self.local = _place(transport.get_extra_info("sockname"))
        self.remote_host, self.remote = _place(transport.get_extra_info("peername"))
        transport.set_write_buffer_limits(high=SEND_HIGH_BYTES, low=_SEND_LOW_BYTES)
        tune(transport.get_extra_info("socket"))
        if self._on_made is not None:
            self._on_made(self)
        if not self._server_side and self._end is None:
            self._shake()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the buffer for the loop to read to."""
        return self._raw

    def buffer_updated(self, nbytes: int) -> None:
        """Handle received bytes: handshake first, then plain bytes for `receive`."""
        if self._end is not None:
            return  # closing: whatever comes now is thrown away
        if self._greeting and self._on_plain is not None:  # whatever its next part begins with
            self._greet(self._raw[:nbytes], self._on_plain)
            return
        if not self._secured and self._is_stun():
            self._answer_stun(bytes(self._raw[:nbytes]))
            return
        if self._is_http() and self._on_http is not None and self._on_http(self, bytes(self._raw[:nbytes])):
            return
        if self._on_plain is not None and self._is_plain():
            self._greet(self._raw[:nbytes], self._on_plain)
            return
        if self._on_hello is not None and not self._secured and len(self._hello) < MAX_UNPROVEN_BYTES:
            self._hello += self._raw[:nbytes]
            if not self._on_hello(self, self._hello):
                self.abort()
                return
        self._engine.feed(self._raw[:nbytes])
        if not self._secured:
            self._handshake_bytes += nbytes
            self._shake()
        if self._secured:
            self._pull(nbytes)
        if self._wide and (nbytes == len(self._raw) or self._lent is not None):
            self._fit(nbytes)

    def eof_received(self) -> bool:
        """Handle a half-close without a goodbye inside TLS: cut off, not ended."""
        self._finish(CutOff, f"the connection to `{self.remote}` ended without a goodbye")
        return False  # the loop closes the socket

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the loss of the socket."""
        reason = f": {_reason(exc)}" if exc is not None else ""
        kind = CutOff if isinstance(exc, ConnectionResetError | BrokenPipeError) else Broken
        self._finish(kind, f"the connection to `{self.remote}` broke{reason}")
        self._lost.set()

    def pause_writing(self) -> None:
        """Stop senders: our buffer is over the high-water mark."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Resume senders: the buffer has drained."""
        self._writable.set()

    # --- what the owner calls

    def binding(self) -> bytes:
        """Return the SHA-256 of the listener's certificate; for the dialler, after `secure`."""
        return self._engine.binding()

    def widen(self) -> None:
        """Open full buffers: the other side has proven who it is."""
        self._wide = True
        self._hello = bytearray()
        self._resize(_CALM_BYTES)
        if self._unread < RECEIVE_LOW_BYTES and self._transport is not None and self._end is None:
            self._transport.resume_reading()

    def abort(self) -> None:
        """Drop the connection at once, without a goodbye."""
        self._finish(Closed, "this link was closed")
        if self._transport is not None and not self._lost.is_set():
            self._transport.abort()

    def as_visit(self, first: bytes) -> Visit:
        """Give the connection up to a browser's visit, which began with `first`; this pipe ends."""
        assert self._transport is not None
        transport, self._transport = self._transport, None
        self._is_visit = True
        self._finish(Closed, "a browser has come")
        return Visit(transport, first, host=self.remote_host, remote=self.remote)

    def as_socket(self) -> socket.socket:
        """Give the connection up to the caller as a socket of its own; this pipe ends. Raises OSError."""
        assert self._transport is not None
        given: socket.socket = self._transport.get_extra_info("socket").dup()
        transport, self._transport = self._transport, None
        self._is_visit = True
        self._finish(Closed, "it is for a program of this machine")
        transport.abort()  # closes the loop's descriptor, which is not the last one
        return given

    async def wait_lost(self) -> None:
        """Wait until the socket is closed; after `abort` that is the loop's next turn."""
        if self._transport is not None:
            await self._lost.wait()

    # --- inside

    async def _say_goodbye(self, *, ended: bool) -> None:
        self._chunks.clear()
        if self._transport is not None:
            self._end_our_half()
            await self._lost.wait()

    async def _wait_gone(self) -> None:
        await self.wait_lost()  # the loop closes the socket in its next turn

    def _end_our_half(self) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.resume_reading()  # to see the other side's end
        try:
            self._transport.write_eof()
        except OSError:
            self._transport.abort()  # the other side was quicker

    def _shake(self) -> None:
        try:
            self._secured = self._engine.advance()
            if not self._secured and self._handshake_bytes > MAX_HANDSHAKE_BYTES:
                raise RemoteProtocolError("the TLS handshake is too long", code="tls")
        except RemoteProtocolError as error:
            self._write(self._engine.outgoing())  # the alert that says why
            self._fail(RemoteProtocolError, error.what)
            return
        self._write(self._engine.outgoing())
        if self._secured:
            self._readable.set()

    @property
    def wants_no_link(self) -> bool:
        """True if the other side wanted to know its own address, is a browser, or was awaited."""
        return self._stun is not None or self._is_visit

    def _is_http(self) -> bool:
        first = self._server_side and not self._handshake_bytes and not self._secured
        return first and self._raw[:1] == HTTP

    def _is_plain(self) -> bool:
        first = self._server_side and not self._handshake_bytes and not self._secured
        return bool(self._greeting) or (first and self._raw[:1] == PLAIN[:1])

    def _greet(self, data: memoryview, on_plain: "Callable[[TcpPipe, bytes], bool]") -> None:
        """Take a part of the greeting of a plain connection, and give the connection up once it is whole."""
        self._greeting += data
        is_good = self._greeting.startswith(PLAIN[: len(self._greeting)])
        if is_good and len(self._greeting) < GREETING_BYTES:
            return
        tag = bytes(self._greeting[len(PLAIN) :])
        if not (is_good and len(self._greeting) == GREETING_BYTES and on_plain(self, tag)):
            self.abort()

    def _is_stun(self) -> bool:
        """Return True if this is STUN: TLS never begins with a zero, a binding request always does."""
        first = self._server_side and not self._handshake_bytes and self.remote_host
        if self._stun is None and first and not self._raw[0]:
            port = int(self.remote.rpartition(":")[2])
            self._stun = StreamAnswers(Endpoint(self.remote_host, port))
        return self._stun is not None

    def _answer_stun(self, data: bytes) -> None:
        assert self._stun is not None
        try:
            self._write(self._stun.feed(data))
        except RemoteProtocolError as error:
            self._fail(RemoteProtocolError, error.what)

    def _put(self, data: Sequence[bytes | memoryview], size: int) -> None:
        sealed = self._engine.seal(data)
        if self._transport is not None:
            self._transport.write(sealed)

    def _fetch(self) -> bytes:
        chunk = self._chunks.popleft()
        self._unread -= len(chunk) + _CHUNK_COST
        least = RECEIVE_LOW_BYTES if self._wide else MAX_UNPROVEN_BYTES
        if self._unread < least and self._transport is not None and self._end is None:
            self._transport.resume_reading()
        return chunk

    def _pull(self, read: int) -> None:
        try:
            while self._pull_chunk(None if read < _CALM_BYTES else self._lent):
                pass
        except EndOfStream:
            self._finish(EndOfStream, f"`{self.remote}` ended the link")
            if self._transport is not None:
                self._transport.close()  # our goodbye is written; a link has no half that could stay open
        except RemoteProtocolError as error:
            self._fail(Broken, error.what)
        else:
            answer = self._engine.outgoing()  # of TLS itself, to a key update say
            if answer:
                self._write(answer)
            most = RECEIVE_HIGH_BYTES if self._wide else MAX_UNPROVEN_BYTES
            if self._unread >= most and self._transport is not None:
                self._transport.pause_reading()

    def _pull_chunk(self, lent: LentSpace | None) -> bool:
        """Unseal one chunk and pass it on; True while more may be there."""
        space = self._plain if lent is None else lent.open()
        count = self._engine.unseal(space)
        if not count:
            return False
        if self._take is None or self._chunks:
            self._keep(bytes(space[:count]))
        else:
            lends = lent is not None and count * _LENT_SHARE >= len(space)
            chunk = space[:count].toreadonly() if lends else bytes(space[:count])
            if not self._take(chunk):
                self._keep(bytes(chunk))
        return not self._engine.drained

    def _keep(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._unread += len(chunk) + _CHUNK_COST
        self._readable.set()

    def _fit(self, read: int) -> None:
        """Fit the buffers to the reads: large where reads fill them, small after many small reads."""
        size = len(self._raw)
        if read == size:
            self._resize(min(_READ_BYTES, 4 * size))
        else:
            self._calm_reads = self._calm_reads + 1 if read < _CALM_BYTES else 0
            if self._calm_reads == _CALM_READS:
                self._resize(_CALM_BYTES)

    def _resize(self, size: int) -> None:
        self._calm_reads = 0
        if size == len(self._raw):
            return
        self._raw = memoryview(bytearray(size))
        if size > _CALM_BYTES:
            self._lent = LentSpace(size)
        else:
            self._lent = None
            self._plain = memoryview(bytearray(size))

    def _write(self, data: bytes) -> None:
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._transport.get_write_buffer_size() > 2 * MAX_SEND_BYTES:
                # only a peer that has us answer (key updates) and never reads gets here
                self._fail(Broken, f"`{self.remote}` does not read")

    def _finish(self, kind: type[MeshdError], what: str) -> None:
        if self._end is not None:
            return
        super()._finish(kind, what)
        if self._secured and kind in (Closed, EndOfStream):
            self._engine.finish()
            self._write(self._engine.outgoing())

    def _fail(self, kind: type[MeshdError], what: str) -> None:
        self._finish(kind, what)
        if self._transport is not None:
            self._transport.close()


def _place(address: object) -> tuple[str, str]:
    """Return host, and `host:port` as in Candidate.place, of an address of the socket module."""
    if not isinstance(address, tuple) or len(address) < 2:
        return "", "unknown"  # the other side was gone before we asked
    host, port, *more = address  # of IPv6: flow, scope id
    if ":" not in host:
        return host, f"{host}:{port}"
    return host, f"[{host}{_zone(more[-1] if more else 0)}]:{port}"


def _zone(scope: int) -> str:
    """Return `%eth0` for the scope id of a link-local address; empty for 0, which others have."""
    try:
        return f"%{socket.if_indextoname(scope)}" if scope else ""
    except OSError:
        return f"%{scope}"  # the interface has gone


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)
