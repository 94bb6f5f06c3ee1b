"""Two strangers behind two NATs, nothing between them but a STUN server, and one word carried each way."""

import asyncio
from pathlib import Path

import pytest
from meshd.admin.status import Status
from meshd.fleet.fleet import LocalNode

from tests.e2e.nodes import Fleet, cli, peer_of, play
from tests.netns.nat import Nat
from tests.netns.programs import stun_on
from tests.netns.world import World

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]


async def reply_code(node: LocalNode) -> str:
    """The command that a joiner asks for, once it stands in what it wrote."""
    log = node.spec.home / "node.log"
    async with asyncio.timeout(60):
        while True:
            for line in log.read_text(errors="replace").splitlines() if log.exists() else ():
                if line.strip().startswith("meshd accept "):
                    return line.split()[-1]
            await asyncio.sleep(0.05)


def connected(status: Status) -> bool:
    return any(peer.state == "connected" for peer in status.peers)


@pytest.mark.parametrize("nat", [Nat.PORT_RESTRICTED, Nat.PORT_NOT_KEPT])
def test_strangers_connect_by_a_word_each_way(world: World, tmp_path: Path, nat: Nat) -> None:
    server = world.public("server")
    hosts = [world.router(label, nat).host("host") for label in ("one", "two")]

    async def check(stun: str) -> None:
        options = ("--stun", stun, "--no-mdns", "--no-portmap")
        async with Fleet(tmp_path) as fleet:
            inviter = await fleet.start(
                fleet.spec("one", "worker", *options, listen=":17430", prefix=tuple(hosts[0].space.prefix))
            )
            joiner = await fleet.start(
                fleet.spec(
                    "two",
                    "worker",
                    *options,
                    listen=":17430",
                    prefix=tuple(hosts[1].space.prefix),
                    token=await inviter.token(),
                )
            )
            code = await reply_code(joiner)
            accepted = await cli(inviter.spec.home, "accept", code)
            assert accepted.returncode == 0, accepted.stderr
            assert "can join" in accepted.stdout
            status = await joiner.until(connected)
            link = peer_of(status, "one").link
            assert link is not None
            assert link.path != "relayed"
            await inviter.until(connected)

    with stun_on(server) as (stun, *_):
        play(check(stun))


def test_a_code_that_is_not_for_this_node_is_refused(tmp_path: Path) -> None:
    async def check() -> None:
        async with Fleet(tmp_path) as fleet:
            node = await fleet.worker("one", "--no-mdns", "--no-portmap", "--stun", "none")
            await node.token()
            refused = await cli(node.spec.home, "accept", "meshdreply1nonsense")
            assert refused.returncode == 1
            assert "reply code" in refused.stderr
            assert "Traceback" not in refused.stderr

    play(check())
