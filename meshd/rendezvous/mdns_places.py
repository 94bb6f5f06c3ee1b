"""The interfaces on which this node is announced by multicast DNS, with their addresses. Pure."""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshd.wire.address import Candidate

MAX_HOSTS = 4  # of each family, told in one network: more do not help


@dataclass(frozen=True, slots=True)
class Place:
    """One interface and its addresses, without zones.

    `port` is 0 where nothing is offered, and the node only looks.
    """

    interface: str
    hosts: tuple[str, ...]
    port: int = 0
    udp_port: int = 0


def places(addresses: Iterable[tuple[str, str]], candidates: Sequence[Candidate]) -> list[Place]:
    """Return one place for each interface; `candidates` are those of the listeners, `addresses` (interface,
    host).

    An interface on which no listener answers is left out, unless there is no listener at all. Loopback never
    counts. Listeners name link-local IPv6 as ScopedCandidate.
    """
    by_interface: dict[str, list[str]] = {}
    for interface, host in addresses:
        if _counts(host):
            by_interface.setdefault(interface, []).append(str(ipaddress.ip_address(host)))
    found = []
    for interface, hosts in by_interface.items():
        scoped = {host: _scoped(interface, host) for host in hosts}
        offered = [
            candidate
            for candidate in candidates
            if candidate.kind == "host" and candidate.host in scoped.values()
        ]
        if candidates:
            hosts = [host for host in hosts if any(candidate.host == scoped[host] for candidate in offered)]
        hosts.sort(key=lambda host: ipaddress.ip_address(host).is_link_local)  # the last that are told
        fours = [host for host in hosts if ":" not in host][:MAX_HOSTS]
        sixes = [host for host in hosts if ":" in host][:MAX_HOSTS]
        if fours or sixes:
            place = Place(interface, (*fours, *sixes), _port(offered, "tcp"), _port(offered, "udp"))
            if place.port or not candidates:
                found.append(place)
    return found


def _port(candidates: Iterable[Candidate], proto: str) -> int:
    return next((candidate.port for candidate in candidates if candidate.proto == proto), 0)


def _scoped(interface: str, host: str) -> str:
    """Return `host` as a listener on `interface` names it."""
    address = ipaddress.ip_address(host)
    return f"{host}%{interface}" if address.version == 6 and address.is_link_local else host


def _counts(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return not (address.is_loopback or address.is_unspecified or address.is_multicast)
