"""TCP punched through NATs: every pair whose TCP mapping is the same for all destinations, 20 tries each."""

import asyncio
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.link.interface import Link
from meshd.link.punch import PunchLinks

from tests.conformance.nodes import Node, TestMesh
from tests.netns.ends import Crossing, Inside
from tests.netns.nat import Nat
from tests.netns.programs import stun_on
from tests.netns.sites import Kind, Site, site
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World

TRIES = 20
ENOUGH = 19  # of them: 95 %
BLOCK = bytes(range(256)) * 4000  # a megabyte

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


@dataclass(slots=True)
class Tries:
    """What became of dials from near to far."""

    paths: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


def punch(near: Host, far: Host, servers: Sequence[str], *, tries: int, delay: float = 0.0) -> Tries:
    """Dial again and again; the last link carries a megabyte there, each a word there and back."""
    mesh = TestMesh()
    here, there = mesh.node(), mesh.node()
    crossing = Crossing(delay=delay)
    over = threading.Event()
    seen = Tries()
    answering = Inside(far, lambda: _answer(there, crossing, servers, over.is_set))
    dialling = Inside(near, lambda: _dial(here, there.peer, crossing, servers, tries, seen))
    try:
        dialling.result()
    finally:
        over.set()
        answering.result()
    return seen


async def _answer(
    node: Node, crossing: Crossing, servers: Sequence[str], is_over: Callable[[], bool]
) -> None:
    links = PunchLinks(node.now, crossing.signals(node.peer), servers=lambda: servers)

    async def accept(link: Link) -> None:
        first = await link.receive()  # four bytes come in one piece, and perhaps more with them
        left = int.from_bytes(first[:4], "big") - len(first[4:])
        while left:
            left -= len(await link.receive())
        await link.send([b"all here"])
        await link.receive()  # until the other side ends it

    async with Owner() as owner:
        owner.start(links.serve(accept), name="serve")
        while not is_over():  # noqa: ASYNC110 - another thread tells
            await asyncio.sleep(0.01)
        owner.cancel()


async def _dial(
    node: Node, peer: PeerId, crossing: Crossing, servers: Sequence[str], tries: int, seen: Tries
) -> None:
    links = PunchLinks(node.now, crossing.signals(node.peer), servers=lambda: servers)

    async def refuse(link: Link) -> None:
        raise AssertionError("nobody dials this side")

    async with Owner() as owner:
        owner.start(links.serve(refuse), name="serve")
        for number in range(tries):
            try:
                link = await links.dial(peer)
            except MeshdError as error:
                seen.errors.append(error.what)
                continue
            data = BLOCK if number == tries - 1 else b""
            await link.send([len(data).to_bytes(4, "big"), data])
            assert await link.receive() == b"all here"
            seen.paths.append(link.info.path)
            await link.aclose()
        owner.cancel()


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
