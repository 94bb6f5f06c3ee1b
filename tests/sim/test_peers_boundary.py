"""Failures that nobody foresaw, in work that a peer caused: that work ends, the nodes live."""

import asyncio
from collections.abc import Sequence

import pytest
from meshd.base.errors import Broken, MeshdError
from meshd.base.peer_limits import FAULTS
from meshd.identity.keys import PeerId
from meshd.identity.record import PeerRecord
from meshd.link.interface import Link
from meshd.peer.interface import PeerState, Stream
from meshd.peer.limits import REFUSED_SECONDS
from meshd.wire.address import Candidate

from tests.sim.echo import exchange, serve_echo
from tests.sim.world import World, WorldNode, pair

ERRORS = (
    UnicodeError("label empty or too long"),
    KeyError("x"),
    RecursionError("too deep"),
    OSError(5, "EIO"),
)


async def echoes(near: WorldNode, far: WorldNode) -> None:
    stream = near.mesh.open_stream(far.peer, "echo", metadata={})
    assert await exchange(stream, b"hello") == b"hello"
    stream.reset(1, "enough")


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.virtual
async def test_a_stream_handler_that_fails_ends_its_stream_only(error: Exception) -> None:
    async def fail(_stream: Stream) -> None:
        raise error

    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)
        follower.mesh.handle("fail", fail, allow=lambda _member, _metadata: None)
        stream = leader.mesh.open_stream(follower.peer, "fail", metadata={})
        with pytest.raises(MeshdError, match="this node failed to handle it"):
            await stream.read()
        await echoes(leader, follower)


@pytest.mark.virtual
async def test_who_may_use_a_service_fails_alone_too() -> None:
    def allow(_member: object, _metadata: object) -> str | None:
        raise KeyError("to")

    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)
        follower.mesh.handle("fail", lambda _stream: asyncio.sleep(0), allow=allow)
        stream = leader.mesh.open_stream(follower.peer, "fail", metadata={})
        with pytest.raises(MeshdError, match="this node failed to handle it"):
            await stream.read()
        await echoes(leader, follower)


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.virtual
async def test_a_dial_that_fails_is_tried_again_with_growing_pauses(error: Exception) -> None:
    async with World() as world:
        one, other = world.node("anna"), world.node("bert")
        one.knows(other)
        dials: list[float] = []

        async def dial(_peer: PeerId, _candidates: Sequence[Candidate]) -> Link:
            dials.append(one.node.now())
            raise error

        one.dialer.dial = dial  # type: ignore[method-assign,assignment]
        one.start()
        other.start()
        await asyncio.sleep(600)
        assert 3 < len(dials) < 20
        other.knows(one)  # the other way round it works
        other.mesh.expect(one.peer)
        await one.sees(other, PeerState.CONNECTED, seconds=200)


@pytest.mark.virtual
async def test_a_record_that_fails_here_is_dropped_and_the_news_go_on() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        bad, good = world.node("bad"), world.node("good")
        add = follower.book.add

        def fail(record: PeerRecord, *, from_itself: bool = False) -> bool:
            if record.peer == bad.peer:
                raise KeyError("x")
            return add(record, from_itself=from_itself)

        follower.book.add = fail  # type: ignore[method-assign]
        leader.knows(bad, good)
        leader.mesh.record_changed()
        await follower.until(lambda: any(one.peer == good.peer for one in follower.mesh.peers()))
        assert all(one.peer != bad.peer for one in follower.mesh.peers())
        await follower.sees(leader, PeerState.CONNECTED)
        for number in range(2, 12):  # nobody is blamed for what somebody else may have made up
            leader.book.add(bad.record(number))
            leader.mesh.record_changed()
            await asyncio.sleep(10)
        assert follower.node.faults.refusal(bad.peer, follower.node.now()) is None


@pytest.mark.virtual
async def test_a_connection_whose_timer_fails_begins_anew() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)
        connection = leader.mesh.table[follower.peer]

        def fail() -> None:
            raise KeyError("x")

        connection._alarm._ring = fail
        await leader.sees(follower, PeerState.KNOWN)
        await leader.sees(follower, PeerState.CONNECTED)
        assert leader.mesh.table[follower.peer] is not connection
        await echoes(leader, follower)


@pytest.mark.virtual
async def test_a_link_in_which_something_fails_ends_and_the_next_one_works() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)
        await echoes(leader, follower)
        session = leader.mesh.table[follower.peer].streams
        assert session is not None

        def fail(*_given: object) -> None:
            raise KeyError("x")

        session.session.receive = fail  # type: ignore[method-assign,assignment]
        session.session.fast_path.receive = fail  # type: ignore[method-assign,assignment]
        with pytest.raises(Broken):
            await echoes(leader, follower)
        await asyncio.sleep(60)
        await leader.sees(follower, PeerState.CONNECTED)
        await echoes(leader, follower)


@pytest.mark.virtual
async def test_a_peer_that_goes_on_gets_no_links_for_a_while_and_is_told_why() -> None:
    async def fail(_stream: Stream) -> None:
        raise KeyError("x")

    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)
        follower.mesh.handle("fail", fail, allow=lambda _member, _metadata: None)
        for _ in range(int(FAULTS.burst) + 1):
            stream = leader.mesh.open_stream(follower.peer, "fail", metadata={})
            with pytest.raises(MeshdError):
                await stream.read()
        world.cable("anna", "bert").cut()
        await asyncio.sleep(10)
        assert "failed on the other" in leader.status_of(follower).last_error
        await asyncio.sleep(3 * REFUSED_SECONDS)
        await leader.sees(follower, PeerState.CONNECTED, seconds=120)
        await echoes(leader, follower)
