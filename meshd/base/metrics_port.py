"""The port on loopback that serves metrics over HTTP, for a Prometheus on this machine.

It speaks only as much HTTP as a scraper needs, so that a worker needs no HTTP library. A web page could have
a browser ask this port under its own domain name (DNS rebinding), so the Host must be loopback, too.
"""

import asyncio
import errno
import socket
from collections.abc import Awaitable, Callable
from enum import Enum, auto

from meshd.base.errors import UserError
from meshd.base.hosts import is_loopback
from meshd.base.socket_owners import port_holder
from meshd.base.sockets import LOOPBACK_HOST, accept_from, listen_at
from meshd.base.tasks import Owner

MAX_REQUEST_BYTES = 4 << 10
MAX_READERS = 16
READER_SECONDS = 30.0  # from the connection to the last byte, and at most twice as long
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"  # of Prometheus's text format
_PATHS = ("/", "/metrics")
_METHODS = ("GET", "HEAD")
_END = b"\r\n\r\n"
Exposition = Callable[[], Awaitable[str]]
"""All metrics in the text format."""


def listen_for_scrapers(host: str, port: int, *, setting: str) -> socket.socket:
    """Return a socket that listens on loopback; `setting` is where the address was given.

    Raises UserError for any other address, and for a port that cannot be had.
    """
    if not is_loopback(host):
        raise UserError(
            f"anyone could read the metrics on `{host}`", hint=f"use a loopback address: {setting}"
        )
    address = LOOPBACK_HOST if host == "localhost" else host
    try:
        sock = listen_at(socket.AF_INET6 if ":" in address else socket.AF_INET, address, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            holder = port_holder(address, port)
            what = f"port `{port}` on `{address}` is taken" + (f" by {holder}" if holder else "")
        else:
            what = f"cannot listen on `{address}` port `{port}`: {(error.strerror or '').lower()}"
        raise UserError(what, hint=f"choose another port for the metrics: {setting}") from None
    sock.setblocking(False)
    return sock


class MetricsReader(Enum):
    """The one who reads metrics, which decides what they contain."""

    OPERATOR = auto()
    """The node's user, at its control socket: everything."""
    MACHINE = auto()
    """Any user of this machine, at a port on loopback: everything but the use of each API key."""
    API = auto()
    """A client of the API: as MACHINE, or if that needs a key, only what concerns the API."""


class MetricsPort:
    """Answers requests for metrics on `sock`, which it owns. Each reply is made when it is asked for."""

    def __init__(self, sock: socket.socket, exposition: Exposition) -> None:
        self._sock = sock
        self._exposition = exposition
        self._readers: set[Reader] = set()
        self._answered: set[Reader] = set()  # those whose reply is being made
        self._owner: Owner | None = None

    @property
    def url(self) -> str:
        """Return the URL to scrape."""
        host, port = self._sock.getsockname()[:2]
        return f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"

    async def serve(self) -> None:
        """Serve until cancelled, then close the socket and all connections."""
        try:
            async with Owner() as owner:
                self._owner = owner
                owner.start(self._sweep(), name="metrics readers")
                await accept_from(self._sock, lambda: Reader(self))
        finally:
            self._sock.close()
            for reader in tuple(self._readers):
                reader.abort()

    async def _sweep(self) -> None:
        """Abort readers that were there at the last look already."""
        there: frozenset[Reader] = frozenset()
        while True:
            await asyncio.sleep(READER_SECONDS)
            for reader in there & self._readers:
                reader.abort()
            there = frozenset(self._readers)

    def admit(self, reader: "Reader") -> bool:
        """Take a reader, unless there are too many."""
        if len(self._readers) >= MAX_READERS:
            return False
        self._readers.add(reader)
        return True

    def leave(self, reader: "Reader") -> None:
        """Forget a reader, but one whose reply is being made keeps its place until it is."""
        if reader not in self._answered:
            self._readers.discard(reader)

    def answer(self, reader: "Reader", *, head_only: bool) -> None:
        """Begin to answer a request."""
        if self._owner is not None:
            self._owner.start_for("local client", self._reply(reader, head_only), name="metrics")

    async def _reply(self, reader: "Reader", head_only: bool) -> None:
        self._answered.add(reader)
        try:
            body = (await self._exposition()).encode()
        finally:
            self._answered.discard(reader)
            if reader.is_gone:
                self._readers.discard(reader)
        reader.reply("200 OK", body, CONTENT_TYPE, head_only=head_only)


class Reader(asyncio.Protocol):
    """One connection: one request, one reply."""

    def __init__(self, port: MetricsPort) -> None:
        self._port = port
        self._request = b""
        self._is_answered = False
        self.is_gone = False
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Turn a reader away when there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if not self._port.admit(self):
            transport.abort()

    def data_received(self, data: bytes) -> None:
        """Answer when the request's head is complete; its content is ignored."""
        if self._is_answered:
            return
        self._request += data
        if _END in self._request:
            self._is_answered = True
            self._answer(self._request.partition(_END)[0].decode("latin-1"))
        elif len(self._request) > MAX_REQUEST_BYTES:
            self.abort()

    def _answer(self, head: str) -> None:
        line, *headers = head.split("\r\n")
        method, _, rest = line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        hosts = [value.strip() for name, _, value in (h.partition(":") for h in headers) if _is_host(name)]
        if len(hosts) > 1 or not all(_is_here(host) for host in hosts):  # HTTP/1.0 has none
            self.reply("403 Forbidden", b"metrics are for this machine: ask a loopback address\n")
        elif method not in _METHODS:
            self.reply("405 Method Not Allowed", b"use GET\n")
        elif path not in _PATHS:
            self.reply("404 Not Found", b"the metrics are at /metrics\n")
        else:
            self._port.answer(self, head_only=method == "HEAD")

    def reply(
        self, status: str, body: bytes, content_type: str = "text/plain", *, head_only: bool = False
    ) -> None:
        """Write the reply, and close when it is written."""
        if self._transport is None or self._transport.is_closing():
            return
        fields = (f"Content-Type: {content_type}", f"Content-Length: {len(body)}", "Connection: close")
        head = "\r\n".join((f"HTTP/1.1 {status}", *fields, "", "")).encode()
        self._transport.write(head if head_only else head + body)
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the reader."""
        self.is_gone = True
        self._port.leave(self)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()


def _is_host(name: str) -> bool:
    return name.strip().lower() == "host"


def _is_here(host: str) -> bool:
    """Return True if a Host header, `NAME:PORT` or `[IPV6]:PORT`, names loopback."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    return is_loopback(name.lower())
