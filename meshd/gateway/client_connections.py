"""Connections to the API: unauthenticated ones, limited in number and time, and those that have shown a key.

Anybody who reaches the port can connect. A connection is a stranger's until a request on it was let in (with
a key, where keys are asked for). When strangers are too many the oldest goes, of the same address first: a
client with a key sends it at once, and is a stranger for some milliseconds.

Whoever does not read its answers is cut off, whatever was being written.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, LineTooLong

from meshd.base import fault_boundary
from meshd.base.hosts import is_loopback
from meshd.base.peer_limits import API_CLIENTS, API_CLIENTS_OF_KEY, API_STRANGERS, API_STRANGERS_OF_ADDRESS
from meshd.base.unproven_connections import UnprovenConnections
from meshd.base.work_slots import Release, Slots
from meshd.gateway.answer_backlog import AnswerBacklog
from meshd.gateway.failure import ANSWER_HEADERS, Failure
from meshd.gateway.interface import MemberCaller

STRANGER_SECONDS = 10.0  # for a whole request head
SWEEP_SECONDS = 1.0
HEADER_LINE_BYTES = 4096  # of a request line, or one header
MAX_HEADERS = 64
_READ_BYTES = 64 << 10  # of a body that nobody reads yet
_LINGER_SECONDS = 2.0  # for the rest of a body that nobody wants
# What anybody may send, and a connection that ends: no failure of ours, and not worth a line.
_THEIRS = (HttpProcessingError, web.RequestPayloadError, ConnectionError)

Handler = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class RequestGate:
    """All connections of one API."""

    def __init__(self) -> None:
        self._strangers = UnprovenConnections(
            most=API_STRANGERS.most, most_of_one=API_STRANGERS_OF_ADDRESS.most
        )
        self._since: dict[Visitor, float] = {}
        self._visitors: set[Visitor] = set()
        self._places = Slots(API_CLIENTS, API_CLIENTS_OF_KEY)

    def arrive(self, visitor: "Visitor", transport: asyncio.BaseTransport) -> None:
        """A new connection."""
        host, port = _address(transport)
        # one machine has many users: what counts as one address is meant for those of a network
        place = f"{host} {port}" if is_loopback(host) else host
        self._visitors.add(visitor)
        self._since[visitor] = asyncio.get_running_loop().time()
        if visitor.member is None:  # the mesh knows its members, and has counted this one
            self._strangers.arrive(visitor, host=place, send_away=visitor.send_away)

    def know(self, visitor: "Visitor", key: bytes) -> bool:
        """A request on it was let in with `key`; False when those of that key, or all, are too many."""
        if visitor.release is None:
            visitor.release = self._places.take(key)
            if visitor.release is None:
                return False
            self._since.pop(visitor, None)
            self._strangers.leave(visitor)
        return True

    def leave(self, visitor: "Visitor") -> None:
        """It is gone."""
        self._visitors.discard(visitor)
        self._since.pop(visitor, None)
        self._strangers.leave(visitor)
        if visitor.release is not None:
            visitor.release()

    async def serve(self) -> None:
        """Send strangers away who take too long, and clients who do not read, until cancelled."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            late = asyncio.get_running_loop().time() - STRANGER_SECONDS
            for visitor in [one for one, since in self._since.items() if since < late]:
                visitor.send_away()
            for visitor in [one for one in self._visitors if one.is_stuck()]:
                visitor.send_away()


class Visitor(web.RequestHandler):
    """One connection."""

    def __init__(
        self,
        door: RequestGate,
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
            max_field_size=HEADER_LINE_BYTES,
            max_headers=MAX_HEADERS,
            auto_decompress=False,  # a body that nobody may send is not unpacked, nor one that is refused
        )
        self._door = door
        self.member = member
        self._wire: asyncio.BaseTransport | None = None
        self._backlog: AnswerBacklog | None = None
        self.release: Release | None = None  # of its place among those who are known

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._wire = transport
        super().connection_made(transport)
        self._door.arrive(self, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """See asyncio.Protocol."""
        self._door.leave(self)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """See asyncio.Protocol. What is written waits from now on, for this client."""
        super().pause_writing()
        self._backlog = AnswerBacklog(self._untaken)

    def resume_writing(self) -> None:
        """See asyncio.Protocol."""
        super().resume_writing()
        self._backlog = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """See aiohttp's, which logs a traceback for each request that is no HTTP, and repeats it."""
        error = exc if exc is not None else sys.exc_info()[1]
        self._note(error, "answer a request")
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: nothing else can be said")
        response = (_not_http(error) if status < 500 else _BROKEN).response()
        response.headers.update(ANSWER_HEADERS)
        response.force_close()
        return response

    def log_exception(self, *args: object, **kw: object) -> None:
        """See aiohttp's: a failure after the answer."""
        given = kw.get("exc_info")
        error = given if isinstance(given, BaseException) else sys.exc_info()[1]
        self._note(error or RuntimeError(str(args[:1])), "end a request")

    @staticmethod
    def _note(error: BaseException | None, name: str) -> None:
        if error is not None and not isinstance(error, _THEIRS):
            fault_boundary.note(error, source="api", name=name)

    def is_stuck(self) -> bool:
        """Whether it takes nothing of what waits for it; to be asked once a second."""
        if self._backlog is None and self._wire is not None and self._wire.is_closing():
            self._backlog = AnswerBacklog(self._untaken)  # the rest would keep it open
        return self._backlog is not None and self._backlog.is_stuck(self._untaken)

    @property
    def _untaken(self) -> int:
        return self._wire.get_write_buffer_size() if isinstance(self._wire, asyncio.Transport) else 0

    def send_away(self) -> None:
        """End it at once."""
        if isinstance(self._wire, asyncio.Transport):
            self._wire.abort()


_BROKEN = Failure(
    500,
    "meshd failed at this request: its log says where (`meshd logs`)",
    type="server_error",
    code="internal_error",
)


def _not_http(error: BaseException | None) -> Failure:
    """What comes before keys, hosts and origins are looked at; the request is not repeated."""
    if isinstance(error, LineTooLong):
        message = f"the request line or a header is longer than {HEADER_LINE_BYTES} bytes"
        return Failure(431, message, code="headers_too_large")
    message = f"the request is not valid HTTP/1.1, or has more than {MAX_HEADERS} headers"
    return Failure(400, message, code="invalid_http")


class DoorServer(web.Server):
    """As aiohttp's, with visitors who are counted."""

    def __init__(self, door: RequestGate, handler: Handler, *, idle: float) -> None:
        super().__init__(handler, handler_cancellation=True)
        self._door = door
        self._idle = idle

    def __call__(self, member: MemberCaller | None = None) -> Visitor:
        """For a new connection."""
        loop = asyncio.get_running_loop()
        return Visitor(self._door, self, loop=loop, idle=self._idle, member=member)


def member_of(request: web.BaseRequest) -> MemberCaller | None:
    """Who calls over the mesh."""
    return request.protocol.member if isinstance(request.protocol, Visitor) else None


def _address(transport: asyncio.BaseTransport) -> tuple[str, int]:
    name = transport.get_extra_info("peername")
    return (str(name[0]), int(name[1])) if isinstance(name, tuple) else ("", 0)
