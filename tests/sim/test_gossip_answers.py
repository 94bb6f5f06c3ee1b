"""Test what a member's hashes make others say: little for many of them, large answers in their turn."""

import asyncio
from dataclasses import replace

import pytest
from meshd.base.peer_limits import ANSWERED, ANSWERED_OF_ISSUER, DIGESTS, INVITER_RECORDS
from meshd.peer import news as news_module
from meshd.wire.news import BUCKET_BYTES, BUCKETS, BucketsNews, DigestNews

from tests.sim.gossip import Inviter
from tests.sim.test_gossip_shares import heard_by
from tests.sim.world import World, WorldNode

NOTHING = BucketsNews((bytes(BUCKET_BYTES),) * BUCKETS).encode()


def _fill(node: WorldNode) -> int:
    """Put so many records in its book; returns their bytes."""
    inviter = Inviter(node.world)
    records = [inviter.record() for _ in range(INVITER_RECORDS.most)]
    assert all(node.book.add(record) for record in records)
    return sum(len(record.encode()) for record in records)


@pytest.mark.virtual
async def test_many_digests_are_answered_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    made = 0
    real = news_module.NewsLedger._hash

    def look(self: news_module.NewsLedger) -> None:
        nonlocal made
        made += 1
        real(self)

    async with World() as world:
        _, victim, _, teller = await heard_by(world)
        await teller.to(victim)
        await asyncio.sleep(30)
        monkeypatch.setattr(news_module.NewsLedger, "_hash", look)
        before = teller.heard_bytes
        for number in range(1000):
            await teller.tell(victim, [DigestNews(number.to_bytes(16, "big")).encode()])
            await asyncio.sleep(0.01)
        answers = (teller.heard_bytes - before) / (BUCKETS * BUCKET_BYTES)
        assert answers < DIGESTS.burst + 2
        assert made < 10 * (DIGESTS.burst + 2), "skipped entries cost no hashing"


@pytest.mark.parametrize("share", ["ANSWERED", "ANSWERED_OF_ISSUER"])
@pytest.mark.virtual
async def test_a_large_answer_is_told_in_its_turn(monkeypatch: pytest.MonkeyPatch, share: str) -> None:
    """Test the limit of what is sent, by who asked and by who let it in; in the end it has all."""
    async with World() as world:
        hostile, victim, third, teller = await heard_by(world)
        await teller.to(victim)
        await asyncio.sleep(30)
        victim.mesh.presence.tick = lambda connected: None  # type: ignore[method-assign] # sessions stay
        size = _fill(victim)
        victim.node.changed()
        await asyncio.sleep(1)  # told as what is new, to both
        slow = replace(ANSWERED if share == "ANSWERED" else ANSWERED_OF_ISSUER, per_second=1000)
        slow = replace(slow, burst=size / 4)
        limits = victim.mesh.news.limits.of(hostile.peer, 0)
        if share == "ANSWERED":
            limits._answered = slow.bucket(asyncio.get_running_loop().time())
        else:
            limits._issuers._rate = slow
            limits._issuers._of.clear()
            assert limits.issuer == hostile.chain.admitter
        before = teller.heard_bytes
        await teller.tell(victim, [NOTHING])
        await asyncio.sleep(10)
        first = teller.heard_bytes - before
        assert size / 4 <= first < size / 4 + 10_000 + 5000
        victim.host.shown = victim.record(9)
        victim.mesh.record_changed()
        await third.until(lambda: _sequence(third, victim) == 9, seconds=2)  # nothing new waits for it
        await asyncio.sleep(size / 1000)
        assert teller.heard_bytes - before > 0.9 * size


def _sequence(node: WorldNode, of: WorldNode) -> int:
    record = node.book.record(of.peer)
    return record.sequence if record is not None else -1


def test_the_shares_are_those_of_the_table() -> None:
    limits = news_module.NewsLimitsByMember().of(Inviter(World()).key.peer, 0.0)
    limits.answered(int(ANSWERED.burst), 0.0)
    assert limits.rest(0.0) == 0
    limits.answered(int(ANSWERED.per_second), 0.0)
    assert limits.rest(0.0) > 0
    assert limits.rest(1.0) == 0
    assert limits.clear(0.0) is False
