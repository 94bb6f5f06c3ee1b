"""Derives facts from observations. RFC 4787 (terms), RFC 5780 (tests 4.3 and 4.4). Pure.

What servers with one address cannot tell stays unknown. Answers of servers inside this site are left out
where others outside answered: they see nothing of the NAT.
"""

import ipaddress
from collections.abc import Iterable, Sequence
from itertools import pairwise

from meshd.netcheck.interface import ConnectionFacts, FilterTest, Observations, Outcome, Seen
from meshd.wire.address import CARRIER_NETWORK, PRIVATE_V4
from meshd.wire.netfacts import (
    Filtering,
    Mapped,
    Mapping,
    NetFacts,
    Ports,
    Tcp,
    TriState,
    Udp,
)
from meshd.wire.stun import Endpoint

HTTPS = 443
MOST_STEP = 32  # ports: a NAT that counts skips those that others took meanwhile
FEWEST_PORTS = 3  # to call them random or counting
_SITES = (*PRIVATE_V4, ipaddress.IPv4Network("169.254.0.0/16"))


def classify(seen: Observations) -> NetFacts:
    """Derive the facts about this network."""
    udp4, tcp4 = _outside(_v4(seen.udp)), _outside(_v4(seen.tcp))
    udp = _udp(seen)
    ports, step = ports_of(udp4)
    tcp_ports, tcp_step = ports_of(tcp4)
    public = _public_v4([*udp4, *tcp4])
    mapping = mapping_of(udp4)
    return NetFacts(
        udp=udp,
        mapping=mapping,
        filtering=filtering_of(seen.filters),
        ports=ports,
        udp_step=step,
        tcp=tcp_of(seen.connections, udp),
        tcp_mapping=mapping_of(tcp4),
        tcp_ports=tcp_ports,
        tcp_step=tcp_step,
        ipv6=_ipv6(seen),
        hairpin=_answer(seen.hairpin) if mapping is not Mapping.NONE else TriState.UNKNOWN,
        mapped=seen.mapped,
        carrier_nat=_carrier_nat(seen, public),
        public_v4=public,
    )


def mapping_of(seen: Sequence[Seen]) -> Mapping:
    """Classify the mapping by test 4.3 of RFC 5780, with all addresses and ports that answered; the worst
    socket counts.
    """
    found = {
        _socket_mapping([answer for answer in seen if answer.socket == number]) for number in _sockets(seen)
    }
    for mapping in (Mapping.ADDRESS_PORT, Mapping.ADDRESS, Mapping.DEPENDENT, Mapping.INDEPENDENT):
        if mapping in found:
            return mapping
    return Mapping.NONE if Mapping.NONE in found else Mapping.UNKNOWN


def _socket_mapping(seen: Sequence[Seen]) -> Mapping:
    if all(answer.mapped == answer.local for answer in seen):
        return Mapping.NONE
    by_host: dict[str, dict[int, Endpoint]] = {}
    for answer in seen:
        by_host.setdefault(answer.server.host, {})[answer.server.port] = answer.mapped
    if any(len(set(ports.values())) > 1 for ports in by_host.values()):
        return Mapping.ADDRESS_PORT
    if len(by_host) == 1:
        return Mapping.UNKNOWN  # one address outside: it may be another port for another one
    if len({mapped for ports in by_host.values() for mapped in ports.values()}) == 1:
        return Mapping.INDEPENDENT
    return Mapping.ADDRESS if all(len(ports) > 1 for ports in by_host.values()) else Mapping.DEPENDENT


def filtering_of(tests: Iterable[FilterTest]) -> Filtering:
    """Classify the filtering by test 4.4 of RFC 5780. A reply that got in is certain; a missing one may be
    lost.
    """
    tests = list(tests)
    if any(test.from_elsewhere for test in tests):
        return Filtering.INDEPENDENT
    if any(test.from_other_port for test in tests):
        return Filtering.ADDRESS
    return Filtering.ADDRESS_PORT if any(test.other_works for test in tests) else Filtering.UNKNOWN


def ports_of(seen: Sequence[Seen]) -> tuple[Ports, int]:
    """Return how outside ports are picked, and the step of those that count."""
    if not seen:
        return Ports.UNKNOWN, 0
    if all(answer.mapped.port == answer.local.port for answer in seen):
        return Ports.PRESERVED, 0
    picked: list[int] = []
    known: set[tuple[int, Endpoint]] = set()
    for answer in sorted(seen, key=lambda answer: answer.at):
        if (answer.socket, answer.mapped) not in known:
            known.add((answer.socket, answer.mapped))
            picked.append(answer.mapped.port)
    if len(picked) < FEWEST_PORTS:
        return Ports.UNKNOWN, 0
    steps = [after - before for before, after in pairwise(picked)]
    near = sorted(step for step in steps if 0 < abs(step) <= MOST_STEP)
    one_direction = not near or near[0] * near[-1] > 0
    # one step may be wide: the count began anew at the end of its range, or another host was busy
    if near and one_direction and len(near) >= max(2, len(steps) - 1):
        return Ports.COUNTING, near[0] if near[0] > 0 else near[-1]
    return Ports.RANDOM, 0


def tcp_of(connections: Sequence[ConnectionFacts], udp: Udp) -> Tcp:
    """Return which ports are open, judged by the servers that were tried."""
    if any(connection.outcome is Outcome.ODD for connection in connections):
        return Tcp.INTERCEPTED
    working = {
        connection.server.port
        for connection in connections
        if connection.outcome in (Outcome.OK, Outcome.MUTE)
    }
    if working - {HTTPS}:
        return Tcp.WORKS
    others = [connection.outcome for connection in connections if connection.server.port != HTTPS]
    if working:
        # a server that refuses may just not speak TCP; one that is silent is behind a filter
        blocked = bool(others) and all(outcome is not Outcome.REFUSED for outcome in others)
        return Tcp.ONLY_443 if blocked else Tcp.UNKNOWN
    if not connections or any(connection.outcome is Outcome.REFUSED for connection in connections):
        return Tcp.UNKNOWN
    return Tcp.BLOCKED if udp is Udp.WORKS else Tcp.UNKNOWN


def _udp(seen: Observations) -> Udp:
    if seen.udp:
        return Udp.WORKS
    up = any(
        connection.outcome in (Outcome.OK, Outcome.MUTE, Outcome.REFUSED) for connection in seen.connections
    )
    return Udp.BLOCKED if seen.udp_asked and up else Udp.UNKNOWN


def _ipv6(seen: Observations) -> TriState:
    has = any(":" in host and ipaddress.ip_address(host).is_global for host in seen.hosts)
    if any(":" in answer.server.host for answer in (*seen.udp, *seen.tcp)):
        return TriState.YES
    if seen.v6_asked:
        return TriState.NO
    return TriState.UNKNOWN if has else TriState.NO


def _carrier_nat(seen: Observations, public: str) -> bool:
    if any(_in_carrier(host) for host in (*seen.hosts, seen.router_external)):
        return True
    two = bool(seen.router_external and public and seen.router_external != public)
    return two or seen.mapped is Mapped.BEHIND_NAT


def _public_v4(seen: Sequence[Seen]) -> str:
    hosts = [answer.mapped.host for answer in seen if not _in_site(answer.mapped.host)]
    return max(hosts, key=hosts.count) if hosts else ""


def _outside(seen: Sequence[Seen]) -> Sequence[Seen]:
    return [answer for answer in seen if not _in_site(answer.server.host)] or seen


def _v4(seen: Sequence[Seen]) -> Sequence[Seen]:
    return [answer for answer in seen if ":" not in answer.server.host and ":" not in answer.mapped.host]


def _sockets(seen: Sequence[Seen]) -> set[int]:
    return {answer.socket for answer in seen}


def _in_site(host: str) -> bool:
    address = ipaddress.ip_address(host)
    return address.version == 4 and any(address in site for site in _SITES)


def _in_carrier(host: str) -> bool:
    if not host:
        return False
    address = ipaddress.ip_address(host)
    return address.version == 4 and address in CARRIER_NETWORK


def _answer(answer: bool | None) -> TriState:
    if answer is None:
        return TriState.UNKNOWN
    return TriState.YES if answer else TriState.NO
