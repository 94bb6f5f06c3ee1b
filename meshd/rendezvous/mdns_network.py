"""One network of multicast DNS: only this file knows `zeroconf`; it imports it to join one.

With mDNS off, the library (5 MB) is never loaded. It bounds what it keeps of what it hears (10,000 records);
what gets past it is still hostile.
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
from meshd.base.tasks import Owner, first_error
from meshd.rendezvous.mdns_neighbours import Neighbours
from meshd.rendezvous.mdns_places import Place
from meshd.rendezvous.mdns_text import SERVICE_TYPE, Sign, is_instance_name, is_well_formed_name

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncZeroconf

TTL_SECONDS = 120  # a node that was killed is forgotten after that, or a little later
ASK_MILLISECONDS = 1500
MAX_NAMES_WAITING = 64  # names of which not everything is known yet
_IP_MULTICAST_ALL = 49  # ip(7); the socket module has not got it
LOG = log.get("mdns")


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
                await zeroconf.async_close()  # without the goodbyes that it was about to repeat
                raise

    async def _live(self, zeroconf: "AsyncZeroconf") -> None:
        from zeroconf.asyncio import AsyncServiceBrowser

        await zeroconf.zeroconf.async_wait_for_start()
        if not zeroconf.zeroconf.engine.senders:
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
