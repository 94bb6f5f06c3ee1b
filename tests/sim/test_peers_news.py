"""News and bans between real nodes on a virtual clock: what one hears all hear, who is out is out at once."""

import asyncio
import io
from collections.abc import Mapping

import pytest
from meshd.base import log
from meshd.base.errors import Broken, UserError
from meshd.identity.membership import Member
from meshd.mux.events import Code
from meshd.peer.interface import MetadataValue, PeerState, Stream
from meshd.peer.mesh import UnknownPeer
from meshd.wire.news import NEWS_SERVICE

from tests.sim.loop import run
from tests.sim.world import World, WorldNode, pair


async def line(world: World) -> tuple[WorldNode, WorldNode, WorldNode]:
    """Three nodes; the ends know the one in the middle only, and no cable joins them."""
    one, middle, other = world.node("anna"), world.node("bert"), world.node("carl")
    world.cable("anna", "carl").unplug()
    one.knows(middle)
    other.knows(middle)
    for node in (middle, one, other):
        node.start()
    for end in (one, other):
        await end.sees(middle, PeerState.CONNECTED)
        await middle.sees(end, PeerState.CONNECTED)
    return one, middle, other


@pytest.mark.virtual
async def test_records_travel_along_a_line_and_make_a_mesh() -> None:
    async with World() as world:
        one, _, other = await line(world)
        await one.until(lambda: one.book.record(other.peer) is not None)
        await other.until(lambda: other.book.record(one.peer) is not None)
        assert one.status_of(other).name == "carl"
        assert one.status_of(other).state is not PeerState.CONNECTED
        world.cable("anna", "carl").plug()
        await one.sees(other, PeerState.CONNECTED)
        await other.sees(one, PeerState.CONNECTED)


@pytest.mark.virtual
async def test_a_newer_record_of_one_is_told_to_all() -> None:
    async with World() as world:
        one, _, other = await line(world)
        await other.until(lambda: other.book.record(one.peer) is not None)
        one.host.shown = one.record(7)
        one.mesh.record_changed()

        def heard() -> bool:
            record = other.book.record(one.peer)
            return record is not None and record.sequence == 7

        await other.until(heard)


@pytest.mark.virtual
async def test_a_ban_travels_along_a_line() -> None:
    async with World() as world:
        one, middle, other = await line(world)
        stranger = world.node("dora")
        one.node.learn_bans([world.ban(stranger)])
        await other.until(lambda: bool(other.bans.entries()))
        assert middle.bans_blob and other.bans_blob  # kept before anything else
        assert other.bans.why_banned(stranger.chain) is not None


@pytest.mark.virtual
async def test_a_ban_heard_in_the_greeting_travels_both_ways() -> None:
    async with World() as world:
        one, other = world.node("anna"), world.node("bert")
        strangers = [world.node(f"x{number}") for number in range(30)]
        for number, stranger in enumerate(strangers):
            (one, other)[number % 2].node.learn_bans([world.ban(stranger)])
        one.knows(other)
        other.start()
        one.start()
        await one.sees(other, PeerState.CONNECTED)
        assert one.bans.digest() == other.bans.digest()
        assert len(one.bans.entries()) == 30


@pytest.mark.virtual
async def test_a_member_that_is_banned_while_connected_is_out_within_5_s() -> None:
    for banned in (0, 1):
        async with World() as world:
            nodes = await pair(world)
            out, judge = nodes[banned], nodes[1 - banned]

            async def hold(stream: Stream) -> None:
                await stream.read()

            judge.mesh.handle("hold", hold, allow=lambda _member, _metadata: None)
            stream = out.mesh.open_stream(judge.peer, "hold", metadata={})
            await stream.accepted()
            began = asyncio.get_running_loop().time()
            judge.node.learn_bans([world.ban(out)])
            with pytest.raises(Broken, match="banned"):
                await stream.read()
            assert judge.mesh.peers() == [], "gone at once"
            await out.until(lambda o=out, j=judge: o.status_of(j).paths == ())  # type: ignore[misc]
            assert asyncio.get_running_loop().time() - began < 5
            await asyncio.sleep(300)
            assert judge.mesh.peers() == []
            assert judge.mesh.member(out.peer) is None
            assert judge.book.peers() == ()
            assert "banned" in out.status_of(judge).last_error
            assert "banned" in out.status_of(judge).says_banned
            assert out.dialer.dials < 20


@pytest.mark.virtual
async def test_a_member_whose_ban_is_lifted_comes_back_and_can_be_banned_again() -> None:
    async with World() as world:
        one, middle, other = await line(world)
        one.node.learn_bans([world.ban(other)])
        await middle.until(lambda: middle.mesh.member(other.peer) is None)
        assert middle.book.record(other.peer) is None
        one.node.learn_bans([world.ban(other, epoch=1, lifts=True)])
        await middle.sees(other, PeerState.CONNECTED)
        assert other.bans.digest() == one.bans.digest() and other.bans.why_banned(other.chain) is None
        one.node.learn_bans([world.ban(other, epoch=2)])
        await middle.until(lambda: middle.mesh.member(other.peer) is None)


def test_the_log_says_once_that_this_node_is_banned() -> None:
    """Each peer says so on each way and at each attempt; what to do stands beside it."""

    async def main() -> None:
        async with World() as world:
            one, other, out = world.node("anna"), world.node("bert"), world.node("carl")
            for judge in (one, other):
                judge.node.learn_bans([world.ban(out)])
                judge.start()
            out.knows(one, other)
            out.start()
            await out.until(lambda: all(out.status_of(judge).says_banned for judge in (one, other)))
            await asyncio.sleep(300)

    said = io.StringIO()
    log.set_up(stream=said)
    try:
        run(main())
    finally:
        log.set_up(level="warning")
    [line] = [line for line in said.getvalue().splitlines() if "key is banned in this mesh" in line]
    assert line.index("meshd unban") < line.index("meshd leave --new-identity") < line.index("--join INVITE")
    assert "peer_refuses" not in said.getvalue()


@pytest.mark.virtual
async def test_news_of_a_banned_member_does_not_end_the_news() -> None:
    """The middle tells of carl's newer record before it has heard that carl is banned."""
    async with World() as world:
        one, middle = await pair(world)
        carl, dora = world.node("carl"), world.node("dora")
        one.bans.merge([world.ban(carl)])  # and has not told yet
        middle.book.add(carl.record(3))
        middle.node.changed()
        await asyncio.sleep(1)
        assert one.book.record(carl.peer) is None
        middle.book.add(dora.record())
        middle.node.changed()
        await one.until(lambda: one.book.record(dora.peer) is not None)
        one.node.changed()
        await middle.until(lambda: bool(middle.bans.entries()))


@pytest.mark.virtual
async def test_a_member_that_refuses_the_news_ends_nobodys_node() -> None:
    """The node that leads a pair opens the stream of news: one of both is refused, and asks again."""
    async with World() as world:
        nodes = world.node("anna"), world.node("bert")
        refused: list[Member] = []

        async def never_called(_stream: Stream) -> None:
            raise AssertionError("refused")

        def refuse(member: Member, _metadata: Mapping[str, MetadataValue]) -> str:
            refused.append(member)
            return "no news, please"

        for node in nodes:
            node.mesh.handle(NEWS_SERVICE, never_called, allow=refuse)
            node.knows(*(other for other in nodes if other is not node))
            node.start()
        one, other = nodes
        await one.sees(other, PeerState.CONNECTED)
        await asyncio.sleep(600)
        assert len(refused) > 2
        assert one.status_of(other).state is PeerState.CONNECTED
        assert other.status_of(one).state is PeerState.CONNECTED


@pytest.mark.virtual
async def test_after_a_change_of_addresses_the_new_link_stays() -> None:
    """The old link is dead and nobody has noticed: the new one takes over within seconds."""
    for changed in (0, 1):
        async with World() as world:
            nodes = await pair(world)
            nodes[1].knows(nodes[0])
            mover = nodes[changed]
            cable = world.cable("anna", "bert")
            cable.stall()
            cable.ups.clear()
            cable.downs.clear()
            mover.mesh.addresses_changed()
            mover.mesh.record_changed()
            await mover.until(lambda m=mover, o=nodes[1 - changed]: len(m.status_of(o).paths) == 2)  # type: ignore[misc]
            await asyncio.sleep(3.6)
            rtt, path = await nodes[0].mesh.ping(nodes[1].peer, 1.0)
            assert rtt < 1 and path.selected
            await asyncio.sleep(5)
            assert len(nodes[0].status_of(nodes[1]).paths) == 1
            assert nodes[0].status_of(nodes[1]).resumes == 0  # it never was without a link


@pytest.mark.virtual
async def test_a_healthy_link_stays_when_addresses_change() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        before = leader.status_of(follower).paths[0].link.established_at
        leader.mesh.addresses_changed()
        leader.mesh.record_changed()
        await asyncio.sleep(10)
        (path,) = leader.status_of(follower).paths
        assert path.link.established_at == before
        assert world.cable("anna", "bert").made == 2


def _leave(node: WorldNode) -> None:
    node.host.shown = node.record(7, left=True)
    node.mesh.record_changed()


def _knows(node: WorldNode, other: WorldNode) -> bool:
    return any(peer.peer == other.peer for peer in node.mesh.peers())


@pytest.mark.virtual
async def test_a_node_that_leaves_is_gone_everywhere_and_hearsay_never_brings_it_back() -> None:
    async with World() as world:
        one, middle, other = await line(world)
        await other.until(lambda: _knows(other, one))
        _leave(one)
        for node in (middle, other):
            await node.until(lambda n=node: not _knows(n, one))  # type: ignore[misc]
        await one.stop()
        late = world.node("late")
        late.knows(one, middle)  # it was away, and still tells of the old record
        late.start()
        await late.sees(middle, PeerState.CONNECTED)
        await late.until(lambda: not _knows(late, one))
        await asyncio.sleep(300)
        for node in (late, middle, other):
            assert not _knows(node, one)
            assert one.peer not in node.book.peers()
            node.reborn()
            assert one.peer not in node.book.peers()
        assert middle.book.add(one.record(8)), "it has joined again"


@pytest.mark.parametrize("leaver", [0, 1])
@pytest.mark.virtual
async def test_a_node_that_leaves_makes_no_link_any_more(leaver: int) -> None:
    """Its peers close theirs once they have read the last record, a moment before it says goodbye itself."""
    async with World() as world:
        nodes = await pair(world)
        one, other = nodes[leaver], nodes[1 - leaver]
        cable = world.cable("anna", "bert")
        cable.made = 0
        one.mesh.stop_connecting()
        _leave(one)
        await other.until(lambda: not _knows(other, one))
        await asyncio.sleep(30)
        assert cable.made == 0


@pytest.mark.virtual
async def test_a_node_that_stops_to_connect_answers_no_caller() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        follower.mesh.stop_connecting()
        assert follower.status_of(leader).state is PeerState.CONNECTED
        world.cable("anna", "bert").cut()
        await follower.until(lambda: follower.status_of(leader).state is not PeerState.CONNECTED)
        leader.dialer.dials = 0
        with pytest.raises(TimeoutError):
            await follower.sees(leader, PeerState.CONNECTED)
        assert leader.dialer.dials > 2 and not follower.dialer.dials


def test_a_node_that_stops_to_connect_begins_no_session_in_a_greeting() -> None:
    """Wherever the greeting is: it stops one turn of the loop later each time, until it is connected."""

    async def is_connected_after(turns: int) -> bool:
        async with World() as world:
            one, other = world.node("anna"), world.node("bert")
            one.knows(other)
            other.start()
            one.start()
            for _ in range(turns):
                await asyncio.sleep(0)
            if one.mesh.peers()[0].paths:
                return True
            one.mesh.stop_connecting()
            await asyncio.sleep(30)
            assert one.status_of(other).state is not PeerState.CONNECTED, turns
            return False

    async def main() -> None:
        turns = 0
        while not await is_connected_after(turns):
            turns += 1
        assert turns > 10

    run(main())


@pytest.mark.virtual
async def test_a_goodbye_for_good_is_enough() -> None:
    """The last record did not get through: who heard the goodbye takes the older one from nobody."""
    async with World() as world:
        one, middle, other = await line(world)
        await other.until(lambda: _knows(other, one))
        one.mesh.say_goodbye("left the mesh", code=Code.LEFT)
        await middle.until(lambda: not _knows(middle, one))
        other.node.changed()
        await asyncio.sleep(60)
        assert not middle.book.add(one.record(1))
        assert not _knows(middle, one)


@pytest.mark.virtual
async def test_a_goodbye_for_now_leaves_the_peer_known() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        follower.mesh.say_goodbye("the node was stopped")
        await leader.until(lambda: leader.status_of(follower).state is not PeerState.CONNECTED)
        assert _knows(leader, follower)


@pytest.mark.virtual
async def test_a_node_is_found_by_name_or_id_and_never_by_guessing() -> None:
    async with World() as world:
        one, middle, other = await line(world)
        await one.until(lambda: one.book.record(other.peer) is not None)
        find = one.mesh.find
        assert find("bert") == find(str(middle.peer)) == find(str(middle.peer)[:12].upper()) == middle.peer
        with pytest.raises(UnknownPeer, match="no node `dora`"):
            find("dora")
        for mine in ("anna", str(one.peer)):
            with pytest.raises(UserError, match="is this node itself"):
                find(mine)
        assert one.mesh.table[other.peer].facts.name == "carl"
        one.mesh.table[other.peer].facts.name = "bert"
        with pytest.raises(UserError, match="matches 2 nodes") as caught:
            find("bert")
        assert str(other.peer)[:10] in caught.value.what
        one.mesh.table[other.peer].facts.name = "anna"
        with pytest.raises(UserError, match="matches 2 nodes: this node, "):
            find("anna")


@pytest.mark.virtual
async def test_a_member_that_takes_the_id_of_another_one_for_its_name_is_not_found_by_it() -> None:
    async with World() as world:
        one, victim = world.node("anna"), world.node("bert")
        whole = str(victim.peer)
        impostors = [world.node(text) for text in (whole, whole[:10], whole[:4])]
        victim.knows(one)
        for node in (one, victim):
            node.start()
        for node in impostors:
            node.knows(one)
            node.start()
            await one.sees(node, PeerState.CONNECTED)
        await one.sees(victim, PeerState.CONNECTED)
        for text in (whole, whole.upper(), whole[:10], whole[:20], "bert"):
            assert one.mesh.find(text) == victim.peer
        with pytest.raises(UserError, match="matches 2 nodes"):
            one.mesh.find(whole[:4])
        assert {peer.name for peer in one.mesh.peers()} == {
            "bert",
            *(f"?{node.name}" for node in impostors),
        }
        for node in impostors:
            with pytest.raises(UnknownPeer):
                one.mesh.find(f"?{node.name}")
            assert one.mesh.find(str(node.peer)) == node.peer
        one.node.learn_bans([world.ban(victim)])
        await one.until(lambda: one.book.record(victim.peer) is None)
        for text in (whole, whole[:10]):  # nobody takes its place
            with pytest.raises(UnknownPeer):
                one.mesh.find(text)
        with pytest.raises(UserError, match="matches 2 nodes"):  # it is remembered elsewhere, say as a grant
            one.mesh.find(whole[:4], [victim.peer])
