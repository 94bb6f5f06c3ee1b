"""Netcheck tells every kind of NAT of the bench for what it is."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from meshd.netcheck.classify import classify
from meshd.netcheck.probe import Servers, observe
from meshd.wire.netfacts import Filtering, Mapping, NetFacts, Ports, Tcp, TriState, Udp

from tests.netns.nat import Nat
from tests.netns.probe import tcp_listener
from tests.netns.programs import stun_on
from tests.netns.sites import Kind, site
from tests.netns.world import Host, World


@dataclass(frozen=True, slots=True)
class Place:
    """A world, and the servers to ask."""

    world: World
    server: Host
    stun: tuple[str, ...]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with World() as world:
        server = world.public("server")
        with stun_on(server) as stun:
            yield Place(world, server, stun)


def _facts(host: Host, *stun: str, relays: tuple[str, ...] = ()) -> NetFacts:
    async def main() -> NetFacts:
        seen, unresolved = await observe(Servers(stun, relays), hosts=(*host.v4, *host.v6))
        assert not unresolved
        return classify(seen)

    return host.space.call(lambda: asyncio.run(main()))


KEPT = (Mapping.INDEPENDENT, Ports.PRESERVED)
EXPECTED = {
    Kind.PUBLIC: (Mapping.NONE, Ports.PRESERVED, Filtering.INDEPENDENT),
    Kind.FULL_CONE: (*KEPT, Filtering.INDEPENDENT),
    Kind.ADDRESS_RESTRICTED: (*KEPT, Filtering.ADDRESS),
    Kind.PORT_RESTRICTED: (*KEPT, Filtering.ADDRESS_PORT),
    Kind.PORT_NOT_KEPT: (Mapping.INDEPENDENT, Ports.RANDOM, Filtering.ADDRESS_PORT),
    Kind.SYMMETRIC_RANDOM: (Mapping.ADDRESS_PORT, Ports.RANDOM, Filtering.ADDRESS_PORT),
    Kind.SYMMETRIC_COUNTING: (Mapping.ADDRESS_PORT, Ports.COUNTING, Filtering.ADDRESS_PORT),
    Kind.CARRIER: (Mapping.INDEPENDENT, Ports.RANDOM, Filtering.ADDRESS_PORT),
    Kind.STEALTH: (*KEPT, Filtering.ADDRESS_PORT),
    Kind.GUEST: (*KEPT, Filtering.ADDRESS_PORT),
}


@pytest.mark.parametrize("kind", EXPECTED)
def test_each_kind_of_nat(place: Place, kind: Kind) -> None:
    here = site(place.world, kind, kind.name.lower())
    facts = _facts(here.host, place.stun[0])
    assert (facts.mapping, facts.ports, facts.filtering) == EXPECTED[kind]
    assert facts.udp is Udp.WORKS and facts.tcp is Tcp.WORKS
    symmetric = kind in (Kind.SYMMETRIC_RANDOM, Kind.SYMMETRIC_COUNTING)
    assert facts.tcp_symmetric == symmetric
    if kind is Kind.PUBLIC:
        assert facts.public and facts.public_v4 == here.host.v4[0]
    elif here.router is not None and kind is not Kind.CARRIER:
        assert facts.public_v4 == here.router.outer and facts.hairpin is TriState.NO


def test_a_public_host_with_a_firewall(place: Place) -> None:
    host = place.world.public("hidden")
    host.put_up_firewall()
    facts = _facts(host, place.stun[0])
    assert facts.mapping is Mapping.NONE and facts.filtering is Filtering.ADDRESS_PORT and not facts.public


@pytest.mark.parametrize("kind", [Kind.NO_UDP, Kind.ONLY_443])
def test_blocked(place: Place, kind: Kind) -> None:
    here = site(place.world, kind, kind.name.lower())
    address = place.server.address
    with tcp_listener(place.server, address, 443):  # as a relay would
        facts = _facts(here.host, place.stun[0], relays=(f"{address}:443",))
    assert facts.udp is Udp.BLOCKED
    assert facts.tcp is (Tcp.WORKS if kind is Kind.NO_UDP else Tcp.ONLY_443)
    assert (facts.tcp_mapping is Mapping.INDEPENDENT) == (kind is Kind.NO_UDP)


def test_ipv6_only(place: Place) -> None:
    here = site(place.world, Kind.V6, "six")
    facts = _facts(here.host, *place.stun)
    assert facts.ipv6 is TriState.YES and facts.udp is Udp.WORKS and facts.public_v4 == ""


def test_hairpin(place: Place) -> None:
    router = place.world.router("turning", Nat.PORT_RESTRICTED, hairpin=True)
    assert _facts(router.host("near"), place.stun[0]).hairpin is TriState.YES


def test_two_servers_with_one_address_each(place: Place) -> None:
    """As most servers in the field are: the mapping shows, filtering needs more."""
    other = place.world.public("other")
    here = site(place.world, Kind.SYMMETRIC_RANDOM, "plain")
    with stun_on(other) as more:
        facts = _facts(here.host, place.stun[0], more[0])
    assert facts.symmetric
