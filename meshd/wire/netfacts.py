"""The facts that a node knows of its network, and the ten bytes of them that peers receive.

Words of RFC 4787 and RFC 5780: *mapping* is how a NAT chooses the outside port for a socket, *filtering* whom
it lets back in by it. A fact that nobody could find out is `UNKNOWN`, which is not the same as bad.
"""

import ipaddress
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from meshd.base.errors import LocalProtocolError, RemoteProtocolError

E = TypeVar("E", bound=IntEnum)

_VERSION = 1
FACTS_BYTES = 10
MAX_FACTS_BYTES = 16  # a later version may say more; the rest is skipped


class Udp(IntEnum):
    """The passage of datagrams to servers outside and back."""

    UNKNOWN = 0  # no server was asked, or nothing at all could be reached
    WORKS = 1
    BLOCKED = 2  # servers that answer by TCP do not by UDP, or several are silent


class Mapping(IntEnum):
    """The rule by which a NAT gives outside ports to a socket."""

    UNKNOWN = 0
    NONE = 1  # no NAT: outside sees our own address and port
    INDEPENDENT = 2  # one port for all destinations: easy to punch
    ADDRESS = 3  # another one for each remote address
    ADDRESS_PORT = 4  # another one for each remote address and port ("symmetric")
    DEPENDENT = 5  # 3 or 4, the servers could not tell which


class Filtering(IntEnum):
    """The remote addresses that may reply by an outside port."""

    UNKNOWN = 0
    INDEPENDENT = 1  # anybody
    ADDRESS = 2  # hosts that were sent something
    ADDRESS_PORT = 3  # exactly the ports that were sent something


class Ports(IntEnum):
    """The outside ports that a NAT picks."""

    UNKNOWN = 0
    PRESERVED = 1  # that of the socket
    COUNTING = 2  # the last one and a step
    RANDOM = 3


class TriState(IntEnum):
    """Yes, no, or not known."""

    UNKNOWN = 0
    YES = 1
    NO = 2


class Tcp(IntEnum):
    """The outgoing TCP connections that are let through, judged by the configured servers alone."""

    UNKNOWN = 0
    WORKS = 1
    ONLY_443 = 2  # servers are reached on port 443 and on no other
    BLOCKED = 3  # none is reached, though a name was resolved or the network is up
    INTERCEPTED = 4  # somebody else answers in their place: a captive portal, or a proxy that opens TLS


class Mapped(IntEnum):
    """Port mapping at the home router."""

    UNKNOWN = 0
    NO = 1  # no router answers, or it refuses
    YES = 2
    BEHIND_NAT = 3  # the router has itself no public address


@dataclass(frozen=True, slots=True, kw_only=True)
class NetFacts:
    """One node's network. `udp_step` and `tcp_step` (−127 to 127) are the steps of `COUNTING` ports, else 0.

    `public_v4` is the IPv4 address that servers outside see, empty if unknown: two nodes with the same one
    are behind the same NAT.
    """

    udp: Udp = Udp.UNKNOWN
    mapping: Mapping = Mapping.UNKNOWN
    filtering: Filtering = Filtering.UNKNOWN
    ports: Ports = Ports.UNKNOWN
    udp_step: int = 0
    tcp: Tcp = Tcp.UNKNOWN
    tcp_mapping: Mapping = Mapping.UNKNOWN
    tcp_ports: Ports = Ports.UNKNOWN
    tcp_step: int = 0
    ipv6: TriState = TriState.UNKNOWN
    hairpin: TriState = TriState.UNKNOWN
    mapped: Mapped = Mapped.UNKNOWN
    carrier_nat: bool = False  # the provider's NAT stands between, certain or not told
    public_v4: str = ""

    def __post_init__(self) -> None:
        if not -127 <= self.udp_step <= 127 or not -127 <= self.tcp_step <= 127:
            raise LocalProtocolError(f"steps of `{self.udp_step}`, `{self.tcp_step}` ports do not fit")

    @property
    def symmetric(self) -> bool:
        """True when each peer sees another UDP port: simple punching fails."""
        return self.mapping in DEPENDING

    @property
    def tcp_symmetric(self) -> bool:
        """True when each peer sees another TCP port."""
        return self.tcp_mapping in DEPENDING

    @property
    def public(self) -> bool:
        """True when anybody can reach this node's own ports by UDP."""
        return self.mapping is Mapping.NONE and self.filtering is Filtering.INDEPENDENT

    def to_bytes(self) -> bytes:
        """Return ten bytes: version and small facts in the first four, the steps, the address."""
        head = (
            _VERSION << 4 | self.udp << 2 | self.hairpin,
            self.mapping << 5 | self.filtering << 2 | self.ipv6,
            self.tcp_mapping << 5 | self.ports << 3 | self.tcp_ports << 1 | self.carrier_nat,
            self.tcp << 5 | self.mapped << 3,
            self.udp_step & 0xFF,
            self.tcp_step & 0xFF,
        )
        packed = ipaddress.IPv4Address(self.public_v4).packed if self.public_v4 else bytes(4)
        return bytes(head) + packed

    @classmethod
    def from_bytes(cls, data: bytes) -> "NetFacts":
        """Read them. Raises RemoteProtocolError (code `message`); values of later versions are UNKNOWN."""
        if not FACTS_BYTES <= len(data) <= MAX_FACTS_BYTES or not data[0] >> 4:
            raise RemoteProtocolError(f"network facts of {len(data)} bytes", code="message")
        first, second, third, fourth, udp_step, tcp_step = data[:6]
        packed = data[6:10]
        return cls(
            udp=_known(Udp, first >> 2 & 3),
            hairpin=_known(TriState, first & 3),
            mapping=_known(Mapping, second >> 5),
            filtering=_known(Filtering, second >> 2 & 7),
            ipv6=_known(TriState, second & 3),
            tcp_mapping=_known(Mapping, third >> 5),
            ports=_known(Ports, third >> 3 & 3),
            tcp_ports=_known(Ports, third >> 1 & 3),
            carrier_nat=bool(third & 1),
            tcp=_known(Tcp, fourth >> 5),
            mapped=_known(Mapped, fourth >> 3 & 3),
            udp_step=_signed(udp_step),
            tcp_step=_signed(tcp_step),
            public_v4=str(ipaddress.IPv4Address(packed)) if any(packed) else "",
        )

    def to_text(self) -> str:
        """Return the facts in hex, for a record's capabilities."""
        return self.to_bytes().hex()

    @classmethod
    def from_text(cls, text: str) -> "NetFacts":
        """Read `to_text`. Raises RemoteProtocolError (code `message`)."""
        try:
            data = bytes.fromhex(text) if len(text) <= 2 * MAX_FACTS_BYTES else b""
        except ValueError:
            data = b""
        return cls.from_bytes(data)


DEPENDING = frozenset({Mapping.ADDRESS, Mapping.ADDRESS_PORT, Mapping.DEPENDENT})
CAPABILITY = "net"  # the name under which a record carries `to_text`


def _known(kind: type[E], number: int) -> E:
    return kind(number) if number in list(kind) else kind(0)


def _signed(byte: int) -> int:
    return max(-127, byte - 256 if byte > 127 else byte)
