"""What one peer may have of this node, on the virtual clock: streams that are counted, links that are few."""

import asyncio
from collections.abc import Mapping

import pytest
from meshd.base.errors import MeshdError, Refused
from meshd.base.shares import LINKS, PASSED_ON_OF_PEER, Share
from meshd.base.slots import Release, Slots
from meshd.identity.membership import Member
from meshd.link.interface import LinkKind
from meshd.link.member_relay import SERVICE, TO, MemberRelayLinks
from meshd.peer.interface import MetadataValue, PeerState, Stream

from tests.conformance.memory_link import MemoryDialer, MemoryNet
from tests.sim.echo import serve_echo
from tests.sim.loop import run
from tests.sim.world import World, pair

FIVE = Share("streams", 5, "peer", "a further one is refused")


async def hold(stream: Stream) -> None:
    """A service that takes the stream and waits."""
    await stream.read()


async def answer(stream: Stream) -> str:
    """Why it was refused; empty when it was taken."""
    try:
        await stream.accepted()
    except Refused as error:
        return error.what
    return ""


def test_streams_that_are_opened_at_once_are_counted_before_they_are_served() -> None:
    async def main() -> None:
        async with World() as world:
            leader, follower = await pair(world)
            slots = Slots(FIVE)
            follower.mesh.handle("hold", hold, allow=lambda member, _: slots.take(member.peer) or "full")
            for _ in range(3):
                streams = [leader.mesh.open_stream(follower.peer, "hold", metadata={}) for _ in range(40)]
                said = [await answer(stream) for stream in streams]
                assert (said.count(""), said.count("full")) == (FIVE.most, 40 - FIVE.most)
                assert len(slots) == FIVE.most
                for stream in streams:
                    stream.reset(1, "done")
                await asyncio.sleep(1.0)
                assert len(slots) == 0  # given back when their handlers have ended

    run(main())


def test_a_place_comes_back_from_a_handler_that_never_began() -> None:
    async def main() -> None:
        async with World() as world:
            leader, follower = await pair(world)
            slots = Slots(FIVE)

            def allow(member: Member, _metadata: Mapping[str, MetadataValue]) -> str | Release:
                assert follower.mesh._owner is not None
                follower.mesh._owner.cancel()  # before the handler's first step
                return slots.take(member.peer) or "full"

            async def never(_stream: Stream) -> None:
                raise AssertionError("it was not to begin")

            follower.mesh.handle("hold", never, allow=allow)
            leader.mesh.open_stream(follower.peer, "hold", metadata={})
            await follower.stop()
            assert len(slots) == 0

    run(main())


def test_circuits_for_one_member_are_counted_when_they_are_asked_for() -> None:
    async def main() -> None:
        async with World() as world:
            leader, follower = await pair(world)
            third = world.node("third")
            follower.knows(third)
            third.start()
            await follower.sees(third, PeerState.CONNECTED)
            links = MemberRelayLinks(follower.standing)
            links.attach(follower.mesh)
            third.mesh.handle(SERVICE, hold, allow=lambda _member, _metadata: None)
            streams = [
                leader.mesh.open_stream(follower.peer, SERVICE, metadata={TO: third.peer.raw})
                for _ in range(3 * PASSED_ON_OF_PEER.most)
            ]
            said = [await answer(stream) for stream in streams]
            assert said.count("") == PASSED_ON_OF_PEER.most

    run(main())


def test_a_peer_has_few_links_at_once_those_that_say_nothing_included() -> None:
    async def main() -> None:
        async with World() as world:
            leader, follower = await pair(world)
            serve_echo(follower)
            stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
            ended = 0

            async def silent() -> None:
                nonlocal ended
                net = MemoryNet()
                net.listeners = world.listeners
                link = await MemoryDialer(net, leader.standing).dial(
                    follower.peer, [follower.places[LinkKind.TCP]]
                )
                with pytest.raises(MeshdError):
                    while True:
                        await link.receive()
                ended += 1
                await link.aclose()

            for _ in range(100):
                world.owner.start(silent(), name="silent")
            await asyncio.sleep(2.0)
            assert ended >= 100 - LINKS.most
            await stream.write(b"goes on")
            assert await stream.read() == b"goes on"
            await asyncio.sleep(10.0)  # a greeting that does not come
            assert ended == 100

    run(main())
