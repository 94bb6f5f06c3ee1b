"""Candidates: addresses under which a node may be reached, as text and as bytes.

Only IP literals: names would need a resolver, and a peer must not choose what this node looks up.
Addresses that no connection can be made to (unspecified, multicast, broadcast) are refused; so are
IPv6 zones (`%eth0`), which mean nothing on another machine: only a ScopedCandidate, which never leaves this
machine, has one.
"""

import ipaddress
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeVar, get_args

from meshd.base.errors import LocalProtocolError, RemoteProtocolError, UserError
from meshd.wire.limits import MAX_CANDIDATES

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


Proto = Literal["tcp", "udp"]
# host: an interface of the node itself; srflx: what a STUN server saw (RFC 8445, server reflexive);
# mapped: a port mapping that a router granted; relay: a port of a relay
CandidateKind = Literal["host", "srflx", "mapped", "relay"]

_PROTOS: tuple[Proto, ...] = get_args(Proto)
_KINDS: tuple[CandidateKind, ...] = get_args(CandidateKind)
PRIVATE_V4 = tuple(map(ipaddress.IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16")))
PRIVATE_V6 = ipaddress.IPv6Network("fc00::/7")
CARRIER_NETWORK = ipaddress.IPv4Network("100.64.0.0/10")  # RFC 6598, and VPNs that number their nodes so


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """`host` is an IP literal in its shortest form, `port` 1–65535. Raises LocalProtocolError if not."""

    host: str
    port: int
    proto: Proto = "tcp"
    kind: CandidateKind = "host"

    def __post_init__(self) -> None:
        try:
            address = _address(self.host)
            if not 1 <= self.port <= 65535:
                raise ValueError(f"port `{self.port}` is not between 1 and 65535")
            _proto(self.proto), _kind(self.kind)
        except ValueError as error:
            raise LocalProtocolError(f"not a candidate: {error}") from None
        object.__setattr__(self, "host", str(address))

    @classmethod
    def parse(cls, text: str) -> "Candidate":
        """Read `1.2.3.4:80/tcp`, `[::1]:80/udp`, `1.2.3.4:80/tcp/mapped` (kind). Raises UserError."""
        place, *rest = text.strip().split("/")
        host, colon, port = place.rpartition(":")
        try:
            if len(text) > 128 or not colon or len(rest) > 2:
                raise ValueError("its form is wrong")
            if host.startswith("[") and host.endswith("]"):
                host = host[1:-1]
            elif ":" in host:
                raise ValueError("an IPv6 address needs brackets")
            if not (len(port) <= 5 and port.isascii() and port.isdigit() and 1 <= int(port) <= 65535):
                raise ValueError(f"port `{port}` is not between 1 and 65535")
            proto = _proto(rest[0] if rest else "tcp")
            kind = _kind(rest[1] if len(rest) > 1 else "host")
            return cls(str(_address(host)), int(port), proto, kind)
        except ValueError as error:
            raise UserError(
                f"`{text[:128]}` is not an address: {error}",
                hint="write IP:PORT/tcp or [IPv6]:PORT/udp, for example `192.168.1.5:7447/tcp`",
            ) from None

    def __str__(self) -> str:
        """Return the text that `parse` reads; the kind is left out when it is `host`."""
        kind = "" if self.kind == "host" else f"/{self.kind}"
        return f"{self.place}/{self.proto}{kind}"

    @property
    def place(self) -> str:
        """`host:port`, an IPv6 host in brackets."""
        return f"[{self.host}]:{self.port}" if self.is_v6 else f"{self.host}:{self.port}"

    @property
    def ip(self) -> Address:
        """The host as an address object."""
        return ipaddress.ip_address(self.host)

    @property
    def is_v6(self) -> bool:
        """True for IPv6."""
        return ":" in self.host

    @property
    def is_loopback(self) -> bool:
        """True for 127.0.0.0/8 and ::1."""
        return self.ip.is_loopback

    @property
    def is_link_local(self) -> bool:
        """True for 169.254.0.0/16 and fe80::/10."""
        return self.ip.is_link_local

    @property
    def is_private(self) -> bool:
        """True for RFC 1918 and RFC 4193: addresses of one site (loopback and link-local are not
        among them).
        """
        address = self.ip
        if isinstance(address, ipaddress.IPv6Address):
            return address in PRIVATE_V6
        return any(address in network for network in PRIVATE_V4)

    def to_bytes(self) -> bytes:
        """Return 7 bytes for IPv4, 19 for IPv6: flags (bit 0 v6, bit 1 udp, bits 2–3 kind), address, port."""
        flags = self.is_v6 | (self.proto == "udp") << 1 | _KINDS.index(self.kind) << 2
        return bytes([flags]) + self.ip.packed + self.port.to_bytes(2, "big")


@dataclass(frozen=True, slots=True, order=True)
class ScopedCandidate(Candidate):
    """A link-local IPv6 address and the interface of this machine that leads to it (RFC 4007).

    `host` is `fe80::1%eth0`. It is for dialling from here alone: `parse` reads none, and `to_bytes` raises
    LocalProtocolError.
    """

    def __post_init__(self) -> None:
        host, _, zone = self.host.partition("%")
        bare = Candidate(host, self.port, self.proto, self.kind)
        try:
            if not (zone and bare.is_v6 and bare.is_link_local):
                raise ValueError
            address = ipaddress.IPv6Address(f"{bare.host}%{zone}")
        except ValueError:
            raise LocalProtocolError(
                f"not a candidate: `{self.host[:64]}` is not link-local IPv6 with a zone"
            ) from None
        object.__setattr__(self, "host", str(address))

    def to_bytes(self) -> bytes:
        """Raise LocalProtocolError: a zone means nothing elsewhere."""
        raise LocalProtocolError(f"`{self.place}` is valid on this machine only")


def _address(host: str) -> Address:
    """Parse an IP address, IPv4-mapped IPv6 as IPv4. Raises ValueError."""
    if "%" in host:
        raise ValueError(f"`{host[:64]}` has a zone, which is meaningless on other machines")
    try:
        address: Address = ipaddress.ip_address(host)
    except ValueError:
        raise ValueError(f"`{host[:64]}` is not an IP address") from None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    if address.is_unspecified or address.is_multicast or address == ipaddress.IPv4Address(0xFFFFFFFF):
        raise ValueError(f"`{host[:64]}` is not the address of one machine")
    return address


def _proto(text: str) -> Proto:
    for proto in _PROTOS:
        if proto == text:
            return proto
    raise ValueError(f"`{text[:16]}` is neither tcp nor udp")


def _kind(text: str) -> CandidateKind:
    for kind in _KINDS:
        if kind == text:
            return kind
    raise ValueError(f"`{text[:16]}` is none of {', '.join(_KINDS)}")


def pack_candidates(candidates: Iterable[Candidate]) -> bytes:
    """Concatenate candidates in compact form, for the invite."""
    return b"".join(candidate.to_bytes() for candidate in candidates)


def unpack_candidates(data: bytes) -> tuple[Candidate, ...]:
    """Read what `pack_candidates` gave; those with flags of a later version, or unusable, are left out.

    Raises RemoteProtocolError (code `message`) when the lengths do not fit or there are too many.
    """
    found: list[Candidate] = []
    at = 0
    while at < len(data):
        flags = data[at]
        size = 16 if flags & 1 else 4
        raw = data[at + 1 : at + 1 + size]
        port = int.from_bytes(data[at + 1 + size : at + 3 + size], "big")
        at += size + 3
        if at > len(data):
            raise RemoteProtocolError("a candidate is truncated", code="message")
        if flags >> 4:
            continue
        try:
            host = str(_address(str(ipaddress.ip_address(raw))))
            found.append(Candidate(host, port, _PROTOS[flags >> 1 & 1], _KINDS[flags >> 2 & 3]))
        except (ValueError, LocalProtocolError):
            continue
    if len(found) > MAX_CANDIDATES:
        raise RemoteProtocolError(f"more than {MAX_CANDIDATES} candidates", code="message")
    return tuple(found)


def _rank(candidate: Candidate) -> int:
    if candidate.kind == "relay":
        return 6
    if candidate.is_loopback:
        return 5  # the nearest if it is ours; from another machine it means somebody else
    if candidate.is_link_local:
        return 4
    if candidate.kind != "host":
        return 3 if candidate.kind == "srflx" else 2
    return 0 if candidate.is_private else 1


C = TypeVar("C", bound=Candidate)


def order(candidates: Iterable[C]) -> tuple[C, ...]:
    """Return the order in which to try: near before far, loopback late, alternating families (RFC 8305).

    Duplicates are dropped; the order given is kept among equals.
    """
    ranked: dict[int, list[C]] = {}
    for candidate in dict.fromkeys(candidates):
        ranked.setdefault(_rank(candidate), []).append(candidate)
    result: list[C] = []
    for rank in sorted(ranked):
        equals = ranked[rank]
        sixes = [candidate for candidate in equals if candidate.is_v6]
        fours = [candidate for candidate in equals if not candidate.is_v6]
        while sixes or fours:
            result += sixes[:1] + fours[:1]
            del sixes[:1], fours[:1]
    return tuple(result)
