"""Where a relay is the way, or becomes it: between real nodes, with `meshd relay` on a public host."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.netns.agent import Agent, Settings, agent
from tests.netns.nat import Nat
from tests.netns.programs import relay_on, stun_on
from tests.netns.sites import Kind, site
from tests.netns.world import Host, World

NAME = "relay.test"
# How soon a path that is dark is left (5 s), and a better one is taken (60 s), is shown on a virtual clock by
# tests/sim/test_paths.py. Here real nodes in real networks do it at all: these are deadlines, no promises.
LEFT_DEADLINE, DIRECT_DEADLINE = 20.0, 75.0
DIRECT = ("lan", "public", "mapped", "punched")


@contextmanager
def two(
    far: Host, near: Host, folder: Path, *, relay: str, stun: tuple[str, ...] = ()
) -> Iterator[tuple[Agent, Agent]]:
    """The founder at `far`, the joiner at `near`."""
    settings = Settings(name="far", relays=(relay,), stun=stun)
    with agent(far.space, folder / "far", settings) as founder:
        settings = Settings(name="near", join=founder.token, relays=(relay,), stun=stun)
        with agent(near.space, folder / "near", settings) as joiner:
            yield founder, joiner


@pytest.fixture
def server(world: World) -> Host:
    """Where the relay runs."""
    host = world.public("relay")
    world.name(NAME, host)
    return host


@pytest.mark.parametrize("kind", [Kind.NO_UDP, Kind.ONLY_443])
def test_without_udp_a_relay_is_there_at_once(world: World, server: Host, tmp_path: Path, kind: Kind) -> None:
    """Within 5 s, and not after the sum of all timeouts of what cannot work here."""
    far, near = site(world, Kind.SYMMETRIC_RANDOM, "far").host, site(world, kind, "near").host
    with (
        relay_on(server, tmp_path / "relay", name=NAME) as url,
        stun_on(world.public("stun")) as stun,
        two(far, near, tmp_path, relay=url, stun=stun[:1]) as (_, joiner),
    ):
        assert joiner.joined < 5.0
        joiner.connected("relayed", seconds=5.0)
        joiner.echo(1 << 20)


def test_a_relay_restarts_and_the_stream_goes_on(world: World, server: Host, tmp_path: Path) -> None:
    far, near = (site(world, Kind.SYMMETRIC_RANDOM, label).host for label in ("far", "near"))
    with ExitStack() as relay:
        url = relay.enter_context(relay_on(server, tmp_path / "relay", name=NAME))
        with two(far, near, tmp_path, relay=url) as (_, joiner):
            joiner.connected("relayed")
            joiner.ask("beat")
            joiner.ask("beats", count=5)
            relay.close()
            joiner.ask("gone", within=15.0)
            assert relay.enter_context(relay_on(server, tmp_path / "relay", name=NAME)) == url
            joiner.connected("relayed", seconds=30.0)
            joiner.echo()
            assert joiner.ask("beaten")["ended"] == ""


@pytest.mark.parametrize("swapped", [False, True])
def test_a_direct_path_that_is_dark_one_way_is_left(
    world: World, server: Host, tmp_path: Path, swapped: bool
) -> None:
    """One side still hears the other. Both go over the relay, until the way is there again."""
    routers = [world.router(label, Nat.PORT_RESTRICTED) for label in ("one", "two")]
    far, near = (router.host("host") for router in routers)
    by, to = [router.outer for router in (reversed(routers) if swapped else routers)]
    with (
        relay_on(server, tmp_path / "relay", name=NAME) as url,
        stun_on(world.public("stun")) as stun,
        two(far, near, tmp_path, relay=url, stun=stun[:1]) as (founder, joiner),
    ):
        joiner.connected(*DIRECT)
        joiner.ask("beat")
        joiner.ask("beats", count=5)
        world.core.nft(
            "table ip dark { chain c { type filter hook forward priority filter; "
            f"ip saddr {by} ip daddr {to} drop; }}; }}"
        )
        joiner.connected("relayed", seconds=LEFT_DEADLINE)
        founder.connected("relayed", seconds=LEFT_DEADLINE)
        joiner.echo()
        assert joiner.ask("beaten")["ended"] == ""
        world.core.nft("delete table ip dark")
        joiner.connected(*DIRECT, seconds=DIRECT_DEADLINE)
        joiner.echo()
