"""Where the mesh's UDP port is seen from outside, kept open there, and datagrams that open our own NAT.

A router keeps the outer address of a port that speaks now and then: so STUN servers are asked from the very
port that takes in QUIC links, and again before home routers forget (30 s is the shortest seen in the field).
What they answer is a candidate of kind srflx: right where the NAT maps each port to one outer port.
"""

import asyncio
import secrets
from collections.abc import Callable, Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.link.net.stun import resolve
from meshd.wire.address import Candidate
from meshd.wire.dialable import Dialable
from meshd.wire.stun import TRANSACTION_BYTES, Endpoint, StunKind, StunMessage, decode, encode

KEEP_SECONDS = 20.0
RESOLVE_EVERY = 30  # rounds: names of servers are looked up anew every ten minutes
FIRST_ROUNDS = 3  # a round is repeated after half a second until somebody has answered
MAX_SERVERS_ASKED = 3  # servers in a round
PUNCH_SECONDS = 0.2  # between two datagrams to one address
MAX_REQUESTS = 64  # under way


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
