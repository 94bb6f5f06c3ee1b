"""Test what happens to users of such programs, between real nodes: outages, moves, narrow lines.

A *beat* is a stream that carries a byte there and back every 50 ms; it tells its longest silence, and its end
if it was broken.
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.netns import probe
from tests.netns.agent import Agent, Settings, agent, number
from tests.netns.capture import Capture
from tests.netns.wan import Line, Way
from tests.netns.world import Host, World
from tests.soak import counts

BYTES = 64 << 20


@contextmanager
def two(here: Host, there: Host, folder: Path, *, mdns: bool = False) -> Iterator[tuple[Agent, Agent]]:
    """The founder at `here`, the joiner at `there`, connected."""
    with agent(here.space, folder / "far", Settings(name="far", mdns=mdns)) as far:
        settings = Settings(name="near", join=far.token, mdns=mdns)
        with agent(there.space, folder / "near", settings) as near:
            near.connected()
            far.connected()
            yield far, near


def test_the_stream_goes_on_after_three_seconds_of_nothing(world: World, tmp_path: Path) -> None:
    far, home = world.public("far"), world.router("home", line=Line())
    with two(far, home.host("near"), tmp_path) as (_, near):
        near.ask("beat")
        near.ask("beats", count=5)
        assert home.wan is not None
        home.wan.cable_out(3.0)
        near.echo(seconds=40.0)
        beaten = near.ask("beaten")
        assert beaten["ended"] == ""
        assert number(beaten["longest"]) >= 2.5


@pytest.mark.parametrize("direction", ["up", "down"])
def test_one_direction_is_lost_and_both_sides_notice(world: World, tmp_path: Path, direction: str) -> None:
    """Neither says that the peer is connected; when the way is there again, the stream goes on."""
    far, home = world.public("far"), world.router("home", line=Line())
    with two(far, home.host("near"), tmp_path) as (founder, joiner):
        joiner.ask("beat")
        joiner.ask("beats", count=5)
        assert home.wan is not None
        dark = Way(blackhole=True)
        home.wan.set(up=dark if direction == "up" else None, down=dark if direction == "down" else None)
        founder.ask("gone", within=15.0)
        joiner.ask("gone", within=15.0)
        home.wan.both(Way())
        joiner.connected(seconds=40.0)
        joiner.echo()
        assert joiner.ask("beaten")["ended"] == ""


def test_an_address_changes_and_the_old_one_is_dead(world: World, tmp_path: Path) -> None:
    far, home = world.public("far"), world.router("home")
    host = home.host("near")
    with two(far, host, tmp_path) as (founder, joiner):
        joiner.ask("beat")
        joiner.ask("beats", count=5)
        moved = home.move(host)
        assert moved.v4 != host.v4
        joiner.echo(seconds=40.0)
        assert joiner.ask("beaten")["ended"] == ""
        assert len(founder.peers()) == 1


def test_a_router_that_forgets_an_idle_mapping(world: World, tmp_path: Path) -> None:
    """Test that what keeps a link alive keeps the mapping too: nothing is dialled again after a silence."""
    seconds = counts(4, 30)
    far, home = world.public("far"), world.router("home", mapping_seconds=seconds)
    with two(far, home.host("near"), tmp_path) as (_, joiner):
        joiner.echo()
        before = joiner.links()
        joiner.ask("idle", seconds=400.0, for_seconds=counts(10, 300))
        joiner.echo()
        assert {link.remote for link in joiner.links()} >= {link.remote for link in before if link.selected}
        assert joiner.peers()[0]["resumes"] == 0


def test_ipv6_only(world: World, tmp_path: Path) -> None:
    far, home = world.public("far", v4=False), world.router6("home")
    with two(far, home.host("near"), tmp_path) as (_, joiner):
        joiner.echo(1 << 20)
        link = joiner.selected()
        assert link is not None
        assert link.remote.rpartition(":")[0] in {f"[{one}]" for one in far.v6}


@pytest.mark.parametrize("size", [1280, 1200, 1124])
def test_a_line_that_drops_what_is_too_big(world: World, tmp_path: Path, size: int) -> None:
    """No "too big" comes back: path MTU discovery by ICMP is blind here."""
    far = world.public("far")
    home = world.router("home", line=Line.both(Way(max_bytes=size)))
    with two(far, home.host("near"), tmp_path) as (_, joiner):
        joiner.echo(counts(4 << 20, BYTES), seconds=200.0)
        assert home.wan is not None
        up, down = home.wan.counts()
        assert up.bytes > 4 << 20
        assert down.bytes > 4 << 20


@pytest.mark.parametrize("multicast", [True, False])
def test_two_in_one_lan(world: World, tmp_path: Path, multicast: bool) -> None:
    """Also where multicast is filtered: the token's addresses are enough."""
    router = world.router("router")
    here, there = router.host("far", multicast=multicast), router.host("near", multicast=multicast)
    with two(here, there, tmp_path, mdns=True) as (_, joiner):
        joiner.echo()
        assert taken(joiner) == ("tcp", "lan")


def taken(joiner: Agent, seconds: float = 30.0) -> tuple[str, str]:
    """Kind and path of the link that carries data, once it is TCP's: another kind may be there first."""
    until = time.monotonic() + seconds
    while True:
        link = joiner.selected()
        if (link is not None and link.kind == "tcp") or time.monotonic() > until:
            assert link is not None
            return link.kind, link.path
        time.sleep(0.1)


@pytest.mark.parametrize("mdns", [True, False])
@pytest.mark.parametrize("order", [("far", "near"), ("near", "far")])
def test_either_may_start_first(world: World, tmp_path: Path, order: tuple[str, str], mdns: bool) -> None:
    """Two members of one LAN come back in any order, and are direct."""
    router = world.router("router")
    hosts = {"far": router.host("far"), "near": router.host("near")}
    with two(hosts["far"], hosts["near"], tmp_path, mdns=mdns) as (_, joiner):
        joiner.echo()
    first, second = order
    with (
        agent(hosts[first].space, tmp_path / first, Settings(name=first, mdns=mdns)) as early,
        agent(hosts[second].space, tmp_path / second, Settings(name=second, mdns=mdns)) as late,
    ):
        for node in (early, late):
            node.connected("lan")
            node.echo()


def test_without_servers_no_packet_leaves_the_lan(world: World, tmp_path: Path) -> None:
    """No STUN server, no relay: everything goes on inside, mDNS included. The router's line is watched."""
    router = world.router("router")
    hosts = router.host("far"), router.host("near")
    with Capture(router.space, "wan") as outside, Capture(hosts[0].space, "eth0") as inside:
        with two(*hosts, tmp_path, mdns=True) as (_, joiner):
            joiner.echo(1 << 20)
        assert inside.packets(hosts), "the capture sees nothing"
        assert outside.packets(hosts) == []
        lan = {address for host in hosts for address in (*host.v4, *host.v6)}
        assert not [one for one in inside.packets(hosts) if one.to not in lan and not one.local]


def test_the_capture_sees_what_leaves(world: World) -> None:
    router, server = world.router("router"), world.public("server")
    host = router.host("host")
    with Capture(router.space, "lan") as inside, probe.udp_socket(host.space, host.address) as ours:
        ours.sendto(b"out", (server.address, 9))
        probe.fence(host, server)
        assert [one.to for one in inside.packets((host,)) if one.protocol == socket.IPPROTO_UDP] == [
            server.address
        ]
