"""Checks what network this node is in: at the start, after changes, and every 20 minutes.

One check asks the configured STUN servers and relays with a few dozen packets, and nobody else; it takes some
seconds. Servers that know RFC 5780 (they name a second address) are asked there as well, and to answer from
there. STUN over TCP and connections to the relays show which TCP connections get out, and how a NAT maps
them.
"""

import asyncio
import contextlib
import itertools
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from meshd.base import log
from meshd.base.errors import RemoteProtocolError
from meshd.base.sockets import source_towards
from meshd.base.tasks import Owner
from meshd.link.net.stun import Question, StunAnswer, ask_udp, bound_socket, of_family, resolve
from meshd.netcheck.advice import nat_class, outlook
from meshd.netcheck.classify import classify
from meshd.netcheck.interface import ConnectionFacts, FilterTest, NetReport, Observations, Outcome, Seen
from meshd.wire.netfacts import Mapped
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
MORE_SOCKETS = 3  # beside the one that asks everybody: to see how outside ports follow each other
HAIRPIN_SECONDS = 0.6
HAIRPIN_PAUSE = 0.15
_HAIRPIN_BYTES = 16
_AGAIN_SECONDS = 1200.0  # mappings and providers change seldom; addresses that change are told by `poke`
SETTLE_SECONDS = 1.0  # after a change: routes and address lookups follow a moment later
_LEAST_SECONDS = 30.0  # between two checks, however often something changes
LOG = log.get("netcheck")


@dataclass(slots=True)
class TcpLog:
    """The observations; `seen` in the order of the answers."""

    seen: list[Seen] = field(default_factory=list)
    connections: list[ConnectionFacts] = field(default_factory=list)


async def ask_by_tcp(servers: Sequence[Endpoint], host: str | None) -> TcpLog:
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


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers as `host:port`. `stun`: asked by UDP and TCP; `relays`: a TCP connection is made and
    closed.
    """

    stun: tuple[str, ...]
    relays: tuple[str, ...] = ()


@dataclass(slots=True)
class _Log:
    """The observations of a check so far."""

    udp: list[Seen] = field(default_factory=list)
    filters: list[FilterTest] = field(default_factory=list)
    hairpin: bool | None = None
    order: "itertools.count[int]" = field(default_factory=itertools.count)

    def take(self, number: int, local: Endpoint, answers: Iterable[StunAnswer | None]) -> list[StunAnswer]:
        """Store answers that a UDP socket got; return those that came."""
        came = [answer for answer in answers if answer is not None]
        for seen in came:
            self.udp.append(Seen(number, float(next(self.order)), local, seen.server, seen.mapped))
        return came


async def observe(servers: Servers, *, hosts: Sequence[str]) -> tuple[Observations, tuple[str, ...]]:
    """Ask all servers; return the observations, and the servers whose name was not found.

    Takes about 5 s at most; raises nothing of the network. `hosts`: this machine's addresses for others.
    """
    found = await _look_up((*servers.stun, *servers.relays))
    endpoints = tuple(dict.fromkeys(place for name in servers.stun for place in found[name]))
    places = tuple(dict.fromkeys(place for name in servers.relays for place in found[name]))
    unresolved = tuple(name for name, places in found.items() if not places)
    v4, v6 = of_family(endpoints, socket.AF_INET), of_family(endpoints, socket.AF_INET6)
    log = _Log()
    async with Owner() as owner:
        owner.start(_udp(log, v4, socket.AF_INET), name="netcheck udp")
        if any(":" in host for host in hosts):
            owner.start(_udp(log, v6, socket.AF_INET6), name="netcheck udp6")
        tcp = owner.start(ask_by_tcp(v4, _source(v4, socket.AF_INET)), name="netcheck tcp")
        relays = [owner.start(connect(place), name="netcheck relay") for place in places]
    seen = Observations(
        hosts=tuple(hosts),
        udp_asked=len(endpoints),
        udp=tuple(log.udp),
        filters=tuple(log.filters),
        connections=(*tcp.result().connections, *(relay.result() for relay in relays)),
        tcp=tuple(tcp.result().seen),
        v6_asked=len(v6) if any(":" in host for host in hosts) else 0,
        hairpin=log.hairpin,
    )
    return seen, unresolved


async def _look_up(names: Sequence[str]) -> dict[str, tuple[Endpoint, ...]]:
    found: dict[str, tuple[Endpoint, ...]] = dict.fromkeys(names, ())

    async def look_up(name: str) -> None:
        found[name] = await resolve([name])

    async with Owner() as owner:
        for name in names:
            owner.start(look_up(name), name="look-up")
    return found


# UDP: mapping, filtering, ports, hairpin.


async def _udp(log: _Log, servers: Sequence[Endpoint], family: int) -> None:
    host = _source(servers, family)
    if host is None:
        return
    with contextlib.ExitStack() as stack:
        try:
            socks = [_open(stack, family, host) for _ in range(1 + MORE_SOCKETS)]
        except OSError:
            return
        first, local, number = socks[0]
        answers = log.take(
            number, local, await ask_udp(first, [Question(server=server) for server in servers])
        )
        if not answers or family == socket.AF_INET6:
            return
        # one after another: the order in which outside ports were given is the order of what was seen
        await _ask_more(log, socks[1:], answers[0].server)
        if others := _others(answers, servers):
            await _ask_others(log, socks[0], others, answers)


_Socket = tuple[socket.socket, Endpoint, int]


def _open(stack: contextlib.ExitStack, family: int, host: str) -> _Socket:
    sock = stack.enter_context(contextlib.closing(_own_socket(family, host)))
    return sock, Endpoint(host, sock.getsockname()[1]), sock.fileno()


def _own_socket(family: int, host: str) -> socket.socket:
    """Return a socket bound to a port of its own, shared with nobody. Raises OSError."""
    sock = socket.socket(family, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.bind((host, 0))
    except BaseException:
        sock.close()
        raise
    return sock


def _others(answers: Sequence[StunAnswer], asked: Sequence[Endpoint]) -> list[Endpoint]:
    """Return second addresses and ports that servers name (RFC 5780, 7.4), and that were not asked yet."""
    found: list[Endpoint] = []
    for answer in answers:
        if answer.other is not None and (":" in answer.other.host) == (":" in answer.server.host):
            found += [
                Endpoint(answer.server.host, answer.other.port),
                Endpoint(answer.other.host, answer.server.port),
                answer.other,
            ]
    return [place for place in dict.fromkeys(found) if place not in asked][:12]


async def _ask_others(
    log: _Log, asking: _Socket, others: Sequence[Endpoint], answers: Sequence[StunAnswer]
) -> None:
    """Ask the second addresses on the same socket; then test on a new one whether they get in unasked."""
    sock, local, number = asking
    came = log.take(number, local, await ask_udp(sock, [Question(server=other) for other in others]))
    working = {answer.server for answer in came}
    for answer in answers:
        if answer.other is not None and answer.other in working:
            log.filters.append(await _filter_test(answer.server, answer.other, local.host))
            return


async def _filter_test(server: Endpoint, other: Endpoint, host: str) -> FilterTest:
    questions = [
        Question(server=server),
        Question(server=server, change_ip=True, change_port=True),
        Question(server=server, change_port=True),
    ]
    try:
        fresh = _own_socket(socket.AF_INET, host)
    except OSError:
        return FilterTest(False, False, False)
    with contextlib.closing(fresh):
        plain, elsewhere, port = await ask_udp(fresh, questions)
    # an answer counts for where it came from, not for what was asked for
    came_elsewhere = elsewhere is not None and elsewhere.source.host == other.host != server.host
    came_port = port is not None and port.source.port == other.port != server.port
    return FilterTest(came_elsewhere, came_port, plain is not None)


async def _ask_more(log: _Log, socks: Sequence[_Socket], server: Endpoint) -> None:
    """Ask one server from more sockets, one after another; then send from one of them to another outside."""
    mapped: list[tuple[socket.socket, Endpoint]] = []
    for sock, local, number in socks:
        for answer in log.take(number, local, await ask_udp(sock, [Question(server=server)])):
            mapped.append((sock, answer.mapped))
    if len(mapped) >= 2 and mapped[0][1].host == mapped[1][1].host:
        log.hairpin = await _hairpin(*mapped[0], *mapped[1])


async def _hairpin(
    first: socket.socket, at_first: Endpoint, second: socket.socket, at_second: Endpoint
) -> bool:
    """Test hairpinning: both send to the other's outer address, as two nodes behind this NAT would."""
    loop = asyncio.get_running_loop()
    letter = secrets.token_bytes(_HAIRPIN_BYTES)

    async def send() -> None:
        while True:
            with contextlib.suppress(OSError):
                first.sendto(letter, (at_second.host, at_second.port))
                second.sendto(letter, (at_first.host, at_first.port))
            await asyncio.sleep(HAIRPIN_PAUSE)

    async def wait(sock: socket.socket) -> None:
        while True:
            with contextlib.suppress(OSError):
                if await loop.sock_recv(sock, 2048) == letter:
                    return

    try:
        async with asyncio.timeout(HAIRPIN_SECONDS), Owner() as owner:
            owner.start(send(), name="hairpin")
            waits = [owner.start(wait(sock), name="hairpin") for sock in (first, second)]
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            owner.cancel()
    except TimeoutError:
        return False
    return True


def _source(servers: Sequence[Endpoint], family: int) -> str | None:
    """Return this machine's address towards them; nothing is sent."""
    for server in servers:
        with contextlib.suppress(OSError):
            return source_towards(family, (server.host, server.port))
    return None


Observe = Callable[[Servers, Sequence[str]], Awaitable[tuple[Observations, tuple[str, ...]]]]


async def _observe(servers: Servers, hosts: Sequence[str]) -> tuple[Observations, tuple[str, ...]]:
    return await observe(servers, hosts=hosts)


class NetWatch:
    """The present knowledge of this network, kept up to date by `serve`.

    `hosts` tells this machine's addresses, `router` what port mapping knows (its state, and the router's
    outer address or empty), both as of now. `changed` is called after a report with other facts than before.
    """

    def __init__(
        self,
        *,
        servers: Servers,
        hosts: Callable[[], Sequence[str]],
        router: Callable[[], tuple[Mapped, str]] = lambda: (Mapped.UNKNOWN, ""),
        changed: Callable[[NetReport], None] = lambda _report: None,
        observe: Observe = _observe,
    ) -> None:
        self._servers = servers
        self._hosts = hosts
        self._router = router
        self._changed = changed
        self._observe = observe
        self._report: NetReport | None = None
        self._seen = Observations()
        self._poked = asyncio.Event()
        self._checking = asyncio.Lock()

    def report(self) -> NetReport | None:
        return self._report

    def poke(self) -> None:
        self._poked.set()

    def router_changed(self) -> None:
        """Update the facts from port mapping's new state, without another check."""
        if self._report is not None:
            self._take(replace(self._report, facts=classify(self._with_router(self._seen))))

    async def serve(self) -> None:
        """Check repeatedly, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(_LEAST_SECONDS)
            try:
                async with asyncio.timeout(_AGAIN_SECONDS - _LEAST_SECONDS):
                    await self._poked.wait()
                    await asyncio.sleep(SETTLE_SECONDS)
            except TimeoutError:
                pass

    async def check(self) -> NetReport:
        loop = asyncio.get_running_loop()
        asked_at = loop.time()
        async with self._checking:
            if self._report is not None and self._report.at > asked_at:
                return self._report  # somebody else's check ended while we waited for it
            self._poked.clear()
            seen, unresolved = await self._observe(self._servers, self._hosts())
            self._seen = seen
            report = NetReport(
                facts=classify(self._with_router(seen)),
                at=loop.time(),
                seconds=loop.time() - asked_at,
                servers=(*self._servers.stun, *self._servers.relays),
                unresolved=unresolved,
                seen_v6=next((answer.mapped.host for answer in seen.udp if ":" in answer.mapped.host), ""),
            )
            self._take(report)
            return report

    def _with_router(self, seen: Observations) -> Observations:
        mapped, external = self._router()
        return replace(seen, mapped=mapped, router_external=external)

    def _take(self, report: NetReport) -> None:
        before, self._report = self._report, report
        if before is None or before.facts != report.facts:
            what = outlook(report.facts, servers=report.servers, unresolved=report.unresolved)
            LOG.info("network", kind=nat_class(report.facts), what=what)
            self._changed(report)
