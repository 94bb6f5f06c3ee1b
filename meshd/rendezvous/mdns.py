"""Multicast DNS (RFC 6762, 6763): nodes of a mesh in one network find each other without being told.

Each network is told its own addresses and nothing of the others; one that comes up is joined within seconds,
one that changes its addresses starts again under another name. What is heard is an address to try and no more
(mdns_records.py says what a record holds, and what strangers see of it).

Only this file knows `zeroconf`, and imports it when the first network is joined: with mDNS off, the library
(5 MB) is never loaded. It bounds what it keeps of what it hears (10,000 records); what gets past it is still
hostile.
"""

import asyncio
import contextlib
import ipaddress
import logging
import socket
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, cast

from meshd.base import log
from meshd.base.errors import MeshdError, RemoteProtocolError
from meshd.base.fault_boundary import Contained, ended
from meshd.base.tasks import Owner, cancel_and_wait, first_error
from meshd.identity.keys import MeshId, PeerId
from meshd.rendezvous.interface import MdnsState, MdnsStatus
from meshd.rendezvous.mdns_records import (
    MDNS_NONCE_BYTES,
    SERVICE_TYPE,
    Neighbours,
    Place,
    Sign,
    is_instance_name,
    is_well_formed_name,
    places,
)
from meshd.wire.address import Candidate

_LOOK_SECONDS = 2.0  # how often the networks of this machine are looked at
_AGAIN_SECONDS = 30.0  # a network that could not be joined is tried again after that
_SILENT_SECONDS = 15.0  # nothing heard for so long after the start: multicast may be filtered
MAX_NETWORKS = 16
LOG = log.get("mdns")

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncZeroconf

TTL_SECONDS = 120  # a node that was killed is forgotten after that, or a little later
ASK_MILLISECONDS = 1500
_START_SECONDS = 10.0  # for the library to open its sockets, which takes some turns of the loop
MAX_NAMES_WAITING = 64  # names of which not everything is known yet
_IP_MULTICAST_ALL = 49  # ip(7); the socket module has not got it


class Network:
    """A responder and a browser on the addresses of one interface; without `sign` it only looks."""

    def __init__(
        self,
        place: Place,
        *,
        neighbours: Neighbours,
        news: asyncio.Event,
        sign: Sign | None,
        random: Callable[[int], bytes],
    ) -> None:
        self.place = place
        self.is_up = False
        self.failure = ""
        self._neighbours = neighbours
        self._news = news
        self._sign = sign
        self._name = f"{random(8).hex()}.{SERVICE_TYPE}"  # as random as the nonce: it shows nothing either
        self._host = f"{random(8).hex()}.local."
        self._waiting: asyncio.Queue[str] = asyncio.Queue(MAX_NAMES_WAITING)
        self._asked: set[str] = set()

    async def serve(self) -> None:
        """Serve until cancelled. Leaves the reason in `failure` when the network cannot be joined."""
        from zeroconf import Error
        from zeroconf.asyncio import AsyncZeroconf

        logging.getLogger("zeroconf").setLevel(logging.CRITICAL)  # what strangers send it is not worth a line
        try:
            zeroconf = AsyncZeroconf(interfaces=self._interfaces())
        except (OSError, RuntimeError) as error:
            self._fail(error)
            return
        try:
            await self._live(zeroconf)
        except* (OSError, Error) as group:
            self._fail(first_error(group))
        finally:
            try:
                await zeroconf.async_close()
            except asyncio.CancelledError:
                zeroconf.zeroconf.close()  # without the goodbyes that it was about to repeat
                await zeroconf.async_close()
                raise

    async def _live(self, zeroconf: "AsyncZeroconf") -> None:
        from zeroconf.asyncio import AsyncServiceBrowser

        # `async_wait_for_start` would take the start along when it is cancelled, and leave its sockets open.
        if (starting := zeroconf.zeroconf.engine.running_future) is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_START_SECONDS):
                    await asyncio.shield(starting)
        if not zeroconf.zeroconf.started or not zeroconf.zeroconf.engine.senders:
            raise OSError("the interface does not support multicast")
        _hear_this_network_only(zeroconf, self.place.interface)
        filter_packets(zeroconf.zeroconf)
        browser = AsyncServiceBrowser(zeroconf.zeroconf, SERVICE_TYPE, handlers=[self._changed])
        try:
            self.is_up = True
            LOG.info("network_joined", interface=self.place.interface, listen=list(self.place.hosts))
            async with Owner() as owner:
                owner.start(self._announce(zeroconf), name="mdns announce")
                owner.start(self._complete(zeroconf.zeroconf), name="mdns ask")
        finally:
            self.is_up = False
            await browser.async_cancel()

    def _fail(self, error: BaseException) -> None:
        self.failure = str(error)[:200].lower()
        LOG.info("network_not_joined", interface=self.place.interface, why=self.failure)

    def _interfaces(self) -> list[str | int | tuple[tuple[str, int, int], int]]:
        """Return one address for IPv4, and the interface's number if it has IPv6."""
        hosts: list[str | int | tuple[tuple[str, int, int], int]] = []
        hosts += [host for host in self.place.hosts if ":" not in host][:1]
        if any(":" in host for host in self.place.hosts):
            hosts.append(socket.if_nametoindex(self.place.interface))
        return hosts

    async def _announce(self, zeroconf: "AsyncZeroconf") -> None:
        if self._sign is None:
            return
        from zeroconf import ServiceInfo

        info = ServiceInfo(
            SERVICE_TYPE,
            self._name,
            port=self.place.port,
            properties=self._sign.encode(),
            server=self._host,
            host_ttl=TTL_SECONDS,
            other_ttl=TTL_SECONDS,
            parsed_addresses=list(self.place.hosts),
        )
        # The name is random: asking whether somebody else has it would only cost time.
        await (await zeroconf.async_register_service(info, cooperating_responders=True))

    def _changed(
        self, *, zeroconf: "Zeroconf", service_type: str, name: str, state_change: "ServiceStateChange"
    ) -> None:
        if service_type != SERVICE_TYPE or not is_instance_name(name) or name.lower() == self._name:
            return
        # The library calls this for every pending name and clears the list only then. If one name raised, it
        # would stay pending and raise again for each later packet: this node would hear nobody any more.
        with contextlib.suppress(MeshdError), Contained("neighbours", "read an mDNS record"):
            self._apply(zeroconf, name, state_change)

    def _apply(self, zeroconf: "Zeroconf", name: str, state_change: "ServiceStateChange") -> None:
        from zeroconf import ServiceStateChange
        from zeroconf.asyncio import AsyncServiceInfo

        if state_change is ServiceStateChange.Removed:
            self._asked.discard(name)
            if self._neighbours.lost((self.place.interface, name)):
                self._news.set()
            return
        info = AsyncServiceInfo(SERVICE_TYPE, name)
        if info.load_from_cache(zeroconf):
            self._saw(info.name, info.text, info.parsed_addresses(), info.port or 0)
        elif name not in self._asked and not self._waiting.full():
            self._waiting.put_nowait(name)

    def _saw(self, name: str, text: bytes | None, hosts: Sequence[str], port: int) -> None:
        where = (self.place.interface, name)
        now = asyncio.get_running_loop().time()
        own = self.place.hosts
        try:
            if self._neighbours.saw(where, text or b"", hosts=hosts, port=port, own=own, now=now):
                self._news.set()
        except RemoteProtocolError as error:
            LOG.debug("record_refused", interface=self.place.interface, why=error.what)

    async def _complete(self, zeroconf: "Zeroconf") -> None:
        """Query the missing records of a name, one name at a time and each once."""
        while True:
            name = await self._waiting.get()
            if len(self._asked) < MAX_NAMES_WAITING:
                self._asked.add(name)
            await ended(self._ask(zeroconf, name), source="neighbours", name="ask for an mDNS record")

    async def _ask(self, zeroconf: "Zeroconf", name: str) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        info = AsyncServiceInfo(SERVICE_TYPE, name)
        if await info.async_request(zeroconf, ASK_MILLISECONDS):
            self._saw(info.name, info.text, info.parsed_addresses(), info.port or 0)


class Mdns:
    """Announces this node in every network that it can be reached in, and looks for the others."""

    def __init__(
        self,
        *,
        mesh: MeshId,
        me: PeerId,
        addresses: Callable[[], Sequence[tuple[str, str]]],
        candidates: Callable[[], Sequence[Candidate]],
        peers: Callable[[], Sequence[PeerId]],
        found: Callable[[PeerId, Sequence[Candidate]], None],
        random: Callable[[int], bytes],
    ) -> None:
        """Set up. `addresses`: (interface, host) of the real interfaces now; `candidates`: what the listeners
        offer.

        `peers`: the peers to look for (asked every 2 s); `found` gets all addresses at which one is seen,
        none when it has gone, at most once in 5 s for each peer. `random(n)` gives n random bytes.
        """
        self._me = me
        self._addresses = addresses
        self._candidates = candidates
        self._peers = peers
        self._found = found
        self._random = random
        self._neighbours = Neighbours(mesh, me)
        self._networks: dict[str, tuple[Network, asyncio.Task[None]]] = {}
        self._failed: dict[str, tuple[Place, float, str]] = {}
        self._news = asyncio.Event()
        self._began: float | None = None
        self._now: Callable[[], float] = lambda: 0.0

    @property
    def status(self) -> MdnsStatus:
        """The present status."""
        joined = tuple(sorted(name for name, (network, _) in self._networks.items() if network.is_up))
        waited = self._began is not None and self._now() - self._began >= _SILENT_SECONDS
        state: MdnsState = "looking"
        if self._neighbours.heard_at is not None:
            state = "heard"
        elif waited and joined:
            state = "silent"
        why = "; ".join(f"{name}: {text}" for name, (_, _, text) in sorted(self._failed.items()))
        if state == "silent":
            why = why or "no other node was heard: there is none, or this network filters multicast"
        return MdnsStatus(state=state, networks=joined, members=self._neighbours.members, why=why)

    async def serve(self) -> None:
        """Serve until cancelled; then say goodbye to each network (0.3 s)."""
        self._now = asyncio.get_running_loop().time
        self._began = self._now()
        async with Owner() as owner:
            while True:
                await self._adapt(owner)
                self._neighbours.know(self._peers())
                for peer, candidates in self._neighbours.tell(self._now()):
                    LOG.debug(
                        "neighbour", peer=peer.short, remote=[str(candidate) for candidate in candidates]
                    )
                    self._found(peer, candidates)
                self._news.clear()
                try:
                    async with asyncio.timeout(_LOOK_SECONDS):
                        await self._news.wait()
                except TimeoutError:
                    pass

    async def _adapt(self, owner: Owner) -> None:
        """Join the networks that are new, leave those that have gone or changed."""
        wanted = places(self._addresses(), self._candidates())[:MAX_NETWORKS]
        by_name = {place.interface: place for place in wanted}
        gone = [
            (name, network, task)
            for name, (network, task) in self._networks.items()
            if by_name.get(name) != network.place or task.done()
        ]
        await cancel_and_wait(*(task for _, _, task in gone))
        for name, network, _ in gone:
            del self._networks[name]
            self._neighbours.lost_network(name)
            if network.failure:
                self._failed[name] = (network.place, self._now(), network.failure)
        for name, (place, since, _) in list(self._failed.items()):
            if by_name.get(name) != place or self._now() - since >= _AGAIN_SECONDS:
                del self._failed[name]
        for place in wanted:
            if place.interface not in self._networks and place.interface not in self._failed:
                network = Network(
                    place,
                    neighbours=self._neighbours,
                    news=self._news,
                    sign=self._sign(place),
                    random=self._random,
                )
                task = owner.start_for(
                    f"network {place.interface}", network.serve(), name=f"mdns {place.interface}"
                )
                self._networks[place.interface] = network, task

    def _sign(self, place: Place) -> Sign | None:
        if not place.port:
            return None
        nonce = self._random(MDNS_NONCE_BYTES)
        return Sign.of(self._neighbours.mesh, self._me, nonce=nonce, udp_port=place.udp_port)


async def find(
    *,
    mesh: MeshId,
    peer: PeerId,
    addresses: Callable[[], Sequence[tuple[str, str]]],
    random: Callable[[int], bytes],
    seconds: float,
) -> tuple[Candidate, ...]:
    """Return where `peer` of `mesh` is in the networks of this machine; empty if not seen in `seconds`.

    For a joiner whose token has no address that works: it announces nothing, and only asks.
    """
    seen: asyncio.Future[tuple[Candidate, ...]] = asyncio.get_running_loop().create_future()

    def found(_peer: PeerId, candidates: Sequence[Candidate]) -> None:
        if candidates and not seen.done():
            seen.set_result(tuple(candidates))

    # Search like any node, without announcing anything.
    search = Mdns(
        mesh=mesh,
        me=PeerId(random(32)),  # nobody's
        addresses=addresses,
        candidates=tuple,
        peers=lambda: (peer,),
        found=found,
        random=random,
    )
    async with Owner() as owner:
        task = owner.start(search.serve(), name="mdns search")
        try:
            async with asyncio.timeout(seconds):
                await seen
        except TimeoutError:
            return ()
        finally:
            task.cancel()
    return seen.result()


class PacketFilter(asyncio.DatagramProtocol):
    """Pass packets on to the library, except answers with a name that it cannot write again.

    The library lists what it has heard in each question that it asks. A name that it read and cannot write
    ends its questions for good, or makes them unreadable for everybody else.
    """

    def __init__(self, library: asyncio.DatagramProtocol) -> None:
        self._library = library
        self._contained = Contained("neighbours", "read an mDNS packet")

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        """Take one packet from `addr`."""
        with contextlib.suppress(MeshdError), self._contained:
            if _names_are_well_formed(data):
                self._library.datagram_received(data, addr)

    def error_received(self, exc: Exception) -> None:
        """Pass on what the socket reported."""
        self._library.error_received(exc)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the socket is closed."""
        self._library.connection_lost(exc)


def filter_packets(zeroconf: "Zeroconf") -> None:
    """Put a filter in front of each socket of `zeroconf`, and forget what came before."""
    for reader in zeroconf.engine.readers:
        library = cast(asyncio.DatagramProtocol, reader.transport.get_protocol())  # by its methods only
        reader.transport.set_protocol(PacketFilter(library))
    for records in list(zeroconf.cache.cache.values()):
        zeroconf.cache.async_remove_records(list(records))


def _names_are_well_formed(packet: bytes) -> bool:
    from zeroconf._protocol.incoming import DNSIncoming

    message = DNSIncoming(packet)
    if not message.valid or not message.is_response():
        return True  # nothing is kept of it
    for record in message.answers():
        # a pointer's target, a service's host, the next name of an NSEC record
        targets = (getattr(record, field, None) for field in ("alias", "server", "next_name"))
        if not all(is_well_formed_name(name) for name in (record.name, *targets) if name is not None):
            LOG.debug("record_refused", why="a name cannot be written")
            return False
    return True


def _hear_this_network_only(zeroconf: "AsyncZeroconf", interface: str) -> None:
    """Bind the sockets to one network: Linux also delivers multicast of other networks, and we would answer
    there.

    For IPv4 there is an option against that, for IPv6 only binding the socket to the interface, which anybody
    may do since Linux 5.7. Other systems look at the interface by themselves.
    """
    if sys.platform == "linux":
        options = (
            (socket.SOL_SOCKET, socket.SO_BINDTODEVICE, interface.encode()),
            (socket.IPPROTO_IP, _IP_MULTICAST_ALL, bytes(4)),
        )
        for reader in zeroconf.zeroconf.engine.readers:
            sock = reader.transport.get_extra_info("socket")
            if not ipaddress.ip_address(sock.getsockname()[0]).is_unspecified:
                continue  # it hears what is sent to its own address only
            for level, option, value in options:
                try:
                    sock.setsockopt(level, option, value)
                except OSError as error:
                    LOG.debug("option_refused", interface=interface, why=(error.strerror or "").lower())
