"""HTTP with the API's clients: their connections, limited in number and time, and the streams to them.

Anyone who reaches the port can connect. A connection is a stranger's until a request on it is admitted (with
a key, if keys are required). When there are too many strangers, an older one is closed, of the same address
first: a client with a key sends it at once, and is a stranger for only some milliseconds.

Clients keep connections open for their next request. When places are short, the longest idle connection of
the client with most connections is closed, so idle connections never keep anyone out.

A client that does not read its answers is disconnected: while bytes of an answer wait, it holds a slot of
llama-server that others want.

A stream begins with its first byte, or with a comment after a period of silence. From then on errors are sent
as events.
"""

import asyncio
import socket
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import TYPE_CHECKING, cast

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from meshd.base import fault_boundary
from meshd.base.admission import Release, Slots
from meshd.base.errors import Broken, MeshdError
from meshd.base.hosts import is_loopback
from meshd.base.peer_limits import (
    API_CLIENTS,
    API_CLIENTS_OF_ADDRESS,
    API_CLIENTS_OF_KEY,
    API_STRANGERS,
    API_STRANGERS_OF_ADDRESS,
    API_STUCK_SECONDS,
)
from meshd.base.tasks import Owner
from meshd.base.units import without_numbers
from meshd.base.unproven_connections import UnprovenConnections, origin
from meshd.gateway.dialects.dialect import Answering, Dialect
from meshd.gateway.failure import ANSWER_HEADERS, Failure, HttpRefusal, unavailable
from meshd.gateway.interface import MemberCaller
from meshd.gateway.paths import error_dialect

if TYPE_CHECKING:
    from aiohttp.http import HttpRequestParser, RawRequestMessage
    from aiohttp.streams import StreamReader
    from multidict import CIMultiDictProxy

_LEAST_TAKEN = 64 << 10  # in that time, of what waits: 220 bytes a second are enough


class AnswerBacklog:
    """The unread bytes of a client, from when writing pauses until it resumes."""

    def __init__(self, waiting: int) -> None:
        self._waiting = waiting
        self._taken = 0
        self._looks = 0  # not a clock: a daemon that was suspended has not seen who reads

    def is_stuck(self, waiting: int) -> bool:
        """Return True if the client has read too little for too long; call once a second.

        `waiting`: the bytes that wait now.
        """
        self._taken += max(0, self._waiting - waiting)
        self._waiting = waiting
        self._looks += 1
        if self._taken >= _LEAST_TAKEN:
            self._taken = self._looks = 0
        return self._looks > API_STUCK_SECONDS.most


STRANGER_SECONDS = 10.0  # for a whole request head
SWEEP_SECONDS = 1.0
HEADER_LINE_BYTES = 32 << 10  # of a request line, or one header other than Cookie
# of a whole request head; browsers send the cookies of all programs on localhost
REQUEST_HEAD_BYTES = 256 << 10
MAX_HEADERS = 256
_READ_BYTES = 64 << 10  # of a body that nobody reads yet
_LINGER_SECONDS = 2.0  # for the rest of a body that nobody wants
# Errors that any client can cause: no failure of ours, and not worth a line.
_THEIRS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)
KEEP_ALIVE = "keep-alive"  # the text of a comment if there is no news
_LEFT_OUT = "X-Meshd-Left-Out"
_MOST_NOTED = 500  # letters
_LOOK_SECONDS = 1.0  # between two looks at whether there is something to tell

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class ConnectionLimits:
    """All connections of one API, and their limits by address and key."""

    def __init__(self) -> None:
        self._strangers = UnprovenConnections(
            most=API_STRANGERS.most, most_of_one=API_STRANGERS_OF_ADDRESS.most
        )
        self._connections: set[ClientConnection] = set()
        self._places = Slots(API_CLIENTS, API_CLIENTS_OF_ADDRESS, API_CLIENTS_OF_KEY)

    def arrive(self, connection: "ClientConnection", transport: asyncio.BaseTransport) -> None:
        """Add a new connection. It counts as a stranger's unless a member made it."""
        host, port = _address(transport)
        # one machine has many users: what counts as one address is meant for those of a network
        place = f"{host} {port}" if is_loopback(host) else host
        connection.address = origin(place)
        self._connections.add(connection)
        connection.stranger_since = _now()
        if connection.member is None:  # the mesh knows its members, and has counted this one
            self._strangers.arrive(connection, host=place, send_away=connection.send_away)

    def admit(self, connection: "ClientConnection", key: bytes) -> bool:
        """Give a place to a connection on which a request with `key` was admitted.

        When places are short, an idle connection is closed for it. Returns False if none is idle.
        """
        if connection.release is None:
            client = (key, connection.address)
            connection.release = self._places.take(client, key)
            while connection.release is None and (idle := self._idle_for(client)) is not None:
                idle.send_away()
                self.leave(idle)
                connection.release = self._places.take(client, key)
            if connection.release is None:
                return False
            connection.client, connection.stranger_since = client, None
            self._strangers.leave(connection)
        return True

    def admit_request(self, request: web.BaseRequest, key: bytes) -> None:
        """Let the connection of a request with `key` stay. Raises HttpRefusal if there is no place."""
        if isinstance(request.protocol, ClientConnection) and not self.admit(request.protocol, key):
            raise unavailable("too many connections are open with this key")

    def _idle_for(self, newcomer: tuple[bytes, str]) -> "ClientConnection | None":
        """Pick the idle connection to close so that `newcomer` may fit; None if there is none.

        The narrowest limit that is reached decides the candidates: the newcomer's own connections, those with
        its key, or all. Of these, the client with most connections loses the one idle for longest.
        """
        held_by = [(connection, client) for connection in self._connections if (client := connection.client)]
        held = Counter(client for _, client in held_by)
        of_key = [connection for connection, client in held_by if client[0] == newcomer[0]]
        among = [connection for connection, _ in held_by]
        if held[newcomer] >= API_CLIENTS_OF_ADDRESS.most:
            among = [connection for connection, client in held_by if client == newcomer]
        elif len(of_key) >= API_CLIENTS_OF_KEY.most:
            among = of_key
        return min(
            (connection for connection in among if connection.idle_since is not None),
            key=lambda connection: (-held[connection.client or newcomer], connection.idle_since or 0.0),
            default=None,
        )

    def leave(self, connection: "ClientConnection") -> None:
        """Forget a connection that is gone, and free its place."""
        self._connections.discard(connection)
        self._strangers.leave(connection)
        connection.client = None
        if connection.release is not None:
            connection.release()

    async def serve(self) -> None:
        """Disconnect slow strangers and clients that do not read, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            for connection in tuple(self._connections):
                since = connection.stranger_since
                is_late = since is not None and since < _now() - STRANGER_SECONDS
                if connection.is_stuck() or is_late:
                    connection.send_away()


class ClientConnection(web.RequestHandler):
    """One connection of a client, or of a member over the mesh."""

    def __init__(
        self,
        limits: ConnectionLimits,
        server: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        idle: float,
        member: MemberCaller | None = None,
    ) -> None:
        super().__init__(
            server,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # as aiohttp itself passes it on
            keepalive_timeout=idle,
            lingering_time=_LINGER_SECONDS,
            read_bufsize=_READ_BYTES,
            max_line_size=HEADER_LINE_BYTES,
            max_field_size=REQUEST_HEAD_BYTES,
            max_headers=MAX_HEADERS,
            auto_decompress=False,  # a body that nobody may send is not unpacked, nor one that is refused
        )
        self._parser = cast("HttpRequestParser", _WholeHeadLimit(cast("HttpRequestParser", self._parser)))
        # who it is
        self._limits = limits
        self.member = member
        self.address = ""
        self.client: tuple[bytes, str] | None = None  # key and address, once a request was let in
        self.stranger_since: float | None = None
        # whether it is used, and how fast the client reads
        self._busy = 0
        self._rested: float | None = None
        self._wire: asyncio.BaseTransport | None = None
        self._backlog: AnswerBacklog | None = None
        self.release: Release | None = None  # of its place among those who are known

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection."""
        self._wire = transport
        super().connection_made(transport)
        self._limits.arrive(self, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Free the connection's place."""
        self._limits.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Begin to watch how fast the client reads: from now on writes wait for it."""
        super().pause_writing()
        self._backlog = AnswerBacklog(self._untaken)

    def resume_writing(self) -> None:
        """End the watch: the client has read enough."""
        super().resume_writing()
        self._backlog = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the response to a request that failed.

        aiohttp would log a traceback for each request that is not HTTP, and quote the request.
        """
        error = exc if exc is not None else sys.exc_info()[1]
        self._note(error, "answer a request")
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: nothing else can be said")
        failure = _not_http(error) if status < 500 else _BROKEN
        response = error_response(failure, error_dialect(request.path))
        response.headers.update(ANSWER_HEADERS)
        response.force_close()
        return response

    def log_exception(self, *args: object, **kw: object) -> None:
        """Log a failure after the answer."""
        given = kw.get("exc_info")
        error = given if isinstance(given, BaseException) else sys.exc_info()[1]
        self._note(error or RuntimeError(str(args[:1])), "end a request")

    @staticmethod
    def _note(error: BaseException | None, name: str) -> None:
        if error is not None and not isinstance(error, _THEIRS):
            fault_boundary.note(error, source="api", name=name)

    @property
    def idle_since(self) -> float | None:
        """Return when the last request was answered; None while one runs or bytes of an answer wait."""
        return None if self._busy or self._untaken else self._rested

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Mark the connection as busy with a request until the block is left."""
        self._busy += 1
        try:
            yield
        finally:
            self._busy -= 1
            self._rested = _now()

    def is_stuck(self) -> bool:
        """Return True if the client does not read what waits for it; call once a second."""
        if self._backlog is None and self._wire is not None and self._wire.is_closing():
            self._backlog = AnswerBacklog(self._untaken)  # the rest would keep it open
        return self._backlog is not None and self._backlog.is_stuck(self._untaken)

    @property
    def _untaken(self) -> int:
        return self._wire.get_write_buffer_size() if isinstance(self._wire, asyncio.Transport) else 0

    def send_away(self) -> None:
        """Abort the connection."""
        if isinstance(self._wire, asyncio.Transport):
            self._wire.abort()


class _WholeHeadLimit:
    """Wrap aiohttp's parser, which limits each line of a request head but not their sum."""

    def __init__(self, parser: "HttpRequestParser") -> None:
        self._parser = parser
        self._head_bytes = 0
        self._body: StreamReader | None = None

    def feed_data(self, data: bytes) -> "tuple[list[tuple[RawRequestMessage, StreamReader]], bool, bytes]":
        """Parse `data`. Raises LineTooLong also for an unfinished head longer than REQUEST_HEAD_BYTES."""
        between_requests = self._body is None or self._body.is_eof()
        messages, upgraded, tail = self._parser.feed_data(data)
        if messages:
            self._head_bytes, self._body = 0, messages[-1][1]
        elif between_requests:
            self._head_bytes += len(data)
            if self._head_bytes > REQUEST_HEAD_BYTES:
                raise LineTooLong(b"the request head", REQUEST_HEAD_BYTES)
        return messages, upgraded, tail

    def __getattr__(self, name: str) -> object:
        return getattr(self._parser, name)


_FAILED = "meshd failed at this request: its log says where (`meshd logs`)"
_BROKEN = Failure(500, _FAILED, type="server_error", code="internal_error")
_TOO_LONG = (
    f"the request line or a header is longer than {HEADER_LINE_BYTES} bytes, or all together have more than "
    f"{REQUEST_HEAD_BYTES}"
)
_HEAD_TOO_LONG = Failure(431, _TOO_LONG, code="headers_too_large")


def check_framing(headers: "CIMultiDictProxy[str]") -> None:
    """Refuse a header that is too long, and any transfer coding but `chunked` (RFC 9112, 6.1).

    Raises HttpRefusal.
    """
    if has_long_header(headers):
        raise HttpRefusal(_HEAD_TOO_LONG)
    codings = headers.getall("Transfer-Encoding", [])
    if codings and [coding.strip().lower() for coding in codings] != ["chunked"]:
        message = f"`Transfer-Encoding: {', '.join(codings)[:50]}` is not supported: send `chunked` alone"
        raise HttpRefusal(Failure(501, message, code="unsupported_transfer_encoding"))


def demand_method(method: str, *wanted: str) -> None:
    """Refuse other methods than the wanted ones. Raises HttpRefusal."""
    if method not in wanted:
        message = f"use {' or '.join(wanted)} for this path"
        raise HttpRefusal(Failure(405, message, code="method_not_allowed", allow=wanted))


def has_long_header(headers: Mapping[str, str]) -> bool:
    """Return True if a header is too long. Cookies do not count.

    Browsers send all cookies of `localhost`, including those of other programs.
    """
    return any(
        len(name) + len(value) > HEADER_LINE_BYTES
        for name, value in headers.items()
        if name.lower() != "cookie"
    )


def _not_http(error: BaseException | None) -> Failure:
    """Return the failure for bytes that are not a valid request."""
    if isinstance(error, LineTooLong):
        return _HEAD_TOO_LONG
    message = f"the request is not valid HTTP/1.1, or has more than {MAX_HEADERS} headers"
    return Failure(400, message, code="invalid_http")


class ApiServer(web.Server):
    """An aiohttp server whose connections are counted."""

    def __init__(self, limits: ConnectionLimits, handler: Handler, *, idle: float) -> None:
        super().__init__(_noted(handler), handler_cancellation=True)
        self._limits = limits
        self._idle = idle

    def __call__(self, member: MemberCaller | None = None) -> ClientConnection:
        """Make the protocol of a new connection."""
        loop = asyncio.get_running_loop()
        return ClientConnection(self._limits, self, loop=loop, idle=self._idle, member=member)


@asynccontextmanager
async def listening(
    server: ApiServer, sockets: Sequence[socket.socket], *, end_seconds: float
) -> AsyncIterator[None]:
    """Serve on bound sockets until the block is left; then all connections are closed.

    Clients get `end_seconds` to take what was written.
    """
    runner = web.ServerRunner(server, shutdown_timeout=end_seconds)
    await runner.setup()
    try:
        for listener in sockets:
            await web.SockSite(runner, listener).start()
        yield
    finally:
        transports = [connection.transport for connection in server.connections]
        try:
            await runner.cleanup()
        finally:
            for transport in transports:
                if transport is not None:
                    transport.abort()  # bytes that a client never took would keep it open


def _noted(handler: Handler) -> Handler:
    """Mark the connection as busy while `handler` runs."""

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        if not isinstance(request.protocol, ClientConnection):
            return await handler(request)
        with request.protocol.answering():
            return await handler(request)

    return answer


def member_of(request: web.BaseRequest) -> MemberCaller | None:
    """Return the member that calls over the mesh; None if the client does not."""
    return request.protocol.member if isinstance(request.protocol, ClientConnection) else None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    name = transport.get_extra_info("peername")
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)


def error_response(failure: Failure, dialect: Dialect) -> web.Response:
    """Return a failure as a whole response, in the client's dialect."""
    return web.json_response(dialect.error(failure), status=failure.status, headers=failure.headers())


def refused(request: web.BaseRequest, refusal: HttpRefusal, extra: Mapping[str, str]) -> web.Response:
    """Return the response to a refused request, in its dialect. `extra`: further headers."""
    response = error_response(refusal.failure, error_dialect(request.path))
    response.headers.update(extra)
    if not request.content.is_eof():
        response.force_close()  # the client need not send the rest of its body
    return response


def left_out(notes: Sequence[str]) -> dict[str, str]:
    """Return the header that names the parts of a request that the model does not get, if any.

    The names come from the client: characters that a header cannot hold become question marks.
    """
    names = ", ".join(dict.fromkeys(notes))[:_MOST_NOTED]
    shown = "".join(letter if " " <= letter <= "~" else "?" for letter in names)
    return {_LEFT_OUT: shown} if notes else {}


class ClientGone(Broken):
    """The client hung up while it was being written to."""


class StreamReply:
    """A streamed answer to `request`, begun by the first byte or by the first comment.

    A write waits until the client has read most of the earlier bytes: at most about 128 KiB are buffered.
    """

    def __init__(
        self,
        request: web.BaseRequest,
        *,
        silence: float,
        headers: dict[str, str],
        answering: Answering,
    ) -> None:
        """Prepare the stream without sending. `silence`: seconds until a comment is due, see `commented`."""
        self._request = request
        self._silence = silence
        self._comment = answering.comment
        self._lock = asyncio.Lock()
        self._last = _now()
        self._quiet = False
        self._look = asyncio.Event()
        self._noted: tuple[str, ...] = ()
        self.response = web.StreamResponse(
            headers={
                "Content-Type": answering.content_type,
                "Cache-Control": "no-cache",
                "X-Accel-Buffering": "no",  # a proxy before us shall not collect the stream either
                **headers,
            }
        )

    @property
    def begun(self) -> bool:
        """Return True once status and headers are sent: from then on errors are events."""
        return self.response.prepared

    async def begin(self) -> None:
        """Send status and headers now. Raises ClientGone."""
        await self.send(b"")

    async def send(self, data: bytes) -> None:
        """Write bytes and wait until the client has room again. Raises ClientGone."""
        async with self._lock:
            await self._write(data)

    async def note(self, notes: Sequence[str]) -> None:
        """Name the parts that the model does not get: in a header, or in a comment once headers are sent.

        The same parts are named once.
        """
        noted, self._noted = self._noted, tuple(notes)
        if self._noted == noted:
            return
        if self.begun:
            for name, text in left_out(notes).items():
                await self.send(self._comment(f"{name}: {text}"))
        else:
            self.response.headers.update(left_out(notes))

    async def say(self, text: str) -> None:
        """Send a comment between events, if the answer has begun. Raises ClientGone."""
        if self.begun:
            await self.send(self._comment(text))

    async def cut(self, why: str) -> None:
        """Say why in a comment, and end the connection without the end of the answer. Raises ClientGone."""
        await self.send(self._comment(why))
        if self._request.transport is not None:
            self._request.transport.close()  # what was written still goes

    async def stop_comments(self) -> None:
        """Send no comments until `allow_comments`. On return none is being written."""
        self._quiet = True
        async with self._lock:
            pass

    def allow_comments(self, allowed: bool) -> None:
        """Allow comments between events, and forbid them within one."""
        self._quiet = not allowed

    def look(self) -> None:
        """Send a comment now if the notice has changed, and the answer has begun."""
        if self.begun:
            self._look.set()

    @asynccontextmanager
    async def commented(self, notice: Callable[[], str]) -> AsyncIterator[None]:
        """Keep the stream alive by comments until the block is left; then none is being written.

        `notice` returns the text of a comment; a change of it is sent without waiting for silence.
        """
        raised: MeshdError | None = None
        async with Owner() as owner:
            owner.start(self._keep_alive(notice), name="gateway keep-alive")
            try:
                yield
            except MeshdError as error:  # raised within the owner's block it would come out as a group
                raised = error
            await self.stop_comments()
            owner.cancel()
        if raised is not None:
            try:
                raise raised
            finally:
                del raised  # it would keep this frame alive, and with it the request

    async def _keep_alive(self, notice: Callable[[], str]) -> None:
        """Write a comment after each `silence` seconds without a byte, and when the notice changes.

        Returns when the client is gone.
        """
        pause = min(_LOOK_SECONDS, self._silence)
        looked, shown = _now(), ""
        while True:
            due = min(self._last + self._silence, max(self._last, looked) + pause)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._look.wait()
            looked, is_asked = _now(), self._look.is_set()
            self._look.clear()
            if looked < self._last + pause and not is_asked:
                continue  # an answer that comes waits for nothing
            async with self._lock:
                text, is_due = notice(), _now() >= self._last + self._silence
                subject = without_numbers(text)
                if not is_due and (not text or subject == shown):
                    shown = subject
                    continue
                if self._quiet:
                    self._last = _now() if is_due else self._last
                    continue
                try:
                    await self._write(self._comment(text or KEEP_ALIVE))
                except ClientGone:
                    return  # sending the answer will fail as well
                shown = subject

    async def _write(self, data: bytes) -> None:
        try:
            if not self.response.prepared:
                await self.response.prepare(self._request)
            if data:
                await self.response.write(data)
        except ConnectionError as error:
            raise ClientGone("the client disconnected") from error
        finally:
            self._last = _now()
