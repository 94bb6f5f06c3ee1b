"""The relay's UDP port: answers STUN binding requests (RFC 8489), and nothing else.

On a host with two addresses it also does what RFC 5780 wants for telling kinds of NAT apart: it has a second
port at both, names the opposite corner of the square, and answers from another corner when asked to. Each
address has a socket of its own: a socket for all would answer from whichever address the kernel likes.
"""

import asyncio
import contextlib
import socket
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import cast

from meshd.base.errors import RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.base.unproven_connections import origin
from meshd.link.net import local_addresses
from meshd.wire.stun import AnswerRates, Endpoint, StunKind, StunMessage, answer_to, decode, encode

_SQUARE_TRIES = 8  # for a second port that is free at both addresses

Corner = tuple[int, int]  # which address, which port


def answer_from(
    data: bytes, seen: Endpoint, at: Corner, square: dict[Corner, Endpoint]
) -> tuple[bytes, Corner] | None:
    """Return the reply to `seen` and the corner to send it from, for a datagram that came to `at`. Pure."""
    try:
        request = decode(data)
    except RemoteProtocolError:
        return None
    if request.kind is not StunKind.REQUEST or request.unknown:
        reply = answer_to(data, seen)  # none, or the error that says which attribute is not known
        return None if reply is None else (reply, at)
    corner = (at[0] ^ request.change_ip, at[1] ^ request.change_port)
    opposite = (at[0] ^ 1, at[1] ^ 1)
    reply = encode(
        StunMessage(
            kind=StunKind.SUCCESS,
            transaction=request.transaction,
            mapped=seen,
            origin=square[corner],
            other=square[opposite],
        )
    )
    return reply, corner


class StunPorts:
    """All UDP sockets of a relay. `second`: another address of this host, or empty.

    `is_known`: is a client of the relay connected from that address (as `origin` gives it)?
    """

    def __init__(self, counts: Counter[str], is_known: Callable[[str], bool], *, second: str = "") -> None:
        self.counts = counts
        self._is_known = is_known
        self._rates = AnswerRates()  # of all ports together
        self._second = second
        self._plain: list[socket.socket] = []
        self._square: dict[Corner, socket.socket] = {}

    def open(self, servers: list[socket.socket], first: str) -> None:
        """Bind beside the TCP sockets `servers`; `first` is the address of the square's other side.

        Raises OSError.
        """
        port = servers[0].getsockname()[1]
        if self._second:
            self._open_square(first, port)
        taken = {first, self._second} if self._square else set()
        for server in servers:
            host = server.getsockname()[0]
            if host not in taken:
                self._plain.append(_bound(host, port))
            if host not in ("0.0.0.0", "::"):
                continue
            for own in {item.host for item in local_addresses.enumerate_addresses()} - taken:
                if (":" in own) == (":" in host) and not own.startswith("fe80"):
                    with contextlib.suppress(OSError):  # an address that is just going, or not there yet
                        self._plain.append(_bound(own, port))

    def _open_square(self, first: str, port: int) -> None:
        places = (first, self._second)
        for side, host in enumerate(places):
            self._square[side, 0] = _bound(host, port)
        for attempt in range(_SQUARE_TRIES):
            above = _bound(first, port + 1 if attempt == 0 and port < 65535 else 0)
            try:
                self._square[1, 1] = _bound(self._second, above.getsockname()[1])
            except OSError:
                above.close()
                if attempt == _SQUARE_TRIES - 1:
                    raise
            else:
                self._square[0, 1] = above
                return

    async def start(self, owner: Owner) -> None:
        """Answer from here on, until `owner` ends."""
        square = {corner: Endpoint(*sock.getsockname()[:2]) for corner, sock in self._square.items()}
        ports: dict[Corner, _StunPort] = {}
        loop = asyncio.get_running_loop()
        for corner in list(self._square):
            transport, ports[corner] = await loop.create_datagram_endpoint(
                partial(_StunPort, self, corner, square, ports), sock=self._square.pop(corner)
            )
            owner.start(_close_at_end(transport), name="relay stun")
        while self._plain:
            transport, _ = await loop.create_datagram_endpoint(
                partial(_StunPort, self, (0, 0), {}, {}), sock=self._plain.pop()
            )
            owner.start(_close_at_end(transport), name="relay stun")

    def may_answer(self, host: str) -> bool:
        """Spend one answer to `host`, or return False, and count that."""
        now = asyncio.get_running_loop().time()
        if self._rates.may_answer(host, now, is_known=self._is_known(origin(host))):
            return True
        self.counts["stun_refused"] += 1
        return False

    def close(self) -> None:
        """Close what was opened and not started."""
        for sock in (*self._plain, *self._square.values()):
            sock.close()
        self._plain.clear()
        self._square.clear()


class _StunPort(asyncio.DatagramProtocol):
    """One socket: one question, one answer, nothing kept."""

    def __init__(
        self,
        whole: StunPorts,
        corner: Corner,
        square: dict[Corner, Endpoint],
        ports: "dict[Corner, _StunPort]",
    ) -> None:
        self._whole = whole
        self._corner = corner
        self._square = square
        self._ports = ports
        self._transport: asyncio.DatagramTransport | None = None
        self._full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport for the replies."""
        self._transport = cast(asyncio.DatagramTransport, transport)  # it is none by its class in 3.11

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Reply, from the address that the request names."""
        if addr[1] == 0:
            return  # nobody can be answered there
        seen = Endpoint(addr[0].partition("%")[0], addr[1])
        if self._square:
            found = answer_from(data, seen, self._corner, self._square)
            if found is not None and self._whole.may_answer(addr[0]):
                self._ports[found[1]].send(found[0], addr)
        else:
            reply = answer_to(data, seen)
            if reply is not None and self._whole.may_answer(addr[0]):
                self.send(reply, addr)

    def send(self, reply: bytes, addr: tuple[str, int]) -> None:
        """Send, unless replies pile up."""
        if self._transport is not None and not self._full:
            self._whole.counts["stun_answers"] += 1
            self._transport.sendto(reply, addr)

    def error_received(self, exc: Exception) -> None:
        """Ignore the error: the client did not want the answer."""

    def pause_writing(self) -> None:
        """Stop answering while replies pile up: clients ask again."""
        self._full = True

    def resume_writing(self) -> None:
        """Answer again."""
        self._full = False


def _bound(host: str, port: int) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        if sock.family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # one for an address beside one for all; two relays do not meet here, as TCP is bound before
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.setblocking(False)
        sock.bind((host, port))
    except BaseException:
        sock.close()
        raise
    return sock


async def _close_at_end(transport: asyncio.DatagramTransport) -> None:
    try:
        await asyncio.Event().wait()
    finally:
        transport.close()
