"""Test what one member's news may cost the others: checks, memory, what is told on, and the loop's turns."""

import asyncio
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from meshd.base.errors import Broken, Refused
from meshd.base.peer_limits import (
    DIALS,
    INVITER_RECORDS,
    NEWS_CHECKS,
    NEWS_FAULTS,
    NEWS_HEARD,
    NEWS_OF_ONE,
    RETRIES,
    TABLED_ADMITTED,
)
from meshd.identity import revocation
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter
from meshd.identity.record import PeerRecord
from meshd.identity.revocation import Ban
from meshd.link.interface import Link
from meshd.peer import mesh as mesh_module
from meshd.peer.interface import PeerState, Stream
from meshd.peer.mesh import MESH_LOOK_SECONDS, SESSION_IDLE_SECONDS
from meshd.peer.news import SLACK, BanItem, Told
from meshd.wire.address import Candidate
from meshd.wire.news import NEWS_SERVICE, BanNews, RecordNews

from tests.conformance.nodes import fresh_key
from tests.sim.gossip import Inviter, Teller
from tests.sim.loop import run
from tests.sim.world import World, WorldNode, pair


async def heard_by(world: World) -> tuple[WorldNode, WorldNode, WorldNode, Teller]:
    """A hostile member, one that is connected with it, and a third that is connected with that one only."""
    hostile, victim, third = world.node("hostile"), world.node("victim"), world.node("third")
    world.cable("hostile", "third").unplug()
    for end in (hostile, third):
        end.knows(victim)
    teller = Teller(hostile)
    for node in (victim, hostile, third):
        node.start()
    for end in (hostile, third):
        await end.sees(victim, PeerState.CONNECTED)
    return hostile, victim, third, teller


def _invalid_bans(world: World) -> Iterator[bytes]:
    good = Ban.decode(world.ban(world.node("stranger")))
    for number in itertools.count():
        signature = number.to_bytes(64, "big")
        yield BanNews(replace(good.statement, signature=signature).encode()).encode()


@pytest.mark.virtual
async def test_bans_that_do_not_hold_end_the_news_and_are_not_remembered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    checked = 0
    real = revocation._rank

    def rank(one: Ban) -> int:
        nonlocal checked
        checked += 1
        return real(one)

    monkeypatch.setattr(revocation, "_rank", rank)
    async with World() as world:
        _, victim, _, teller = await heard_by(world)
        with pytest.raises((Broken, Refused)):
            await teller.tell(victim, itertools.islice(_invalid_bans(world), 20_000))
        assert checked <= NEWS_FAULTS.burst + 2
        assert len(victim.bans) == 0 and victim.bans_blob is None


def test_what_a_member_told_is_remembered_in_bounds() -> None:
    told = Told()
    for number in range(3 * NEWS_HEARD.most):
        told.hear(BanItem(number.to_bytes(32, "big")), (0,))
    assert len(told.heard) == NEWS_HEARD.most
    assert told.knows(BanItem((3 * NEWS_HEARD.most - 1).to_bytes(32, "big")), (0,))


@pytest.mark.virtual
async def test_bans_of_an_inviter_beyond_its_share_are_not_told_on() -> None:
    """Tell on no ban that the set does not keep: they were remembered for each stream, and for ever."""
    async with World() as world:
        _, victim, third, teller = await heard_by(world)
        inviter = Inviter(world)
        count = revocation.MAX_BANS_PER_ISSUER + SLACK + 40
        await teller.tell(victim, (BanNews(inviter.ban()).encode() for _ in range(count)))
        await asyncio.sleep(60)
        assert len(victim.bans) == len(third.bans) == revocation.MAX_BANS_PER_ISSUER
        assert victim.bans.digest() == third.bans.digest()
        ledger = victim.mesh.news.ledger
        assert len(ledger.journal) <= revocation.MAX_BANS_PER_ISSUER + SLACK + 4


@pytest.mark.virtual
async def test_a_session_has_one_stream_of_news() -> None:
    async with World() as world:
        hostile, victim, _, teller = await heard_by(world)
        await teller.to(victim)
        refused = 0
        for _ in range(50):
            stream = hostile.mesh.open_stream(victim.peer, NEWS_SERVICE, metadata={})
            try:
                await stream.accepted()
            except (Refused, Broken):
                refused += 1
        assert refused >= 49, "one that it opens, at most, beside the one that the victim opened"


@pytest.mark.virtual
async def test_a_record_that_changes_all_the_time_is_told_on_now_and_then() -> None:
    async with World() as world:
        hostile, victim, third, teller = await heard_by(world)
        await third.until(lambda: third.book.record(hostile.peer) is not None)
        told: list[int] = []
        add = third.book.add

        def count(record: PeerRecord, *, from_itself: bool = False) -> bool:
            if record.peer == hostile.peer:
                told.append(record.sequence)
            return add(record, from_itself=from_itself)

        third.book.add = count  # type: ignore[method-assign]
        began = asyncio.get_running_loop().time()
        last = 400
        await teller.tell(
            victim, (RecordNews(hostile.record(n).encode()).encode() for n in range(2, last + 1))
        )

        def heard_last() -> bool:
            record = third.book.record(hostile.peer)
            return record is not None and record.sequence == last

        await third.until(heard_last, seconds=15)  # the newest, however many there were
        took = asyncio.get_running_loop().time() - began
        assert len(told) <= NEWS_OF_ONE.burst + took * NEWS_OF_ONE.per_second + 1, told


@pytest.mark.virtual
async def test_a_record_that_changes_all_the_time_is_not_dialled_each_time() -> None:
    async with World() as world:
        _, victim, _, teller = await heard_by(world)
        ghost = world.node("ghost")
        before, began = victim.dialer.dials, asyncio.get_running_loop().time()
        for number in range(2, 300):
            await teller.tell(victim, [RecordNews(ghost.record(number).encode()).encode()])
            await asyncio.sleep(0.1)
        took = asyncio.get_running_loop().time() - began
        dials = victim.dialer.dials - before
        by_itself = 4  # in that time, after one that failed
        assert 1 <= dials <= by_itself * (RETRIES.burst + took * RETRIES.per_second + 1)


def test_a_member_that_leaves_and_returns_has_no_more_addresses_dialled_than_one_that_stays() -> None:
    async def main() -> None:
        async with World() as world:
            _, victim, _, teller = await heard_by(world)
            ghost = world.node("ghost")
            dialled = 0
            real = victim.dialer.dial

            async def dial(peer: PeerId, candidates: Sequence[Candidate]) -> Link:
                nonlocal dialled
                dialled += len(candidates) if peer == ghost.peer else 0
                return await real(peer, candidates)

            victim.dialer.dial = dial  # type: ignore[method-assign]
            began = asyncio.get_running_loop().time()
            for number in range(2, 402, 2):
                places = tuple(Candidate(f"8.8.{number & 255}.{host}", 7447) for host in range(1, 9))
                here = PeerRecord.sign(
                    ghost.key,
                    chain=ghost.chain,
                    name="ghost",
                    role="worker",
                    sequence=number,
                    candidates=places,
                )
                for record in (here, ghost.record(number + 1, left=True)):
                    await teller.tell(victim, [RecordNews(record.encode()).encode()])
                    await asyncio.sleep(0.2)
            took = asyncio.get_running_loop().time() - began
            assert DIALS.burst < dialled <= DIALS.burst + took * DIALS.per_second

    run(main())


@pytest.mark.virtual
async def test_a_peer_that_was_linked_is_dialled_although_others_use_up_its_host() -> None:
    async with World() as world:
        here, there = await pair(world)
        rates, now = here.mesh.table.rates, asyncio.get_running_loop().time()
        for number in range(2000):
            issuer = Admitter(PeerId(number.to_bytes(32, "big")), b"", False)
            rates.may_dial(issuer.issuer, issuer, there.place, now)
        assert not rates.may_dial(fresh_key().peer, None, there.place, now)
        assert rates.may_dial(there.peer, there.chain.admitter, there.place, now)


def test_records_are_checked_at_a_pace_and_others_have_their_turns() -> None:
    """As many keys as an inviter likes: checked so many a second, and its share of the book is its own."""

    async def main() -> None:
        async with World() as world:
            _, victim, _, teller = await heard_by(world)
            inviter = Inviter(world)
            records = [inviter.record() for _ in range(1500)]
            turns = most = before = 0

            async def watch() -> None:
                nonlocal turns, most, before
                limits = victim.mesh.news.limits.of(teller._node.peer, 0)
                while True:
                    turns += 1
                    most, before = max(most, int(limits.checked - before)), int(limits.checked)
                    await asyncio.sleep(0)
                    if turns % 100 == 0:  # the clock goes on when all wait
                        await asyncio.sleep(0.01)
                        before = int(limits.checked)

            began = asyncio.get_running_loop().time()
            watching = world.owner.start(watch(), name="watch")
            await teller.tell(victim, (RecordNews(record.encode()).encode() for record in records))
            limits = victim.mesh.news.limits.of(teller._node.peer, 0)
            took = asyncio.get_running_loop().time() - began
            watching.cancel()
            assert limits.checked <= NEWS_CHECKS.burst + NEWS_CHECKS.per_second * took + 1
            assert most <= 3, "between two turns of another task"
            await asyncio.sleep(30)
            kept = {record.peer for record in victim.book.records()}
            assert len(kept & {record.peer for record in records}) == INVITER_RECORDS.most
            late = world.node("late")
            assert victim.book.add(late.record()), "by the root"

    run(main())


@pytest.mark.virtual
async def test_callers_of_one_admitter_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mesh_module, "TABLED_ADMITTED", replace(TABLED_ADMITTED, most=3))
    async with World() as world:
        victim = world.node("victim")
        victim.start()
        victim.mesh.presence.large = True
        victim.mesh.presence.tick = lambda connected: None  # type: ignore[method-assign]
        callers = [world.node(f"s{number}") for number in range(6)]
        for caller in callers:
            caller.knows(victim)
            caller.start()
        await asyncio.sleep(20)
        assert len(victim.mesh.table) == 3


@pytest.mark.virtual
async def test_callers_with_a_stream_each_leave_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a large mesh: a stream is a reason to keep a session, and no standing of its own."""
    monkeypatch.setattr(mesh_module, "TABLED_ADMITTED", replace(TABLED_ADMITTED, most=3))
    async with World() as world:
        victim = world.node("victim")

        async def hold(stream: Stream) -> None:
            await stream.read()

        victim.mesh.handle("hold", hold, allow=lambda _member, _metadata: None)
        victim.start()
        victim.mesh.presence.large = True
        victim.mesh.presence.tick = lambda connected: None  # type: ignore[method-assign]
        in_use = 0
        for number in range(6):
            caller = world.node(f"s{number}")
            caller.knows(victim)
            caller.start()
            await asyncio.sleep(10)
            if caller.mesh.reachable():
                await caller.mesh.open_stream(victim.peer, "hold", metadata={}).accepted()
                in_use += 1
                await asyncio.sleep(2 * MESH_LOOK_SECONDS)
        assert in_use == len(victim.mesh.table) == 3


@pytest.mark.virtual
async def test_callers_that_show_no_record_of_their_own_are_no_members(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They would never be in the book: the mesh would stay small, and everybody in it be wanted for ever."""
    monkeypatch.setattr(mesh_module, "TABLED_ADMITTED", replace(TABLED_ADMITTED, most=3))
    async with World() as world:
        victim = world.node("victim")
        victim.start()
        callers = [world.node(f"s{number}") for number in range(6)]
        for caller in callers:
            caller.host.shown = victim.record()
            caller.knows(victim)
            Teller(caller)  # nor do its news tell it
            caller.start()
        most = 0
        for _ in range(120):
            most = max(most, len(victim.mesh.table))
            assert not any(one.state is PeerState.CONNECTED for one in victim.mesh.peers())
            await asyncio.sleep(0.5)
        assert most == 3
        for caller in callers:
            await caller.stop()
        await asyncio.sleep(SESSION_IDLE_SECONDS + 2 * MESH_LOOK_SECONDS)
        assert victim.mesh.table == {}
        honest = world.node("honest")
        honest.knows(victim)
        honest.start()
        await victim.sees(honest, PeerState.CONNECTED)


@pytest.mark.virtual
async def test_members_that_nobody_needs_cost_a_line_in_the_book() -> None:
    async with World() as world:
        node = world.node("n")
        others = [world.node(f"m{number}") for number in range(60)]
        node.knows(*others)
        node.start()
        await asyncio.sleep(5)
        assert len(node.mesh.table) <= 20
        shown = {status.peer: status for status in node.mesh.peers()}
        assert shown.keys() == {one.peer for one in others}
        assert shown[others[7].peer].name == "m7"
        assert node.mesh.find("m7") == others[7].peer
        await asyncio.sleep(400)
        assert len(node.mesh.table) <= 30, "those that were tried are forgotten"


@pytest.mark.virtual
async def test_a_member_in_the_book_is_reached_on_demand() -> None:
    async with World() as world:
        node = world.node("n")
        node.knows(*(world.node(f"m{number}") for number in range(40)))
        node.start()
        await asyncio.sleep(5)
        idle = next(
            one for one in world.nodes.values() if one is not node and one.peer not in node.mesh.table
        )
        idle.knows(node)
        idle.start()
        seconds, _ = await node.mesh.ping(idle.peer, 5)
        assert seconds < 5
        with pytest.raises(Broken, match="unknown peer"):
            await node.mesh.ping(fresh_key().peer, 5)


@pytest.mark.virtual
async def test_a_member_that_is_banned_is_forgotten_though_nobody_needed_it() -> None:
    async with World() as world:
        node = world.node("n")
        others = [world.node(f"m{number}") for number in range(40)]
        node.knows(*others)
        node.start()
        await asyncio.sleep(5)
        out = next(one for one in others if one.peer not in node.mesh.table)
        node.node.learn_bans([world.ban(out)])
        assert node.book.record(out.peer) is None
        assert out.peer not in {status.peer for status in node.mesh.peers()}
