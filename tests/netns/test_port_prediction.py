"""A NAT with another port for each flow against one that filters: every such pair, 20 tries each."""

from collections.abc import Iterator, Sequence

import pytest
from meshd.link.interface import Signals
from meshd.link.port_prediction.links import PortPredictionLinks
from meshd.wire.dialable import trusted
from meshd.wire.netfacts import Filtering, Mapping, NetFacts, Ports, Udp

from tests.conformance.nodes import Node
from tests.netns.ends import Make, dial_often
from tests.netns.programs import stun_on
from tests.netns.sites import Kind, site
from tests.netns.wan import Line, Way
from tests.netns.world import World

TRIES = 20
ENOUGH = 19  # of them: 95 %

RESTRICTED = NetFacts(udp=Udp.WORKS, mapping=Mapping.INDEPENDENT, filtering=Filtering.ADDRESS_PORT)
RANDOM = NetFacts(
    udp=Udp.WORKS,
    mapping=Mapping.ADDRESS_PORT,
    filtering=Filtering.ADDRESS_PORT,
    ports=Ports.RANDOM,
)
COUNTING = NetFacts(
    udp=Udp.WORKS,
    mapping=Mapping.ADDRESS_PORT,
    filtering=Filtering.ADDRESS_PORT,
    ports=Ports.COUNTING,
    udp_step=1,
)
SYMMETRIC = {Kind.SYMMETRIC_RANDOM: RANDOM, Kind.SYMMETRIC_COUNTING: COUNTING}


def searching(mine: NetFacts, theirs: NetFacts, servers: Sequence[str]) -> Make:
    """Return the links of a node of such a network, that knows of the other one.

    On both sides a search begins as in a new network: after one in vain, the next one counts as well.
    """

    def make(node: Node, signals: Signals) -> PortPredictionLinks:
        def facts() -> NetFacts:
            links.addresses_changed()
            return mine

        links = PortPredictionLinks(
            node.now,
            signals,
            servers=lambda: servers,
            facts=facts,
            facts_of=lambda _: theirs,
            may_dial=lambda _peer, told, _source: trusted(told),
        )
        return links

    return make


@pytest.fixture(scope="module")
def world_and_servers() -> Iterator[tuple[World, Sequence[str]]]:
    with World() as world:
        with stun_on(world.public("server")) as (first, _, second, _):
            yield world, (first, second)


Given = tuple[World, Sequence[str]]


@pytest.mark.parametrize("symmetric", SYMMETRIC, ids=str)
@pytest.mark.parametrize("restricted", [Kind.PORT_RESTRICTED, Kind.PORT_NOT_KEPT], ids=str)
@pytest.mark.parametrize("dials", ["symmetric", "restricted"])
def test_a_way_is_found(world_and_servers: Given, symmetric: Kind, restricted: Kind, dials: str) -> None:
    world, servers = world_and_servers
    facts = SYMMETRIC[symmetric]
    one = site(world, symmetric, "one").host, searching(facts, RESTRICTED, servers)
    two = site(world, restricted, "two").host, searching(RESTRICTED, facts, servers)
    near, far = (one, two) if dials == "symmetric" else (two, one)
    seen = dial_often(near, far, tries=TRIES)
    assert len(seen.paths) >= ENOUGH, seen.errors
    assert set(seen.paths) == {"punched"}


@pytest.mark.parametrize("symmetric", SYMMETRIC, ids=str)
@pytest.mark.parametrize("restricted", [Kind.STEALTH, Kind.CARRIER], ids=str)
def test_hosts_that_hide_and_carriers(world_and_servers: Given, symmetric: Kind, restricted: Kind) -> None:
    world, servers = world_and_servers
    facts = SYMMETRIC[symmetric]
    one = site(world, symmetric, "one").host, searching(facts, RESTRICTED, servers)
    two = site(world, restricted, "two").host, searching(RESTRICTED, facts, servers)
    seen = dial_often(one, two, tries=TRIES)
    assert len(seen.paths) >= ENOUGH, seen.errors
    assert set(seen.paths) == {"punched"}


def test_a_slow_line_that_loses_packets(world: World) -> None:
    line = Line.both(Way(delay_ms=25, loss=0.02))
    with stun_on(world.public("server")) as (server, *_):
        one = site(world, Kind.SYMMETRIC_RANDOM, "one", line=line).host
        two = site(world, Kind.PORT_RESTRICTED, "two").host
        near, far = searching(RANDOM, RESTRICTED, [server]), searching(RESTRICTED, RANDOM, [server])
        seen = dial_often((one, near), (two, far), tries=5, delay=0.05)
    assert seen.paths == ["punched"] * 5, seen.errors
