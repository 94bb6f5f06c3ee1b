"""The dial policy: the one function that turns an address somebody named into one to connect to.

A member may name any address in its signed record and its signals. A node that connected to all of them would
scan its own loopback and its LAN for that member, or flood a stranger. So whatever connects or sends to a
candidate takes `Dialable`, and only `dialable` makes one.
"""

import ipaddress
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NewType

from meshd.base.peer_limits import ADDRESSES, MACHINE_PORTS, ROUTED, SIGNAL_PORTS
from meshd.wire.address import CARRIER_NETWORK, Address, Candidate, order

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Dialable = NewType("Dialable", Candidate)

LEAST_PORT = 1024  # on this machine: no mesh port is below, but the system's own services are


class Source(StrEnum):
    """The party that named an address."""

    GIVEN = "given"  # a person (an invite, a setting), or a link to this very peer was proven there
    NEARBY = "nearby"  # mDNS: anybody in the LAN
    RECORD = "record"  # the peer's signed record
    SIGNAL = "signal"  # the peer, for one attempt
    SEARCH = "search"  # the peer, for a search through the ports of its NAT


@dataclass(frozen=True, slots=True)
class Here:
    """The place of this node: its addresses (loopback left out), the networks of its interfaces, and its
    public addresses as servers see them. `local_only`: it listens on loopback only.
    """

    addresses: frozenset[Address] = frozenset()
    networks: tuple[Network, ...] = ()
    outside: frozenset[Address] = frozenset()
    local_only: bool = False


def _networks(*texts: str) -> tuple[Network, ...]:
    return tuple(map(ipaddress.ip_network, texts))


# Cloud providers answer there with credentials of the machine; the rest is no address of one machine.
_NEVER = _networks(
    "0.0.0.0/8",
    "169.254.169.254/32",  # AWS, Azure, Google, OpenStack and others
    "169.254.170.2/32",  # AWS, for containers
    "169.254.170.23/32",
    "100.100.100.200/32",  # Alibaba
    "168.63.129.16/32",  # Azure
    "192.0.0.0/24",  # protocol assignments, Oracle's metadata among them
    "224.0.0.0/4",
    "240.0.0.0/4",
    "::/128",
    "fd00:ec2::/32",  # AWS
    "fd20:ce::254/128",  # Google
    "fe80::/10",  # without a zone, which only a ScopedCandidate has
    "ff00::/8",
    "100::/64",
)
_LOOPBACK = _networks("127.0.0.0/8", "::1/128")
_PRIVATE = _networks(
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "100.64.0.0/10",
    "169.254.0.0/16",
    "198.18.0.0/15",
    "fc00::/7",
    "fec0::/10",
)
# IPv6 addresses that lead to an IPv4 address: NAT64 (RFC 6052, 8215), 6to4, Teredo, and the deprecated
# IPv4-compatible and IPv4-translated forms. No node offers one; they would lead round the rules for IPv4.
_EMBEDDED = _networks(
    "64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96", "::ffff:0:0/96", "::ffff:0:0:0/96"
)


class _PlaceKind(StrEnum):
    NEVER = "never"
    MACHINE = "machine"
    LINK = "link"
    SITE = "site"
    PUBLIC = "public"


def dialable(
    candidates: Iterable[Candidate], *, source: Source, here: Here, claims: Iterable[Address] = ()
) -> list[Dialable]:
    """Return those of `candidates` that this node may connect or send to, in the order given.

    `claims` are all addresses by which the peer says it can be reached, beside `candidates`. Rules:

    - metadata services, multicast, broadcast and whatever hides an IPv4 address: never;
    - this machine (loopback, and our own addresses) only at one port, for a peer that names an address of
      ours, or when both keep to loopback; four ports for a signal, one for each of its addresses;
    - private and carrier addresses in a network of ours; beyond, two of them, if the peer is seen at our own
      public address or neither of us is seen at any: networks of one site, routed to each other;
    - link-local IPv6 only as a ScopedCandidate, heard by mDNS on the interface that it names;
    - by mDNS only what is in a network of ours; for a search only a public address that the record claims;
    - 8 addresses of each protocol at most.

    What a person gave, or a link was proven at, is only kept from what is never dialled.
    """
    # Addresses in a record or a signal count as claimed by the peer.
    unique = list(dict.fromkeys(candidates))
    claimed = frozenset(claims)
    if source in (Source.RECORD, Source.SIGNAL, Source.NEARBY):
        claimed |= {_without_zone(candidate.ip) for candidate in unique}
    # Sort by place: never, public, link, machine, site.
    places = {candidate: _place(candidate.ip, here) for candidate in unique}
    if source is Source.GIVEN:
        good = {candidate for candidate in unique if places[candidate] is not _PlaceKind.NEVER}
        return [Dialable(candidate) for candidate in unique if candidate in good]
    # Public addresses are good, but for mDNS; a search needs nothing else.
    good = {
        candidate
        for candidate in unique
        if places[candidate] is _PlaceKind.PUBLIC and source is not Source.NEARBY
    }
    if source is Source.SEARCH:
        return [Dialable(candidate) for candidate in unique if candidate in good and candidate.ip in claimed]
    # Local ones are good under the rules above.
    good |= {candidate for candidate in unique if places[candidate] is _PlaceKind.LINK}
    good |= _on_machine(
        [candidate for candidate in unique if places[candidate] is _PlaceKind.MACHINE], source, here, claimed
    )
    if source is not Source.NEARBY and _one_site(here, claimed):
        good |= _share(
            [candidate for candidate in unique if places[candidate] is _PlaceKind.SITE], ROUTED.most
        )
    # Bound the number of each protocol.
    kept = _share([candidate for candidate in unique if candidate in good], ADDRESSES.most)
    return [Dialable(candidate) for candidate in unique if candidate in kept]


def trusted(candidates: Iterable[Candidate]) -> list[Dialable]:
    """Return addresses that a person gave (an invite, a reply code, a setting) as dialable."""
    return dialable(candidates, source=Source.GIVEN, here=Here())


def _place(address: Address, here: Here) -> _PlaceKind:
    if _in(address, _LOOPBACK):
        return _PlaceKind.MACHINE
    if (bare := _without_zone(address)) != address:
        return _PlaceKind.MACHINE if bare in here.addresses else _PlaceKind.LINK
    if _in(address, (*_NEVER, *_EMBEDDED)) or _is_broadcast(address, here.networks):
        return _PlaceKind.NEVER
    if address in here.addresses:
        return _PlaceKind.MACHINE
    if _in(address, here.networks):
        return _PlaceKind.LINK
    return _PlaceKind.SITE if _in(address, _PRIVATE) else _PlaceKind.PUBLIC


def _without_zone(address: Address) -> Address:
    scoped = isinstance(address, ipaddress.IPv6Address) and address.scope_id is not None
    return ipaddress.IPv6Address(int(address)) if scoped else address


def _on_machine(
    candidates: Sequence[Candidate], source: Source, here: Here, claimed: frozenset[Address]
) -> set[Candidate]:
    """Return the candidates on this machine that may be dialled.

    A node has one port for each protocol; a record that names several means to have them scanned.
    """
    beside = bool(claimed & here.addresses)
    inside = here.local_only and all(_in(address, _LOOPBACK) for address in claimed)
    most = SIGNAL_PORTS.most if source is Source.SIGNAL else MACHINE_PORTS.most
    if not (beside or inside) or len({candidate.port for candidate in candidates}) > most:
        return set()
    loopback = inside or source is not Source.SIGNAL  # who signals knows our addresses, and offers its own
    return {
        candidate
        for candidate in candidates
        if candidate.port >= LEAST_PORT and (loopback or not _in(candidate.ip, _LOOPBACK))
    }


def _one_site(here: Here, claimed: frozenset[Address]) -> bool:
    """Return True if both are behind one NAT, or in a site that nobody outside has seen."""
    public = {address for address in claimed if _place(address, here) is _PlaceKind.PUBLIC}
    return bool(public & here.outside) if public or here.outside else True


def _share(candidates: Sequence[Candidate], most: int) -> set[Candidate]:
    """Return at most `most` of each protocol, of every kind in turn: no kind displaces the others."""
    kept: set[Candidate] = set()
    for proto in ("tcp", "udp"):
        ordered = order(candidate for candidate in candidates if candidate.proto == proto)
        kinds = dict.fromkeys((candidate.kind, candidate.is_v6) for candidate in ordered)
        queues = [
            [candidate for candidate in ordered if (candidate.kind, candidate.is_v6) == kind]
            for kind in kinds
        ]
        turns = itertools.chain.from_iterable(itertools.zip_longest(*queues))
        kept.update([candidate for candidate in turns if candidate is not None][:most])
    return kept


def _in(address: Address, networks: Iterable[Network]) -> bool:
    return any(address.version == network.version and address in network for network in networks)


def _is_broadcast(address: Address, networks: Iterable[Network]) -> bool:
    return any(
        address.version == network.version == 4
        and network.prefixlen < 31
        and address in (network.network_address, network.broadcast_address)
        for network in networks
    )


def network_of(address: Address, prefix: int) -> Network:
    """Return the network of an interface with this address; a lone carrier address (a VPN that numbers its
    nodes so) stands for its whole range.
    """
    if prefix == 32 and address.version == 4 and address in CARRIER_NETWORK:
        return CARRIER_NETWORK
    return ipaddress.ip_network((address, prefix), strict=False)
