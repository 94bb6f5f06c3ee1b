"""ICE for the webrtc link: aioice's connection with our own candidates, sockets and timing.

Imports aioice: import this module on demand. What differs from aioice 0.13, and why:

- addresses are given (no container, bridge or VPN of this machine), and sockets read in batches;
- any number of STUN servers, asked at once, IPv4 and IPv6, names looked up without blocking;
- a check is repeated after 70 ms, not 500: half of a filtered pair's first checks are lost by design;
- all checks of a connection share one pace of at most 50 a second, repetitions included;
- malformed packets of strangers end nothing; `shut` closes at once and swallows no cancellation.
"""

import asyncio
import ipaddress
import socket
import struct
from collections.abc import Callable, Iterable, Sequence

from aioice import Candidate as IceCandidate
from aioice import Connection
from aioice.candidate import candidate_foundation, candidate_priority
from aioice.ice import ICE_FAILED, CandidatePair, StunProtocol, candidate_pair_priority
from aioice.stun import Class, Message, Method, TransactionFailed, TransactionTimeout

from meshd.base.errors import Broken
from meshd.base.peer_limits import CHECKED, CHECKS
from meshd.base.tasks import Owner
from meshd.link.net.udp_sockets import Address, OpenSocket, UdpSocket
from meshd.wire.address import Candidate, CandidateKind
from meshd.wire.dialable import Dialable
from meshd.wire.signal import Terms

CHECKS_PER_SECOND = CHECKS.per_second
FIRST_REPEAT_SECONDS = 0.07
MOST_REPEAT_SECONDS = 0.5
_CHECK_SECONDS = 12.0  # longer than an attempt: a pair is given up with the attempt
CONSENT_SECONDS = 2.0
_STUN_SECONDS = 2.5  # five requests to a server that does not answer
MAX_EARLY = 64  # datagrams before anybody reads them; each at most 2 KiB
MAX_REMOTE = CHECKED.most


class Pace:
    """Hands out moments that are at least 1 / `per_second` seconds apart."""

    def __init__(self, per_second: float) -> None:
        self._gap = 1.0 / per_second
        self._next = 0.0

    def wait(self, now: float) -> float:
        """Reserve the next moment; return the seconds until then."""
        at = max(now, self._next)
        self._next = at + self._gap
        return at - now


class _Transaction:
    """One STUN request and its repetitions (RFC 8489 6.2.1, but quicker, and never rarer than 0.5 s)."""

    def __init__(self, request: Message, key: bytes | None) -> None:
        self._request = request
        self._key = key
        self._answer: asyncio.Future[tuple[Message, Address]] = asyncio.get_running_loop().create_future()

    def response_received(self, message: Message, addr: Address) -> None:
        """Handle a response with our id; one without the password is a stranger's."""
        if self._answer.done() or (self._key is not None and not message.check_message_integrity(self._key)):
            return
        if message.message_class == Class.RESPONSE:
            self._answer.set_result((message, addr))
        else:
            self._answer.set_exception(TransactionFailed(message))

    async def run(
        self, send: Callable[[Message], None], *, pace: Pace | None, seconds: float, once: bool
    ) -> tuple[Message, Address]:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        wait = seconds if once else FIRST_REPEAT_SECONDS
        try:
            while not self._answer.done() and loop.time() < end:
                if pace is not None and (delay := pace.wait(loop.time())) > 0:
                    await asyncio.wait([self._answer], timeout=delay)
                if not self._answer.done():
                    send(self._request)
                    await asyncio.wait([self._answer], timeout=min(wait, max(0.0, end - loop.time())))
                    wait = min(1.5 * wait, MOST_REPEAT_SECONDS)
            if not self._answer.done():
                raise TransactionTimeout
            return self._answer.result()
        finally:
            if not self._answer.cancel() and not self._answer.cancelled():
                self._answer.exception()  # seen, even if nobody waits any more


class IceSocket(StunProtocol):
    """One socket of a connection."""

    def __init__(self, owner: "IcePath", sock: UdpSocket) -> None:
        super().__init__(owner)
        self._owner = owner
        self.sock = sock
        host, port = sock.local
        self.local_candidate = _ice_candidate(Candidate(host, port, "udp"), rank=0)
        self.transport = sock  # type: ignore[assignment]  # aioice uses its sendto and close only
        sock.start(self)

    def datagram_received(self, data: bytes | str, addr: tuple[object, ...]) -> None:
        """Pass DTLS and QUIC on, and STUN to aioice (RFC 9443: the first byte tells them apart)."""
        assert isinstance(data, bytes)
        if not data:
            return
        if data[0] > 19:
            if self._owner.on_datagram is not None or self._owner.has_remote(addr):
                self._owner.data_received(data, 1)
        elif data[0] < 4:
            try:
                super().datagram_received(data, addr)
            except (ValueError, KeyError, IndexError, struct.error):
                return  # a stranger's

    def batch_ended(self) -> None:
        """Report that all datagrams of a batch are delivered."""
        self._owner.on_batch_end()

    def socket_lost(self, error: OSError | None) -> None:
        """Handle the end of the socket; `error` is None if we closed it."""
        if error is not None:
            self._owner.protocol_lost(self)

    async def request(
        self,
        request: Message,
        addr: Address,
        integrity_key: bytes | None = None,
        retransmissions: int | None = None,
    ) -> tuple[Message, Address]:
        """Send a request like aioice, with our own retransmissions. Raises aioice's TransactionError."""
        if integrity_key is not None:
            request.add_message_integrity(integrity_key)
        transaction = _Transaction(request, integrity_key)
        self.transactions[request.transaction_id] = transaction  # type: ignore[assignment]
        consent = retransmissions == 0
        seconds = CONSENT_SECONDS if consent else _CHECK_SECONDS if integrity_key else _STUN_SECONDS
        try:
            return await transaction.run(
                lambda message: self.send_stun(message, addr),
                pace=self._owner.pace if integrity_key is not None and not consent else None,
                seconds=seconds,
                once=consent,
            )
        finally:
            del self.transactions[request.transaction_id]


class IcePath(Connection):
    """One ICE connection: open sockets, tell candidates, connect, then datagrams both ways until `shut`."""

    def __init__(self, *, controlling: bool, user: str, password: str) -> None:
        super().__init__(ice_controlling=controlling, local_username=user, local_password=password)
        self.pace = Pace(CHECKS_PER_SECOND)
        self.on_datagram: Callable[[bytes], None] | None = None  # instead of the queue, once it is set
        self.on_batch_end: Callable[[], None] = lambda: None
        self.on_lost: Callable[[], None] = lambda: None
        self.is_shut = False
        self._announced: dict[Address, CandidateKind] = {}  # what the other side says of its addresses

    # --- candidates

    def open(self, hosts: Iterable[str], open_socket: OpenSocket) -> list[Candidate]:
        """Bind a socket on each usable host; return their candidates."""
        for host in hosts:
            try:
                self._protocols.append(IceSocket(self, open_socket(host)))
            except OSError:
                continue  # the interface went away just now
        self._local_candidates_start = self._local_candidates_end = True
        self._local_candidates = [ice_socket.local_candidate for ice_socket in self._protocols]
        return [Candidate(*_local(ice_socket), proto="udp") for ice_socket in self._protocols]

    async def reflexive(self, servers: Sequence[tuple[str, int]], found: Callable[[Candidate], None]) -> None:
        """Ask every server from every socket of its family at once; `found` gets each new address of ours.

        Returns when all have answered, at most 2.5 s after their names are known.
        """
        async with Owner() as owner:
            for host, port in servers:
                owner.start(self._ask_server(host, port, found), name=f"stun-{host}")

    async def _ask_server(self, host: str, port: int, found: Callable[[Candidate], None]) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(_STUN_SECONDS):
                infos = await loop.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        except (OSError, TimeoutError):
            return
        places = dict.fromkeys((family, info[0], info[1]) for family, _, _, _, info in infos)
        async with Owner() as owner:
            for family, address, number in list(places)[:4]:
                for ice_socket in self._protocols:
                    if isinstance(ice_socket, IceSocket) and (family == socket.AF_INET6) == (
                        ":" in _local(ice_socket)[0]
                    ):
                        work = self._ask(ice_socket, (str(address), int(number)), found)
                        owner.start(work, name="stun-ask")

    async def _ask(self, ice_socket: IceSocket, server: Address, found: Callable[[Candidate], None]) -> None:
        request = Message(message_method=Method.BINDING, message_class=Class.REQUEST)
        try:
            response, _ = await ice_socket.request(request, server)
            host, port = response.attributes["XOR-MAPPED-ADDRESS"]
            candidate = Candidate(str(ipaddress.ip_address(host)), port, "udp", "srflx")
        except (TransactionFailed, TransactionTimeout, KeyError, ValueError):
            return
        if (candidate.host, candidate.port) != _local(ice_socket):
            found(candidate)

    async def reach(self, terms: Terms, places: Iterable[Dialable]) -> None:
        """Find a path to one of the other side's `places`, by its terms. Raises Broken."""
        self.remote_username, self.remote_password = terms.user, terms.password
        self.add(places)
        try:
            await self.connect()
        except ConnectionError as error:
            raise Broken("no address of the other side answers") from error

    def add(self, candidates: Iterable[Dialable]) -> None:
        """Add addresses of the other side, best first."""
        for rank, candidate in enumerate(candidates):
            if len(self._remote_candidates) < MAX_REMOTE and not self._closing:
                self._announced[candidate.host, candidate.port] = candidate.kind
                self._add_remote_candidate(_ice_candidate(candidate, rank=rank), candidate.host)

    def has_remote(self, addr: tuple[object, ...]) -> bool:
        """Return True if the other side named this address, or sent a check from there with our password.

        Before the encryption is there, a datagram from elsewhere could end the handshake.
        """
        return any(
            candidate._network_host == addr[0] and candidate.port == addr[1]
            for candidate in self._remote_candidates
        )

    def check_incoming(self, message: Message, addr: Address, protocol: StunProtocol) -> None:
        """Handle a check like aioice, but bound the number of addresses learned from checks."""
        known = self.has_remote(addr)
        if "PRIORITY" in message.attributes and (known or len(self._remote_candidates) < MAX_REMOTE):
            super().check_incoming(message, addr, protocol)

    def check_complete(self, pair: CandidatePair) -> None:
        """Nominate a pair like aioice, but replace a nominated one only by a better one.

        The controlling side nominates every pair that works, so one that answers late would replace the
        first: the way through the router that of the local network.
        """
        before = self._nominated.get(1)
        super().check_complete(pair)
        if before is not None and before in self._check_list and self._rank(before) > self._rank(pair):
            self._nominated[1] = before

    def _rank(self, pair: CandidatePair) -> int:
        return candidate_pair_priority(pair.local_candidate, pair.remote_candidate, self.ice_controlling)

    # --- data

    def data_received(self, data: bytes, component: int) -> None:
        """Deliver one datagram that is not STUN, or queue it until somebody takes them."""
        if self.on_datagram is not None:
            self.on_datagram(data)
        elif self._queue.qsize() < MAX_EARLY:
            self._queue.put_nowait((data, component))

    def take_over(self, take: Callable[[bytes], None]) -> None:
        """Deliver datagrams to `take` from here on, those that wait first."""
        self.on_datagram = take
        while not self._queue.empty():
            item = self._queue.get_nowait()
            if item is not None:
                take(item[0])

    def send_now(self, datagrams: Sequence[bytes]) -> None:
        """Send over the chosen pair, or lose the datagrams."""
        pair = self._nominated.get(1)
        if pair is not None and isinstance(pair.protocol, IceSocket):
            pair.protocol.sock.send_many(datagrams, pair.remote_addr)

    def probe_now(self, datagram: bytes) -> None:
        """Send one datagram that arrives whole or not at all."""
        pair = self._nominated.get(1)
        if pair is not None and isinstance(pair.protocol, IceSocket):
            pair.protocol.sock.probe(datagram, pair.remote_addr)

    @property
    def pair(self) -> tuple[Address, Address, CandidateKind | None] | None:
        """Our address, theirs, and the kind that they announced (None: only a check revealed theirs)."""
        pair = self._nominated.get(1)
        if pair is None:
            return None
        return pair.local_addr, pair.remote_addr, self._announced.get(pair.remote_addr)

    # --- the end

    def protocol_lost(self, protocol: StunProtocol) -> None:
        """Handle a failed socket."""
        super().protocol_lost(protocol)
        if any(pair.protocol is protocol for pair in self._nominated.values()):
            self.on_lost()

    async def close(self) -> None:
        """Handle the call that aioice makes when consent has expired (RFC 7675): 30 s without a reply."""
        self.on_lost()

    def shut(self) -> list[asyncio.Task[None]]:
        """Close all sockets and end all checks at once; return tasks that end in the next turns."""
        self._closing = self._closed = self.is_shut = True
        self.on_datagram = None
        tasks = [pair.task for pair in self._check_list if pair.task is not None]
        if self._query_consent_task is not None:
            tasks.append(self._query_consent_task)
        for task in tasks:
            task.cancel()
        if not self._check_list_done:
            self._check_list_done = True
            self._check_list_state.put_nowait(ICE_FAILED)
        self._nominated.clear()
        for protocol in self._protocols:
            protocol.transport.close()
        self._protocols.clear()
        self._queue.put_nowait(None)  # wakes a waiting recv
        return tasks


def _local(protocol: StunProtocol) -> Address:
    return protocol.local_candidate.host, protocol.local_candidate.port


def _ice_candidate(candidate: Candidate, *, rank: int) -> IceCandidate:
    """Return aioice's form; `rank` is its place in its list (RFC 8445 5.1.2: local preference)."""
    kinds: dict[CandidateKind, str] = {"host": "host", "srflx": "srflx", "mapped": "srflx", "relay": "relay"}
    kind = kinds[candidate.kind]
    return IceCandidate(
        foundation=candidate_foundation(kind, "udp", candidate.host),
        component=1,
        transport="udp",
        priority=candidate_priority(1, kind, 65535 - rank),
        host=candidate.host,
        port=candidate.port,
        type=kind,
    )
