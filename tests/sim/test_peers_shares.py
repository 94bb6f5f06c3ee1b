"""Test what one peer may have of this node, on the virtual clock: counted streams, few links."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from meshd.base.admission import Release, Share, Slots
from meshd.base.errors import MeshdError, Refused
from meshd.base.peer_limits import PASSED_ON_OF_PEER, WELCOMED_BY_PEER
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.membership import Member
from meshd.link.interface import DialError, Link, LinkKind
from meshd.link.relayed.through_member import FROM, SERVICE, TO, MemberRelayLinks
from meshd.peer.interface import MetadataValue, PeerState, Stream

from tests.conformance.memory_link import MemoryDialer, MemoryNet
from tests.sim.echo import serve_echo
from tests.sim.loop import run
from tests.sim.world import World, WorldNode, pair

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


@pytest.mark.virtual
async def test_streams_that_are_opened_at_once_are_counted_before_they_are_served() -> None:
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


@pytest.mark.virtual
async def test_a_place_comes_back_from_a_handler_that_never_began() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        slots = Slots(FIVE)

        def allow(member: Member, _metadata: Mapping[str, MetadataValue]) -> str | Release:
            assert follower.mesh.table.owner is not None
            follower.mesh.table.owner.cancel()  # before the handler's first step
            return slots.take(member.peer) or "full"

        async def never(_stream: Stream) -> None:
            raise AssertionError("it was not to begin")

        follower.mesh.handle("hold", never, allow=allow)
        leader.mesh.open_stream(follower.peer, "hold", metadata={})
        await follower.stop()
        assert len(slots) == 0


@pytest.mark.virtual
async def test_circuits_for_one_member_are_counted_when_they_are_asked_for() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        third = world.node("third")
        follower.knows(third)
        third.start()
        await follower.sees(third, PeerState.CONNECTED)
        links = MemberRelayLinks(follower.handshake)
        links.attach(follower.mesh)
        assert follower.node.services[SERVICE].quiet, "the log has no line for each refusal"
        third.mesh.handle(SERVICE, hold, allow=lambda _member, _metadata: None)
        streams = [
            leader.mesh.open_stream(follower.peer, SERVICE, metadata={TO: third.peer.raw})
            for _ in range(3 * PASSED_ON_OF_PEER.most)
        ]
        said = [await answer(stream) for stream in streams]
        assert said.count("") == PASSED_ON_OF_PEER.most


class Through:
    """A member that passes its circuits on to one and the same other, as a node sees it."""

    def __init__(self, member: WorldNode, node: PeerId, to: PeerId) -> None:
        self._member = member
        self._node = node
        self._to = to

    def direct(self) -> Sequence[PeerId]:
        return [self._member.peer]

    def open_stream(self, peer: PeerId, service: str, **_rest: Any) -> Stream:
        assert peer == self._member.peer
        return self._member.mesh.open_stream(self._to, service, metadata={FROM: self._node.raw})

    def handle(self, *_args: Any, **_rest: Any) -> None:
        """Nobody calls it."""


@pytest.mark.virtual
async def test_as_many_nodes_as_are_welcome_meet_one_through_the_same_member() -> None:
    async with World() as world, Owner() as owner:
        leader, follower = await pair(world)
        came: list[Link] = []

        async def accept(link: Link) -> None:
            came.append(link)
            while True:
                await link.receive()

        async def nobody(_link: Link) -> None:
            raise AssertionError("these only call")

        host = MemberRelayLinks(follower.handshake)
        host.attach(follower.mesh)
        owner.start(host.serve(accept), name="host")
        callers = []
        for number in range(WELCOMED_BY_PEER.most + 1):
            node = world.node(f"caller{number}")
            links = MemberRelayLinks(node.handshake)
            links.attach(Through(leader, node.peer, follower.peer))
            owner.start(links.serve(nobody), name="caller")
            callers.append(links)
        await asyncio.sleep(0)
        made = [await links.dial(follower.peer, ()) for links in callers[:-1]]
        await asyncio.sleep(1.0)  # the last of them is let in
        assert len({link.info.peer for link in came}) == WELCOMED_BY_PEER.most
        with pytest.raises(DialError, match="too many at once"):
            await callers[-1].dial(follower.peer, ())
        await made[0].aclose()
        await asyncio.sleep(1.0)
        assert (await callers[-1].dial(follower.peer, ())).info.peer == follower.peer
        owner.cancel()


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
                link = await MemoryDialer(net, leader.handshake).dial(
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
            assert ended >= 100 - 8
            await stream.write(b"goes on")
            assert await stream.read() == b"goes on"
            await asyncio.sleep(10.0)  # a greeting that does not come
            assert ended == 100

    run(main())
