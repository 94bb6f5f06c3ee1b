"""Targets that home routers send, or who is in their place: PCP, NAT-PMP, SSDP, HTTP, XML; network facts."""

import random
from collections.abc import Sequence

from meshd.base.errors import RemoteProtocolError
from meshd.wire import igd
from meshd.wire.igd import ReplyParser
from meshd.wire.netfacts import Filtering, Mapping, NetFacts, Ports, TriState, Udp
from meshd.wire.portmap import (
    Wish,
    read_natpmp_address,
    read_natpmp_mapped,
    read_pcp_announced,
    read_pcp_mapped,
)

from tests.fuzz.mutate import flip
from tests.fuzz.target import Target

HOST, URL = "192.168.1.1", "http://192.168.1.1:5000/root.xml"
NONCE = bytes(range(12))
WISH = Wish(proto="tcp", internal_port=17430, external_port=17430, lifetime=7200)
ROUTER = (
    bytes.fromhex("0281000000000e1000000064")
    + bytes(12)
    + NONCE
    + bytes.fromhex("0600000044164416")
    + bytes(10)
    + b"\xff\xff\x14\x01\0\x02",
    bytes.fromhex("028000000000000000000007") + bytes(12),
    bytes.fromhex("008000000000006414010002"),
    bytes.fromhex("0082000000000064441644160000 0e10".replace(" ", "")),
    bytes.fromhex("00820002 00000064".replace(" ", "")),
)
SERVICE = "<service><serviceType>%s</serviceType><controlURL>/ctl</controlURL></service>"
DESCRIPTION = (
    '<?xml version="1.0"?><root xmlns="urn:schemas-upnp-org:device-1-0"><URLBase>http://192.168.1.1:5000</URLBase>'
    "<device><deviceList><device><serviceList>"
    + "".join(SERVICE % kind for kind in (*igd.SERVICES, "urn:other:1"))
    + "</serviceList></device></deviceList></device></root>"
).encode()
RESPONSE = (
    b'<s:Envelope xmlns:s="x"><s:Body><u:GetExternalIPAddressResponse xmlns:u="y"><NewExternalIPAddress>'
    b"20.1.0.2</NewExternalIPAddress></u:GetExternalIPAddressResponse></s:Body></s:Envelope>"
)
FAULT = (
    b'<s:Envelope xmlns:s="x"><s:Body><s:Fault><detail><UPnPError><errorCode>718</errorCode>'
    b"<errorDescription>Conflict</errorDescription></UPnPError></detail></s:Fault></s:Body></s:Envelope>"
)
SSDP = b"HTTP/1.1 200 OK\r\nST: %b\r\nLOCATION: %b\r\n\r\n" % (igd.DEVICES[0].encode(), URL.encode())
HTTP = (
    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(RESPONSE), RESPONSE),
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    b"10\r\n0123456789abcdef\r\n3;x=y\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.0 500 Internal\n\n" + FAULT,
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
)
FACTS = tuple(
    facts.to_bytes()
    for facts in (
        NetFacts(),
        NetFacts(
            udp=Udp.WORKS,
            mapping=Mapping.ADDRESS_PORT,
            filtering=Filtering.ADDRESS_PORT,
            ports=Ports.COUNTING,
            udp_step=-2,
            hairpin=TriState.NO,
            public_v4="20.1.0.2",
        ),
    )
)


def _make(rng: random.Random, samples: Sequence[bytes]) -> bytes:
    good = rng.choice(samples)
    return good if rng.random() < 0.02 else flip(rng, good, samples)


def _feed_router(data: bytes) -> None:
    refused: list[RemoteProtocolError] = []
    for read in (
        read_pcp_announced,
        read_natpmp_address,
        lambda data: read_pcp_mapped(data, WISH, nonce=NONCE),
        lambda data: read_natpmp_mapped(data, WISH),
    ):
        try:
            read(data)
        except RemoteProtocolError as error:
            refused.append(error)
    if len(refused) == 4:
        raise refused[0]


def _feed_ssdp(data: bytes) -> None:
    assert igd.split_url(igd.read_search_answer(data, sender=HOST), HOST)[0] > 0


def _feed_http(data: bytes) -> None:
    parser = ReplyParser(most=4096)
    for at in range(0, len(data), 50):
        parser.feed(data[at : at + 50])
    assert len(parser.eof().body) <= 4096


def _feed_xml(data: bytes) -> None:
    if b"serviceType" in data:
        assert igd.read_description(data, url=URL, host=HOST).service in igd.SERVICES
    elif b"Fault" in data:
        igd.read_soap(500, data, "GetExternalIPAddress")
    else:
        igd.read_address(igd.read_soap(200, data, "GetExternalIPAddress"))


def _feed_facts(data: bytes) -> None:
    facts = NetFacts.from_bytes(data)
    assert NetFacts.from_bytes(facts.to_bytes()) == facts
    assert NetFacts.from_text(facts.to_text()) == facts


REFUSED = (RemoteProtocolError,)
TARGETS = (
    Target(name="portmap", samples=ROUTER, make=_make, feed=_feed_router, allowed=REFUSED, share=4),
    Target(name="ssdp", samples=(SSDP,), make=_make, feed=_feed_ssdp, allowed=REFUSED, share=2),
    Target(name="http-reply", samples=HTTP, make=_make, feed=_feed_http, allowed=REFUSED, share=4),
    Target(
        name="upnp-xml",
        samples=(DESCRIPTION, RESPONSE, FAULT),
        make=_make,
        feed=_feed_xml,
        allowed=REFUSED,
        share=4,
    ),
    Target(name="netfacts", samples=FACTS, make=_make, feed=_feed_facts, allowed=REFUSED, share=1),
)
