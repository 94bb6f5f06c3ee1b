"""Home routers on loopback, one for each language: real sockets, a table of mappings, and their whims."""

import asyncio
import ipaddress
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

OUTSIDE = "5.6.7.8"
HERE = "127.0.0.1"
Answer = Callable[[bytes], list[bytes]]


@dataclass(slots=True)
class Table:
    """The mappings of a router: (proto, internal port) to (external port, lifetime, nonce)."""

    outside: str = OUTSIDE
    epoch: int = 1000
    lifetime: int = 7200  # the most it grants
    result: int = 0  # another one: every mapping is refused with it
    mapped: dict[tuple[str, int], tuple[int, int, bytes]] = field(default_factory=dict)
    made: int = 0  # mappings made or renewed
    removed: int = 0
    probed: int = 0

    def map(self, proto: str, internal: int, external: int, lifetime: int, nonce: bytes = b"") -> int:
        """As the router does; returns the external port."""
        if not lifetime:
            self.removed += self.mapped.pop((proto, internal), None) is not None
            return 0
        self.made += 1
        external = external or internal
        self.mapped[proto, internal] = (external, min(lifetime, self.lifetime), nonce)
        return external

    def forget(self) -> None:
        """Restart."""
        self.mapped.clear()
        self.epoch = 0


def natpmp(table: Table) -> Answer:
    """RFC 6886, the router's side."""

    def answer(data: bytes) -> list[bytes]:
        if data[0] == 2:  # PCP
            return [struct.pack(">BBHI", 0, 128 + (data[1] & 127), 1, table.epoch)]
        if data[1] == 0:
            table.probed += 1
            packed = ipaddress.IPv4Address(table.outside).packed
            return [struct.pack(">BBHI4s", 0, 128, 0, table.epoch, packed)]
        _, op, _, internal, external, lifetime = struct.unpack(">BBHHHI", data)
        if table.result:
            return [struct.pack(">BBHIHHI", 0, 128 + op, table.result, table.epoch, internal, 0, 0)]
        external = table.map({1: "udp", 2: "tcp"}[op], internal, external, lifetime)
        life = min(lifetime, table.lifetime)
        return [struct.pack(">BBHIHHI", 0, 128 + op, 0, table.epoch, internal, external, life)]

    return answer


def pcp(table: Table) -> Answer:
    """RFC 6887, the router's side; a mapping of another nonce is not touched (11.3)."""

    def answer(data: bytes) -> list[bytes]:
        if data[0] == 0:  # NAT-PMP: says that it speaks PCP
            return [struct.pack(">BBHI", 2, 128 + data[1], 1, table.epoch)]
        if data[1] == 0:
            table.probed += 1
            return [struct.pack(">BBBBII12x", 2, 128, 0, 0, 0, table.epoch)]
        nonce, number, internal, external, _ = struct.unpack(">12sB3xHH16s", data[24:60])
        lifetime = int.from_bytes(data[4:8], "big")
        proto = {6: "tcp", 17: "udp"}[number]
        known = table.mapped.get((proto, internal))
        result = table.result or (2 if known is not None and known[2] != nonce else 0)
        life = min(lifetime, table.lifetime)
        if not result:
            external = table.map(proto, internal, external, lifetime, nonce)
        packed = bytes(10) + b"\xff\xff" + ipaddress.IPv4Address(table.outside).packed
        head = struct.pack(">BBBBII12x", 2, 129, 0, result, life, table.epoch)
        return [head + struct.pack(">12sB3xHH16s", nonce, number, internal, external, packed)]

    return answer


class _Server(asyncio.DatagramProtocol):
    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, address: tuple[str | object, int]) -> None:
        for reply in self._answer(data):
            self._transport.sendto(reply, address)


@asynccontextmanager
async def listening(answer: Answer) -> AsyncIterator[int]:
    """Serve datagrams on loopback; gives the port."""
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(lambda: _Server(answer), local_addr=(HERE, 0))
    try:
        yield transport.get_extra_info("sockname")[1]
    finally:
        transport.close()
        await asyncio.sleep(0)


DESCRIPTION = """<?xml version="1.0"?>
<root xmlns="urn:schemas-upnp-org:device-1-0"><specVersion><major>1</major></specVersion>
<device><deviceType>urn:schemas-upnp-org:device:InternetGatewayDevice:1</deviceType>
<serviceList><service><serviceType>urn:schemas-upnp-org:service:Layer3Forwarding:1</serviceType>
<controlURL>/no</controlURL></service></serviceList>
<deviceList><device><deviceList><device><serviceList><service>
<serviceType>urn:schemas-upnp-org:service:WANIPConnection:1</serviceType>
<controlURL>/control</controlURL></service></serviceList></device></deviceList></device></deviceList>
</device></root>
"""


@dataclass(slots=True)
class Igd:
    """A UPnP router: `whim` may answer a call itself (status and inner XML of a fault or response)."""

    table: Table
    description: str = DESCRIPTION
    whim: Callable[[str, str], tuple[int, str] | None] = lambda _action, _body: None
    calls: list[str] = field(default_factory=list)
    http_port: int = 0
    location_host: str = HERE

    def search_answer(self, data: bytes) -> list[bytes]:
        """SSDP."""
        if not data.startswith(b"M-SEARCH"):
            return []
        return [
            b"HTTP/1.1 200 OK\r\nCACHE-CONTROL: max-age=120\r\n"
            b"ST: urn:schemas-upnp-org:device:InternetGatewayDevice:1\r\n"
            + f"LOCATION: http://{self.location_host}:{self.http_port}/desc.xml\r\n\r\n".encode()
        ]

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """HTTP."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next((int(h.split(":")[1]) for h in head.split("\r\n") if h.startswith("Content-Length")), 0)
        body = (await reader.readexactly(length)).decode()
        if head.startswith("GET"):
            status, text = 200, self.description
        else:
            action = next(h for h in head.split("\r\n") if h.startswith("SOAPAction")).split("#")[1][:-1]
            self.calls.append(action)
            status, text = self.whim(action, body) or self._call(action, body)
            text = f'<s:Envelope xmlns:s="x"><s:Body>{text}</s:Body></s:Envelope>'
        writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(text)}\r\n\r\n{text}".encode())
        await writer.drain()
        writer.close()

    def _call(self, action: str, body: str) -> tuple[int, str]:
        def given(name: str) -> str:
            return body.partition(f"<{name}>")[2].partition("<")[0]

        proto = given("NewProtocol").lower()
        inner = ""
        if action == "GetExternalIPAddress":
            inner = f"<NewExternalIPAddress>{self.table.outside}</NewExternalIPAddress>"
        elif action == "AddPortMapping":
            external, lifetime = int(given("NewExternalPort")), int(given("NewLeaseDuration"))
            self.table.map(proto, int(given("NewInternalPort")), external, lifetime or 1 << 31)
        else:
            external = int(given("NewExternalPort"))
            found = [k for k, v in self.table.mapped.items() if (k[0], v[0]) == (proto, external)]
            if not found:
                return 500, fault(714, "NoSuchEntryInArray")
            inner = f"<NewInternalClient>{HERE}</NewInternalClient>"
            if action == "DeletePortMapping":
                self.table.map(*found[0], 0, 0)
        return 200, f'<u:{action}Response xmlns:u="y">{inner}</u:{action}Response>'


def fault(number: int, text: str) -> str:
    """A UPnP error as SOAP writes it."""
    error = (
        f"<UPnPError><errorCode>{number}</errorCode><errorDescription>{text}</errorDescription></UPnPError>"
    )
    return f"<s:Fault><faultcode>s:Client</faultcode><detail>{error}</detail></s:Fault>"


@asynccontextmanager
async def igd(router: Igd) -> AsyncIterator[int]:
    """Serve SSDP and HTTP on loopback; gives the SSDP port."""
    server = await asyncio.start_server(router.converse, HERE, 0)
    router.http_port = server.sockets[0].getsockname()[1]
    try:
        async with listening(router.search_answer) as port:
            yield port
    finally:
        server.close()
        await server.wait_closed()
