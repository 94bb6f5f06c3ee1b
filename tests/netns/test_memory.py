"""Measure an idle worker with every kind of link allowed: before WebRTC was ever used, and after."""

from pathlib import Path

import pytest
from meshd.admin.status import Status

from tests.e2e.nodes import Fleet, play
from tests.netns.nat import Nat
from tests.netns.programs import relay_on, stun_on
from tests.netns.world import World

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]

IDLE_BYTES = 70_000_000
AFTER_BYTES = 110_000_000


def connected(status: Status) -> bool:
    return any(peer.state == "connected" for peer in status.peers)


def over_webrtc(status: Status) -> bool:
    return any(peer.link is not None and peer.link.kind == "webrtc" for peer in status.peers)


def test_a_node_with_all_kinds_of_links(world: World, tmp_path: Path) -> None:
    """In its LAN, by mDNS; nothing but TCP is needed, so nothing else is loaded."""
    home = world.router("home")
    one, two = home.host("one"), home.host("two")

    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            first = await fleet.start(
                fleet.spec("one", "worker", listen=":17430", prefix=tuple(one.space.prefix))
            )
            token = await first.token()
            second = await fleet.start(
                fleet.spec("two", "worker", listen=":17430", prefix=tuple(two.space.prefix), token=token)
            )
            await second.until(connected)
            status = await first.until(connected)
            print(f"idle: {status.node.rss_bytes} bytes")  # noqa: T201
            assert status.node.rss_bytes < IDLE_BYTES

    play(check())


def test_a_node_that_has_used_webrtc(world: World, tmp_path: Path) -> None:
    server = world.public("server")
    hosts = [world.router(label, Nat.PORT_RESTRICTED).host("host") for label in ("one", "two")]

    async def check(stun: str, url: str) -> None:
        links = ("--links", "relay,webrtc", "--relay", url, "--stun", stun, "--no-mdns", "--no-portmap")
        async with Fleet(tmp_path) as fleet:
            first = await fleet.start(
                fleet.spec("one", "worker", *links, listen=":17430", prefix=tuple(hosts[0].space.prefix))
            )
            second = fleet.spec(
                "two",
                "worker",
                *links,
                listen=":17430",
                prefix=tuple(hosts[1].space.prefix),
                token=await first.token(),
            )
            await fleet.start(second)
            status = await first.until(over_webrtc)
            print(f"after webrtc: {status.node.rss_bytes} bytes")  # noqa: T201
            assert status.node.rss_bytes < AFTER_BYTES

    with stun_on(server) as (stun, *_), relay_on(server, tmp_path / "relay", name=server.v4[0]) as url:
        play(check(stun, url))
