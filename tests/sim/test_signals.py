"""Signals between real nodes on a virtual clock: by each way, twice, late, forged, too many."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from meshd.base.errors import Broken
from meshd.base.peer_limits import (
    SIGNAL_MAIL_RATE,
    SIGNAL_RATE,
    SIGNAL_ROUTE_RATE,
    SIGNALS_FORWARDED,
    SIGNALS_WAITING,
)
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Chain
from meshd.identity.signal import Signal
from meshd.peer.interface import MetadataValue, PeerState
from meshd.peer.signals import LIFE, SIGNAL_TO
from meshd.wire.signal import COOKIE_BYTES, SIGNAL_SERVICE, SignalBody

from tests.conformance.run import ticks
from tests.sim.gossip import Inviter
from tests.sim.world import World, WorldNode, pair


class PostOffice:
    """A relay's mailboxes, with what may happen there."""

    def __init__(self) -> None:
        self.boxes: dict[PeerId, asyncio.Queue[bytes]] = {}
        self.change: Callable[[bytes], list[bytes]] = lambda blob: [blob]
        self.seen: list[bytes] = []

    def of(self, peer: PeerId) -> "Letters":
        self.boxes[peer] = asyncio.Queue(1000)
        return Letters(self, peer)


class Letters:
    """One node's mail."""

    def __init__(self, office: PostOffice, me: PeerId) -> None:
        self._office = office
        self._me = me

    async def send_mail(self, to: PeerId, blob: bytes) -> None:
        box = self._office.boxes.get(to)
        if box is None:
            raise Broken("no such mailbox")
        self._office.seen.append(blob)
        for one in self._office.change(blob):
            box.put_nowait(one)

    async def receive_mail(self) -> tuple[PeerId, bytes]:
        return self._me, await self._office.boxes[self._me].get()


def strangers(world: World, office: PostOffice | None = None) -> tuple[WorldNode, WorldNode]:
    """Two nodes that know of each other and have no link."""
    nodes = world.node("anna"), world.node("bert")
    world.cable("anna", "bert").unplug()
    for node in nodes:
        if office is not None:
            node.mail = office.of(node.peer)
            node.reborn()
    return nodes


async def strangers_who_know_carl(world: World) -> tuple[WorldNode, WorldNode, WorldNode]:
    """With a session of anna with carl; bert's may take a moment more."""
    anna, bert = strangers(world)
    carl = world.node("carl")
    for node in (anna, bert):
        node.knows(carl)
    for node in (anna, bert, carl):
        node.start()
    await anna.sees(carl, PeerState.CONNECTED)
    return anna, bert, carl


async def heard(node: WorldNode, topic: str = "webrtc") -> tuple[PeerId, bytes]:
    async with asyncio.timeout(5):
        return await node.signals.topic(topic).receive()


async def silent(node: WorldNode, topic: str = "webrtc") -> bool:
    try:
        await heard(node, topic)
    except TimeoutError:
        return True
    return False


def signed(key: KeyPair, chain: Chain, to: WorldNode, payload: bytes, number: int = 1) -> bytes:
    """Return the first signal, or a later one, that the node of this key would send to another."""
    body = SignalBody(
        sender=key.peer.raw,
        to=to.peer.raw,
        topic="webrtc",
        start=bytes(16),
        sequence=number + 1,
        at=to.node.wall_clock(),
        life=LIFE,
        cookie=bytes(COOKIE_BYTES),
        echo=b"",
        payload=payload,
        chain=chain.encode(),
    )
    return Signal.sign(key, body).encode()


async def bring(
    carrier: WorldNode,
    node: WorldNode,
    blob: bytes,
    metadata: Mapping[str, MetadataValue] = MappingProxyType({}),
) -> None:
    """Write a signal into a stream as members do, whoever has signed it, and let it arrive."""
    stream = carrier.mesh.open_stream(node.peer, SIGNAL_SERVICE, metadata=metadata)
    await stream.write(blob)
    stream.write_eof()
    await ticks(50)


@pytest.mark.virtual
async def test_a_session_carries_them_both_ways_and_keeps_topics_apart() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        for near, far in ((leader, follower), (follower, leader)):
            far.signals.topic("quic")
            await near.signals.topic("webrtc").send(far.peer, b"x" * 4096)
            await near.signals.topic("quic").send(far.peer, b"other")
            assert await heard(far, "quic") == (near.peer, b"other")
            assert await heard(far) == (near.peer, b"x" * 4096)
        await asyncio.sleep(1)
        for node, other in ((leader, follower), (follower, leader)):
            streams = node.mesh.table[other.peer].streams
            assert streams is not None
            assert {stream.service for stream in streams.by_id.values()} == {"news"}


@pytest.mark.virtual
async def test_a_member_passes_one_on_and_nobody_else_does() -> None:
    async with World() as world:
        anna, bert, carl = await strangers_who_know_carl(world)
        with pytest.raises(Broken, match="cannot send a signal"):
            await anna.signals.topic("webrtc").send(world.node("dora").peer, b"nobody knows her")
        await carl.sees(bert, PeerState.CONNECTED)
        await anna.signals.topic("webrtc").send(bert.peer, b"offer")
        assert await heard(bert) == (anna.peer, b"offer")
        await bert.signals.topic("webrtc").send(anna.peer, b"answer")
        assert await heard(anna) == (bert.peer, b"answer")
        world.cable("bert", "carl").unplug()
        await carl.sees(bert, PeerState.SUSPENDED)
        with pytest.raises(Broken, match="cannot send a signal"):
            await anna.signals.topic("webrtc").send(bert.peer, b"offer")


@pytest.mark.virtual
async def test_a_mailbox_carries_them_and_a_hostile_one_gets_nothing() -> None:
    async with World() as world:
        office = PostOffice()
        anna, bert = strangers(world, office)
        send = anna.signals.topic("webrtc").send
        anna.start()
        bert.start()
        await asyncio.sleep(0.1)
        office.change = lambda blob: [blob, b"", b"nonsense", blob[:-1] + b"\xff", blob]
        await send(bert.peer, b"one")
        assert await heard(bert) == (anna.peer, b"one")
        assert await silent(bert)
        office.change = lambda blob: [blob, *office.seen]  # all there ever was, again
        await send(bert.peer, b"two")
        assert await heard(bert) == (anna.peer, b"two")
        assert await silent(bert)
        to_anna = [blob for blob in office.seen if Signal.decode(blob).to == bert.peer]
        for blob in to_anna:
            office.boxes[anna.peer].put_nowait(blob)  # to another than whom it is for
        assert await silent(anna)


@pytest.mark.virtual
async def test_a_clock_that_is_years_off_costs_one_more_turn_only() -> None:
    async with World() as world:
        office = PostOffice()
        anna, bert = strangers(world, office)
        wall = bert.node.wall_clock()
        for node, off in ((anna, -(10**8)), (bert, 0)):
            node.node.__class__ = _clocked(wall + off)
            node.start()
        await asyncio.sleep(0.1)
        await anna.signals.topic("webrtc").send(bert.peer, b"offer")
        assert await heard(bert) == (anna.peer, b"offer")
        assert await silent(bert)
        await bert.signals.topic("webrtc").send(anna.peer, b"answer")
        assert await heard(anna) == (bert.peer, b"answer")
        before = len(office.seen)
        await anna.signals.topic("webrtc").send(bert.peer, b"next")
        assert await heard(bert) == (anna.peer, b"next")
        assert len(office.seen) == before + 1  # they know each other's cookies now


def _clocked(wall: int) -> type:
    from meshd.peer.node import Node

    class Clocked(Node):
        __slots__ = ()

        def wall_clock(self) -> int:
            return wall

    return Clocked


@pytest.mark.virtual
async def test_mail_that_was_kept_for_an_hour_is_not_taken() -> None:
    async with World() as world:
        office = PostOffice()
        anna, bert = strangers(world, office)
        kept: list[bytes] = []
        anna.start()
        bert.start()
        await asyncio.sleep(0.1)
        wall = bert.node.wall_clock()

        def keep(blob: bytes) -> list[bytes]:
            kept.append(blob)
            return []

        office.change = keep
        await anna.signals.topic("webrtc").send(bert.peer, b"old")
        bert.node.__class__ = _clocked(wall + 3600)
        office.boxes[bert.peer].put_nowait(kept[0])
        assert await silent(bert)


@pytest.mark.virtual
async def test_a_banned_member_is_not_heard_by_any_way() -> None:
    async with World() as world:
        office = PostOffice()
        anna, bert = strangers(world, office)
        anna.start()
        bert.start()
        await asyncio.sleep(0.1)
        bert.node.learn_bans([world.ban(anna)])
        await anna.signals.topic("webrtc").send(bert.peer, b"offer")
        assert await silent(bert)


@pytest.mark.virtual
async def test_a_flood_is_held_to_its_rate_and_its_queue() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        for number in range(300):
            await leader.signals.topic("webrtc").send(follower.peer, b"%d" % number)
        await asyncio.sleep(1)
        box = follower.signals.topic("webrtc")
        waiting = []
        while not await silent(follower):
            waiting.append(1)
        assert SIGNAL_RATE.burst - 1 <= len(waiting) + 1 <= SIGNALS_WAITING.most
        assert box is follower.signals.topic("webrtc")


@pytest.mark.virtual
async def test_signals_of_others_are_not_passed_on_nor_too_many() -> None:
    async with World() as world:
        anna, bert, carl = await strangers_who_know_carl(world)
        await carl.sees(bert, PeerState.CONNECTED)
        blob = signed(anna.key, anna.chain, bert, b"hers")
        for to in (anna, bert):  # bert has it, and asks carl to bring it on
            await bring(bert, carl, blob, {SIGNAL_TO: to.peer.raw})
        mine = signed(anna.key, anna.chain, bert, b"hers, for another than she says")
        await bring(anna, carl, mine, {SIGNAL_TO: anna.peer.raw})
        assert await silent(bert)
        sent = 0
        for number in range(3 * int(SIGNALS_FORWARDED.burst)):
            await anna.signals.topic("webrtc").send(bert.peer, b"%d" % number)
            sent += 1
        await asyncio.sleep(1)
        assert carl.node.peer != bert.peer
        got = 0
        while not await silent(bert):
            got += 1
        assert SIGNALS_FORWARDED.burst - 1 <= got + 1 <= SIGNALS_FORWARDED.burst + 2 < sent


@pytest.mark.virtual
async def test_a_forged_signal_in_a_good_session_is_dropped() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        good = Signal.decode(signed(leader.key, leader.chain, follower, b"good"))
        other = replace(good.statement, body=good.statement.body.replace(b"good", b"evil"))
        await bring(leader, follower, other.encode())
        await bring(leader, follower, b"x" * 10_000)
        assert await silent(follower)
        await bring(leader, follower, good.encode())
        assert await heard(follower) == (leader.peer, b"good")


@pytest.mark.virtual
async def test_a_flood_of_letters_delays_the_next_and_loses_none() -> None:
    """Which of too many are lost is the mail room's choice: it asks whose they are."""
    async with World() as world:
        office = PostOffice()
        anna, bert = strangers(world, office)
        anna.start()
        bert.start()
        await asyncio.sleep(0.1)
        for _ in range(int(SIGNAL_MAIL_RATE.burst + SIGNAL_MAIL_RATE.per_second)):
            office.boxes[bert.peer].put_nowait(b"nonsense")
        await anna.signals.topic("webrtc").send(bert.peer, b"offer")
        assert await heard(bert) == (anna.peer, b"offer")


@pytest.mark.virtual
async def test_many_that_one_token_let_in_leave_room_for_others_on_one_way() -> None:
    async with World() as world:
        anna, bert, carl = await strangers_who_know_carl(world)
        await carl.sees(bert, PeerState.CONNECTED)
        bert.knows(anna)
        inviter = Inviter(world)
        many = [inviter.member() for _ in range(8)]
        for key, chain in many:
            bert.book.add(inviter.record(key, chain))
        for number in range(int(SIGNAL_ROUTE_RATE.burst)):
            await bring(carl, bert, signed(*many[number % len(many)], bert, b"noise", number))
        await bring(carl, bert, signed(anna.key, anna.chain, bert, b"offer"))
        came = [(await heard(bert))[1] for _ in range(SIGNALS_WAITING.most)]
        assert b"offer" in came
