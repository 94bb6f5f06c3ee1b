"""UPnP with the gateway (wire/igd.py): found by SSDP, called by SOAP over plain HTTP.

An own small client: the libraries that speak UPnP bring an HTTP stack and a schema checker for the four calls
made here. Only the default gateway is believed and called, whatever an answer says.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.portmap.interface import GatewayRoute, Language, NotMapped, Pulse
from meshd.wire import igd
from meshd.wire.igd import HttpReply, ReplyParser
from meshd.wire.portmap import Granted, Wish

_SEARCH_SECONDS = 2.5  # a router may take the second that we give it, and one search may get lost
CALL_SECONDS = 3.0
OTHER_PORTS = 3  # tries when somebody else has the outside port
LEASE_FOR_EVER = 1 << 31  # seconds; of routers that know no leases: ours is renewed all the same
_MAX_ANSWERS_WAITING = 32  # answers; other devices answer too
_SEARCHES = 2
_READ_BYTES = 16 << 10


class _SsdpAnswers(asyncio.DatagramProtocol):
    def __init__(self, gateway: str) -> None:
        self._gateway = gateway
        self.queue: asyncio.Queue[bytes] = asyncio.Queue(_MAX_ANSWERS_WAITING)

    def datagram_received(self, data: bytes, address: tuple[str | object, int]) -> None:
        if address[0] == self._gateway and not self.queue.full():
            self.queue.put_nowait(data)

    def error_received(self, exc: Exception) -> None:
        """Ignore the error: the gateway has no such port; others may."""


def _send_groups_by(transport: asyncio.DatagramTransport, local: str) -> None:
    """Send multicast by the interface of the gateway, not by one that the system picks."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(local))


class UpnpRouter:
    """Implements Router. `random_port` draws from 0 to 65535, for when ours is taken outside."""

    language = Language.UPNP

    def __init__(
        self,
        route: GatewayRoute,
        *,
        name: str,
        random_port: Callable[[], int],
        ssdp_port: int = igd.SSDP_PORT,
    ) -> None:
        self._route = route
        self._name = name
        self._random_port = random_port
        self._ssdp_port = ssdp_port
        self._control: igd.IgdControl | None = None

    async def probe(self) -> Pulse:
        try:
            url = await self._search()
            reply = await self._http(url, "GET", {}, b"")
            if reply.status != 200:
                raise NotMapped(f"the router's description is missing (status {reply.status})")
            self._control = igd.read_description(reply.body, url=url, host=self._route.gateway)
        except RemoteProtocolError as error:
            raise NotMapped(f"the router's description cannot be used: {error.what}") from None
        return Pulse(None, await self._external())

    async def map(self, wish: Wish) -> Granted:
        port, lifetime = wish.external_port or wish.internal_port, wish.lifetime
        tries = 0
        while True:
            arguments = igd.add_arguments(
                proto=wish.proto,
                external_port=port,
                internal_host=self._route.local,
                internal_port=wish.internal_port,
                lifetime=lifetime,
                name=self._name,
            )
            # Some routers take only permanent mappings, and ports may be taken: adapt and retry.
            try:
                await self._call("AddPortMapping", arguments)
                break
            except igd.SoapFault as fault:
                if fault.number == igd.PERMANENT_ONLY and lifetime:
                    lifetime = 0
                elif fault.number == igd.CONFLICT and tries < OTHER_PORTS:
                    tries += 1
                    port = 1024 + self._random_port() % (65536 - 1024)
                else:
                    raise NotMapped(fault.what) from None
        return Granted(
            proto=wish.proto,
            internal_port=wish.internal_port,
            external_port=port,
            external_host=await self._external(),
            lifetime=lifetime or LEASE_FOR_EVER,
            epoch=None,
        )

    async def unmap(self, granted: Granted) -> None:
        arguments = igd.entry_arguments(proto=granted.proto, external_port=granted.external_port)
        try:
            await self._call("DeletePortMapping", arguments)
        except igd.SoapFault as fault:
            if fault.number != igd.NO_SUCH_ENTRY:
                raise NotMapped(fault.what) from None

    async def pulse(self, held: Sequence[Granted]) -> Pulse:
        """Ask the router for each mapping."""
        external = await self._external()
        for granted in held:
            arguments = igd.entry_arguments(proto=granted.proto, external_port=granted.external_port)
            try:
                entry = await self._call("GetSpecificPortMappingEntry", arguments)
            except igd.SoapFault as fault:
                if fault.number == igd.NO_SUCH_ENTRY:
                    return Pulse(None, external, forgot=True)
                continue  # it does not tell: the renewal will
            if entry.get("NewInternalClient", self._route.local) != self._route.local:
                return Pulse(None, external, forgot=True)
        return Pulse(None, external)

    async def _external(self) -> str:
        try:
            return igd.read_address(await self._call("GetExternalIPAddress", {}))
        except RemoteProtocolError as error:
            raise NotMapped(error.what) from None

    async def _search(self) -> str:
        """Return the description's URL: ask the group, and the gateway alone, where multicast does
        not pass.
        """
        loop = asyncio.get_running_loop()
        gateway = self._route.gateway
        try:
            transport, answers = await loop.create_datagram_endpoint(
                lambda: _SsdpAnswers(gateway), local_addr=(self._route.local, 0)
            )
        except OSError as error:
            raise NotMapped(f"cannot reach the gateway: {error.strerror or error}", silent=True) from None
        why = ""
        try:
            # Search the group and the gateway alone, several times, as datagrams get lost.
            _send_groups_by(transport, self._route.local)
            async with asyncio.timeout(_SEARCH_SECONDS):
                for _ in range(_SEARCHES):
                    for device in igd.DEVICES:
                        transport.sendto(igd.search(device, group=True), (igd.SSDP_GROUP, self._ssdp_port))
                        transport.sendto(igd.search(device, group=False), (gateway, self._ssdp_port))
                    try:
                        async with asyncio.timeout(_SEARCH_SECONDS / _SEARCHES):
                            while True:
                                try:
                                    return igd.read_search_answer(await answers.queue.get(), sender=gateway)
                                except RemoteProtocolError as error:
                                    why = error.what
                    except TimeoutError:
                        continue
        except TimeoutError:
            pass
        finally:
            transport.close()
        raise NotMapped(why or "the router does not answer", silent=not why)

    async def _call(self, action: str, arguments: Mapping[str, str]) -> Mapping[str, str]:
        """Call an action. Raises SoapFault, NotMapped."""
        if self._control is None:
            raise NotMapped("the router has not been found yet")
        headers, body = igd.soap(self._control, action, arguments)
        try:
            reply = await self._http(self._control.url, "POST", headers, body)
            return igd.read_soap(reply.status, reply.body, action)
        except igd.SoapFault:
            raise
        except RemoteProtocolError as error:
            raise NotMapped(error.what) from None

    async def _http(self, url: str, method: str, headers: Mapping[str, str], body: bytes) -> HttpReply:
        port, path = igd.split_url(url, self._route.gateway)
        head = {
            "Host": f"{self._route.gateway}:{port}",
            "User-Agent": "UPnP/1.1 meshd",
            "Connection": "close",
            **({"Content-Length": str(len(body))} if body else {}),
            **headers,
        }
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items()), "", ""]
        question = "\r\n".join(lines).encode("latin-1") + body
        try:
            async with asyncio.timeout(CALL_SECONDS):
                return await self._converse(port, question)
        except TimeoutError:
            raise NotMapped("the router does not answer UPnP calls", silent=True) from None
        except OSError as error:
            raise NotMapped(f"cannot reach the router's UPnP service: {error.strerror or error}") from None

    async def _converse(self, port: int, question: bytes) -> HttpReply:
        reader, writer = await asyncio.open_connection(
            self._route.gateway, port, local_addr=(self._route.local, 0), limit=_READ_BYTES
        )
        try:
            writer.write(question)
            await writer.drain()
            parser = ReplyParser(most=igd.MAX_XML_BYTES)
            while parser.reply is None:
                data = await reader.read(_READ_BYTES)
                if not data:
                    return parser.eof()
                parser.feed(data)
            return parser.reply
        finally:
            writer.transport.abort()  # the answer is here: no farewell that could wait
