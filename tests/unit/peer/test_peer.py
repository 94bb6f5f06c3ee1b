"""One peer: which link carries its session, when it is dialled again, what a refusal or a restart means."""

import asyncio
import itertools
from collections.abc import Sequence

import pytest
from meshd.base.errors import Broken, Refused, RemoteProtocolError
from meshd.base.peer_limits import FAULTS, LINKS
from meshd.link.interface import DialError, DialFailure, Link, LinkKind
from meshd.mux.config import MuxConfig
from meshd.mux.events import Code
from meshd.peer.interface import PeerState, Stream
from meshd.peer.links import SUSPECT_AFTER, TEST_SECONDS
from meshd.peer.path_selection import SILENT_AFTER
from meshd.peer.peer import ATTEMPT_SECONDS, CHALLENGE_SECONDS, FAREWELL_SECONDS, Peer
from meshd.wire.address import Candidate

from tests.sim.echo import exchange, serve_echo
from tests.sim.loop import until
from tests.sim.world import World, WorldNode, apart, pair

pytestmark = pytest.mark.virtual


def peer(node: WorldNode, other: WorldNode) -> Peer:
    return node.mesh.table[other.peer]


def session(node: WorldNode, other: WorldNode) -> bytes:
    return peer(node, other).session_id


async def test_both_sides_have_one_session_and_the_greater_id_leads() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        assert session(leader, follower) == session(follower, leader) != b""
        assert peer(leader, follower).leads and not peer(follower, leader).leads
        for node, other in ((leader, follower), (follower, leader)):
            assert peer(node, other).linked and peer(node, other).hears
            status = node.status_of(other)
            assert [path.selected for path in status.paths] == [True]
            assert (status.name, status.resumes, status.grace) == (other.name, 0, 30)
            assert status.last_error == status.gone == status.stopped == ""
        serve_echo(follower)
        assert not peer(leader, follower).in_use, "the mesh's own streams do not count"
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(stream, b"x" * 100_000) == b"x" * 100_000
        assert peer(leader, follower).in_use and peer(follower, leader).in_use
        stream.reset(1, "done")
        await asyncio.sleep(0.1)
        assert not peer(leader, follower).in_use and not peer(follower, leader).in_use


async def test_the_smaller_grace_of_both_counts() -> None:
    async with World() as world:
        one, other = world.node("anna", grace=7), world.node("bert", grace=40)
        one.knows(other)
        other.start()
        one.start()
        await one.sees(other, PeerState.CONNECTED)
        await other.sees(one, PeerState.CONNECTED)
        assert one.status_of(other).grace == other.status_of(one).grace == 7
        cut = one.node.now()
        world.cable("anna", "bert").unplug()
        await one.sees(other, PeerState.SUSPENDED)
        assert session(one, other) != b""
        await one.until(lambda: session(one, other) == b"")
        assert one.node.now() - cut == pytest.approx(7, abs=0.1)
        assert "7 s" in one.status_of(other).last_error


async def test_a_session_outlives_its_links_and_counts_how_often() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        before = session(leader, follower)
        for resumes in (1, 2):
            world.cable("anna", "bert").unplug()
            await leader.sees(follower, PeerState.SUSPENDED)
            await follower.sees(leader, PeerState.SUSPENDED)
            since = leader.node.now()
            assert leader.status_of(follower).since == since
            await asyncio.sleep(1)
            assert leader.status_of(follower).since == since
            world.cable("anna", "bert").plug()
            await leader.sees(follower, PeerState.CONNECTED)
            await follower.sees(leader, PeerState.CONNECTED)
            assert leader.status_of(follower).resumes == follower.status_of(leader).resumes == resumes
        assert session(leader, follower) == session(follower, leader) == before


async def test_after_its_grace_a_session_is_lost_and_the_next_one_is_another() -> None:
    async with World() as world:
        leader, follower = await pair(world, grace=5)
        before = session(leader, follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        world.cable("anna", "bert").unplug()
        with pytest.raises(Broken, match="no link for 5 s"):
            await asyncio.wait_for(stream.accepted(), 20)
        assert not peer(leader, follower).in_use and not peer(leader, follower).linked
        with pytest.raises(Broken, match="not connected"):
            peer(leader, follower).open_stream("echo", {}, bulk=False)
        await asyncio.sleep(5)
        world.cable("anna", "bert").plug()
        await leader.sees(follower, PeerState.CONNECTED)
        assert session(leader, follower) not in (b"", before)


async def test_a_link_of_a_better_kind_takes_over_and_the_other_stands_by_or_goes() -> None:
    async with World() as world:
        kinds = (LinkKind.TCP, LinkKind.RELAY)
        world.cable("anna", "bert").unplug()
        leader, follower = await pair(world, kinds=kinds)
        assert [path.link.kind for path in leader.status_of(follower).paths] == [LinkKind.RELAY]
        assert leader.status_of(follower).why_not_direct
        before = session(leader, follower)
        world.cable("anna", "bert").plug()
        await leader.until(lambda: leader.mesh.direct() == [follower.peer], seconds=70)
        await asyncio.sleep(3)
        paths = leader.status_of(follower).paths
        assert paths[0].selected and paths[0].link.kind is LinkKind.TCP
        assert not any(path.selected for path in paths[1:])
        assert leader.status_of(follower).why_not_direct == ""
        assert [path.link.kind for path in follower.status_of(leader).paths if path.selected] == [
            LinkKind.TCP
        ]
        assert session(leader, follower) == before


async def test_a_ping_goes_over_the_link_that_carries_data() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        seconds, path = await peer(leader, follower).ping(1.0)
        assert 0 <= seconds < 0.1 and path.link == leader.status_of(follower).paths[0].link
        world.cable("anna", "bert").unplug()
        await leader.sees(follower, PeerState.SUSPENDED)
        with pytest.raises(Broken, match="not connected"):
            await peer(leader, follower).ping(1.0)


async def test_a_link_that_falls_silent_is_replaced_before_it_counts_as_dead() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        await asyncio.sleep(5)
        dials = leader.dialer.dials
        world.cable("anna", "bert").stall()
        began = leader.node.now()
        await asyncio.sleep(SILENT_AFTER)
        assert leader.dialer.dials == dials
        await until(lambda: leader.dialer.dials > dials)
        assert leader.node.now() - began < MuxConfig().dead_after
        await leader.sees(follower, PeerState.CONNECTED)


async def test_after_a_change_of_addresses_a_link_that_does_not_answer_ends_soon() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        await asyncio.sleep(5)
        cable = world.cable("anna", "bert")
        cable.stall()
        cable.unplugged = True
        leader.mesh.addresses_changed()
        await asyncio.sleep(SUSPECT_AFTER + 0.05)
        assert not leader.mesh.hears(follower.peer) and leader.mesh.table.is_linked(follower.peer)
        await asyncio.sleep(TEST_SECONDS)
        assert leader.status_of(follower).state is PeerState.SUSPENDED
        assert not leader.mesh.table.is_linked(follower.peer)


# Dials.


async def test_who_is_not_wanted_is_not_dialled_and_its_links_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    async with World() as world:
        leader, follower = await pair(world)
        for node, other in ((leader, follower), (follower, leader)):
            peer(node, other).wanted = False
            monkeypatch.setattr(node.mesh.presence, "wants", lambda _peer: False)
        await asyncio.sleep(20)
        assert leader.status_of(follower).state is PeerState.CONNECTED
        dials = leader.dialer.dials, follower.dialer.dials
        world.cable("anna", "bert").cut()
        await asyncio.sleep(30)
        assert (leader.dialer.dials, follower.dialer.dials) == dials
        monkeypatch.undo()
        for node, other in ((leader, follower), (follower, leader)):
            peer(node, other).wanted = True
        await leader.sees(follower, PeerState.CONNECTED, seconds=2)


async def test_a_dial_that_is_given_up_when_nobody_wants_it_any_more_is_over() -> None:
    async with World() as world:
        leader, follower = apart(world)
        leader.knows(follower)
        leader.dialer.seconds = 20.0
        leader.start()
        await asyncio.sleep(1)
        assert leader.dialer.dials == 1 and leader.status_of(follower).state is PeerState.CONNECTING
        peer(leader, follower).stop()
        await asyncio.sleep(0.01)
        assert leader.status_of(follower).state is PeerState.KNOWN
        await asyncio.sleep(60)
        assert leader.dialer.dials == 1


async def test_a_dialler_that_never_ends_is_given_up_after_its_time() -> None:
    async with World() as world:
        leader, follower = apart(world)
        leader.knows(follower)
        leader.dialer.seconds = 3600.0
        began = asyncio.get_running_loop().time()
        leader.start()
        await asyncio.sleep(ATTEMPT_SECONDS - 0.1)
        assert leader.dialer.dials == 1
        assert leader.status_of(follower).last_error == ""
        leader.dialer.seconds = 0.0
        await asyncio.sleep(0.11)
        assert asyncio.get_running_loop().time() - began == pytest.approx(ATTEMPT_SECONDS + 0.01)
        assert "no link within 30 s" in leader.status_of(follower).last_error
        follower.start()
        await leader.sees(follower, PeerState.CONNECTED)
        assert leader.status_of(follower).last_error == ""


async def test_failed_dials_are_repeated_with_growing_pauses() -> None:
    async with World() as world:
        leader, follower = apart(world)
        leader.knows(follower)
        at: list[float] = []
        dial = leader.dialer.dial

        async def noted(peer: object, candidates: Sequence[Candidate]) -> Link:
            at.append(asyncio.get_running_loop().time())
            return await dial(follower.peer, candidates)

        leader.dialer.dial = noted  # type: ignore[method-assign]
        leader.start()
        await asyncio.sleep(120)
        gaps = [later - earlier for earlier, later in itertools.pairwise(at)]
        assert len(at) > 5 and gaps[0] < 1 and max(gaps) > 10
        assert all(later > earlier / 2 for earlier, later in itertools.pairwise(gaps))
        status = leader.status_of(follower)
        assert "nobody listens there" in status.last_error


async def test_what_others_tell_has_a_peer_dialled_at_once_but_not_too_often() -> None:
    async with World() as world:
        leader, follower = apart(world)
        leader.knows(follower)
        leader.start()
        await asyncio.sleep(300)
        told = []
        for _ in range(40):
            dials = leader.dialer.dials
            peer(leader, follower).dial_for_news()
            await asyncio.sleep(0.05)
            told.append(leader.dialer.dials - dials)
        assert told[0] == 1 and sum(told) < 30


@pytest.mark.parametrize(("kind", "is_noted"), [(LinkKind.TCP, True), (LinkKind.RELAY, False)])
async def test_an_address_at_which_a_peer_was_found_is_noted(
    kind: LinkKind, is_noted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with World() as world:
        leader, follower = apart(world, kinds=(kind,))
        noted: list[str] = []
        monkeypatch.setattr(leader.book, "worked", lambda _peer, remote: noted.append(remote))
        leader.knows(follower)
        follower.start()
        leader.start()
        path = (await leader.sees(follower, PeerState.CONNECTED)).paths[0]
        assert noted == []
        await asyncio.sleep(0.01)
        is_near = path.link.path == "loopback"
        assert noted == ([path.link.remote] if is_noted else []) and is_near == is_noted


async def test_bans_go_across_in_the_greeting_and_are_kept() -> None:
    async with World() as world:
        leader, follower = apart(world)
        strangers = [world.node(name) for name in ("x", "y", "z")]
        leader.node.learn_bans([world.ban(one) for one in strangers[:2]])
        follower.node.learn_bans([world.ban(strangers[2])])
        blobs = leader.bans_blob, follower.bans_blob
        leader.knows(follower)
        follower.start()
        leader.start()
        await leader.sees(follower, PeerState.CONNECTED)
        assert leader.bans.digest() == follower.bans.digest() and len(leader.bans) == 3
        assert leader.bans_blob != blobs[0] and follower.bans_blob != blobs[1]


# Refusals, faults, restarts.


async def test_who_is_refused_is_told_why_and_stays_away_longer() -> None:
    async with World() as world:
        leader, follower = apart(world)
        leader.knows(follower)
        follower.start()
        follower.bans.merge([world.ban(leader)])
        leader.start()
        await asyncio.sleep(5)
        status = leader.status_of(follower)
        assert "banned" in status.last_error and status.paths == ()
        dials = leader.dialer.dials
        await asyncio.sleep(5)
        assert leader.dialer.dials <= dials + 3


async def test_a_restarted_node_replaces_its_earlier_start_at_once_if_that_is_gone() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        before = session(leader, follower)
        await follower.stop()
        follower.reborn()
        follower.start()
        began = leader.node.now()
        await leader.until(lambda: session(leader, follower) not in (b"", before), seconds=5)
        assert leader.node.now() - began < CHALLENGE_SECONDS
        await leader.sees(follower, PeerState.CONNECTED)


@pytest.mark.parametrize("alive", [True, False])
async def test_a_second_node_with_one_identity_is_refused_while_the_first_answers(alive: bool) -> None:
    async with World() as world:
        leader, follower = await pair(world)
        before = session(leader, follower)
        copy = world.node("copy")
        copy.copy_identity(follower, starts=5)
        copy.knows(leader)
        if not alive:
            world.cable("anna", "bert").stall()
        copy.start()
        began = leader.node.now()
        if alive:
            await asyncio.sleep(CHALLENGE_SECONDS)
            assert copy.status_of(leader).says_in_use
            assert session(leader, follower) == before
        else:
            await leader.until(lambda: session(leader, follower) != before, seconds=10)
            assert leader.node.now() - began == pytest.approx(CHALLENGE_SECONDS, abs=0.5)
            assert leader.status_of(follower).name == "copy"


async def test_nonsense_ends_the_session_and_is_counted() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        before = session(leader, follower)
        await asyncio.sleep(1)
        cable = world.cable("anna", "bert")
        cable.garble = 1
        await leader.until(
            lambda: leader.status_of(follower).faults + follower.status_of(leader).faults > 0, seconds=10
        )
        victim, guilty = (leader, follower) if leader.status_of(follower).faults else (follower, leader)
        assert victim.status_of(guilty).faults == 1 and victim.status_of(guilty).last_fault
        await victim.sees(guilty, PeerState.CONNECTED)
        assert session(leader, follower) not in (b"", before)


async def test_a_peer_whose_work_keeps_failing_here_gets_no_link_for_a_while() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        now = leader.node.now()
        for _ in range(int(FAULTS.burst) + 1):
            leader.node.faults.blame(follower.peer, now, "a bug")
        assert leader.status_of(follower).state is PeerState.CONNECTED, "what is there stays"
        world.cable("anna", "bert").cut()
        await asyncio.sleep(5)
        assert leader.status_of(follower).paths == ()
        assert "failed" in follower.status_of(leader).last_error
        assert leader.status_of(follower).faults >= FAULTS.burst


async def test_no_more_links_than_there_may_be() -> None:
    async with World() as world:
        leader, follower = await pair(world)

        class Silent:
            closed = 0
            info = leader.status_of(follower).paths[0].link

            async def send(self, _data: object) -> None:
                await asyncio.Event().wait()

            async def receive(self) -> bytes:
                await asyncio.Event().wait()
                return b""

            async def aclose(self) -> None:
                Silent.closed += 1

        links = [Silent() for _ in range(LINKS.most)]
        for link in links:
            world.owner.start(leader.mesh.accept(link), name="call")  # type: ignore[arg-type]
        await asyncio.sleep(0.1)
        assert Silent.closed == 1, "one beside those that greet"
        await asyncio.sleep(11)
        assert Silent.closed == LINKS.most


async def test_the_end_of_a_process_is_known_from_its_machine() -> None:
    async with World() as world:
        leader, follower = await pair(world, grace=600)
        await asyncio.sleep(5)
        await follower.stop()
        began = leader.node.now()
        await leader.until(lambda: leader.status_of(follower).gone != "", seconds=20)
        assert leader.node.now() - began < 5
        assert session(leader, follower) == b""
        assert leader.status_of(follower).state in (PeerState.LOST, PeerState.CONNECTING)
        follower.reborn()
        follower.start()
        await leader.sees(follower, PeerState.CONNECTED)
        assert leader.status_of(follower).gone == ""


async def test_a_machine_that_is_not_there_says_nothing_about_its_process() -> None:
    async with World() as world:
        leader, follower = await pair(world, grace=60)
        before = session(leader, follower)
        world.cable("anna", "bert").unplug()
        await asyncio.sleep(50)
        assert session(leader, follower) == before and leader.status_of(follower).gone == ""


# The end.


@pytest.mark.parametrize("stalled", [False, True])
async def test_a_dropped_peer_ends_when_its_goodbye_is_out_or_its_time_is_up(stalled: bool) -> None:
    async with World() as world:
        leader, follower = await pair(world)
        dropped = peer(leader, follower)
        leader.mesh.stop_connecting()
        began = leader.node.now()
        dropped.close(Code.NONE, "enough")
        if stalled:
            world.cable("anna", "bert").stall()
        dropped.drop()
        await until(lambda: not dropped.linked)
        assert leader.node.now() - began <= (FAREWELL_SECONDS + 0.6 if stalled else 0.1)


async def test_a_goodbye_breaks_the_streams_of_both_sides_with_its_reason() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        came: list[Stream] = []

        async def hold(stream: Stream) -> None:
            came.append(stream)
            await stream.read()

        follower.mesh.handle("hold", hold, allow=lambda _member, _metadata: None)
        stream = leader.mesh.open_stream(follower.peer, "hold", metadata={})
        await stream.accepted()
        peer(leader, follower).close(Code.SHUTDOWN, "lunch")
        with pytest.raises(Broken, match="this node said goodbye: lunch"):
            await stream.read()
        with pytest.raises(Broken, match="lunch"):
            await came[0].write(b"x")
            await asyncio.sleep(0.1)
            await came[0].write(b"x")


async def test_a_failed_dial_is_shown_with_its_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    errors = (
        DialError("no route", kind=LinkKind.TCP, failure=DialFailure.UNREACHABLE),
        Broken("it fell"),
        Refused("no", code="full"),
        RemoteProtocolError("odd", code="x"),
    )
    for error in errors:
        async with World() as world:
            leader, follower = apart(world)
            leader.knows(follower)
            follower.start()
            dial, failing = leader.dialer.dial, True

            async def maybe(one: object, candidates: Sequence[Candidate]) -> Link:
                if failing:  # noqa: B023
                    raise error  # noqa: B023
                return await dial(follower.peer, candidates)  # noqa: B023

            monkeypatch.setattr(leader.dialer, "dial", maybe)
            leader.start()
            await asyncio.sleep(0.05)
            assert leader.status_of(follower).last_error == error.what
            failing = False
            await leader.sees(follower, PeerState.CONNECTED, seconds=120)
