"""News with one member: what is told when, what is never told back, what its own news cost, and when it is
not listened to any more.
"""

import asyncio
import itertools
from collections.abc import Callable

import pytest
from meshd.base.errors import Broken, Busy
from meshd.base.peer_limits import (
    ANSWERED,
    ANSWERED_OF_ISSUER,
    COMPARED,
    DIGESTS,
    NEWS_CHECKS,
    NEWS_FAULTS,
    NEWS_OF_ONE,
)
from meshd.base.tasks import Owner
from meshd.identity.keys import PeerId
from meshd.identity.record import Away, Presence
from meshd.peer.interface import Stream
from meshd.peer.news import (
    COMPARE_SECONDS,
    KNOWN_COST,
    LASTING_SECONDS,
    MAX_COMPARE_SECONDS,
    NEW_BAN_COST,
    NEW_COST,
    QUIET_SECONDS,
    NewsLimits,
    NewsLimitsByMember,
)
from meshd.wire.news import (
    BUCKET_BYTES,
    BUCKETS,
    DIGEST_BYTES,
    AwayNews,
    BanNews,
    BucketsNews,
    DigestNews,
    News,
    PresenceNews,
    RecordNews,
)

from tests.sim.loop import until
from tests.unit.identity.cast import (
    ADMIN,
    ADMIN_CHAIN,
    FOUNDER,
    FOUNDER_CHAIN,
    GUEST,
    GUEST_CHAIN,
    INVITER,
    INVITER_CHAIN,
    MESH,
    STRANGER,
    WORKER,
)
from tests.unit.peer.news_scene import OWN, Listener, Telling, ban_of
from tests.unit.rendezvous.test_book import record
from tests.unit.tunnel.far import streams

pytestmark = pytest.mark.virtual

OTHER_DIGEST = DigestNews(b"x" * DIGEST_BYTES)
NOTHING_ALIKE = BucketsNews((b"x" * BUCKET_BYTES,) * BUCKETS)


def news_of(one: object) -> RecordNews:
    return RecordNews(one.encode())  # type: ignore[attr-defined]


def guest(sequence: int) -> RecordNews:
    return news_of(record(GUEST, sequence, chain=GUEST_CHAIN))


def sign(count: int, sequence: int = 1) -> Presence:
    return Presence.sign(ADMIN, mesh=MESH, sequence=sequence, count=count)


def away(count: int = 0, by: object = GUEST) -> Away:
    return Away.sign(by, mesh=MESH, peer=ADMIN.peer, order=(1, count))  # type: ignore[arg-type]


def presence(*signs: Presence) -> PresenceNews:
    return PresenceNews(tuple(one.to_bytes() for one in signs))


def telling() -> Telling:
    """One that knows the worker, the inviter, the guest and the admin."""
    return Telling(
        record(WORKER, 1),
        record(INVITER, 1, chain=INVITER_CHAIN),
        record(GUEST, 1, chain=GUEST_CHAIN),
        record(ADMIN, 1, chain=ADMIN_CHAIN),
    )


async def test_who_agrees_is_asked_again_each_minute() -> None:
    async with Owner() as owner:
        loop, here = asyncio.get_running_loop(), telling()
        listener = Listener(here, owner)
        listener.agrees = True
        began = loop.time()
        await asyncio.sleep(3 * COMPARE_SECONDS + 1)
        told = listener.told_at()
        assert [news for _, news in told] == [DigestNews(here.news.ledger.digest)] * 4
        assert [at - began for at, _ in told] == pytest.approx([0, 60, 120, 180], abs=0.01)
        owner.cancel()


async def test_who_never_agrees_is_asked_less_and_less_until_it_does() -> None:
    async with Owner() as owner:
        here = telling()
        here.news.ledger.collect(here.node.now())
        await asyncio.sleep(QUIET_SECONDS)
        listener = Listener(here, owner)
        times = []
        for _ in range(8):
            await until(lambda: listener.told_of(DigestNews), seconds=2 * MAX_COMPARE_SECONDS)
            times += listener.digests_at()
            await listener.tell(OTHER_DIGEST)
        gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
        # the first answer, to what begins the stream, doubles nothing
        assert gaps == pytest.approx([60, 120, 240, 480, 960, 1920, MAX_COMPARE_SECONDS], abs=1)
        listener.agrees = True
        await asyncio.sleep(MAX_COMPARE_SECONDS)
        here.node.changed()
        await asyncio.sleep(2 * COMPARE_SECONDS + 1)
        assert len(listener.digests_at()) == 3, "an hour later, and then each minute again"
        owner.cancel()


async def test_another_digest_is_answered_with_the_hashes_of_the_parts() -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        await listener.tell(OTHER_DIGEST)
        digest, answer = listener.told()
        assert digest == DigestNews(here.news.ledger.digest)
        assert answer == BucketsNews(here.news.ledger.buckets)
        await listener.tell(DigestNews(here.news.ledger.digest))
        assert listener.told() == [], "the same"
        owner.cancel()


@pytest.mark.parametrize(("after", "is_answered"), [(QUIET_SECONDS - 0.1, False), (QUIET_SECONDS, True)])
async def test_after_a_change_only_what_begins_the_stream_is_compared(
    after: float, is_answered: bool
) -> None:
    """The change may be on its way to the other side."""
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        await listener.tell(DigestNews(here.news.ledger.digest), after=20)
        here.renew(OWN + 1)
        await asyncio.sleep(after)
        listener.told()
        await listener.tell(OTHER_DIGEST)
        assert (listener.told() != []) == is_answered
        owner.cancel()


async def test_a_comparison_that_is_due_waits_until_it_has_been_quiet() -> None:
    async with Owner() as owner:
        loop, here = asyncio.get_running_loop(), telling()
        listener = Listener(here, owner)
        listener.agrees = True
        began = loop.time()
        await asyncio.sleep(COMPARE_SECONDS - 2)
        listener.told()
        here.renew(OWN + 1)
        await asyncio.sleep(20)
        [at] = listener.digests_at()
        assert at - began == pytest.approx(COMPARE_SECONDS - 2 + QUIET_SECONDS, abs=0.01)
        owner.cancel()


async def test_the_parts_that_differ_are_sent_whole() -> None:
    async with Owner() as owner:
        here = telling()
        here.gossip.hear_sign(sign(1))
        here.node.bans.merge([ban_of(STRANGER)])
        listener = Listener(here, owner)
        await asyncio.sleep(0.001)
        listener.told()
        await listener.tell(NOTHING_ALIKE, after=1)
        told = listener.told()
        assert told.count(BanNews(ban_of(STRANGER))) == 1
        assert told.count(presence(sign(1))) == 1
        for one in (here.host.shown, *here.book.records()):
            assert told.count(RecordNews(one.encode())) == 1
        assert len(told) == 2 + 5
        await listener.tell(BucketsNews(here.news.ledger.buckets), after=1)
        assert listener.told() == [], "nothing differs"
        owner.cancel()


async def test_only_the_parts_that_differ_are_sent() -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        await asyncio.sleep(0.001)
        listener.told()
        parts = list(here.news.ledger.buckets)
        parts[GUEST.peer.raw[0]] = bytes(BUCKET_BYTES)
        await listener.tell(BucketsNews(tuple(parts)), after=1)
        assert listener.told() == [guest(1)]
        owner.cancel()


async def test_what_changes_is_told_at_once_and_once() -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        await asyncio.sleep(1)
        assert listener.told() == [DigestNews(here.news.ledger.digest)], "nothing else is new to it"
        here.renew(OWN + 1)
        await asyncio.sleep(0.001)
        assert listener.told() == [RecordNews(here.host.shown.encode())]
        here.node.learn_bans([ban_of(STRANGER)])
        here.node.changed()
        await asyncio.sleep(0.001)
        assert listener.told() == [BanNews(ban_of(STRANGER))]
        here.gossip.hear_sign(sign(1))
        here.node.changed()
        await asyncio.sleep(0.001)
        assert listener.told() == [presence(sign(1))]
        here.gossip.hear_away(away(1), here.node.now(), teller=GUEST.peer)
        here.node.changed()
        await asyncio.sleep(0.001)
        assert listener.told() == [presence(sign(1)), AwayNews(away(1).to_bytes())]
        owner.cancel()


async def test_a_record_that_changes_often_is_passed_on_in_its_turn_as_it_is_then() -> None:
    async with Owner() as owner:
        loop, here = asyncio.get_running_loop(), telling()
        listener = Listener(here, owner)
        await asyncio.sleep(1 / NEWS_OF_ONE.per_second)
        listener.told()
        burst = int(NEWS_OF_ONE.burst)
        for number in range(burst):
            here.learn(record(GUEST, 2 + number, chain=GUEST_CHAIN))
            await asyncio.sleep(0.001)
        assert listener.told() == [guest(2 + number) for number in range(burst)]
        began = loop.time()
        for number in range(5):
            here.learn(record(GUEST, 10 + number, chain=GUEST_CHAIN))
            await asyncio.sleep(0.001)
        assert listener.told() == []
        await asyncio.sleep(20)
        [(at, news)] = [told for told in listener.told_at() if isinstance(told[1], RecordNews)]
        assert news == guest(14)
        assert at - began == pytest.approx(1 / NEWS_OF_ONE.per_second, abs=0.05)
        owner.cancel()


async def test_what_the_other_side_has_sent_is_not_sent_back_but_a_newer_one_is() -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        await asyncio.sleep(0.001)
        listener.told()
        await listener.tell(guest(5), BanNews(ban_of(STRANGER)), presence(sign(4)))
        assert [one.sequence for one in here.heard] == [5] and here.saved_bans == 1
        assert here.gossip.order(ADMIN.peer) == (1, 4)
        await listener.tell(NOTHING_ALIKE, after=1)
        told = listener.told()
        assert guest(5) not in told and BanNews(ban_of(STRANGER)) not in told
        assert not any(isinstance(news, PresenceNews) for news in told)
        here.learn(record(GUEST, 6, chain=GUEST_CHAIN))
        here.gossip.hear_sign(sign(5))
        await asyncio.sleep(0.001)
        assert listener.told() == [guest(6), presence(sign(5))]
        owner.cancel()


async def test_another_member_is_told_what_one_has_said() -> None:
    async with Owner() as owner:
        here = telling()
        one, other = Listener(here, owner), Listener(here, owner, peer=ADMIN.peer)
        await asyncio.sleep(0.001)
        other.told()
        await one.tell(guest(5), BanNews(ban_of(STRANGER)))
        assert sorted(map(repr, other.told())) == sorted(map(repr, [guest(5), BanNews(ban_of(STRANGER))]))
        owner.cancel()


@pytest.mark.parametrize(("greeted", "is_told"), [(6, True), (7, False)])
async def test_a_member_is_told_its_own_record_if_it_has_greeted_with_an_older_one(
    greeted: int, is_told: bool
) -> None:
    async with Owner() as owner:
        here = telling()
        here.greeted = greeted
        listener = Listener(here, owner)
        await asyncio.sleep(0.001)
        listener.told()
        here.learn(record(WORKER, 7))
        await asyncio.sleep(0.001)
        assert listener.told() == ([news_of(record(WORKER, 7))] if is_told else [])
        owner.cancel()


async def test_who_believes_somebody_away_that_lives_gets_the_later_sign_at_once() -> None:
    async with Owner() as owner:
        here = telling()
        for _ in range(10):  # it is not its turn to be told to anybody else
            here.gossip.hear_sign(sign(here.gossip.order(ADMIN.peer)[1] + 1))
            here.news.ledger.collect(here.node.now())
        listener = Listener(here, owner)
        await asyncio.sleep(0.001)
        listener.told()
        await listener.tell(AwayNews(away(7).to_bytes()))
        assert listener.told() == [presence(sign(10))]
        await listener.tell(AwayNews(away(7).to_bytes()), presence(sign(10)))
        listener.told()
        await listener.tell(AwayNews(away(10).to_bytes()), after=1)
        assert listener.told() == [], "nothing later is known"
        assert here.gossip.statements(ADMIN.peer) == (sign(10), away(10))
        here.gossip.hear_sign(sign(11))
        here.node.changed()
        await asyncio.sleep(0.001)
        assert presence(sign(11)) in listener.told()
        owner.cancel()


async def test_a_report_about_this_node_is_answered_with_a_sign_of_life() -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        await asyncio.sleep(0.001)
        listener.told()
        said = Away.sign(GUEST, mesh=MESH, peer=FOUNDER.peer, order=(OWN, 0))
        await listener.tell(AwayNews(said.to_bytes()))
        own = here.gossip.statements(FOUNDER.peer)[0]
        assert own is not None and own.order == (OWN, 1)
        assert presence(own) in listener.told()
        owner.cancel()


@pytest.mark.parametrize(
    ("say", "cost"),
    [
        (lambda: [guest(2)], NEW_COST),
        (lambda: [guest(1)], KNOWN_COST),
        (lambda: [news_of(record(GUEST, 9, chain=INVITER_CHAIN))], NEW_COST),
        (lambda: [BanNews(ban_of(STRANGER))], NEW_BAN_COST),
        (lambda: [BanNews(ban_of(STRANGER))] * 2, NEW_BAN_COST + KNOWN_COST),
        (lambda: [presence(*map(sign, range(1, 41)))], 40 * NEW_COST),
        (lambda: [presence(sign(2), sign(1), sign(2))], NEW_COST + 2 * KNOWN_COST),
        (lambda: [AwayNews(away().to_bytes())] * 2, NEW_COST + KNOWN_COST),
        (lambda: [OTHER_DIGEST], KNOWN_COST),
        (lambda: [NOTHING_ALIKE], NEW_COST),
        (lambda: [news_of(record(FOUNDER, OWN, chain=FOUNDER_CHAIN))], KNOWN_COST),
        (lambda: [news_of(record(FOUNDER, OWN + 1, chain=FOUNDER_CHAIN))], NEW_COST),
    ],
)
async def test_what_news_cost(say: Callable[[], list[RecordNews]], cost: float) -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        await listener.tell(*say())
        assert here.checked() == pytest.approx(cost)
        owner.cancel()


async def test_what_cannot_be_read_costs_little_and_what_is_of_a_later_version_is_no_fault() -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        later = guest(1).encode().replace(b"record", b"recipe", 1)
        for _ in range(2 * int(NEWS_FAULTS.burst)):
            await listener.raw(later)
        assert here.checked() == pytest.approx(2 * NEWS_FAULTS.burst * KNOWN_COST)
        await listener.raw(b"\xff nonsense")
        await listener.tell(guest(2))
        assert [one.sequence for one in here.heard] == [2], "the next message is read"
        owner.cancel()


INVALID: dict[str, News] = {
    "record": news_of(record(GUEST, 9, chain=INVITER_CHAIN)),
    "ban": BanNews(ban_of(STRANGER)[:-1] + bytes([ban_of(STRANGER)[-1] ^ 1])),
    "sign": presence(Presence(ADMIN.peer, 1, 9, bytes(64))),
    "away": AwayNews(Away(ADMIN.peer, 1, 0, GUEST.peer, bytes(64)).to_bytes()),
    "own": news_of(record(FOUNDER, OWN + 1, chain=ADMIN_CHAIN)),
}


@pytest.mark.parametrize("what", INVALID)
async def test_who_says_much_that_is_invalid_is_not_listened_to_any_more(what: str) -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        for _ in range(int(NEWS_FAULTS.burst)):
            await listener.tell(INVALID[what])
        assert not listener.talk.done() and here.node.faults.recent(WORKER.peer, here.node.now())[0] == 0
        await listener.tell(INVALID[what])
        assert listener.talk.done() and [code for code, _ in listener.port.resets] == [1]
        count, why = here.node.faults.recent(WORKER.peer, here.node.now())
        assert count == 1 and "too many invalid news" in why
        assert here.heard == [] and here.host.overtaken_by == [] and len(here.node.bans) == 0
        again = Listener(here, owner)
        await again.tell(INVALID[what])
        assert again.talk.done(), "another stream forgives nothing"
        owner.cancel()


async def test_a_members_news_count_in_the_share_of_who_admitted_it() -> None:
    async with Owner() as owner:
        here = telling()
        for peer in (GUEST.peer, STRANGER.peer):
            Listener(here, owner, peer=peer)
        await asyncio.sleep(0.001)
        limits = [here.news.limits.of(peer, here.node.now()) for peer in (GUEST.peer, STRANGER.peer)]
        assert [one.issuer for one in limits] == [GUEST_CHAIN.admitter, STRANGER.peer]
        owner.cancel()


async def test_who_tells_much_waits() -> None:
    """As many as its burst at once, from there on as many a second as its rate."""
    async with Owner() as owner:
        loop, here = asyncio.get_running_loop(), telling()
        listener = Listener(here, owner)
        signs, began = int(NEWS_CHECKS.burst + NEWS_CHECKS.per_second), loop.time()
        for at in range(0, signs, 100):
            await listener.tell(presence(*map(sign, range(at + 1, at + 101))))
        await until(lambda: here.gossip.order(ADMIN.peer)[1] == signs)
        assert loop.time() - began == pytest.approx(1.0, abs=0.17), "sixteen are checked before each pause"
        owner.cancel()


async def test_records_of_this_node_that_are_newer_are_reported() -> None:
    async with Owner() as owner:
        here = telling()
        listener = Listener(here, owner)
        for sequence in (OWN - 1, OWN, OWN + 1):
            await listener.tell(news_of(record(FOUNDER, sequence, chain=FOUNDER_CHAIN)))
        assert here.host.overtaken_by == [OWN + 1] and here.heard == []
        owner.cancel()


async def test_a_record_of_a_banned_member_is_no_fault_of_who_brings_it() -> None:
    async with Owner() as owner:
        here = telling()
        here.saved.distrusted.add(GUEST.peer)
        listener = Listener(here, owner)
        for sequence in range(2, 3 + 2 * int(NEWS_FAULTS.burst)):
            await listener.tell(guest(sequence))
        assert not listener.talk.done() and here.heard == []
        owner.cancel()


async def test_a_record_that_breaks_something_here_is_its_signers_fault() -> None:
    async with Owner() as owner:
        here = telling()
        here.fails = KeyError("a bug")
        listener = Listener(here, owner)
        await listener.tell(guest(2))
        now = here.node.now()
        assert not listener.talk.done()
        assert here.node.faults.recent(GUEST.peer, now)[0] == 1
        assert here.node.faults.recent(WORKER.peer, now)[0] == 0
        owner.cancel()


@pytest.mark.parametrize(
    ("message", "rate", "kind"), [(OTHER_DIGEST, DIGESTS, BucketsNews), (NOTHING_ALIKE, COMPARED, RecordNews)]
)
async def test_comparisons_are_answered_at_a_rate(
    message: DigestNews | BucketsNews, rate: object, kind: type
) -> None:
    async with Owner() as owner:
        here = telling()
        here.news.ledger.collect(here.node.now())
        await asyncio.sleep(QUIET_SECONDS)
        listener = Listener(here, owner)
        answered = []
        for _ in range(7):
            await listener.tell(message, after=0.01)
            answered.append(any(isinstance(news, kind) for news in listener.told()))
        assert answered == [True] * 4 + [False] * 3
        await asyncio.sleep(30.1)
        await listener.tell(message, after=0.01)
        assert any(isinstance(news, kind) for news in listener.told())
        owner.cancel()


async def test_an_end_of_the_stream_is_no_fault() -> None:
    async with Owner() as owner:
        here = telling()
        ended, reset = Listener(here, owner), Listener(here, owner)
        await asyncio.sleep(0.001)
        ended.far.write_eof()
        reset.far.reset(1, "gone")
        await asyncio.sleep(0.001)
        assert ended.talk.done() and reset.talk.done()
        assert here.node.faults.recent(WORKER.peer, here.node.now()) == (0, "")
        owner.cancel()


# A stream that is lost.


class Opened:
    """Streams that end after a given time each, then none."""

    def __init__(self, *lives: float | Busy) -> None:
        self._lives = list(lives)
        self.at: list[float] = []
        self.owner: Owner | None = None

    def open(self) -> Stream:
        self.at.append(asyncio.get_running_loop().time())
        if not self._lives:
            raise Broken("the session has ended")
        life = self._lives.pop(0)
        if isinstance(life, Busy):
            raise life
        near, far, _, _ = streams(peer=WORKER.peer)
        assert self.owner is not None
        self.owner.start(self._end(far, life), name="end")
        return near

    @staticmethod
    async def _end(far: Stream, life: float) -> None:
        await asyncio.sleep(life)
        far.reset(1, "lost")

    def gaps(self) -> list[float]:
        return [later - earlier for earlier, later in itertools.pairwise(self.at)]


@pytest.mark.parametrize(
    ("lives", "draw", "gaps"),
    [
        ((0.0,) * 8, 0.0, [5, 10, 20, 40, 80, 160, 300, 300]),
        ((0.0,) * 2, 1.0, [3.5, 7]),
        ((Busy("many"), 0.0), 0.0, [5, 10]),
        ((0.0, 0.0, LASTING_SECONDS - 0.5, LASTING_SECONDS, 0.0), 0.0, [5, 10, 619.5, 605, 10]),
        ((), 0.0, []),
    ],
)
async def test_a_lost_stream_is_opened_again_later_each_time_unless_it_lasted(
    lives: tuple[float | Busy, ...], draw: float, gaps: list[float]
) -> None:
    async with Owner() as owner:
        opened = Opened(*lives)
        opened.owner = owner
        await telling().news.keep(WORKER.peer, opened.open, lambda: draw)
        assert opened.gaps() == pytest.approx(gaps, abs=0.01)


# The limits on one member.


def member(number: int) -> PeerId:
    return PeerId(bytes([number]) * 32)


def test_what_was_sent_because_hashes_differ_is_paid_back_at_the_rate() -> None:
    limits = NewsLimitsByMember().of(member(1), 0.0)
    limits.answered(int(ANSWERED.burst), 0.0)
    assert limits.rest(0.0) == 0.0
    limits.answered(2 * int(ANSWERED.per_second), 0.0)
    assert limits.rest(0.0) == pytest.approx(2.0)
    assert limits.rest(1.5) == pytest.approx(0.5)
    assert limits.rest(1.9995) == 0.0, "a rounding error is no pause"
    assert not limits.clear(2.0) and limits.clear(2.0 + ANSWERED.burst / ANSWERED.per_second + 0.1)


def test_members_of_one_issuer_have_a_share_together() -> None:
    everybody = NewsLimitsByMember()
    admitter = record(GUEST, 1, chain=GUEST_CHAIN).chain.admitter
    alike = [everybody.of(member(number), 0.0, admitter=admitter) for number in range(5)]
    for limits in alike[:4]:
        limits.answered(int(ANSWERED.burst), 0.0)
    assert alike[4].rest(0.0) == 0.0, "all of the share, and not more"
    alike[3].answered(int(ANSWERED_OF_ISSUER.per_second), 0.0)
    assert alike[4].rest(0.0) == pytest.approx(1.0)
    assert everybody.of(member(9), 0.0).rest(0.0) == 0.0, "it stands for itself"


def test_a_member_that_owes_something_keeps_its_limits() -> None:
    everybody = NewsLimitsByMember()
    debtor = everybody.of(member(200), 0.0)
    debtor.answered(1, 0.0)
    free = everybody.of(member(201), 0.0)
    assert everybody.of(member(201), 0.0) is free, "while there are few"
    for number in range(70):
        everybody.of(member(number), 0.0)
    assert everybody.of(member(200), 0.0) is debtor
    assert everybody.of(member(201), 0.0) is not free


@pytest.mark.parametrize("owes", ["fault", "compares", "digests", "answered", "pause"])
async def test_whatever_a_member_has_used_is_owed(owes: str) -> None:
    now = asyncio.get_running_loop().time()
    limits = NewsLimitsByMember().of(member(1), now)
    assert limits.clear(now)
    await _use(limits, owes, now)
    assert not limits.clear(now)


async def _use(limits: NewsLimits, owes: str, now: float) -> None:
    match owes:
        case "fault":
            limits.fault("nonsense")
        case "compares":
            assert limits.compares(now)
        case "digests":
            assert limits.digests(now)
        case "answered":
            limits.answered(1, now)
        case _:
            await limits.pause(1)
