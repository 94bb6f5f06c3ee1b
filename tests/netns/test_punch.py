"""TCP punched through NATs: every pair whose TCP mapping is the same for all destinations, 20 tries each."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from meshd.link.interface import Signals
from meshd.link.punch import PunchLinks

from tests.conformance.nodes import Node
from tests.netns.agent import Settings, agent
from tests.netns.ends import Tries, dial_often
from tests.netns.nat import Nat
from tests.netns.programs import stun_on
from tests.netns.sites import Kind, Site, site
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World

TRIES = 20
ENOUGH = 19  # of them: 95 %

INDEPENDENT = (
    Kind.PUBLIC,
    Kind.FULL_CONE,
    Kind.ADDRESS_RESTRICTED,
    Kind.PORT_RESTRICTED,
    Kind.PORT_NOT_KEPT,
    Kind.CARRIER,
    Kind.NO_UDP,
    Kind.STEALTH,
    Kind.GUEST,
)


@dataclass(slots=True)
class Places:
    """Two sites of each kind, built when they are first asked for, and a STUN server."""

    world: World
    servers: Sequence[str]
    sites: dict[tuple[str, Kind], Site] = field(default_factory=dict)

    def host(self, side: str, kind: Kind) -> Host:
        if (side, kind) not in self.sites:
            self.sites[side, kind] = site(self.world, kind, f"{side}-{kind.name.lower().replace('_', '')}")
        return self.sites[side, kind].host


@pytest.fixture(scope="module")
def places() -> Iterator[Places]:
    with World() as world:
        server = world.public("server")
        with stun_on(server) as (first, _, second, _):
            yield Places(world, (first, second))


def punch(near: Host, far: Host, servers: Sequence[str], *, tries: int, delay: float = 0.0) -> Tries:
    """Dial as `dial_often` says."""

    def make(node: Node, signals: Signals) -> PunchLinks:
        return PunchLinks(node.now, signals, servers=lambda: servers)

    return dial_often((near, make), (far, make), tries=tries, delay=delay)


@pytest.mark.parametrize(
    ("near", "far"), list(itertools.combinations_with_replacement(INDEPENDENT, 2)), ids=str
)
def test_tcp_is_punched(places: Places, near: Kind, far: Kind) -> None:
    seen = punch(places.host("near", near), places.host("far", far), places.servers, tries=TRIES)
    assert len(seen.paths) >= ENOUGH, seen.errors
    assert set(seen.paths) == {"public" if near is far is Kind.PUBLIC else "punched"}


def test_two_hosts_of_one_network_need_no_nat(places: Places) -> None:
    near = places.host("near", Kind.PORT_RESTRICTED)
    router = places.sites["near", Kind.PORT_RESTRICTED].router
    assert router is not None
    seen = punch(near, router.host("neighbour"), (), tries=3)
    assert seen.paths == ["lan"] * 3


def test_firewalls_of_ipv6_are_punched(places: Places) -> None:
    seen = punch(places.host("near", Kind.V6), places.host("far", Kind.V6), (), tries=3)
    assert seen.paths == ["public"] * 3


@pytest.mark.parametrize("rejects", [(True, False), (False, True), (True, True)])
def test_routers_that_reject(world: World, rejects: tuple[bool, bool]) -> None:
    """They answer an unexpected SYN by RST: so both sides must begin at the same moment."""
    line = Line.both(Way(delay_ms=10))
    near, far = (
        world.router(f"rejects{number}", line=line, rejects=one).host("host")
        for number, one in enumerate(rejects)
    )
    with stun_on(world.public("server")) as (server, *_):
        seen = punch(near, far, [server], tries=5, delay=0.02)
    assert len(seen.paths) == 5, seen.errors


def test_a_slow_line_that_loses_packets(world: World) -> None:
    near = world.router("slow", line=Line.both(Way(delay_ms=25, loss=0.02))).host("near")
    far = world.router("quick", Nat.PORT_NOT_KEPT).host("far")
    with stun_on(world.public("server")) as (server, *_):
        seen = punch(near, far, [server], tries=5, delay=0.05)
    assert len(seen.paths) == 5, seen.errors


def test_a_public_member_is_server_enough(world: World, tmp_path: Path) -> None:
    """No relay, no STUN server: the founder tells two homes how they are seen, and hands signals on."""
    founder = world.public("founder")
    homes = [world.router("one", Nat.PORT_NOT_KEPT), world.router("two", Nat.PORT_NOT_KEPT)]
    with agent(founder.space, tmp_path / "founder", Settings(name="founder")) as far:
        one = Settings(name="one", join=far.token, kinds=("tcp",))
        two = Settings(name="two", join=far.token, kinds=("tcp",))
        with (
            agent(homes[0].host("host").space, tmp_path / "one", one) as first,
            agent(homes[1].host("host").space, tmp_path / "two", two) as second,
        ):
            first.connected(count=2)
            second.connected(count=2)
            [other] = [peer for peer in first.peers() if peer["name"] == "two"]
            links = other["links"]
            assert isinstance(links, list)
            assert {(link["kind"], link["path"]) for link in links} == {("tcp", "punched")}
