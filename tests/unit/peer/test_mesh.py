"""The peers of a node as its owner sees them: whom it looks for, who is dropped when, how it leaves."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from meshd.base.errors import Broken, RemoteProtocolError, UserError
from meshd.base.peer_limits import TABLED_ADMITTED, TABLED_PEERS
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Admitter
from meshd.identity.record import PeerRecord
from meshd.link.interface import LinkKind
from meshd.mux.config import MuxConfig
from meshd.mux.events import Code
from meshd.peer.interface import PeerState
from meshd.peer.mesh import SESSION_IDLE_SECONDS, UnknownPeer, find
from meshd.peer.presence import DEGREE, DEMAND_SECONDS

from tests.sim.echo import exchange, serve_echo
from tests.sim.world import World, WorldNode, apart, pair
from tests.unit.identity.cast import FOUNDER, GUEST, WORKER, key

pytestmark = pytest.mark.virtual


NAMES = {FOUNDER.peer: "anna", WORKER.peer: "bert", GUEST.peer: "anna"}


@pytest.mark.parametrize(
    ("text", "found"), [("bert", WORKER), (str(GUEST.peer), GUEST), (GUEST.peer.short, GUEST)]
)
def test_a_node_is_found_by_its_name_or_id(text: str, found: KeyPair) -> None:
    assert find(text, me=FOUNDER.peer, names=NAMES) == found.peer


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("carl", UnknownPeer, "no node"),
        (str(FOUNDER.peer), UserError, "this node itself"),
        ("anna", UserError, f"2 nodes: this node, {GUEST.peer.short}"),
    ],
)
def test_who_is_not_found_is_explained(text: str, error: type[UserError], words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        find(text, me=FOUNDER.peer, names=NAMES)
    assert type(caught.value) is error and caught.value.hint


async def test_a_mesh_finds_who_was_met_who_is_known_and_who_is_named_besides() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        away, named = world.node("carl"), world.node("dora")
        leader.knows(away)
        assert leader.mesh.find(follower.name) == follower.peer
        assert leader.mesh.find("carl") == away.peer
        with pytest.raises(UnknownPeer):
            leader.mesh.find(str(named.peer))
        assert leader.mesh.find(str(named.peer), also=[named.peer]) == named.peer
        with pytest.raises(UserError, match="itself"):
            leader.mesh.find(leader.name)


async def test_a_peer_is_shown_with_what_its_record_and_its_faults_say() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        status = leader.status_of(follower)
        assert (status.name, status.role, status.state) == (follower.name, "worker", PeerState.CONNECTED)
        assert (status.faults, status.last_fault, status.paused, status.fetching) == (0, "", False, False)
        assert status.software == follower.node.facts.software
        now = leader.node.now()
        leader.node.faults.broke(follower.peer, now, "nonsense")
        for sequence, capabilities in ((5, {"paused": "1"}), (6, {"meshd": "9.9"})):
            leader.book.add(
                PeerRecord.sign(
                    follower.key,
                    chain=follower.chain,
                    name="bert",
                    role="worker",
                    sequence=sequence,
                    capabilities=capabilities,
                )
            )
            status = leader.status_of(follower)
            assert (status.faults, status.last_fault) == (1, "nonsense")
            record = leader.book.record(follower.peer)
            assert record is not None and status.paused == record.is_paused
            assert status.software == (record.software or follower.node.facts.software)
        known = world.node("carl", role="serve")
        leader.knows(known)
        met = leader.node.now()
        leader.mesh.presence.tick(())
        await asyncio.sleep(1)
        status = leader.status_of(known)
        assert (status.name, status.role, status.state) == ("carl", "serve", PeerState.KNOWN)
        assert status.since == met and not status.present
        assert len(leader.mesh.peers()) == 2


async def test_a_peer_that_was_never_met_is_called_as_in_its_record() -> None:
    async with World() as world:
        leader, follower = apart(world)
        leader.knows(follower)
        leader.start()
        await asyncio.sleep(0.1)
        assert leader.mesh.table.get(follower.peer) is not None
        assert (leader.status_of(follower).name, leader.status_of(follower).role) == (follower.name, "worker")
        assert leader.mesh.find(follower.name) == follower.peer


async def test_names_that_look_like_the_id_of_another_are_marked() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        imitator = world.node(str(follower.peer)[:12])
        leader.knows(imitator)
        assert leader.status_of(imitator).name != imitator.name
        assert leader.status_of(follower).name == follower.name


async def test_member_links_and_what_is_heard_are_known_while_there_is_a_peer() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        stranger = world.node("carl")
        member = leader.mesh.member(follower.peer)
        assert member is not None and (member.peer, member.chain) == (follower.peer, follower.chain)
        assert leader.mesh.reachable() == leader.mesh.direct() == [follower.peer]
        assert leader.mesh.hears(follower.peer)
        assert leader.mesh.member(stranger.peer) is None and not leader.mesh.hears(stranger.peer)
        world.cable("anna", "bert").unplug()
        await leader.sees(follower, PeerState.SUSPENDED)
        assert leader.mesh.reachable() == leader.mesh.direct() == [] and not leader.mesh.hears(follower.peer)
        assert leader.mesh.member(follower.peer) is not None


async def test_relayed_peers_are_reached_and_not_direct() -> None:
    async with World() as world:
        leader, follower = await pair(world, kinds=(LinkKind.RELAY,))
        assert leader.mesh.reachable() == [follower.peer] and leader.mesh.direct() == []


async def test_streams_to_nobody_known_break() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        stranger = world.node("carl")
        for service in ("echo", "news", "signal"):
            with pytest.raises(Broken, match="unknown peer"):
                leader.mesh.open_stream(stranger.peer, service, metadata={})
        leader.knows(stranger)
        with pytest.raises(Broken, match="unknown peer"):  # services of the mesh ask for no session
            leader.mesh.open_stream(stranger.peer, "news", metadata={})
        with pytest.raises(Broken, match="not connected"):
            leader.mesh.open_stream(stranger.peer, "echo", metadata={})
        with pytest.raises(Broken, match="unknown peer"):
            leader.mesh.open_stream(leader.peer, "echo", metadata={})
        serve_echo(follower)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={}, bulk=True)
        assert await exchange(stream, b"hello") == b"hello"


async def test_a_ping_tells_the_round_trip_and_its_path() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        seconds, path = await leader.mesh.ping(follower.peer, 1)
        assert 0 <= seconds < 1 and path.selected and path.link.kind is LinkKind.TCP
        world.cable("anna", "bert").stall()
        began = leader.node.now()
        with pytest.raises(Broken, match="no answer"):
            await leader.mesh.ping(follower.peer, 0.5)
        assert leader.node.now() - began == pytest.approx(0.5)
        world.cable("anna", "bert").unplug()
        await leader.sees(follower, PeerState.SUSPENDED)
        with pytest.raises(Broken, match="not connected"):
            await leader.mesh.ping(follower.peer, 5)
        with pytest.raises(Broken, match="unknown peer"):
            await leader.mesh.ping(world.node("carl").peer, 1)


# Goodbyes, bans and records.


async def test_a_node_that_leaves_says_so_and_answers_no_more() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        leader.mesh.say_goodbye("going home", code=Code.LEFT)
        await asyncio.sleep(1)
        assert follower.mesh.peers() == [] and follower.book.record(leader.peer) is None
        assert leader.mesh.reachable() == []
        made = world.cable("anna", "bert").made
        await asyncio.sleep(60)
        assert leader.mesh.reachable() == [], "it makes no session any more"
        assert world.cable("anna", "bert").made <= made + 1


async def test_a_node_that_stops_is_known_as_stopped_and_dialled_again() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        follower.mesh.say_goodbye("an update")
        await asyncio.sleep(0.5)
        status = leader.status_of(follower)
        assert status.stopped == "an update" and status.state is not PeerState.CONNECTED
        assert leader.book.record(follower.peer) is not None


async def test_who_makes_no_new_connections_keeps_what_there_is() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        late = world.node("carl")
        late.knows(leader)
        leader.mesh.stop_connecting()
        late.start()
        await asyncio.sleep(20)
        assert leader.mesh.reachable() == [follower.peer]
        assert late.status_of(leader).state is not PeerState.CONNECTED
        world.cable("anna", "bert").cut()
        await asyncio.sleep(20)
        assert leader.mesh.hears(follower.peer) is False or leader.mesh.reachable() == [follower.peer]


async def test_a_banned_node_is_dropped_at_once_whether_met_or_known() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        known = world.node("carl")
        leader.knows(known)
        version = leader.node.version
        leader.node.learn_bans([world.ban(known)])
        assert [status.peer for status in leader.mesh.peers()] == [follower.peer]
        assert leader.node.version > version
        leader.node.learn_bans([world.ban(follower)])
        assert leader.mesh.peers() == [] and leader.bans_blob
        await asyncio.sleep(1)
        assert follower.status_of(leader).says_banned and follower.status_of(leader).paths == ()


async def test_a_record_that_says_it_has_left_ends_everything_with_that_node() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        third = world.node("carl")
        third.knows(leader)
        third.start()
        await third.sees(leader, PeerState.CONNECTED)
        await leader.sees(third, PeerState.CONNECTED)
        third.host.shown = third.record(9, left=True)
        third.mesh.stop_connecting()
        third.mesh.record_changed()
        await asyncio.sleep(1)
        assert [status.peer for status in leader.mesh.peers()] == [follower.peer]
        assert [status.peer for status in follower.mesh.peers()] == [leader.peer]


async def test_a_connected_node_cannot_be_forgotten_and_another_one_can() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        away = world.node("carl")
        leader.knows(away)
        with pytest.raises(UserError, match="is connected") as caught:
            leader.mesh.forget(follower.peer)
        assert follower.name in caught.value.what and caught.value.hint
        version = leader.node.version
        leader.mesh.forget(away.peer)
        assert [status.peer for status in leader.mesh.peers()] == [follower.peer]
        assert leader.node.version > version and leader.book.record(away.peer) is None


async def test_the_last_session_of_a_silent_node_counts_as_its_presence() -> None:
    async with World() as world:
        leader, follower = await pair(world, grace=10)
        world.cable("anna", "bert").unplug()
        await leader.sees(follower, PeerState.SUSPENDED)
        with pytest.raises(UserError):
            leader.mesh.forget(follower.peer)
        await asyncio.sleep(12)
        leader.mesh.forget(follower.peer)
        assert leader.mesh.peers() == []


async def test_a_greeting_with_another_nodes_record_breaks_the_rules() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        [path] = leader.status_of(follower).paths
        hello = follower.node.hello(current=b"", fresh=b"", chosen=b"")
        leader.mesh.link_made(follower.peer, hello, path.link)
        foreign = replace(hello, record=leader.record(5).encode())
        with pytest.raises(RemoteProtocolError) as caught:
            leader.mesh.link_made(follower.peer, foreign, path.link)
        assert caught.value.code == "record"
        left = replace(hello, record=follower.record(8, left=True).encode())
        leader.mesh.link_made(follower.peer, left, path.link)
        assert leader.mesh.peers() == []


async def test_a_newer_record_in_a_greeting_is_told_to_all() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        [path] = leader.status_of(follower).paths
        version = leader.node.version
        hello = follower.node.hello(current=b"", fresh=b"", chosen=b"")
        leader.mesh.link_made(follower.peer, hello, path.link)
        assert leader.node.version == version, "nothing is new"
        leader.mesh.link_made(follower.peer, replace(hello, record=follower.record(5).encode()), path.link)
        assert leader.node.version > version
        record = leader.book.record(follower.peer)
        assert record is not None and record.sequence == 5


# Whom it dials.


async def test_a_node_that_is_known_by_its_address_is_dialled_at_once() -> None:
    async with World() as world:
        leader, follower = apart(world)
        leader.start()
        follower.start()
        await asyncio.sleep(5)
        leader.book.hint(follower.peer, [follower.place])
        leader.mesh.expect(follower.peer)
        await leader.sees(follower, PeerState.CONNECTED, seconds=1)


@pytest.mark.parametrize("what", ["seen_nearby", "nat_changed", "addresses_changed"])
async def test_what_changes_nearby_has_the_lost_ones_dialled_at_once(what: str) -> None:
    async with World() as world:
        leader, follower = await pair(world, grace=3600)
        cable = world.cable("anna", "bert")
        cable.unplug()
        await asyncio.sleep(300)
        cable.plug()
        dials = leader.dialer.dials
        match what:
            case "seen_nearby":
                leader.mesh.seen_nearby(follower.peer)
            case "nat_changed":
                leader.mesh.nat_changed()
            case _:
                leader.mesh.addresses_changed()
        await asyncio.sleep(0.1)
        assert leader.dialer.dials == dials + 1
        assert leader.status_of(follower).state is PeerState.CONNECTED


@pytest.mark.parametrize(("what", "again"), [("nat_changed", 0), ("addresses_changed", 1)])
async def test_a_link_that_is_there_is_made_once_more_if_our_addresses_have_changed(
    what: str, again: int
) -> None:
    async with World() as world:
        leader, _ = await pair(world)
        await asyncio.sleep(10)
        dials = leader.dialer.dials
        leader.mesh.addresses_changed() if what == "addresses_changed" else leader.mesh.nat_changed()
        await asyncio.sleep(0.1)
        assert leader.dialer.dials == dials + again


async def test_after_a_sleep_links_are_tested_and_the_host_is_told() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        await asyncio.sleep(30)
        dials, woken = leader.dialer.dials, []
        leader.host.woke = lambda: woken.append(leader.node.now())  # type: ignore[method-assign]
        world.cable("anna", "bert").stall()
        leader.boot_ahead += 60
        began = leader.node.now()
        await asyncio.sleep(30)
        assert len(woken) == 1 and leader.dialer.dials > dials
        assert leader.status_of(follower).state is PeerState.CONNECTED
        assert woken[0] - began < 15


async def test_a_peer_of_whom_others_tell_is_dialled_unless_it_is_not_wanted() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        third = world.node("carl")
        third.start()
        follower.book.add(third.record())
        follower.mesh.expect(third.peer)
        await leader.until(lambda: leader.book.record(third.peer) is not None)
        await leader.sees(third, PeerState.CONNECTED)
        assert leader.mesh.table.wish(world.node("dora").peer) is None
        assert leader.mesh.table.wish(third.peer) is leader.mesh.table[third.peer]


# The table.


def admitter(number: int) -> Admitter:
    return Admitter(PeerId(bytes([number]) * 32), b"", True)


async def test_the_table_has_room_for_so_many_and_for_so_many_callers_of_one_issuer() -> None:
    async with World() as world:
        node = world.node("anna")
        node.start()
        await asyncio.sleep(0.01)
        table = node.mesh.table
        assert len(table) == 0 and table.begin(node.peer) is None
        many = [key(f"caller {number}").peer for number in range(TABLED_PEERS.most + 1)]
        begun = [table.begin(one, caller=admitter(1)) for one in many[: TABLED_ADMITTED.most + 1]]
        assert [one is not None for one in begun] == [True] * TABLED_ADMITTED.most + [False]
        assert table.begin(many[0], caller=admitter(1)) is begun[0], "it is there already"
        assert table.begin(many[-1], caller=admitter(2)) is not None, "another issuer's"
        assert table.begin(many[-2]) is not None, "called by nobody"
        assert len(table) == len(list(table)) == TABLED_ADMITTED.most + 2
        for at, one in enumerate(many[TABLED_ADMITTED.most : -2]):
            assert table.begin(one, caller=admitter(10 + at % 200)) is not None or len(table) == 512
        assert len(table) == TABLED_PEERS.most
        assert table.begin(key("one more").peer) is None


async def test_a_permanent_neighbour_has_its_place_beside_all_callers() -> None:
    async with World() as world:
        node, neighbour = world.node("anna"), world.node("bert")
        node.start()
        await asyncio.sleep(0.01)
        by = neighbour.record().chain.admitter
        for number in range(TABLED_ADMITTED.most):
            assert node.mesh.table.begin(key(f"caller {number}").peer, caller=by) is not None
        assert node.mesh.table.begin(neighbour.peer, caller=by) is None
        node.knows(neighbour)
        node.mesh.presence.tick(())
        assert node.mesh.table.begin(neighbour.peer, caller=by) is not None


async def test_nothing_begins_while_the_mesh_does_not_run() -> None:
    async with World() as world:
        node, other = world.node("anna"), world.node("bert")
        node.knows(other)
        assert node.mesh.table.begin(other.peer) is None and node.mesh.table.demand(other.peer) is None
        assert not node.mesh.table.is_linked(other.peer)
        node.start()
        await asyncio.sleep(0.01)
        assert node.mesh.table.begin(other.peer) is node.mesh.table[other.peer]
        assert not node.mesh.table.is_linked(other.peer)
        assert node.mesh.table.demand(world.node("carl").peer) is None
        node.mesh.table.drop(world.node("dora").peer, Code.NONE, "nobody")
        await node.stop()
        assert node.mesh.table.owner is None


async def _says_banned(node: WorldNode, other: WorldNode, heard: list[str]) -> None:
    await node.until(lambda: node.status_of(other).says_banned != "")
    heard.append(node.status_of(other).says_banned)


async def test_a_dropped_peer_hears_why() -> None:
    async with World() as world:
        leader, follower = await pair(world)
        assert leader.mesh.table.is_linked(follower.peer)
        heard: list[str] = []
        world.owner.start(_says_banned(follower, leader, heard), name="watch")
        await asyncio.sleep(0)
        leader.mesh.table.drop(follower.peer, Code.BANNED, "enough of it")
        assert follower.peer not in leader.mesh.table
        await asyncio.sleep(0.5)
        assert heard[0] == "enough of it"


async def test_a_peer_that_fails_unexpectedly_is_begun_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with World() as world:
        leader, follower = await pair(world)
        failing = leader.mesh.table[follower.peer]

        def fails(*_facts: object) -> float:
            raise KeyError("a bug")

        monkeypatch.setattr(leader.host, "is_near", fails)
        world.cable("anna", "bert").cut()  # it has to plan a dial
        await asyncio.sleep(0.01)
        monkeypatch.undo()
        await asyncio.sleep(4.5)
        assert follower.peer not in leader.mesh.table or leader.mesh.table[follower.peer] is not failing
        await asyncio.sleep(10)
        assert leader.mesh.table[follower.peer] is not failing
        assert leader.status_of(follower).state is PeerState.CONNECTED


# A large mesh.

CALM = MuxConfig(ping_interval=20, dead_after=60)


class Crowd:
    """A node with more members than it keeps sessions with; of them some run."""

    def __init__(self, world: World, *, running: int, known: int) -> None:
        self.node = world.node("anna", role="client")
        self.others = [world.node(f"n{number}", role="client") for number in range(running)]
        self.silent = [world.node(f"s{number}", role="client") for number in range(known)]
        everybody = [self.node, *self.others, *self.silent]
        for one in (self.node, *self.others):
            one.knows(*(other for other in everybody if other is not one))

    def start(self) -> None:
        for one in (self.node, *self.others):
            one.start()

    def is_connected(self, other: WorldNode) -> bool:
        return self.node.status_of(other).state is PeerState.CONNECTED


@pytest.fixture
def unwanted(monkeypatch: pytest.MonkeyPatch) -> Callable[[WorldNode, WorldNode], None]:
    """Have the topology keep no session between two nodes, as in a large mesh."""

    def drop(*nodes: WorldNode) -> None:
        for node in nodes:
            monkeypatch.setattr(node.mesh.presence, "keeps", lambda _peer: False)
            monkeypatch.setattr(node.mesh.presence, "wishes", frozenset[PeerId])

    return drop


@pytest.mark.parametrize("by", [0, 1])
async def test_a_session_that_nobody_needs_ends_and_so_does_all_that_is_kept_of_it(
    by: int, unwanted: Callable[[WorldNode, WorldNode], None]
) -> None:
    async with World(CALM) as world:
        nodes = await pair(world)
        near, far = nodes[by], nodes[1 - by]
        unwanted(near, far)
        await asyncio.sleep(SESSION_IDLE_SECONDS - 3)
        assert near.status_of(far).state is PeerState.CONNECTED
        await asyncio.sleep(6)
        assert near.status_of(far).state is PeerState.KNOWN and near.peer not in far.mesh.reachable()
        await asyncio.sleep(SESSION_IDLE_SECONDS)
        assert len(near.mesh.table) == len(far.mesh.table) == 0
        serve_echo(far)
        await near.mesh.reach(far.peer, 5)
        assert near.mesh.reachable() == [far.peer]
        stream = near.mesh.open_stream(far.peer, "echo", metadata={})
        await asyncio.sleep(DEMAND_SECONDS + 2 * SESSION_IDLE_SECONDS)
        assert await exchange(stream, b"hello") == b"hello", "a stream is open"
        stream.reset(1, "done")
        await asyncio.sleep(DEMAND_SECONDS + SESSION_IDLE_SECONDS - 4)
        assert near.mesh.reachable() == [far.peer]
        await asyncio.sleep(8)
        assert near.mesh.reachable() == far.mesh.reachable() == []


async def test_a_session_on_demand_is_there_at_once_if_it_was(
    unwanted: Callable[[WorldNode, WorldNode], None],
) -> None:
    async with World(CALM) as world:
        leader, follower = await pair(world)
        unwanted(leader, follower)
        await asyncio.sleep(SESSION_IDLE_SECONDS - 10)
        began = leader.node.now()
        seconds, _ = await leader.mesh.ping(follower.peer, 5)
        assert leader.node.now() - began == seconds
        await asyncio.sleep(DEMAND_SECONDS)
        assert leader.mesh.reachable() == [follower.peer], "it was used"


async def test_who_cannot_be_reached_in_time_is_explained() -> None:
    async with World(CALM) as world:
        crowd = Crowd(world, running=2, known=DEGREE + 4)
        crowd.start()
        await asyncio.sleep(20)
        node = crowd.node
        gone = next(one for one in crowd.silent if one.peer not in node.mesh.presence.wishes())
        began = node.node.now()
        with pytest.raises(Broken, match="not connected"):
            await node.mesh.reach(gone.peer, 3)
        assert node.node.now() - began == pytest.approx(3)
        with pytest.raises(Broken, match="unknown peer"):
            await node.mesh.reach(world.node("zoe").peer, 3)


async def test_members_that_do_not_run_are_shown_as_lost_and_may_be_forgotten() -> None:
    async with World(CALM) as world:
        crowd = Crowd(world, running=2, known=DEGREE)
        crowd.start()
        await asyncio.sleep(90)
        node = crowd.node
        away = [one for one in crowd.silent if node.status_of(one).state is PeerState.LOST]
        assert len(away) == len(crowd.silent)
        for one in away:
            status = node.status_of(one)
            assert not status.present and status.since == node.mesh.presence.away_since(one.peer)
        there = [one for one in crowd.others if node.status_of(one).present or crowd.is_connected(one)]
        assert there == crowd.others
        node.mesh.forget(away[0].peer)
        assert len(node.mesh.peers()) == len(crowd.others) + len(crowd.silent) - 1
