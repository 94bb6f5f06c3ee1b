"""A relay's metrics: plain text over HTTP on a loopback port, in Prometheus format."""

import asyncio
import socket

from meshd.base.tasks import Owner
from meshd.link.tcp.bind import accept_from
from meshd.relay.server import RelayServer

MAX_REQUEST_BYTES = 4 << 10
MAX_READERS = 16
_END = b"\r\n\r\n"


def lines(relay: RelayServer) -> str:
    """Return all metrics, one a line, without any node's name or address."""
    board = relay.board
    now = {
        "connections": relay.connections,
        "clients": board.clients,
        "circuits": board.circuits,
        "boxes": board.boxes,
        "mail_bytes": board.mail_bytes,
        "resting": relay.resting,
    }
    so_far = {
        "carried_bytes": relay.carried_bytes,
        "circuits": board.counts["circuits"],
        "mail": board.counts["mail"],
        "mail_dropped": board.mail_dropped + board.counts["mail_dropped"],
        "clients_refused": board.counts["clients_refused"],
        "connections_refused": board.counts["connections_refused"],
        "tickets_refused": board.counts["tickets_refused"],
        "rests": board.counts["rests"],
        "stun_answers": board.counts["stun_answers"],
        "stun_refused": board.counts["stun_refused"],
        "unproven_sent_away": relay.sent_away,
    }
    shown = [f"meshd_relay_{name} {value}" for name, value in now.items()]
    shown += [f"meshd_relay_{name}_total {value}" for name, value in so_far.items()]
    return "\n".join(shown) + "\n"


class MetricsPort:
    """Answers every request with the figures. The sockets must listen on loopback."""

    def __init__(self, relay: RelayServer, sockets: list[socket.socket]) -> None:
        self._relay = relay
        self._sockets = sockets
        self._readers: set[_RequestReader] = set()

    async def serve(self) -> None:
        """Serve until cancelled."""
        try:
            async with Owner() as owner:
                for sock in self._sockets:
                    owner.start(accept_from(sock, self._fresh), name="relay metrics")
        finally:
            for reader in list(self._readers):
                reader.close()

    def _fresh(self) -> "_RequestReader":
        return _RequestReader(self._relay, self._readers)


class _RequestReader(asyncio.Protocol):
    """One request, one answer."""

    def __init__(self, relay: RelayServer, readers: "set[_RequestReader]") -> None:
        self._relay = relay
        self._readers = readers
        self._request = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Turn a reader away when there are too many."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if len(self._readers) >= MAX_READERS:
            transport.abort()
        self._readers.add(self)

    def data_received(self, data: bytes) -> None:
        """Answer when the request's head is complete; its content is ignored."""
        self._request += data
        if self._transport is None:
            return
        if _END in self._request:
            body = lines(self._relay).encode()
            head = f"HTTP/1.0 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)
            self._transport.close()
        elif len(self._request) > MAX_REQUEST_BYTES:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the reader."""
        self._readers.discard(self)

    def close(self) -> None:
        """Abort: the relay ends."""
        if self._transport is not None:
            self._transport.abort()
