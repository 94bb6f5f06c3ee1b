"""News that one cannot read cost nobody the rest, and a stream of news that is lost comes back."""

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import Broken, Refused, RemoteProtocolError
from meshd.base.peer_limits import NEWS_STREAMS
from meshd.identity.membership import Statement
from meshd.identity.record import Away, PeerRecord, Presence
from meshd.identity.revocation import Ban, digest_of
from meshd.peer.interface import PeerState, Stream
from meshd.peer.news import BanItem, Item, LifeItem, Told
from meshd.wire.limits import MAX_BAN_BYTES, MAX_RECORD_BYTES, MAX_SEQUENCE
from meshd.wire.message import Value, pack
from meshd.wire.news import NEWS_SERVICE, AwayNews, BanNews, PresenceNews, RecordNews, decode

from tests.conformance.nodes import fresh_key
from tests.sim.gossip import Teller
from tests.sim.loop import run
from tests.sim.test_gossip_shares import heard_by
from tests.sim.test_peers_many import MANY
from tests.sim.world import World, WorldNode, pair

EDGES = [edge + by for edge in (0, 1 << 62, 1 << 63, (1 << 64) - 2) for by in (-1, 0, 1) if edge + by >= 0]
SEQUENCES = st.integers(0, (1 << 64) - 1) | st.sampled_from(EDGES)


def raw_record(node: WorldNode, sequence: int, *, later: bytes = b"") -> bytes:
    """Return a record of any number, signed by the node itself."""
    fields: dict[str, Value] = {
        "peer": node.peer.raw,
        "mesh": node.world.root.mesh.raw,
        "name": node.name,
        "role": "worker",
        "seq": sequence,
        "at": b"",
        "relays": [],
        "caps": {},
        "chain": node.chain.encode(),
        "later": later,
    }
    return Statement.make(node.key, "meshd record v1", pack(fields)).encode()


def raw_ban(world: World, *, later: bytes) -> bytes:
    """Return a ban of somebody, by the root."""
    fields: dict[str, Value] = {
        "mesh": world.root.mesh.raw,
        "kind": "node",
        "target": fresh_key().peer.raw,
        "issuer": world.root.root.peer.raw,
        "chain": b"",
        "evidence": b"",
        "at": 0,
        "later": later,
    }
    return Statement.make(world.root.root, "meshd ban v1", pack(fields)).encode()


def understood(message: bytes, world: World) -> bool:
    """As one takes it that it is told to. Raises RemoteProtocolError where that is refused."""
    match decode(message):
        case RecordNews(record=raw):
            PeerRecord.decode(raw).verify(world.root.mesh)
        case BanNews(ban=raw):
            Ban.decode(raw)
        case PresenceNews(entries=entries):
            return all(Presence.from_bytes(raw).holds(world.root.mesh) for raw in entries)
        case AwayNews(away=raw):
            return Away.from_bytes(raw).holds(world.root.mesh)
        case _:
            return False
    return True


@settings(max_examples=60, deadline=None)
@given(SEQUENCES, SEQUENCES, st.integers(0, MAX_RECORD_BYTES), st.integers(0, MAX_BAN_BYTES))
def test_what_a_node_tells_on_it_would_take_itself(theirs: int, own: int, pad: int, ban_pad: int) -> None:
    """Whatever its own record and others' say, it says nothing that its own parser refuses."""

    async def main() -> None:
        async with World() as world:
            node, other = world.node("anna"), world.node("bert")
            news, gossip = node.mesh.news, node.mesh.presence.gossip
            items: list[Item] = []
            try:
                node.book.add(PeerRecord.decode(raw_record(other, theirs, later=bytes(pad))))
                items += [other.peer, LifeItem(other.peer)]
            except RemoteProtocolError:
                pass
            try:
                node.host.shown = PeerRecord.decode(raw_record(node, own))
                items += [node.peer, LifeItem(node.peer)]
            except RemoteProtocolError:
                pass
            ban = raw_ban(world, later=bytes(ban_pad))
            if not node.node.learn_bans([ban]):
                items.append(BanItem(digest_of(ban)))
            gossip.report(other.peer, 0)
            gossip._accused = True
            gossip.refute(0)
            told = [word for item in items for word in news._words(item, fresh_key().peer, Told())]
            assert len(told) >= len(items), "each, and what was said of both lives"
            assert all(understood(message, world) for message in told)

    run(main())


@pytest.mark.virtual
async def test_a_record_whose_number_is_too_great_for_others_silences_nobody() -> None:
    """Neighbours of one that published it and went away say so, to each other."""
    for sequence in (MAX_SEQUENCE, MAX_SEQUENCE + 1, 1 << 63):
        async with World() as world:
            nodes = [world.node(f"n{number}") for number in range(MANY)]
            liar = nodes.pop()
            liar.host.shown = replace(
                liar.record(),
                sequence=sequence,
                statement=Statement.decode(raw_record(liar, sequence), limit=MAX_RECORD_BYTES),
            )
            for node in (liar, *nodes[1:]):
                node.knows(nodes[0])
            for node in (liar, *nodes):
                node.start()
            await asyncio.sleep(90)
            await liar.stop()
            await asyncio.sleep(60)
            nodes[0].node.learn_bans([world.ban(world.node("stranger"))])
            nodes[0].node.changed()
            await asyncio.sleep(30)
            assert [len(node.bans) for node in nodes] == [1] * len(nodes)


@pytest.mark.virtual
async def test_news_that_cannot_be_read_do_not_end_the_rest() -> None:
    """Who tells them may have them from another one: they are counted, as those that do not hold."""
    async with World() as world:
        _, victim, _, teller = await heard_by(world)
        number = b"\xff" * 8
        unread = [
            PresenceNews((bytes(32) + number + bytes(68),)).encode(),
            AwayNews(bytes(32) + number + bytes(100)).encode(),
            RecordNews(b"no record").encode(),
            BanNews(b"no ban").encode(),
            pack({"type": "away", "away": b"too short"}),
            b"no message",
        ]
        good = BanNews(world.ban(world.node("stranger"))).encode()
        await teller.tell(victim, [*unread, good])
        await victim.until(lambda: len(victim.bans) == 1, seconds=5)


def _news_of(node: WorldNode, other: WorldNode) -> Stream | None:
    streams = node.mesh.table[other.peer].streams
    assert streams is not None, "one session throughout"
    return next((one for one in streams.by_id.values() if one.service == NEWS_SERVICE), None)


@pytest.mark.parametrize("resets", ["leader", "follower"])
@pytest.mark.virtual
async def test_a_stream_of_news_that_was_lost_is_opened_again(resets: str) -> None:
    """Later each time, so a side that never listens costs little; once it does, news come through."""
    async with World() as world:
        leader, follower = await pair(world)
        judge, other = (leader, follower) if resets == "leader" else (follower, leader)
        session = leader.mesh.table[follower.peer].session_id
        lost = 0
        for _ in range(3600):
            stream = _news_of(judge, other)
            if stream is not None:
                stream.reset(1, "lost")
                lost += 1
            await asyncio.sleep(1)
        assert 12 <= lost <= 30, "in an hour"
        for node in (leader, follower):
            node.node.learn_bans([world.ban(world.node(f"stranger of {node.name}"))])
        for node in (leader, follower):
            await node.until(lambda node=node: len(node.bans) == 2, seconds=301)  # type: ignore[misc]
        assert leader.mesh.table[follower.peer].session_id == session


@pytest.mark.virtual
async def test_one_that_opens_streams_of_news_one_after_the_other_is_refused() -> None:
    async with World() as world:
        leader, follower = (world.node(name) for name in ("anna", "bert"))
        if leader.peer < follower.peer:
            leader, follower = follower, leader
        teller = Teller(leader)
        leader.knows(follower)
        follower.start()
        leader.start()
        await follower.sees(leader, PeerState.CONNECTED)
        (await teller.to(follower)).stream.reset(1, "over")
        taken, began = 0, asyncio.get_running_loop().time()
        while asyncio.get_running_loop().time() < began + 120:
            stream = leader.mesh.open_stream(follower.peer, NEWS_SERVICE, metadata={})
            try:
                await stream.accepted()
                taken += 1
            except (Broken, Refused):
                pass
            stream.reset(1, "again")
            await asyncio.sleep(0.2)
        assert 1 <= taken <= NEWS_STREAMS.burst + 120 * NEWS_STREAMS.per_second + 1
