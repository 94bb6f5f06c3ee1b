"""Several kinds of link between two nodes on a virtual clock: raced, upgraded, replaced."""

import asyncio
from collections.abc import Sequence

import pytest
from meshd.base.errors import Broken, Refused
from meshd.identity.keys import PeerId
from meshd.link.interface import Link, LinkKind
from meshd.peer.interface import PathStatus, PeerState, Stream
from meshd.peer.path_selection import MOVE_PAUSE, STANDBY_FOR
from meshd.wire.address import Candidate

from tests.sim.echo import exchange, serve_echo
from tests.sim.world import World, WorldNode, apart

TCP, WEBRTC, QUIC, RELAY = LinkKind.TCP, LinkKind.WEBRTC, LinkKind.QUIC, LinkKind.RELAY
Pair = tuple[WorldNode, WorldNode]


def now() -> float:
    return asyncio.get_running_loop().time()


def unplug(world: World, *kinds: LinkKind) -> None:
    for kind in kinds:
        world.cable("anna", "bert", kind).unplug()


def silence(world: World, kind: LinkKind, *, up: bool = True, down: bool = True) -> None:
    """Silence the links of this kind; nothing new comes through."""
    cable = world.cable("anna", "bert", kind)
    cable.stall(up=up, down=down)
    cable.unplugged = True


def begin(pair: Pair, *, both: bool = True) -> None:
    leader, follower = pair
    for node, other in ((leader, follower), (follower, leader)):
        serve_echo(node)
        if both or node is leader:
            node.knows(other)
        node.start()


def carrier(node: WorldNode, other: WorldNode) -> PathStatus | None:
    return next((path for path in node.status_of(other).paths if path.selected), None)


def kinds(node: WorldNode, other: WorldNode) -> list[LinkKind]:
    """Return the kinds of all links, the one that carries data first."""
    return [path.link.kind for path in node.status_of(other).paths]


async def carried_by(pair: Pair, kind: LinkKind, *, seconds: float) -> float:
    """Wait until both sides use this kind; returns how long that took."""
    since = now()
    for node, other in (pair, pair[::-1]):

        def there(node: WorldNode = node, other: WorldNode = other) -> bool:
            used = carrier(node, other) if node.mesh.peers() else None
            return used is not None and used.link.kind is kind

        await node.until(there, seconds=seconds - (now() - since))
    return now() - since


def switches(node: WorldNode, other: WorldNode) -> int:
    streams = node.mesh.table[other.peer].streams
    assert streams is not None
    return streams.session.status().switches


@pytest.mark.virtual
async def test_the_first_link_carries_and_better_ones_take_over() -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(TCP, RELAY, WEBRTC))
        for node in pair:
            for kind, seconds in ((RELAY, 0.05), (WEBRTC, 0.3), (TCP, 1.0)):
                node.dialers[kind].seconds = seconds
        begin(pair)
        assert await carried_by(pair, RELAY, seconds=0.1) < 0.06
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(stream, b"relayed") == b"relayed"
        assert await carried_by(pair, WEBRTC, seconds=1) < 0.5
        assert await exchange(stream, b"punched") == b"punched"
        assert await carried_by(pair, TCP, seconds=1) < 0.8
        assert await exchange(stream, b"direct") == b"direct"
        assert leader.status_of(follower).resumes == 0
        await asyncio.sleep(STANDBY_FOR + 5)
        for node in pair:
            for dialer in node.dialers.values():
                dialer.dials = 0
        await asyncio.sleep(2 * MOVE_PAUSE)
        assert kinds(leader, follower) == kinds(follower, leader) == [TCP]
        assert [d.dials for node in pair for d in node.dialers.values()] == [0] * 6
        assert await exchange(stream, b"still") == b"still"


@pytest.mark.virtual
async def test_a_member_that_dials_us_first_is_dialled_as_soon_as_its_record_is_known() -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(RELAY, WEBRTC))
        follower.knows(leader)  # as one that has just joined at the leader
        for node in pair:
            serve_echo(node)
            node.start()
        assert await carried_by(pair, WEBRTC, seconds=1) < 0.5


@pytest.mark.virtual
async def test_where_tcp_connects_at_once_the_heavy_kinds_are_never_begun() -> None:
    async with World() as world:
        pair = apart(world, kinds=(TCP, RELAY, WEBRTC, QUIC))
        for node in pair:
            node.dialers[TCP].seconds = 0.1
            node.dialers[RELAY].seconds = 0.2
        begin(pair)
        await carried_by(pair, TCP, seconds=1)
        for _ in range(10):
            await asyncio.sleep(30)
            world.cable("anna", "bert").cut()
        for node in pair:
            assert node.dialers[WEBRTC].dials == node.dialers[QUIC].dials == 0
            assert node.dialers[TCP].dials >= 10


@pytest.mark.parametrize("after", [0.0, 20.0, 1000.0])
@pytest.mark.virtual
async def test_relayed_becomes_direct_within_a_minute_of_its_being_possible(after: float) -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(TCP, RELAY, WEBRTC))
        unplug(world, TCP, WEBRTC)
        for node in pair:
            node.dialers[WEBRTC].seconds = 10  # that a failure takes
        begin(pair)
        await carried_by(pair, RELAY, seconds=1)
        stream = follower.mesh.open_stream(leader.peer, "echo", metadata={})
        await asyncio.sleep(after)
        status = leader.status_of(follower)
        assert "tcp" in status.why_not_direct and ("webrtc" in status.why_not_direct or after < 10)
        for node in pair:
            node.dialers[WEBRTC].dials = 0
        await asyncio.sleep(120)
        if after > 500:  # politely: both sides together no more than each 15 s
            assert sum(node.dialers[WEBRTC].dials for node in pair) <= 8
        world.cable("anna", "bert", WEBRTC).plug()
        assert await carried_by(pair, WEBRTC, seconds=100) < 60
        assert await exchange(stream, b"x" * 100_000) == b"x" * 100_000
        assert leader.status_of(follower).why_not_direct == ""


@pytest.mark.virtual
async def test_what_changes_is_tried_at_once() -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(RELAY, WEBRTC))
        unplug(world, WEBRTC)
        begin(pair)
        await carried_by(pair, RELAY, seconds=1)
        for node, change in (
            (follower, follower.mesh.addresses_changed),
            (leader, leader.mesh.nat_changed),
            (leader, lambda: leader.mesh._heard(follower.record(50))),
        ):
            await asyncio.sleep(400)
            world.cable("anna", "bert", WEBRTC).plug()
            change()
            assert await carried_by(pair, WEBRTC, seconds=5) < 1, node.name
            await asyncio.sleep(MOVE_PAUSE)  # so that it is no path that dies young
            unplug(world, WEBRTC)
            await carried_by(pair, RELAY, seconds=5)


@pytest.mark.parametrize(("up", "down"), [(True, True), (True, False), (False, True)])
@pytest.mark.virtual
async def test_a_dead_path_is_noticed_and_replaced_within_five_seconds(up: bool, down: bool) -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(RELAY, WEBRTC))
        begin(pair)
        await carried_by(pair, WEBRTC, seconds=5)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        await asyncio.sleep(20)
        silence(world, WEBRTC, up=up, down=down)
        assert await carried_by(pair, RELAY, seconds=10) < 5
        assert await exchange(stream, b"goes on") == b"goes on"
        await asyncio.sleep(5)
        assert kinds(leader, follower) == kinds(follower, leader) == [RELAY]
        for node, other in (pair, pair[::-1]):
            assert node.status_of(other).resumes == 0  # the relay stood by


@pytest.mark.parametrize(("up", "down"), [(True, True), (True, False), (False, True)])
@pytest.mark.virtual
async def test_a_dead_path_without_a_standby_is_replaced_within_five_seconds(up: bool, down: bool) -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(TCP,))
        begin(pair)
        await carried_by(pair, TCP, seconds=5)
        stream = leader.mesh.open_stream(follower.peer, "echo", metadata={})
        assert await exchange(stream, b"before") == b"before"
        await asyncio.sleep(20)
        cable = world.cable("anna", "bert")
        cable.stall(up=up, down=down)
        cable.ups.clear()
        cable.downs.clear()  # the next pipes flow
        since = now()
        assert await exchange(stream, b"goes on") == b"goes on"
        assert now() - since < 5
        await asyncio.sleep(10)
        assert kinds(leader, follower) == kinds(follower, leader) == [TCP]


async def talk(stream: Stream, until: asyncio.Event) -> int:
    """Whatever happens below, each answer is complete and equal; returns how many there were."""
    rounds = 0
    while not until.is_set():
        data = rounds.to_bytes(4, "big") * 5000
        assert await exchange(stream, data) == data
        rounds += 1
        await asyncio.sleep(0.2)
    return rounds


@pytest.mark.virtual
async def test_one_stream_through_relay_punched_blocked_and_direct_again() -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(TCP, RELAY, WEBRTC))
        unplug(world, TCP, WEBRTC)
        begin(pair)
        await carried_by(pair, RELAY, seconds=1)
        over = asyncio.Event()
        stream = follower.mesh.open_stream(leader.peer, "echo", metadata={})
        talking = world.owner.start(talk(stream, over), name="talk")
        await asyncio.sleep(10)
        world.cable("anna", "bert", WEBRTC).plug()
        await carried_by(pair, WEBRTC, seconds=60)
        await asyncio.sleep(15)
        for _ in range(2):
            silence(world, WEBRTC)  # udp is blocked
            assert await carried_by(pair, RELAY, seconds=10) < 5
            await asyncio.sleep(25)
            world.cable("anna", "bert", WEBRTC).flow()
            world.cable("anna", "bert", WEBRTC).plug()
            assert await carried_by(pair, WEBRTC, seconds=100) < 60
            await asyncio.sleep(15)
        over.set()
        assert await talking > 200
        for node, other in (pair, pair[::-1]):
            assert node.status_of(other).resumes == 0
            assert len(node.mesh.peers()) == 1


@pytest.mark.virtual
async def test_a_path_that_stalls_again_and_again_does_not_drag_the_data_along() -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(RELAY, WEBRTC))
        begin(pair)
        await carried_by(pair, WEBRTC, seconds=5)
        before = switches(leader, follower)
        for _ in range(60):
            world.cable("anna", "bert", WEBRTC).stall()
            await asyncio.sleep(3.5)
            world.cable("anna", "bert", WEBRTC).flow()
            await asyncio.sleep(16.5)
        assert 2 <= switches(leader, follower) - before <= 8
        await carried_by(pair, WEBRTC, seconds=60)
        await asyncio.sleep(600)
        assert switches(leader, follower) - before <= 9
        assert sorted(kinds(leader, follower)) == sorted(kinds(follower, leader)) == [RELAY, WEBRTC]


@pytest.mark.virtual
async def test_both_dial_every_kind_at_once_and_one_of_each_is_kept() -> None:
    async with World() as world:
        pair = apart(world, kinds=(RELAY, WEBRTC))
        begin(pair)
        cables = [world.cable("anna", "bert", kind) for kind in (RELAY, WEBRTC)]
        doubles = 0
        for _ in range(40):
            await carried_by(pair, WEBRTC, seconds=60)
            await asyncio.sleep(70)  # older than a path that dies young
            ids = [node.mesh.table[far.peer].session_id for node, far in (pair, pair[::-1])]
            assert ids[0] == ids[1] != b""
            for node, far in (pair, pair[::-1]):
                assert kinds(node, far) == [WEBRTC, RELAY]
                assert len(node.mesh.peers()) == 1
            doubles += sum(cable.made for cable in cables) > 2
            for cable in cables:
                cable.made = 0
                cable.cut()
        assert doubles > 20  # else this was no race


@pytest.mark.virtual
async def test_a_relay_stands_by_behind_a_path_that_a_router_may_end_and_comes_again() -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(WEBRTC, RELAY))
        unplug(world, RELAY)
        begin(pair)
        await carried_by(pair, WEBRTC, seconds=5)
        await asyncio.sleep(100)
        world.cable("anna", "bert", RELAY).plug()
        await asyncio.sleep(310)
        assert kinds(leader, follower) == kinds(follower, leader) == [WEBRTC, RELAY]


@pytest.mark.virtual
async def test_a_peer_that_refuses_is_refused_by_all_ways_with_growing_pauses() -> None:
    async with World() as world:
        leader, follower = apart(world, kinds=(TCP, RELAY))
        follower.bans.merge([world.ban(leader)])
        leader.knows(follower)
        follower.start()
        leader.start()
        await asyncio.sleep(600)
        assert 4 <= leader.dialers[TCP].dials <= 14
        assert leader.status_of(follower).state is not PeerState.CONNECTED
        assert "banned" in leader.status_of(follower).says_banned
        with pytest.raises(Broken):
            leader.mesh.open_stream(follower.peer, "echo", metadata={})


@pytest.mark.virtual
async def test_a_stranger_that_refuses_at_the_peers_address_holds_up_nothing_else() -> None:
    async with World() as world:
        leader, follower = pair = apart(world, kinds=(TCP, WEBRTC))

        async def refuse(_peer: PeerId, _candidates: Sequence[Candidate]) -> Link:
            leader.dialers[TCP].dials += 1
            raise Refused("another mesh lives here", code="mesh")

        leader.dialers[TCP].dial = refuse  # type: ignore[method-assign,assignment]
        leader.knows(follower)
        follower.start()
        leader.start()
        assert await carried_by(pair, WEBRTC, seconds=5) < 1
        await asyncio.sleep(60)
        assert leader.dialers[TCP].dials <= 5
