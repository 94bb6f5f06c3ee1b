"""Addresses of this machine: which of them another node may try, and whether they have changed.

The standard library cannot list interfaces, so this asks the C library (getifaddrs, the same on Linux and
macOS); where that fails it asks the kernel which source address it would use towards the outside, without
sending anything. `choose` decides and is pure; all else only asks.
"""

import contextlib
import ctypes
import ipaddress
import socket
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from meshd.base.fault_boundary import OURS
from meshd.base.sockets import source_towards
from meshd.identity.keys import PeerId
from meshd.link.interface import MayDial
from meshd.wire.address import PRIVATE_V4, PRIVATE_V6, Candidate, Proto, ScopedCandidate
from meshd.wire.dialable import Dialable, Here, Network, Source, dialable, network_of
from meshd.wire.limits import MAX_CANDIDATES

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

# Containers and virtual machines of this very host: nobody outside reaches us there.
_INSIDE = (
    "docker",
    "br-",
    "veth",
    "virbr",
    "lxc",
    "lxdbr",
    "podman",
    "cni",
    "cali",
    "flannel",
    "vmnet",
    "vboxnet",
    "awdl",  # Apple's radio links between devices: they always have a link-local address
    "llw",
)
# VPNs: they lead somewhere, but mostly the long way round (and to where the user may not want a model to go).
_VPN = ("tun", "tap", "wg", "utun", "tailscale", "zt", "ppp", "ipsec", "nebula")
# RFC 1918, RFC 4193. Carrier-grade NAT (100.64/10) is not one site: two of its addresses may be cities apart.
_SITES: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = (*PRIVATE_V4, PRIVATE_V6)
IFF_UP = 0x1
_USUAL = {4: 24, 6: 64}  # bits of a network where the system does not tell

_last: "tuple[InterfaceAddress, ...]" = ()  # as they were when the kernel could be asked

# Documentation prefixes (RFC 5737, RFC 3849): never routed anywhere special, so the default route answers.
_OUTSIDE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))


@dataclass(frozen=True, slots=True, order=True)
class InterfaceAddress:
    """An address and the interface that has it; `interface` is empty when it could not be told."""

    interface: str
    host: str
    prefix: int = field(default=0, compare=False)  # bits of its network; 0: not known

    @property
    def ip(self) -> Address:
        """The address as a value."""
        return ipaddress.ip_address(self.host)


def choose(found: Iterable[InterfaceAddress]) -> tuple[str, ...]:
    """Return hosts under which other machines may reach this one, in the order found, without loopback.

    Link-local IPv6 is left out (it needs a zone, which means nothing elsewhere). Interfaces of containers,
    virtual machines and VPNs count only if there is no other; then VPNs go before the rest.
    """
    usable = [
        item
        for item in found
        if not item.ip.is_loopback
        and not item.ip.is_unspecified
        and not item.ip.is_multicast
        and not _is_link_local_v6(item.ip)
    ]
    inside = [item for item in usable if item.interface.startswith(_INSIDE)]
    vpn = [item for item in usable if item.interface.startswith(_VPN)]
    plain = [item for item in usable if not item.interface.startswith((*_INSIDE, *_VPN))]
    routed = [
        item for item in plain if not item.ip.is_link_local
    ] or plain  # 169.254/16: no DHCP server answered
    return tuple(dict.fromkeys(item.host for item in routed or vpn or inside))


def is_vpn(interface: str) -> bool:
    """Return True if an interface of this name is mostly a VPN's."""
    return interface.startswith(_VPN)


def hosts() -> tuple[str, ...]:
    """Return the addresses to offer to other machines, as known now."""
    return choose(enumerate_addresses())


def offered(places: Sequence[str], port: int, proto: Proto) -> Sequence[Candidate]:
    """Return where sockets bound at `places` can be reached now: real interfaces first, loopback last."""
    everywhere = [place for place in places if place in ("0.0.0.0", "::")]
    found = [place for place in places if place not in everywhere]
    if everywhere:
        reachable = (*hosts(), "127.0.0.1", "::1")
        found += [host for host in reachable if ("::" if ":" in host else "0.0.0.0") in everywhere]
    return [Candidate(host, port, proto) for host in found if "%" not in host][:MAX_CANDIDATES]


def offered_on_links(places: Sequence[str], port: int, proto: Proto) -> Sequence[ScopedCandidate]:
    """Return where neighbours on one link reach sockets bound at `places` by link-local IPv6."""
    if "::" not in places:
        return ()
    return [
        ScopedCandidate(f"{host}%{interface}", port, proto)
        for interface, host in neighbourhood()
        if _is_link_local_v6(ipaddress.ip_address(host))
    ][:MAX_CANDIDATES]


def neighbourhood() -> tuple[tuple[str, str], ...]:
    """Return (interface, host) of the networks in which neighbours may be found by multicast, as known now.

    Real interfaces only: those of containers, virtual machines and VPNs lead to no neighbour. Link-local IPv6
    addresses have no zone here, and are left out until the kernel has made sure that they are unique.
    """
    return tuple(
        (item.interface, item.host)
        for item in enumerate_addresses()
        if item.interface
        and not item.interface.startswith((*_INSIDE, *_VPN))
        and not item.ip.is_loopback
        and (not _is_link_local_v6(item.ip) or _is_usable(item))
    )


def _is_link_local_v6(address: Address) -> bool:
    return address.version == 6 and address.is_link_local


def _is_usable(item: InterfaceAddress) -> bool:
    """Try to bind a socket to this link-local address: fails while duplicates are looked for (RFC 4862)."""
    if "%" in item.interface:
        return False  # Linux allows such a name; no zone can be written with it
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as sock:
            sock.bind((item.host, 0, 0, socket.if_nametoindex(item.interface)))
    except OSError:
        return False
    return True


def addresses() -> frozenset[str]:
    """Return every address that may carry links, VPNs too; when it changes, paths have changed.

    Cheap enough to be asked every two seconds (tens of microseconds). Containers that come and go are no
    change.
    """
    return frozenset(
        item.host
        for item in enumerate_addresses()
        if not item.interface.startswith(_INSIDE) and not item.ip.is_loopback and not item.ip.is_link_local
    )


def here(outside: Iterable[str] = (), *, local_only: bool = False) -> Here:
    """Return where this machine is now. `outside`: its public addresses as servers see them."""
    found = enumerate_addresses()
    return Here(
        addresses=frozenset(item.ip for item in found if not item.ip.is_loopback),
        networks=networks(found),
        outside=frozenset(ipaddress.ip_address(host) for host in outside),
        local_only=local_only,
    )


def by_interfaces(own: Sequence[str] | None = None) -> MayDial:
    """Return the rules of wire/dialable.py for a node that knows nothing but its interfaces.

    `own`: the addresses that it offers, if it does not offer them all.
    """
    inside = own is not None and all(ipaddress.ip_address(host).is_loopback for host in own)

    def may_dial(_peer: PeerId, candidates: Sequence[Candidate], source: Source) -> Sequence[Dialable]:
        return dialable(candidates, source=source, here=here(local_only=inside))

    return may_dial


def networks(found: Iterable[InterfaceAddress]) -> tuple[Network, ...]:
    """Return the networks in which other machines may be met: those that `choose` offers, and VPNs.

    Not those of containers and virtual machines of this very host, unless there is nothing else.
    """
    known = list(found)
    offered = choose(known)
    met = [
        item
        for item in known
        if (item.host in offered or item.interface.startswith(_VPN)) and not item.ip.is_loopback
    ]
    return tuple(dict.fromkeys(network_of(item.ip, item.prefix or _USUAL[item.ip.version]) for item in met))


def enumerate_addresses() -> tuple[InterfaceAddress, ...]:
    """Return every address of every interface that is up, loopback too. Asks the kernel; never sends."""
    global _last
    try:
        _last = _getifaddrs()
    except (OSError, AttributeError) as error:
        if isinstance(error, OSError) and error.errno in OURS and _last:
            return _last  # no descriptor is free: nothing says that they have changed
        _last = _sources()
    return _last


def interface_of(host: str, found: Iterable[InterfaceAddress]) -> str:
    """Return the interface that has this address, which may have a zone (`%eth0`); empty if none has it."""
    plain, _, zone = host.partition("%")
    try:
        wanted = ipaddress.ip_address(plain)
    except ValueError:
        return ""
    having = [item.interface for item in found if item.ip == wanted]
    return zone if zone in having else next(iter(having), "")


def path_between(local: str, remote: str) -> str:
    """Return the path between two addresses of a connection: `loopback`, `lan` or `public`.

    Two addresses of the same machine (an address reached from itself) are loopback too. Two addresses of one
    IPv6 /64 are one LAN, public as they may look.
    """
    try:
        here, there = ipaddress.ip_address(local), ipaddress.ip_address(remote)
    except ValueError:
        return "public"
    if there.is_loopback or here == there:
        return "loopback"
    if _in_a_site(here) and _in_a_site(there):
        return "lan"
    if here.version == there.version == 6 and int(here) >> 64 == int(there) >> 64:
        return "lan"
    return "public"


def beside(local: Iterable[str], remote: str) -> bool:
    """Return True if `remote` is this machine, or likely in one LAN with it: one private /24, or one IPv6
    /64.
    """
    try:
        there = ipaddress.ip_address(remote)
        own = [ipaddress.ip_address(host) for host in local]
    except ValueError:
        return False
    if there.is_loopback:
        return True
    shift = 8 if there.version == 4 else 64
    near = any(here.version == there.version and int(here) >> shift == int(there) >> shift for here in own)
    return near and (there.version == 6 or _in_a_site(there))


def any_beside(candidates: Iterable[Candidate]) -> bool:
    """Return True if one of these TCP addresses is on this machine, or most likely in one LAN with it."""
    own = hosts()
    return any(
        candidate.proto == "tcp" and (isinstance(candidate, ScopedCandidate) or beside(own, candidate.host))
        for candidate in candidates
    )


def _in_a_site(address: Address) -> bool:
    if address.is_link_local:
        return True
    return any(address.version == site.version and address in site for site in _SITES)


class _Ifaddrs(ctypes.Structure):
    """The head of `struct ifaddrs` (getifaddrs(3)): all fields up to the mask, alike on Linux and macOS.

    `next` is a plain address here, so that the end of the list is None.
    """

    _fields_ = (
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("flags", ctypes.c_uint),
        ("address", ctypes.c_void_p),
        ("netmask", ctypes.c_void_p),
    )


class _Entry(Protocol):
    next: int | None
    name: bytes
    flags: int
    address: int | None
    netmask: int | None


def _getifaddrs() -> tuple[InterfaceAddress, ...]:
    library = ctypes.CDLL(None, use_errno=True)
    library.freeifaddrs.argtypes = [ctypes.c_void_p]
    head = ctypes.c_void_p()
    if library.getifaddrs(ctypes.byref(head)) != 0:
        raise OSError(ctypes.get_errno(), "getifaddrs failed")
    found: list[InterfaceAddress] = []
    at = head.value
    try:
        while at:
            entry = cast(_Entry, _Ifaddrs.from_address(at))
            host = _host(entry.address) if entry.flags & IFF_UP and entry.address else None
            if host is not None:
                prefix = _prefix(entry.netmask, ipaddress.ip_address(host).version)
                found.append(InterfaceAddress(entry.name.decode("utf-8", "replace"), host, prefix))
            at = entry.next
    finally:
        library.freeifaddrs(head)
    return tuple(found)


def _prefix(sockaddr: int | None, version: int) -> int:
    """Return the bits of a network mask in memory; 0 where there is none.

    Its family is ignored: BSD leaves it out of masks. The mask stands where an address would.
    """
    if not sockaddr:
        return 0
    mask = ctypes.string_at(sockaddr + 4, 4) if version == 4 else ctypes.string_at(sockaddr + 8, 16)
    return int.from_bytes(mask, "big").bit_count()


def _host(sockaddr: int) -> str | None:
    """Return the address in a `struct sockaddr` in memory; None for families other than IP."""
    start = ctypes.string_at(sockaddr, 2)
    # BSD put a length into the first byte and the family into the second; Linux has a u16 family
    family = start[1] if sys.platform == "darwin" else int.from_bytes(start, sys.byteorder)
    if family == socket.AF_INET:
        return str(ipaddress.IPv4Address(ctypes.string_at(sockaddr + 4, 4)))  # after family and port
    if family == socket.AF_INET6:
        return str(ipaddress.IPv6Address(ctypes.string_at(sockaddr + 8, 16)))  # and after the flow
    return None


def _sources() -> tuple[InterfaceAddress, ...]:
    """Return the source addresses of the default routes: connecting a UDP socket sends nothing."""
    found = [InterfaceAddress("", "127.0.0.1")]
    for family, outside in _OUTSIDE:
        with contextlib.suppress(OSError):  # no route of this family
            found.append(InterfaceAddress("", source_towards(family, (outside, 9))))
    return tuple(found)
