"""Checks which TCP connections get out, and how a NAT maps them: STUN over TCP, connections to relays."""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field

from meshd.base.errors import RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.link.net.stun import bound_socket
from meshd.netcheck.interface import ConnectionFacts, Outcome, Seen
from meshd.wire.stun import (
    MAX_STUN_BYTES,
    TRANSACTION_BYTES,
    Endpoint,
    StunKind,
    StunMessage,
    decode,
    encode,
    message_bytes,
)

TCP_SECONDS = 2.0
MORE_PORTS = 2  # beside the one from which everybody is asked
MAX_OTHERS = 4


@dataclass(slots=True)
class TcpLog:
    """The observations; `seen` in the order of the answers."""

    seen: list[Seen] = field(default_factory=list)
    connections: list[ConnectionFacts] = field(default_factory=list)


async def ask(servers: Sequence[Endpoint], host: str | None) -> TcpLog:
    """Ask all servers by STUN over TCP from one local port of `host`; then one of them from more ports.

    Second addresses that servers name are asked as well, from the first port, while the first connections
    live. Raises nothing of the network.
    """
    log = TcpLog()
    if host is None:
        return log
    with contextlib.ExitStack() as stack:
        try:
            local = _reserve(stack, host)
            others = await _ask_all(log, stack, local, servers)
            await _ask_all(
                log, stack, local, [endpoint for endpoint in others if endpoint not in servers][:MAX_OTHERS]
            )
            for _ in range(MORE_PORTS if log.seen else 0):
                await _ask_all(log, stack, _reserve(stack, host), [log.seen[0].server])
        except OSError:
            pass  # no ports: what was seen is what there is
    return log


def _reserve(stack: contextlib.ExitStack, host: str) -> Endpoint:
    """Reserve a local port that the sockets of this check share. Raises OSError."""
    sock = stack.enter_context(
        contextlib.closing(bound_socket(socket.AF_INET, socket.SOCK_STREAM, host=host))
    )
    return Endpoint(host, sock.getsockname()[1])


async def _ask_all(
    log: TcpLog, stack: contextlib.ExitStack, local: Endpoint, servers: Sequence[Endpoint]
) -> list[Endpoint]:
    """Ask servers; return the second addresses that they name. Raises nothing of the network."""
    others: list[Endpoint] = []

    async def ask_server(server: Endpoint) -> None:
        try:
            sock = bound_socket(socket.AF_INET, socket.SOCK_STREAM, host=local.host, port=local.port)
        except OSError:
            return
        stack.enter_context(contextlib.closing(sock))
        outcome, message = await _stun_over_tcp(sock, server)
        log.connections.append(ConnectionFacts(server, outcome))
        if message is not None and message.mapped is not None:
            log.seen.append(Seen(local.port, float(len(log.seen)), local, server, message.mapped))
            if message.other is not None and ":" not in message.other.host:
                others.append(Endpoint(message.other.host, server.port))

    async with Owner() as owner:
        for server in servers:
            owner.start(ask_server(server), name="netcheck tcp")
    return others


async def _stun_over_tcp(sock: socket.socket, server: Endpoint) -> tuple[Outcome, StunMessage | None]:
    loop = asyncio.get_running_loop()
    connected, data = False, b""
    transaction = secrets.token_bytes(TRANSACTION_BYTES)
    try:
        async with asyncio.timeout(TCP_SECONDS):
            await loop.sock_connect(sock, (server.host, server.port))
            connected = True
            await loop.sock_sendall(sock, encode(StunMessage(kind=StunKind.REQUEST, transaction=transaction)))
            while (size := message_bytes(data)) is None or size > len(data):
                more = await loop.sock_recv(sock, MAX_STUN_BYTES)
                if not more:
                    return _no_stun(data), None
                data += more
        message = decode(data[:size])
        return (Outcome.OK, message) if message.transaction == transaction else (Outcome.MUTE, None)
    except RemoteProtocolError:
        return _no_stun(data), None
    except TimeoutError:
        return (_no_stun(data) if connected else Outcome.SILENT), None
    except ConnectionRefusedError:
        return Outcome.REFUSED, None
    except OSError:
        return (Outcome.MUTE if connected else Outcome.UNREACHABLE), None


def _no_stun(data: bytes) -> Outcome:
    """Return the outcome without STUN: a web page comes from a captive portal, or a proxy."""
    return Outcome.ODD if data.startswith(b"HTTP/") else Outcome.MUTE


async def connect(server: Endpoint) -> ConnectionFacts:
    """Test whether a connection is let through; close it at once."""
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    loop = asyncio.get_running_loop()
    outcome = Outcome.OK
    with contextlib.closing(socket.socket(family, socket.SOCK_STREAM)) as sock:
        sock.setblocking(False)
        try:
            async with asyncio.timeout(TCP_SECONDS):
                await loop.sock_connect(sock, (server.host, server.port))
        except TimeoutError:
            outcome = Outcome.SILENT
        except ConnectionRefusedError:
            outcome = Outcome.REFUSED
        except OSError:
            outcome = Outcome.UNREACHABLE
    return ConnectionFacts(server, outcome)
