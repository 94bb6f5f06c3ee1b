"""The webrtc link through NATs: every pair that simple punching reaches, and lines that are bad."""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from meshd.link.interface import Signals
from meshd.link.webrtc.links import WebRtcLinks

from tests.conformance.nodes import Node
from tests.netns.ends import Tries, dial_often
from tests.netns.nat import Nat
from tests.netns.programs import stun_on
from tests.netns.sites import Kind, Site, site
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World

CONES = (Kind.PUBLIC, Kind.FULL_CONE, Kind.ADDRESS_RESTRICTED, Kind.PORT_RESTRICTED, Kind.PORT_NOT_KEPT)
MORE = (  # symmetric NATs reach nodes that accept any port
    (Kind.SYMMETRIC_RANDOM, Kind.PUBLIC),
    (Kind.SYMMETRIC_RANDOM, Kind.FULL_CONE),
    (Kind.SYMMETRIC_COUNTING, Kind.ADDRESS_RESTRICTED),
    (Kind.STEALTH, Kind.PORT_RESTRICTED),
    (Kind.STEALTH, Kind.STEALTH),
    (Kind.CARRIER, Kind.PORT_RESTRICTED),
)


@dataclass(slots=True)
class Places:
    """Two sites of each kind, built when they are first asked for; a STUN server, and one that is silent."""

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
        with stun_on(server) as (first, *_):
            yield Places(world, ("198.51.100.254:3478", first))


def meet(near: Host, far: Host, servers: Sequence[str], *, tries: int = 2, delay: float = 0.0) -> Tries:
    """Dial as `dial_often` says."""

    def make(node: Node, signals: Signals) -> WebRtcLinks:
        return WebRtcLinks(node.now, signals, servers)

    return dial_often((near, make), (far, make), tries=tries, delay=delay)


@pytest.mark.parametrize(
    ("near", "far"), [*itertools.combinations_with_replacement(CONES, 2), *MORE], ids=str
)
def test_what_simple_punching_reaches(places: Places, near: Kind, far: Kind) -> None:
    seen = meet(places.host("near", near), places.host("far", far), places.servers)
    assert seen.errors == []
    assert set(seen.paths) <= {"punched", "public"}


def test_one_network_needs_no_server(places: Places) -> None:
    near = places.host("near", Kind.PORT_RESTRICTED)
    router = places.sites["near", Kind.PORT_RESTRICTED].router
    assert router is not None
    assert meet(near, router.host("neighbour"), ()).paths == ["lan"] * 2


def test_ipv6_needs_no_server(places: Places) -> None:
    assert meet(places.host("near", Kind.V6), places.host("far", Kind.V6), ()).paths == ["public"] * 2


@pytest.mark.parametrize(
    "way",
    [
        Way(delay_ms=25, loss=0.02),
        Way(max_bytes=1280),
        Way(max_bytes=1200),
        Way(max_bytes=1124),
        Way(delay_ms=20, jitter_ms=20, loss=0.01, reorder=True),
    ],
    ids=["lossy", "1280", "1200", "1124", "reordered"],
)
def test_over_a_bad_line(world: World, way: Way) -> None:
    """Too large packets vanish without a word; a megabyte arrives all the same."""
    with stun_on(world.public("server")) as (first, *_):
        near = world.router("near", Nat.PORT_RESTRICTED, line=Line.both(way)).host("laptop")
        far = world.router("far", Nat.PORT_RESTRICTED).host("desktop")
        seen = meet(near, far, (first,), tries=3, delay=way.delay_ms / 1000)
    assert (seen.paths, seen.errors) == (["punched"] * 3, [])
