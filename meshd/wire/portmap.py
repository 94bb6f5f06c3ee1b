"""Port mapping by the two small binary protocols of home routers: PCP (RFC 6887) and NAT-PMP (RFC 6886).

Both are asked at UDP port 5351 of the default gateway and answered with one datagram. Numbers are big endian.
A router of one kind answers the other's questions with `UNSUPPORTED_VERSION`, which is how each is told.
"""

import ipaddress
import struct
from dataclasses import dataclass

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.wire.address import Proto

ROUTER_PORT = 5351
MAX_PCP_BYTES = 1100  # RFC 6887, 7: the longest PCP message
MAX_LIFETIME = 0xFFFFFFFF
PCP_NONCE_BYTES = 12

_PCP_VERSION = 2
_NATPMP_VERSION = 0
_ANSWER = 0x80  # top bit of the opcode
_OP_ANNOUNCE = 0
_OP_MAP = 1
_PCP_HEAD = struct.Struct(">BBHI16s")  # version, opcode, reserved, lifetime, client's address
_PCP_ANSWER = struct.Struct(">BBBBII12x")  # version, opcode, reserved, result, lifetime, epoch
_PCP_MAP = struct.Struct(">12sB3xHH16s")  # nonce, protocol, internal and external port, external address
_NATPMP_MAP = struct.Struct(">BBHHHI")  # version, opcode, reserved, internal and external port, lifetime
_NATPMP_ADDRESS = struct.Struct(">BBHI4s")  # version, opcode, result, epoch, external address
_NATPMP_MAPPED = struct.Struct(">BBHIHHI")  # version, opcode, result, epoch, internal, external, lifetime
_IP_PROTO: dict[Proto, int] = {"tcp": 6, "udp": 17}
_NATPMP_OP: dict[Proto, int] = {"udp": 1, "tcp": 2}

PCP_UNKNOWN_QUESTION = 4
# What result codes mean (RFC 6887, 7.4 and RFC 6886, 3.5), in words for people.
PCP_RESULTS = {
    1: "it does not speak this version",
    2: "it is not allowed",
    3: "it could not read the question",
    4: "it does not know the question",
    5: "it does not know an option",
    6: "it could not read an option",
    7: "its network is down",
    8: "it has no room for another mapping",
    9: "it does not map this protocol",
    10: "this device has too many mappings",
    11: "it cannot give that outside port",
    12: "another NAT stands between",
    13: "it does not take so many remote peers",
}
NATPMP_RESULTS = {
    1: "it does not speak this version",
    2: "it is not allowed: port mapping is switched off there",
    3: "its network is down",
    4: "it has no room for another mapping",
    5: "it does not know the question",
}


class MapRefused(RemoteProtocolError):
    """The router's refusal: `result` is its code (0 when it gave none)."""

    def __init__(self, what: str, *, result: int, epoch: int | None = None) -> None:
        super().__init__(what, code="map_refused")
        self.result = result
        self.epoch = epoch


class NotForUs(RemoteProtocolError):
    """A datagram about something else: skip it, the reply may still come."""

    def __init__(self, what: str) -> None:
        super().__init__(what, code="not_for_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """The mapping to request: `lifetime` in seconds (0 removes the mapping), `external_port` 0 for any."""

    proto: Proto
    internal_port: int
    external_port: int
    lifetime: int

    def __post_init__(self) -> None:
        if not 1 <= self.internal_port <= 65535 or not 0 <= self.external_port <= 65535:
            raise LocalProtocolError(f"no port: `{self.internal_port}`, `{self.external_port}`")
        if not 0 <= self.lifetime <= MAX_LIFETIME:
            raise LocalProtocolError(f"no lifetime: `{self.lifetime}`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Granted:
    """The router's grant. `lifetime` in seconds as it granted it; `external_host` is empty where the answer
    does not tell (NAT-PMP); `epoch` is for how many seconds it knows its mappings, None where it does not
    say.
    """

    proto: Proto
    internal_port: int
    external_port: int
    external_host: str
    lifetime: int
    epoch: int | None


@dataclass(frozen=True, slots=True)
class Outside:
    """The router's outer side, as NAT-PMP reports it."""

    host: str
    epoch: int


def pcp_announce(*, client: str) -> bytes:
    """Return the request for the epoch alone (RFC 6887, 14.1): are you there? `client` is our address."""
    return _PCP_HEAD.pack(_PCP_VERSION, _OP_ANNOUNCE, 0, 0, _packed(client))


def pcp_map(wish: Wish, *, client: str, nonce: bytes, external_host: str = "") -> bytes:
    """Make, renew or take away a mapping (RFC 6887, 11.1), with the same nonce each time."""
    if len(nonce) != PCP_NONCE_BYTES:
        raise LocalProtocolError(f"a nonce of {len(nonce)} bytes, {PCP_NONCE_BYTES} are needed")
    head = _PCP_HEAD.pack(_PCP_VERSION, _OP_MAP, 0, wish.lifetime, _packed(client))
    port = wish.external_port if wish.lifetime else 0
    outside = _packed(external_host or "0.0.0.0")
    return head + _PCP_MAP.pack(nonce, _IP_PROTO[wish.proto], wish.internal_port, port, outside)


def read_pcp_announced(data: bytes) -> int:
    """Return the epoch. Raises MapRefused, NotForUs, RemoteProtocolError."""
    return _pcp_answer(data, _OP_ANNOUNCE)[1]


def read_pcp_mapped(data: bytes, wish: Wish, *, nonce: bytes) -> Granted:
    """Return the reply to `pcp_map`. Raises MapRefused, NotForUs (another nonce or port),
    RemoteProtocolError.
    """
    if len(data) >= _PCP_ANSWER.size + _PCP_MAP.size:
        got, number, internal, _, _ = _PCP_MAP.unpack_from(data, _PCP_ANSWER.size)
        if (got, number, internal) != (nonce, _IP_PROTO[wish.proto], wish.internal_port):
            raise NotForUs("an answer about another mapping")
    lifetime, epoch = _pcp_answer(data, _OP_MAP)
    if len(data) < _PCP_ANSWER.size + _PCP_MAP.size:
        raise RemoteProtocolError(f"a PCP mapping of {len(data)} bytes", code="message")
    _, _, internal, external, packed = _PCP_MAP.unpack_from(data, _PCP_ANSWER.size)
    if wish.lifetime and not (external and lifetime):
        raise RemoteProtocolError("a PCP mapping has no port or no lifetime", code="message")
    return Granted(
        proto=wish.proto,
        internal_port=internal,
        external_port=external,
        external_host=_unpacked(packed),
        lifetime=lifetime,
        epoch=epoch,
    )


def _pcp_answer(data: bytes, opcode: int) -> tuple[int, int]:
    """Return lifetime and epoch of a successful reply. Raises MapRefused, NotForUs, RemoteProtocolError."""
    if len(data) > MAX_PCP_BYTES:
        raise RemoteProtocolError(f"a PCP message of {len(data)} bytes", code="message")
    if len(data) >= 4 and data[0] == _NATPMP_VERSION:
        # what a router says that knows NAT-PMP alone (RFC 6887, 9)
        raise MapRefused("the router speaks NAT-PMP, not PCP", result=1)
    if len(data) < _PCP_ANSWER.size or len(data) % 4:
        raise RemoteProtocolError(f"a PCP message of {len(data)} bytes", code="message")
    version, got, _, result, lifetime, epoch = _PCP_ANSWER.unpack_from(data)
    if not got & _ANSWER:
        raise NotForUs("a question, not an answer")
    if result:
        why = PCP_RESULTS.get(result, f"code {result}")
        raise MapRefused(f"the router refuses by PCP: {why}", result=result, epoch=epoch)
    if version != _PCP_VERSION:
        raise RemoteProtocolError(f"PCP version {version}", code="message")
    if got & ~_ANSWER != opcode:
        raise NotForUs("an answer to another question")
    return lifetime, epoch


def natpmp_ask_address() -> bytes:
    """Return the request for the address of the router's outer side (RFC 6886, 3.2)."""
    return bytes([_NATPMP_VERSION, 0])


def natpmp_map(wish: Wish) -> bytes:
    """Make, renew or take away a mapping (RFC 6886, 3.3, 3.4)."""
    port = wish.external_port if wish.lifetime else 0
    opcode = _NATPMP_OP[wish.proto]
    return _NATPMP_MAP.pack(_NATPMP_VERSION, opcode, 0, wish.internal_port, port, wish.lifetime)


def read_natpmp_address(data: bytes) -> Outside:
    """Return the reply to `natpmp_ask_address`. Raises MapRefused, NotForUs, RemoteProtocolError."""
    _natpmp_result(data, 0)
    if len(data) != _NATPMP_ADDRESS.size:
        raise RemoteProtocolError(f"a NAT-PMP address of {len(data)} bytes", code="message")
    _, _, _, epoch, packed = _NATPMP_ADDRESS.unpack(data)
    return Outside(str(ipaddress.IPv4Address(packed)), epoch)


def read_natpmp_mapped(data: bytes, wish: Wish) -> Granted:
    """Return the reply to `natpmp_map`. Raises MapRefused, NotForUs (another port), RemoteProtocolError."""
    _natpmp_result(data, _NATPMP_OP[wish.proto])
    if len(data) != _NATPMP_MAPPED.size:
        raise RemoteProtocolError(f"a NAT-PMP mapping of {len(data)} bytes", code="message")
    _, _, _, epoch, internal, external, lifetime = _NATPMP_MAPPED.unpack(data)
    if internal != wish.internal_port:
        raise NotForUs("an answer about another mapping")
    if wish.lifetime and not (external and lifetime):
        raise RemoteProtocolError("a NAT-PMP mapping has no port or no lifetime", code="message")
    return Granted(
        proto=wish.proto,
        internal_port=internal,
        external_port=external,
        external_host="",
        lifetime=lifetime,
        epoch=epoch,
    )


def _natpmp_result(data: bytes, opcode: int) -> None:
    if len(data) < 4 or len(data) > MAX_PCP_BYTES:
        raise RemoteProtocolError(f"a NAT-PMP message of {len(data)} bytes", code="message")
    version, got, result = struct.unpack_from(">BBH", data)
    if version == _PCP_VERSION:
        raise MapRefused("the router speaks PCP, not NAT-PMP", result=1)
    if version != _NATPMP_VERSION:
        raise RemoteProtocolError(f"NAT-PMP version {version}", code="message")
    if not got & _ANSWER:
        raise NotForUs("a question, not an answer")
    if result:
        epoch = int.from_bytes(data[4:8], "big") if len(data) >= 8 else None
        why = NATPMP_RESULTS.get(result, f"code {result}")
        raise MapRefused(f"the router refuses by NAT-PMP: {why}", result=result, epoch=epoch)
    if got & ~_ANSWER != opcode:
        raise NotForUs("an answer to another question")


def _packed(host: str) -> bytes:
    """Return an address as PCP writes it: IPv4 as IPv4-mapped IPv6 (RFC 6887, 5)."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        raise LocalProtocolError(f"`{host[:64]}` is not an IP address") from None
    if isinstance(address, ipaddress.IPv4Address):
        return bytes(10) + b"\xff\xff" + address.packed
    return address.packed


def _unpacked(data: bytes) -> str:
    address = ipaddress.IPv6Address(data)
    return str(address.ipv4_mapped or address)
