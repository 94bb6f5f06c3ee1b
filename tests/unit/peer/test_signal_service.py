"""Signals of a node: by which way they go, whose are taken, and what is sent again."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import pytest
from meshd.base.errors import Broken, EndOfStream, LocalProtocolError, Refused
from meshd.base.peer_limits import (
    COOKIES_TOLD,
    SIGNAL_RATE,
    SIGNALS_FORWARDED,
    SIGNALS_OF_PEER,
)
from meshd.identity.keys import PeerId
from meshd.identity.signal import Signal
from meshd.peer.interface import MetadataValue, PeerState
from meshd.peer.signals import LIFE, REPEATS, ROUTE_SECONDS, SIGNAL_TO, STREAM_SECONDS
from meshd.wire.signal import COOKIE_BYTES, MAX_PAYLOAD_BYTES, MAX_SIGNAL_BYTES, SIGNAL_SERVICE, SignalBody

from tests.sim.test_signals import PostOffice, strangers, strangers_who_know_carl
from tests.sim.world import World, WorldNode, pair

pytestmark = pytest.mark.virtual


async def heard(node: WorldNode) -> list[tuple[PeerId, bytes]]:
    """Return all that waits there now."""
    found = []
    try:
        async with asyncio.timeout(0.5):
            while True:
                found.append(await node.signals.topic("webrtc").receive())
    except TimeoutError:
        return found


def made(
    by: WorldNode,
    to: WorldNode,
    payload: bytes = b"made",
    *,
    number: int = 1,
    topic: str = "webrtc",
    late: int = 0,
    start: int = 0,
) -> bytes:
    """Return a signal as another implementation might make it, `late` seconds ago by its clock."""
    body = SignalBody(
        sender=by.peer.raw,
        to=to.peer.raw,
        topic=topic,
        start=start.to_bytes(16, "big"),
        sequence=number,
        at=to.node.wall_clock() - late,
        life=LIFE,
        cookie=bytes(COOKIE_BYTES),
        echo=b"",
        payload=payload,
        chain=by.chain.encode(),
    )
    return Signal.sign(by.key, body).encode()


async def bring(
    carrier: WorldNode,
    node: WorldNode,
    blob: bytes,
    metadata: Mapping[str, MetadataValue] = MappingProxyType({}),
) -> str:
    """Write a signal into a stream; return why it was refused, if it was."""
    stream = carrier.mesh.open_stream(node.peer, SIGNAL_SERVICE, metadata=metadata)
    try:
        await stream.write(blob)
        stream.write_eof()
        async with asyncio.timeout(0.01):
            await stream.read()
    except (Broken, Refused) as error:
        return error.what
    except (EndOfStream, TimeoutError):
        return ""
    raise AssertionError("nothing is answered")


async def test_a_live_session_is_enough() -> None:
    async with World() as world:
        office = PostOffice()
        leader, follower = await pair(world)
        for near, far in ((leader, follower), (follower, leader)):
            for size in (0, 1, MAX_PAYLOAD_BYTES):
                await near.signals.topic("webrtc").send(far.peer, b"x" * size)
                assert await heard(far) == [(near.peer, b"x" * size)]
            with pytest.raises(LocalProtocolError, match=f"{MAX_PAYLOAD_BYTES + 1} bytes"):
                await near.signals.topic("webrtc").send(far.peer, b"x" * (MAX_PAYLOAD_BYTES + 1))
            assert await heard(far) == []
        assert office.seen == []


async def test_topics_are_kept_apart_and_unknown_ones_dropped() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        quic = follower.signals.topic("quic")
        assert follower.signals.topic("quic") is quic
        for topic in ("quic", "webrtc", "later version"):
            await leader.signals.topic(topic).send(follower.peer, topic.encode())
        assert await heard(follower) == [(leader.peer, b"webrtc")]
        assert await quic.receive() == (leader.peer, b"quic")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(quic.receive(), 1)


async def test_all_ways_are_tried_at_once_and_what_comes_twice_is_taken_once() -> None:
    async with World() as world:
        office = PostOffice()
        anna, bert = strangers(world, office)
        carl = world.node("carl")
        for node in (anna, bert):
            node.knows(carl)
        for node in (anna, bert, carl):
            node.start()
        await anna.sees(carl, PeerState.CONNECTED)
        await bert.sees(carl, PeerState.CONNECTED)
        await anna.signals.topic("webrtc").send(bert.peer, b"offer")
        await asyncio.sleep(0.1)
        assert len(office.seen) == 1
        assert await heard(bert) == [(anna.peer, b"offer")]


async def test_a_signal_that_no_way_takes_is_an_error_after_a_while() -> None:
    async with World() as world:
        anna, bert = strangers(world)
        anna.start()
        await asyncio.sleep(0.1)
        with pytest.raises(Broken, match="cannot send a signal"):
            await anna.signals.topic("webrtc").send(bert.peer, b"offer")
    async with World() as world:
        anna, bert, carl = await strangers_who_know_carl(world)
        await carl.sees(bert, PeerState.CONNECTED)
        world.cable("anna", "carl").stall()
        began = anna.node.now()
        with pytest.raises(Broken):
            await anna.signals.topic("webrtc").send(bert.peer, b"offer")
        assert anna.node.now() - began == pytest.approx(ROUTE_SECONDS, abs=0.01)


async def test_a_member_passes_on_what_its_sender_brings_and_to_whom_it_says() -> None:
    async with World() as world:
        anna, bert, carl = await strangers_who_know_carl(world)
        await carl.sees(bert, PeerState.CONNECTED)
        to_bert: Mapping[str, MetadataValue] = {SIGNAL_TO: bert.peer.raw}
        assert await bring(anna, carl, made(anna, bert), to_bert) == ""
        assert await heard(bert) == [(anna.peer, b"made")]
        for blob, to in (
            (made(carl, bert, number=2), bert.peer.raw),  # of another
            (made(anna, bert, number=3), carl.peer.raw),  # for another
            (made(anna, bert, number=4), world.node("dora").peer.raw),  # whom it does not reach
        ):
            why = await bring(anna, carl, blob, {SIGNAL_TO: to})
            assert (why != "") == (to != bert.peer.raw)
            assert await heard(bert) == await heard(carl) == []


async def test_so_many_are_passed_on_for_one_member() -> None:
    async with World() as world:
        anna, bert, carl = await strangers_who_know_carl(world)
        await carl.sees(bert, PeerState.CONNECTED)
        to: Mapping[str, MetadataValue] = {SIGNAL_TO: bert.peer.raw}
        for number in range(2 * int(SIGNALS_FORWARDED.burst)):
            stream = anna.mesh.open_stream(carl.peer, SIGNAL_SERVICE, metadata=to)
            await stream.write(made(anna, bert, number=number + 1))
            stream.write_eof()
        assert len(await heard(bert)) == SIGNALS_FORWARDED.burst


async def test_forged_foreign_and_repeated_signals_are_dropped() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        stranger = world.node("carl")
        good = Signal.decode(made(leader, follower, b"good"))
        forged = replace(good.statement, body=good.statement.body.replace(b"good", b"evil"))
        await bring(leader, follower, forged.encode())
        await bring(leader, follower, b"nonsense")
        await bring(leader, follower, made(leader, stranger))
        assert await heard(follower) == []
        assert follower.status_of(leader).state is PeerState.CONNECTED
        await bring(leader, follower, good.encode())
        await bring(leader, follower, good.encode())
        assert await heard(follower) == [(leader.peer, b"good")]
        follower.bans.merge([world.ban(leader)])
        await bring(leader, follower, made(leader, follower, number=2))
        assert await heard(follower) == []


async def test_a_signal_is_as_long_as_it_may_be_and_takes_no_longer() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        assert await bring(leader, follower, b"x" * (MAX_SIGNAL_BYTES + 1))
        stream = leader.mesh.open_stream(follower.peer, SIGNAL_SERVICE, metadata={})
        await stream.write(made(leader, follower)[:-1])
        began = leader.node.now()
        with pytest.raises(Broken, match="too long"):
            await asyncio.wait_for(stream.read(), 2 * STREAM_SECONDS)
        assert leader.node.now() - began == pytest.approx(STREAM_SECONDS, abs=0.01)
        assert await heard(follower) == []


async def test_so_many_are_taken_of_one_sender_and_of_one_carrier() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        for number in range(2 * int(SIGNAL_RATE.burst)):
            await bring(leader, follower, made(leader, follower, number=number + 1))
        assert len(await heard(follower)) == pytest.approx(SIGNAL_RATE.burst, abs=1)
        await asyncio.sleep(SIGNAL_RATE.burst / SIGNAL_RATE.per_second)
        await bring(leader, follower, made(leader, follower, number=500))
        assert len(await heard(follower)) == 1


async def test_streams_that_bring_nothing_yet_are_counted() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        streams = [
            leader.mesh.open_stream(follower.peer, SIGNAL_SERVICE, metadata={})
            for _ in range(SIGNALS_OF_PEER.most + 1)
        ]
        await asyncio.sleep(0.1)
        for stream in streams[:-1]:
            await stream.accepted()
        with pytest.raises(Refused, match="too many signals"):
            await streams[-1].accepted()
        streams[0].reset(1, "none")
        await asyncio.sleep(0.1)
        await leader.mesh.open_stream(follower.peer, SIGNAL_SERVICE, metadata={}).accepted()


async def test_who_is_late_is_told_a_cookie_and_sends_its_last_signals_again() -> None:
    async with World() as world:
        office = PostOffice()
        anna, bert = strangers(world, office)
        anna.start()
        bert.start()
        await asyncio.sleep(0.1)
        for number in range(int(COOKIES_TOLD.burst) + 2):
            office.boxes[bert.peer].put_nowait(made(anna, bert, late=3600, number=number + 1))
        await asyncio.sleep(0.1)
        assert await heard(bert) == []
        told = [Signal.decode(blob).body for blob in office.seen]
        assert [(body.to, body.topic) for body in told] == [(anna.peer.raw, "")] * int(COOKIES_TOLD.burst)
        assert all(body.cookie for body in told)


async def test_what_was_refused_for_its_age_comes_once_more_with_the_cookie() -> None:
    async with World() as world:
        office = PostOffice()
        anna, bert = strangers(world, office)
        anna.start()
        bert.start()
        await asyncio.sleep(0.1)
        office.change = lambda _blob: []  # it is lost
        for number in range(REPEATS + 2):
            await anna.signals.topic("webrtc").send(bert.peer, b"%d" % number)
        await asyncio.sleep(LIFE - 1)
        await anna.signals.topic("webrtc").send(bert.peer, b"last")
        office.change = lambda blob: [blob]
        before = len(office.seen)
        office.boxes[anna.peer].put_nowait(made(bert, anna, b"", topic=""))
        await asyncio.sleep(0.1)
        again = [Signal.decode(blob).body.payload for blob in office.seen[before:]]
        assert again == [b"3", b"4", b"5", b"last"]
        assert [payload for _, payload in await heard(bert)] == again
        office.boxes[anna.peer].put_nowait(made(bert, anna, b"", topic="", number=2))
        await asyncio.sleep(0.1)
        assert len(office.seen) == before + 4, "once"
        await anna.signals.topic("webrtc").send(bert.peer, b"old")
        await asyncio.sleep(LIFE + 0.1)
        office.boxes[anna.peer].put_nowait(made(bert, anna, b"", topic="", number=3))
        await asyncio.sleep(0.1)
        assert len(office.seen) == before + 5, "it is of no use any more"
