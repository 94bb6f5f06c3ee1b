"""Where this node is announced by multicast DNS, and with which addresses. Pure."""

import ipaddress
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshd.wire.address import Candidate

MAX_HOSTS = 4  # of each family, told in one network: more do not help


@dataclass(frozen=True, slots=True)
class Place:
    """One interface and its addresses. `port` is 0 where nothing is offered, and the node only looks."""

    interface: str
    hosts: tuple[str, ...]
    port: int = 0
    udp_port: int = 0


def places(addresses: Iterable[tuple[str, str]], candidates: Sequence[Candidate]) -> list[Place]:
    """One for each interface; `candidates` are those of the listeners, `addresses` (interface, host).

    An interface on which no listener answers is left out, unless there is no listener at all. Loopback and
    link-local IPv6 never count.
    """
    by_interface: dict[str, list[str]] = {}
    for interface, host in addresses:
        if _counts(host):
            by_interface.setdefault(interface, []).append(str(ipaddress.ip_address(host)))
    found = []
    for interface, hosts in by_interface.items():
        offered = [one for one in candidates if one.kind == "host" and one.host in hosts]
        if candidates:
            hosts = [host for host in hosts if any(one.host == host for one in offered)]
        fours = [host for host in hosts if ":" not in host][:MAX_HOSTS]
        sixes = [host for host in hosts if ":" in host][:MAX_HOSTS]
        if fours or sixes:
            place = Place(interface, (*fours, *sixes), _port(offered, "tcp"), _port(offered, "udp"))
            if place.port or not candidates:
                found.append(place)
    return found


def _port(candidates: Iterable[Candidate], proto: str) -> int:
    return next((one.port for one in candidates if one.proto == proto), 0)


def _counts(host: str) -> bool:
    address = ipaddress.ip_address(host)
    if address.is_loopback or address.is_unspecified or address.is_multicast:
        return False
    return not (address.version == 6 and address.is_link_local)
