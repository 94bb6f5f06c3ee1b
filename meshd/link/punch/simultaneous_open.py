"""A TCP port from which both sides of a punch connect to each other at the same moment.

Simultaneous open (RFC 9293 3.5, figure 7): each side's SYN opens its own NAT for the other's. The port
listens as well, so that a SYN that comes before ours is answered, and a side that is not behind a NAT works
too; the kernel looks for a socket of exactly this pair first. RST and "no route" are answered by trying
again: some routers say so to a SYN that they did not expect, and the next one is expected.
"""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterable, Sequence

from meshd.base.tasks import Owner
from meshd.link.net import local_addresses
from meshd.link.net.stun import ASK_SECONDS, bound_socket, tcp_mapping
from meshd.link.tcp.options import limit_segments
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable
from meshd.wire.signal import MAX_PUNCH_CANDIDATES
from meshd.wire.stun import Endpoint

FIRST_PAUSE_SECONDS = 0.03  # between a refused SYN and the next one; grows
PAUSE_GROWS = 1.4
MOST_PAUSE_SECONDS = 0.4
SECONDS_PER_CONNECT = 0.02  # of one attempt, all targets together: at most 50 a second (docs/protocol.md)
SOCKET_SECONDS = 2.5  # one socket's patience: the kernel sends its SYN again after 1 s and after 3
_BACKLOG = 8

Found = Callable[[socket.socket], None]


class PunchPort:
    """One port of one family. `close` it in the end."""

    def __init__(self, family: int) -> None:
        self._family = family
        self._server = bound_socket(family, socket.SOCK_STREAM)
        try:
            self._server.listen(_BACKLOG)
            self.port: int = self._server.getsockname()[1]
        except BaseException:
            self._server.close()
            raise

    def close(self) -> None:
        """Listen no more."""
        self._server.close()

    def hosts(self, hosts: Iterable[str]) -> list[Candidate]:
        """Return this port at those addresses of this machine that are of its family."""
        v6 = self._family == socket.AF_INET6
        return [Candidate(host, self.port) for host in hosts if (":" in host) == v6 and "%" not in host]

    async def meet(self, targets: Sequence[Dialable], found: Found) -> None:
        """Connect to all targets and accept, until cancelled; each connected socket goes to `found`."""
        mine = [place for place in targets if place.is_v6 == (self._family == socket.AF_INET6)]
        async with Owner() as owner:
            owner.start(self._accept(found), name="punch-accept")
            for target in mine:
                owner.start(self._connect(target, found, len(targets)), name=f"punch-{target.place}")

    async def _accept(self, found: Found) -> None:
        loop = asyncio.get_running_loop()
        # by hand: loop.sock_accept loses the socket when it is cancelled at the wrong moment
        loop.add_reader(self._server, self._take, found)
        try:
            await asyncio.Event().wait()
        finally:
            loop.remove_reader(self._server)

    def _take(self, found: Found) -> None:
        with contextlib.suppress(OSError):
            sock, _ = self._server.accept()
            sock.setblocking(False)
            found(sock)

    async def _connect(self, target: Dialable, found: Found, among: int) -> None:
        loop = asyncio.get_running_loop()
        pause = FIRST_PAUSE_SECONDS
        while True:
            with contextlib.suppress(OSError, TimeoutError):
                sock = bound_socket(self._family, socket.SOCK_STREAM, port=self.port)
                limit_segments(sock, target.host)
                try:
                    async with asyncio.timeout(SOCKET_SECONDS):
                        await loop.sock_connect(sock, (target.host, target.port))
                except BaseException:
                    sock.close()
                    raise
                found(sock)
                return
            await asyncio.sleep(max(pause, among * SECONDS_PER_CONNECT))
            pause = min(pause * PAUSE_GROWS, MOST_PAUSE_SECONDS)


class PunchGround:
    """The ports of one attempt, one for each family, and where they may be reached."""

    def __init__(self, ports: Sequence[PunchPort], candidates: Sequence[Candidate]) -> None:
        self._ports = ports
        self.candidates = tuple(candidates)[:MAX_PUNCH_CANDIDATES]

    async def meet(self, others: Sequence[Dialable], found: Found) -> None:
        """Connect to the others from every port, as `PunchPort.meet`."""
        own = set(self.candidates)
        targets = [candidate for candidate in others if candidate.proto == "tcp" and candidate not in own]
        async with Owner() as owner:
            for port in self._ports:
                owner.start(port.meet(targets[:MAX_PUNCH_CANDIDATES], found), name="punch-meet")


@contextlib.asynccontextmanager
async def ground(
    servers: Sequence[Endpoint], *, hosts: Sequence[str] | None = None, seconds: float = ASK_SECONDS
) -> AsyncIterator[PunchGround]:
    """Open fresh ports and learn how `servers` see the one of IPv4; closed when the block is left.

    IPv6 is not asked for: what stands in its way are firewalls, which change no address. `hosts` instead of
    this machine's own addresses, for tests.
    """
    own = local_addresses.hosts() if hosts is None else hosts
    with contextlib.ExitStack() as opened:
        ports: list[PunchPort] = []
        candidates: list[Candidate] = []
        # Open one port for each family in which this machine has an address.
        for family in (socket.AF_INET6, socket.AF_INET):
            if not any((":" in host) == (family == socket.AF_INET6) for host in own):
                continue
            with contextlib.suppress(OSError):
                port = PunchPort(family)
                opened.callback(port.close)
                ports.append(port)
                candidates += port.hosts(own)
        # Without IPv4 there is no NAT to ask about.
        v4 = [port for port in ports if port._family == socket.AF_INET]
        if not v4:
            yield PunchGround(ports, candidates)
            return
        async with tcp_mapping(v4[0].port, servers, family=socket.AF_INET, seconds=seconds) as seen:
            # Offer the outer addresses first: the other side most likely needs those.
            known = {(place.host, place.port) for place in candidates}
            mapped = dict.fromkeys(
                answer.mapped
                for answer in seen.answers
                if (answer.mapped.host, answer.mapped.port) not in known
            )
            far = [Candidate(place.host, place.port, "tcp", "srflx") for place in mapped]
            yield PunchGround(ports, [*far[:3], *candidates])
