"""The sockets of a search for a path: many that are held open on one side, one that tries ports on the other.

Both sides end with one UDP socket and the place that it reaches. Every datagram is a STUN message sealed with
the key of the attempt (RFC 8489 14.6), so nobody else can answer. Anything else is left in the
kernel for the link that gets the socket: it is its first datagram.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import Iterator, Sequence

from meshd.base.errors import Broken, RemoteProtocolError
from meshd.base.tasks import Owner
from meshd.link.net.stun import Question, ask_udp, bound_socket
from meshd.link.port_prediction.plan import due
from meshd.wire.dialable import Dialable
from meshd.wire.stun import (
    MAX_STUN_BYTES,
    TRANSACTION_BYTES,
    Endpoint,
    StunKind,
    StunMessage,
    decode,
    encode,
    looks_like_stun,
)

LEAST_OPEN = 64  # sockets: with fewer a search ends too rarely; the usual limit is 1024 files
OPENED_AT_ONCE = 32  # datagrams, then a pause: a burst of 256 is more than some uplinks queue
_PAUSE_SECONDS = 0.02
REOPEN_SECONDS = 1.0  # until the openings are sent again: one may be lost before it has opened its port
LINGER_SECONDS = 1.0  # for answers that are under way when all ports have been tried
CHOSEN_TIMES = 4  # the word that ends the search is not answered, so it is said again
_OPENING, _PROBE, _CHOSEN = b"o", b"p", b"c"

FoundPath = tuple[socket.socket, Endpoint]


class Seal:
    """Makes and reads the datagrams of one attempt."""

    def __init__(self, attempt: bytes, key: bytes) -> None:
        self._attempt = attempt
        self._key = key

    def request(self, word: bytes) -> bytes:
        """Return a request with that word."""
        transaction = secrets.token_bytes(TRANSACTION_BYTES)
        user = word + self._attempt
        message = StunMessage(kind=StunKind.REQUEST, transaction=transaction, username=user)
        return encode(message, key=self._key)

    def answer(self, request: StunMessage, seen: Endpoint) -> bytes:
        """Return the reply to a probe."""
        message = StunMessage(kind=StunKind.SUCCESS, transaction=request.transaction, mapped=seen)
        return encode(message, key=self._key)

    def read(self, data: bytes) -> StunMessage | None:
        """Decode a message; None unless it is sealed with this attempt's key."""
        try:
            message = decode(data, key=self._key)
        except RemoteProtocolError:
            return None
        ours = message.kind is StunKind.SUCCESS or message.username[1:] == self._attempt
        return message if ours else None


def _waiting(sock: socket.socket) -> Iterator[tuple[bytes, Endpoint] | Endpoint]:
    """Yield received STUN messages; ends with the sender of anything else, which stays in the socket."""
    while True:
        try:
            start, _ = sock.recvfrom(MAX_STUN_BYTES + 1, socket.MSG_PEEK)
            if not looks_like_stun(start):
                _, place = sock.recvfrom(1, socket.MSG_PEEK)
                yield Endpoint(str(place[0]), int(place[1]))
                return
            data, place = sock.recvfrom(MAX_STUN_BYTES + 1)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            continue  # an ICMP error of something sent before: it is read once
        yield data, Endpoint(str(place[0]), int(place[1]))


class OpenPorts:
    """Sockets that are open towards one place. Call `close` in the end, also if a link got one of them."""

    def __init__(self, *, host: str = "") -> None:
        self._host = host
        self._sockets: list[socket.socket] = []
        self._found: asyncio.Future[socket.socket] | None = None

    def close(self) -> None:
        """Close all that were not handed out."""
        while self._sockets:
            self._sockets.pop().close()

    async def learn(self, servers: Sequence[Endpoint]) -> Endpoint:
        """Return the outer port of a first socket, so the one before those that `search` opens. Raises
        Broken.
        """
        sock = self._another()
        answers = await ask_udp(sock, [Question(server=server) for server in servers], grace=0.0)
        seen = [answer.mapped for answer in answers if answer is not None]
        if not seen:
            raise Broken("no STUN server answers over UDP")
        return seen[-1]

    async def search(self, place: Dialable, count: int, seal: Seal, seconds: float) -> socket.socket:
        """Open `count` ports towards `place` and answer its probes until it has chosen one.

        The first datagrams are out when this waits first. Raises Broken (too few sockets), TimeoutError.
        """
        loop = asyncio.get_running_loop()
        target = Endpoint(place.host, place.port)
        first = len(self._sockets)
        with contextlib.suppress(OSError):  # too many open files: fewer have to do
            while len(self._sockets) < first + count:
                self._another()
        mine = self._sockets[first:]
        if len(mine) < min(count, LEAST_OPEN):
            raise Broken(f"only {len(mine)} sockets can be opened")
        self._found = loop.create_future()
        for sock in mine:
            loop.add_reader(sock, self._read, sock, target, seal)
        try:
            async with asyncio.timeout(seconds), Owner() as owner:
                owner.start(_keep_open(mine, place, seal.request(_OPENING)), name="port-search-open")
                chosen = await self._found
                owner.cancel()
        finally:
            for sock in mine:
                loop.remove_reader(sock)
        return chosen

    def keep(self, sock: socket.socket) -> socket.socket:
        """Hand one out: `close` leaves it open."""
        self._sockets.remove(sock)
        return sock

    def _another(self) -> socket.socket:
        sock = bound_socket(socket.AF_INET, socket.SOCK_DGRAM, host=self._host)
        self._sockets.append(sock)
        return sock

    def _read(self, sock: socket.socket, target: Endpoint, seal: Seal) -> None:
        for came in _waiting(sock):
            if isinstance(came, Endpoint):
                if came == target:
                    self._choose(sock)  # its first word: it has chosen, and that was lost
                else:
                    sock.recvfrom(1)  # noise
                continue
            data, source = came
            request = seal.read(data) if source == target else None
            if request is None or request.kind is not StunKind.REQUEST:
                continue
            with contextlib.suppress(OSError):
                sock.sendto(seal.answer(request, source), (source.host, source.port))
            if request.username[:1] == _CHOSEN:
                self._choose(sock)

    def _choose(self, sock: socket.socket) -> None:
        if self._found is not None and not self._found.done():
            self._found.set_result(sock)


async def _keep_open(sockets: Sequence[socket.socket], target: Dialable, opening: bytes) -> None:
    while True:
        for at, sock in enumerate(sockets):
            with contextlib.suppress(OSError):
                sock.sendto(opening, (target.host, target.port))
            if at % OPENED_AT_ONCE == OPENED_AT_ONCE - 1:
                await asyncio.sleep(_PAUSE_SECONDS)
        await asyncio.sleep(REOPEN_SECONDS)


async def probe(sock: socket.socket, at: Dialable, ports: Iterator[int], seal: Seal) -> Endpoint:
    """Try ports of the host of `at` from `sock` until one answers; it is told so. Raises Broken: none did."""
    loop = asyncio.get_running_loop()
    host = at.host
    found: list[Endpoint] = []
    over = asyncio.Event()

    def read() -> None:
        for came in _waiting(sock):
            if isinstance(came, Endpoint):
                sock.recvfrom(1)  # noise: nobody on the other side speaks first
                continue
            data, source = came
            if source.host == host and seal.read(data) is not None:
                found.append(source)
                over.set()

    # Try ports until one answers or none is left.
    loop.add_reader(sock, read)
    try:
        async with Owner() as owner:
            trying = owner.start(_try_all(sock, host, ports, seal.request(_PROBE)), name="port-search-probe")
            trying.add_done_callback(lambda _: over.set())
            await over.wait()
            owner.cancel()
    finally:
        loop.remove_reader(sock)
    # Tell the other side its port, several times in case datagrams are lost.
    if not found:
        raise Broken(f"{trying.result()} ports of `{host}` were tried; none answered")
    place = found[0]
    for _ in range(CHOSEN_TIMES):
        with contextlib.suppress(OSError):
            sock.sendto(seal.request(_CHOSEN), (place.host, place.port))
        await asyncio.sleep(_PAUSE_SECONDS)
    return place


async def _try_all(sock: socket.socket, host: str, ports: Iterator[int], request: bytes) -> int:
    """Send the request to each, as fast as may be; returns how many there were."""
    loop = asyncio.get_running_loop()
    began, sent = loop.time(), 0
    for port in ports:
        if sent >= due(loop.time() - began):
            await asyncio.sleep(_PAUSE_SECONDS)
        with contextlib.suppress(OSError):
            sock.sendto(request, (host, port))
        sent += 1
    await asyncio.sleep(LINGER_SECONDS)
    return sent
