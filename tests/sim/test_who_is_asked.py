"""Members that are asked to pass something on, where the first of them say nothing; on the virtual clock."""

import asyncio
import random

import pytest
from meshd.base.errors import MeshdError
from meshd.link.interface import Link
from meshd.link.relayed.through_member import MAX_ASKED, SERVICE, MemberRelayLinks
from meshd.peer.interface import PeerState, Stream
from meshd.peer.node import Service
from meshd.peer.signals import FORWARDERS
from meshd.wire.signal import SIGNAL_SERVICE

from tests.sim.world import World, WorldNode


async def hold(stream: Stream) -> None:
    """Takes it, and does nothing."""
    await stream.read()
    await asyncio.Event().wait()


async def crowd(world: World, silent: int, service: str) -> tuple[WorldNode, WorldNode, WorldNode]:
    """Two without a way to each other, and an honest member that both know after many silent ones."""
    anna, bert, honest = world.node("anna"), world.node("bert"), world.node("honest")
    mute = [world.node(f"mute {number}") for number in range(silent)]
    world.cable("anna", "bert").unplug()
    for one in (anna, bert):
        one.knows(*mute)
    for one in (*mute, honest):
        one.knows(anna, bert)
    for one in mute:
        one.node.services[service] = Service(hold, lambda _member, _metadata: None)
    for some in ((*mute, anna, bert), (honest,)):  # which comes last in their tables
        for one in some:
            one.start()
        for one in some:
            if one not in (anna, bert):
                await anna.sees(one, PeerState.CONNECTED)
                await bert.sees(one, PeerState.CONNECTED)
    return anna, bert, honest


@pytest.mark.virtual
async def test_members_that_say_nothing_do_not_keep_others_from_relaying() -> None:
    async with World() as world:
        anna, bert, honest = await crowd(world, 2 * MAX_ASKED, SERVICE)
        links = {
            one.name: MemberRelayLinks(one.handshake, rng=random.Random(0).random)
            for one in (anna, bert, honest)
        }

        async def accept(link: Link) -> None:
            await link.aclose()

        for one in (anna, bert, honest):
            links[one.name].attach(one.mesh)
            world.owner.start(links[one.name].serve(accept), name="relaying")
        await asyncio.sleep(0.1)
        dials = 0
        while True:
            dials += 1
            try:
                link = await links["anna"].dial(bert.peer, [])
                break
            except MeshdError:
                assert dials <= 3, "each has been asked"
        assert link.info.remote == f"member {honest.peer.short}"
        await link.aclose()
        again = await links["anna"].dial(bert.peer, [])  # who did it before is asked first
        assert again.info.remote == f"member {honest.peer.short}"
        await again.aclose()


@pytest.mark.virtual
async def test_members_that_swallow_signals_do_not_swallow_all() -> None:
    """They say that they passed it on: nothing bad is known of them."""
    async with World() as world:
        anna, bert, _ = await crowd(world, 2 * FORWARDERS, SIGNAL_SERVICE)
        heard: list[bytes] = []

        async def listen() -> None:
            while True:
                heard.append((await bert.signals.topic("webrtc").receive())[1])

        world.owner.start(listen(), name="listen")
        for number in range(30):
            await anna.signals.topic("webrtc").send(bert.peer, bytes([number]))
            await asyncio.sleep(1.0)
        assert len(heard) >= 3
