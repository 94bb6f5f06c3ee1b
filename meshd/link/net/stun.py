"""Asks STUN servers where this machine's packets seem to come from, over UDP and over TCP.

All servers are asked at once, and a silent one costs only its own answer: nothing here takes
longer than `seconds`. An answer is used as an address to try, and for nothing else.
"""

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field

from meshd.base.errors import RemoteProtocolError, UserError
from meshd.base.hosts import for_resolver
from meshd.base.tasks import Owner
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable
from meshd.wire.stun import (
    HEAD_BYTES,
    MAX_STUN_BYTES,
    TRANSACTION_BYTES,
    Endpoint,
    StunKind,
    StunMessage,
    decode,
    encode,
    looks_like_stun,
    message_bytes,
)

ASK_SECONDS = 1.5  # for all servers together, names included
RESEND_SECONDS = (0.05, 0.1, 0.2, 0.4)  # after each sending; RFC 8489 6.2.1 begins with 0.5, for slower days
MAX_SERVERS = 8  # of a list; more than a few agree anyway
GRACE_SECONDS = 0.1  # for the other servers once one has answered: two answers tell the kind of NAT
STUN_PORT = 3478

Other = Callable[[bytes, Endpoint], None]
KEEP_SECONDS = 20.0
RESOLVE_EVERY = 30  # rounds: names of servers are looked up anew every ten minutes
FIRST_ROUNDS = 3  # a round is repeated after half a second until somebody has answered
MAX_SERVERS_ASKED = 3  # servers in a round
PUNCH_SECONDS = 0.2  # between two datagrams to one address
MAX_REQUESTS = 64  # under way


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A request to one server; the flags are RFC 5780's: answer from the other address, or port."""

    server: Endpoint
    change_ip: bool = False
    change_port: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StunAnswer:
    """`mapped` is what `server` saw; it answered from `source`; `rtt` in seconds, from the last sending."""

    server: Endpoint
    source: Endpoint
    mapped: Endpoint
    other: Endpoint | None
    rtt: float


async def resolve(servers: Sequence[str], *, seconds: float = ASK_SECONDS) -> tuple[Endpoint, ...]:
    """Resolve `host:port` texts (default port 3478) to v4 and v6 addresses, as far as they are found.

    Looked up in threads, all at once; names not resolved within `seconds` are left out. At most 8 texts.
    """
    found: list[list[Endpoint]] = [[] for _ in servers[:MAX_SERVERS]]
    loop = asyncio.get_running_loop()

    async def look_up(at: int, server: str) -> None:
        host, port = _split(server)
        with contextlib.suppress(OSError, UnicodeError):
            infos = await loop.getaddrinfo(for_resolver(host), port, type=socket.SOCK_DGRAM)
            for _, _, _, _, place in infos:
                found[at].append(Endpoint(str(place[0]), int(place[1])))

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), Owner() as owner:
            for at, server in enumerate(servers[:MAX_SERVERS]):
                owner.start(look_up(at, server), name="look-up")
    return tuple(
        dict.fromkeys(endpoint for endpoints in found for endpoint in endpoints if "%" not in endpoint.host)
    )


def _split(server: str) -> tuple[str, int]:
    host, colon, port = server.rpartition(":")
    if not colon or (":" in host and not host.startswith("[")) or not port.isdigit():
        host, port = server, str(STUN_PORT)
    return host.removeprefix("[").removesuffix("]"), min(int(port), 65535)


def of_family(endpoints: Sequence[Endpoint], family: int) -> list[Endpoint]:
    """Return those that a socket of this family reaches."""
    return [endpoint for endpoint in endpoints if (":" in endpoint.host) == (family == socket.AF_INET6)]


async def ask_udp(
    sock: socket.socket,
    questions: Sequence[Question],
    *,
    seconds: float = ASK_SECONDS,
    grace: float | None = None,
    other: Other = lambda data, source: None,
) -> list[StunAnswer | None]:
    """Ask over a bound, non-blocking UDP socket; an answer or None for each question, in their order.

    Ends when all have answered, `grace` seconds after the first answer if given, or after `seconds`. What
    comes in beside goes to `other`. Nobody else may read the socket meanwhile. Raises nothing of the network.
    """
    asking = _StunQuery(sock, questions, other)
    loop = asyncio.get_running_loop()
    loop.add_reader(sock, asking.read)
    try:
        async with Owner() as owner:
            owner.start(asking.send(), name="stun-send")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await asking.first.wait()
                    async with asyncio.timeout(grace):
                        await asking.all.wait()
            owner.cancel()
    finally:
        loop.remove_reader(sock)
    return asking.answers


class _StunQuery:
    """Requests under way on one socket."""

    def __init__(self, sock: socket.socket, questions: Sequence[Question], other: Other) -> None:
        self._sock = sock
        self._other = other
        self._questions = questions
        self._transactions = [secrets.token_bytes(TRANSACTION_BYTES) for _ in questions]
        self._sent_at = [0.0] * len(questions)
        self.answers: list[StunAnswer | None] = [None] * len(questions)
        self.first, self.all = asyncio.Event(), asyncio.Event()
        if not questions:
            self.first.set()
            self.all.set()

    async def send(self) -> None:
        for pause in (*RESEND_SECONDS, RESEND_SECONDS[-1]):
            for at, question in enumerate(self._questions):
                if self.answers[at] is None:
                    self._ask(at, question)
            await asyncio.sleep(pause)

    def _ask(self, at: int, question: Question) -> None:
        request = StunMessage(
            kind=StunKind.REQUEST,
            transaction=self._transactions[at],
            change_ip=question.change_ip,
            change_port=question.change_port,
        )
        self._sent_at[at] = asyncio.get_running_loop().time()
        with contextlib.suppress(OSError):  # no route, or the buffer is full: as if it were lost
            self._sock.sendto(encode(request), (question.server.host, question.server.port))

    def read(self) -> None:
        while not self.all.is_set():
            try:
                data, place = self._sock.recvfrom(MAX_STUN_BYTES + 1)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                continue  # an ICMP error of something sent before; the next read tells more
            source = Endpoint(str(place[0]), int(place[1]))
            if not self._take(data, source):
                self._other(data, source)

    def _take(self, data: bytes, source: Endpoint) -> bool:
        if not looks_like_stun(data) or data[8:HEAD_BYTES] not in self._transactions:
            return False
        at = self._transactions.index(data[8:HEAD_BYTES])
        try:
            message = decode(data)
        except RemoteProtocolError:
            return True  # somebody knew the transaction: a broken server
        if message.mapped is not None and self.answers[at] is None:
            self.answers[at] = StunAnswer(
                server=self._questions[at].server,
                source=source,
                mapped=message.mapped,
                other=message.other,
                rtt=asyncio.get_running_loop().time() - self._sent_at[at],
            )
            self.first.set()
            if None not in self.answers:
                self.all.set()
        return True


def bound_socket(family: int, kind: int, *, host: str = "", port: int = 0) -> socket.socket:
    """Return a non-blocking socket at `host:port` that shares its port with others of ours. Raises
    OSError.
    """
    sock = socket.socket(family, kind)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind((host or ("::" if family == socket.AF_INET6 else "0.0.0.0"), port))
    except BaseException:
        sock.close()
        raise
    return sock


@dataclass(slots=True)
class TcpMapping:
    """The mapping of one local TCP port as servers saw it; the connections stay open, to keep it."""

    answers: list[StunAnswer] = field(default_factory=list)
    _kept: list[socket.socket] = field(default_factory=list)

    def close(self) -> None:
        """Hang up on the servers; the port may be used on."""
        while self._kept:
            self._kept.pop().close()


@contextlib.asynccontextmanager
async def tcp_mapping(
    port: int,
    servers: Sequence[Endpoint],
    *,
    family: int,
    seconds: float = ASK_SECONDS,
    grace: float = GRACE_SECONDS,
) -> AsyncIterator[TcpMapping]:
    """Ask over TCP from `port` (a shared one, see `bound_socket`) how the servers see it.

    Ends as `ask_udp` does; the connections are closed when the block is left. Raises nothing of the network.
    """
    mapping = TcpMapping()
    first = asyncio.Event()

    async def ask(server: Endpoint) -> None:
        with contextlib.suppress(OSError, RemoteProtocolError):
            mapping.answers.append(await _ask_tcp(mapping._kept, port, server, family))
            first.set()

    async def ask_all() -> None:
        async with Owner() as owner:
            for server in of_family(servers, family)[:MAX_SERVERS]:
                owner.start(ask(server), name="stun-tcp")

    try:
        with contextlib.suppress(TimeoutError):
            # Wait for the first answer, then a moment longer for the others.
            async with asyncio.timeout(seconds), Owner() as owner:
                asking = owner.start(ask_all(), name="stun-ask")
                waiting = owner.start(first.wait(), name="stun-first")
                await asyncio.wait([asking, waiting], return_when=asyncio.FIRST_COMPLETED)
                if not asking.done():
                    await asyncio.wait([asking], timeout=grace)
                owner.cancel()
        yield mapping
    finally:
        mapping.close()


async def _ask_tcp(kept: list[socket.socket], port: int, server: Endpoint, family: int) -> StunAnswer:
    """Ask one server. The socket goes to `kept`, whatever happens. Raises OSError, RemoteProtocolError."""
    loop = asyncio.get_running_loop()
    sock = bound_socket(family, socket.SOCK_STREAM, port=port)
    kept.append(sock)
    await loop.sock_connect(sock, (server.host, server.port))
    transaction = secrets.token_bytes(TRANSACTION_BYTES)
    sent_at = loop.time()
    await loop.sock_sendall(sock, encode(StunMessage(kind=StunKind.REQUEST, transaction=transaction)))
    data = b""
    while (size := message_bytes(data)) is None or size > len(data):
        more = await loop.sock_recv(sock, MAX_STUN_BYTES)
        if not more:
            raise RemoteProtocolError("the STUN server closed the connection", code="stun")
        data += more
    message = decode(data[:size])
    if message.transaction != transaction or message.mapped is None:
        raise RemoteProtocolError("the STUN server's answer does not match the request", code="stun")
    return StunAnswer(
        server=server,
        source=server,
        mapped=message.mapped,
        other=message.other,
        rtt=loop.time() - sent_at,
    )


def stun_server(text: str) -> tuple[str, int]:
    """Parse `host:port`, `host`, `[v6]:port`. Raises UserError."""
    place = text.strip().removeprefix("stun:")
    host, colon, port = place.rpartition(":")
    if not colon or place.endswith("]") or (":" in host.strip("[]") and not host.startswith("[")):
        host, port = place, str(STUN_PORT)
    if not host.strip("[]") or not (port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
        raise UserError(
            f"`{text[:128]}` is not a valid STUN server", hint="write HOST:PORT; the port is usually 3478"
        )
    return host.strip("[]"), int(port)


class ReflexivePort:
    """The mesh's UDP port as STUN servers see it.

    `send` sends a datagram from that port; `changed` is called when `candidates` has changed.
    """

    def __init__(
        self,
        *,
        send: Callable[[bytes, Endpoint], None],
        servers: Callable[[], Sequence[str]],
        changed: Callable[[], None],
    ) -> None:
        self._send = send
        self._servers = servers
        self._changed = changed
        self._asked: dict[bytes, Endpoint] = {}
        self._seen: dict[Endpoint, Endpoint] = {}  # server -> our port as it sees it
        self._places: tuple[Candidate, ...] = ()
        self.asked = asyncio.Event()  # somebody has answered, or there is nobody to ask

    def candidates(self) -> tuple[Candidate, ...]:
        """Return the outer addresses, as the servers see them."""
        return self._places

    @property
    def same_everywhere(self) -> bool | None:
        """True if all servers see the same port; None with fewer than two answers."""
        return len(set(self._seen.values())) == 1 if len(self._seen) > 1 else None

    def heard(self, data: bytes, source: Endpoint) -> None:
        """Handle a STUN message that came to the port and is no request."""
        try:
            answer = decode(data)
        except RemoteProtocolError:
            return
        server = self._asked.pop(answer.transaction, None)
        if server is None or server != source or answer.kind is not StunKind.SUCCESS:
            return  # an answer that nobody asked for says nothing
        if answer.mapped is not None:
            self._seen[server] = answer.mapped
            self.asked.set()
            self._settle()

    async def serve(self) -> None:
        """Ask the servers repeatedly, until cancelled."""
        servers: tuple[Endpoint, ...] = ()
        rounds = 0
        while True:
            if rounds % RESOLVE_EVERY == 0:
                found = await resolve(self._servers())
                servers = tuple(endpoint for endpoint in found if ":" not in endpoint.host)[
                    :MAX_SERVERS_ASKED
                ]
                self._seen = {server: seen for server, seen in self._seen.items() if server in servers}
                if not servers:
                    self.asked.set()
            for server in servers:
                self._ask(server)
            rounds += 1
            waiting = bool(servers) and not self._seen and rounds <= FIRST_ROUNDS
            await asyncio.sleep(0.5 if waiting else KEEP_SECONDS)

    async def punch(self, candidates: Sequence[Dialable], seconds: float) -> None:
        """Send small datagrams to these addresses for a while, so that their answers may come in."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        hello = StunMessage(kind=StunKind.INDICATION, transaction=secrets.token_bytes(TRANSACTION_BYTES))
        while loop.time() < until:
            for candidate in candidates:
                self._send(encode(hello), Endpoint(candidate.host, candidate.port))
            await asyncio.sleep(PUNCH_SECONDS)

    def _ask(self, server: Endpoint) -> None:
        transaction = secrets.token_bytes(TRANSACTION_BYTES)
        while len(self._asked) >= MAX_REQUESTS:
            del self._asked[next(iter(self._asked))]
        self._asked[transaction] = server
        self._send(encode(StunMessage(kind=StunKind.REQUEST, transaction=transaction)), server)

    def _settle(self) -> None:
        unique = dict.fromkeys(self._seen.values())
        places = tuple(Candidate(endpoint.host, endpoint.port, "udp", "srflx") for endpoint in unique)
        if places != self._places:
            self._places = places
            self._changed()
