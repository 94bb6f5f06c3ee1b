"""Sessions between real nodes on a virtual clock: made, resumed, lost, replaced, ended."""

import asyncio
import io

import pytest
from meshd.base import log
from meshd.base.errors import Broken, EndOfStream
from meshd.base.tasks import cancel_and_wait
from meshd.peer.interface import PeerState

from tests.sim.echo import exchange, serve_echo
from tests.sim.loop import run
from tests.sim.world import World, WorldNode, pair


def only_path(node: WorldNode, other: WorldNode) -> None:
    status = node.status_of(other)
    assert [path.selected for path in status.paths] == [True]


@pytest.mark.virtual
async def test_a_stream_goes_both_ways_and_half_closes() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        for near, far in ((leader, follower), (follower, leader)):
            serve_echo(far)
            stream = near.mesh.open_stream(far.peer, "echo", metadata={})
            assert await exchange(stream, b"x" * 300_000) == b"x" * 300_000
            stream.write_eof()
            with pytest.raises(EndOfStream):
                await stream.read()


@pytest.mark.virtual
async def test_a_link_that_is_cut_is_a_pause() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(stream, b"before") == b"before"
        world.cable("anna", "bert").unplug()
        await leader.sees(follower, PeerState.SUSPENDED)
        await follower.sees(leader, PeerState.SUSPENDED)
        writing = world.owner.start(exchange(stream, b"in between"), name="writer")
        await asyncio.sleep(20)
        assert not writing.done()
        world.cable("anna", "bert").plug()
        assert await writing == b"in between"
        assert leader.status_of(follower).resumes == follower.status_of(leader).resumes == 1


@pytest.mark.virtual
async def test_who_is_connected_has_a_link_that_carries_data() -> None:
    """The side that does not choose may have a link attached a moment before it is told to use it."""
    seen: list[tuple[PeerState, bool]] = []

    async def watch(node: WorldNode, other: WorldNode) -> None:
        change = -1
        while True:
            change = await node.node.wait_changed(change)
            status = node.status_of(other)
            seen.append((status.state, any(path.selected for path in status.paths)))

    async with World() as world:
        leader, follower = await pair(world)
        watchers = [
            world.owner.start(watch(*way), name="watch") for way in ((leader, follower), (follower, leader))
        ]
        for _ in range(3):
            world.cable("anna", "bert").unplug()
            await leader.sees(follower, PeerState.SUSPENDED)
            world.cable("anna", "bert").plug()
            await leader.sees(follower, PeerState.CONNECTED)
            await follower.sees(leader, PeerState.CONNECTED)
        for watcher in watchers:
            await cancel_and_wait(watcher)
    assert (PeerState.CONNECTED, True) in seen
    assert (PeerState.CONNECTED, False) not in seen


@pytest.mark.virtual
async def test_a_silent_link_is_found_dead_and_replaced() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        cable = world.cable("anna", "bert")
        began = asyncio.get_running_loop().time()
        cable.stall()
        cable.ups.clear()
        cable.downs.clear()  # the next pipes flow
        assert await exchange(stream, b"still there") == b"still there"
        assert asyncio.get_running_loop().time() - began < 6  # 4.5 s of silence


@pytest.mark.virtual
async def test_the_grace_runs_out_and_the_next_session_is_another() -> None:
    async with World() as world:
        leader, follower = await pair(world, grace=10)
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(stream, b"first") == b"first"
        cable = world.cable("anna", "bert")
        cable.unplug()
        with pytest.raises(Broken, match="no link for 10 s"):
            await stream.read()
        assert leader.status_of(follower).state in (PeerState.LOST, PeerState.CONNECTING)
        with pytest.raises(Broken, match="not connected to"):
            leader.mesh.open_stream(follower.peer, "echo", metadata={})
        cable.plug()
        await leader.sees(follower, PeerState.CONNECTED)
        again = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(again, b"second") == b"second"
        with pytest.raises(Broken):
            await stream.write(b"the old one stays broken")


@pytest.mark.virtual
async def test_one_side_loses_the_session_and_the_other_hears_of_it() -> None:
    for loser in (0, 1):
        async with World() as world:
            nodes = await pair(world)
            near, far = nodes[1 - loser], nodes[loser]
            serve_echo(far)
            stream = near.mesh.open_stream(far.peer, "echo", metadata={})
            assert await exchange(stream, b"one") == b"one"
            await far.stop()
            far.reborn()
            serve_echo(far)
            far.start()
            with pytest.raises(Broken):
                await stream.read()
            await near.sees(far, PeerState.CONNECTED)
            again = near.mesh.open_stream(far.peer, "echo", metadata={})
            assert await exchange(again, b"two") == b"two"
            assert len(near.mesh.peers()) == 1


@pytest.mark.virtual
async def test_both_dial_at_once_200_times_and_one_link_is_kept() -> None:
    doubles = 0
    async with World() as world:
        one, other = world.node("anna"), world.node("bert")
        one.knows(other)
        other.knows(one)
        one.start()
        other.start()
        cable = world.cable("anna", "bert")
        for _ in range(200):
            await one.sees(other, PeerState.CONNECTED)
            await other.sees(one, PeerState.CONNECTED)
            await asyncio.sleep(5)  # the surplus link goes after a heartbeat
            assert len(one.status_of(other).paths) == len(other.status_of(one).paths) == 1
            ids = [node.mesh.table[far.peer].session_id for node, far in ((one, other), (other, one))]
            assert ids[0] == ids[1] != b""
            only_path(one, other)
            only_path(other, one)
            doubles += cable.made > 1
            cable.made = 0
            cable.cut()
    assert doubles > 100  # else this was no race


def test_goodbye_ends_the_session_on_both_sides_at_once_and_no_link_is_lost() -> None:
    lines = io.StringIO()
    log.set_up(form="text", stream=lines)

    async def main() -> None:
        async with World() as world:
            leader, follower = await pair(world)
            serve_echo(follower)
            stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
            assert await exchange(stream, b"hello") == b"hello"
            began = asyncio.get_running_loop().time()
            follower.mesh.say_goodbye("the node was stopped")
            with pytest.raises(Broken, match="the node was stopped"):
                await stream.read()
            await leader.until(lambda: leader.status_of(follower).state is not PeerState.CONNECTED)
            assert asyncio.get_running_loop().time() - began < 1
            await follower.stop()
            said = lines.getvalue()
            assert "peer_left" in said and "link_lost" not in said
            await asyncio.sleep(60)  # nobody answers where it was, which is no news
            assert leader.status_of(follower).stopped == "the node was stopped"
            follower.reborn()
            follower.knows(leader)
            follower.start()
            back = await leader.sees(follower, PeerState.CONNECTED)
            assert (back.stopped, back.grace) == ("", 30)

    try:
        run(main())
    finally:
        log.set_up(level="warning")


@pytest.mark.virtual
async def test_a_peer_that_leaves_is_not_dialled_without_pause() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        follower.mesh.say_goodbye("leaving")  # it still listens, and hangs up on all callers
        leader.dialer.dials = 0
        await asyncio.sleep(60)
        assert 2 < leader.dialer.dials < 20


@pytest.mark.virtual
async def test_a_restart_replaces_the_older_start_at_once_when_its_links_are_gone() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        await follower.stop()
        began = asyncio.get_running_loop().time()
        follower.reborn()
        follower.start()
        await follower.sees(leader, PeerState.CONNECTED)
        await leader.sees(follower, PeerState.CONNECTED)
        assert asyncio.get_running_loop().time() - began < 1


@pytest.mark.virtual
async def test_a_restart_behind_a_dead_link_waits_for_the_challenge_only() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        leader_session = leader.mesh.table[follower.peer].session_id
        cable = world.cable("anna", "bert")
        await follower.stop(cut=False)  # power off: the leader hears nothing, not even an end
        cable.ups.clear()
        cable.downs.clear()
        began = asyncio.get_running_loop().time()
        follower.reborn()
        follower.start()
        await follower.sees(leader, PeerState.CONNECTED)
        assert asyncio.get_running_loop().time() - began < 4
        assert leader.mesh.table[follower.peer].session_id != leader_session
        await asyncio.sleep(20)
        only_path(leader, follower)
        only_path(follower, leader)


@pytest.mark.virtual
async def test_a_copied_identity_is_refused_while_the_first_answers() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        serve_echo(leader)
        stream = follower.mesh.open_stream(leader.peer, "echo", metadata={})
        assert await exchange(stream, b"mine") == b"mine"
        copy = world.node("copy")
        copy.copy_identity(follower, starts=6)
        copy.book.hint(leader.peer, (leader.place,))
        copy.start()
        await asyncio.sleep(0.1)
        copy.mesh.expect(leader.peer)
        await copy.until(
            lambda: any("in use at" in status.last_error for status in copy.mesh.peers()), seconds=10
        )
        assert copy.status_of(leader).says_in_use
        assert await exchange(stream, b"still mine") == b"still mine"
        assert leader.status_of(follower).name == follower.name
        await follower.stop()
        await copy.sees(leader, PeerState.CONNECTED)
        assert not copy.status_of(leader).says_in_use, "it is the only one now"
