"""All that a node tells: changes in their order and at their pace, without what is gone."""

from meshd.base.peer_limits import LIVES_OF_ONE, NEWS_OF_ONE, SIGNS_OF_ONE
from meshd.identity.keys import KeyPair
from meshd.identity.record import Away, Presence
from meshd.identity.revocation import RevocationSet
from meshd.peer.news import SLACK, BanItem, LifeItem, NewsLedger
from meshd.peer.presence_gossip import PresenceGossip, Signer

from tests.unit.identity.cast import FOUNDER, GUEST, GUEST_CHAIN, INVITER, INVITER_CHAIN, MESH, WORKER, key
from tests.unit.peer.news_scene import ban_of
from tests.unit.peer.test_member_presence import chain
from tests.unit.rendezvous.test_book import SavedBook, record


class Scene:
    """The founder's ledger, at a time that a test sets."""

    def __init__(self) -> None:
        self.own = 1
        self.bans = RevocationSet(MESH)
        self.book = SavedBook().book
        for one in (record(WORKER, 1), record(INVITER, 1, chain=INVITER_CHAIN)):
            self.book.add(one)
        self.gossip = PresenceGossip(
            me=FOUNDER.peer, own=lambda: self.own, book=self.book, signer=Signer(FOUNDER, MESH)
        )
        self.ledger = NewsLedger(
            me=FOUNDER.peer, own=lambda: self.own, book=self.book, bans=self.bans, gossip=self.gossip
        )
        self._mark = 0
        self.changes(0.0)

    def changes(self, now: float) -> list[object]:
        """Return what there is to tell since the last time."""
        self.ledger.collect(now)
        found = self.ledger.journal.since(self._mark)
        self._mark = self.ledger.journal.mark
        return list(found)

    def due(self) -> float | None:
        return self.ledger.due

    def sign(self, now: float) -> list[object]:
        """Hear a sign of life of the worker."""
        sequence, count = self.gossip.order(WORKER.peer)
        assert self.gossip.hear_sign(Presence.sign(WORKER, mesh=MESH, sequence=sequence, count=count + 1))
        return self.changes(now)

    def away(self, now: float, by: KeyPair = INVITER) -> list[object]:
        """Hear that the worker is away."""
        order = self.gossip.order(WORKER.peer)
        assert self.gossip.hear_away(
            Away.sign(by, mesh=MESH, peer=WORKER.peer, order=order), now, teller=by.peer
        )
        return self.changes(now)


def test_at_first_all_is_new_and_then_nothing() -> None:
    scene = Scene()
    assert set(scene.ledger.journal.since(0)) == {FOUNDER.peer, WORKER.peer, INVITER.peer}
    assert scene.changes(5.0) == [] and scene.ledger.changed_at == 0.0 and scene.due() is None


def test_the_own_record_and_bans_are_told_at_once_each_time() -> None:
    scene = Scene()
    for number in range(2 * int(NEWS_OF_ONE.burst)):
        scene.own += 1
        assert scene.changes(7.0) == [FOUNDER.peer] and scene.ledger.changed_at == 7.0
        scene.bans.merge([ban_of(key(f"banned {number}"))])
        [item] = scene.changes(8.0)
        assert isinstance(item, BanItem) and scene.bans.entry(item.digest) is not None
        assert scene.ledger.changed_at == 8.0


def test_a_record_that_is_held_back_is_told_once_when_its_turn_comes() -> None:
    scene, now = Scene(), 1000.0
    for number in range(int(NEWS_OF_ONE.burst)):
        scene.book.add(record(WORKER, 2 + number))
        assert scene.changes(now) == [WORKER.peer]
    for number in range(3):
        scene.book.add(record(WORKER, 20 + number))
        assert scene.changes(now) == []
    due = now + 1 / NEWS_OF_ONE.per_second
    assert scene.due() == due
    scene.book.add(record(INVITER, 2, chain=INVITER_CHAIN))
    assert scene.changes(due - 0.1) == [INVITER.peer], "others have their own pace"
    assert scene.changes(due) == [WORKER.peer] and scene.due() is None


def test_signs_of_one_that_is_not_away_wait_longer_than_its_turns() -> None:
    scene, now = Scene(), 1000.0
    for _ in range(int(SIGNS_OF_ONE.burst)):
        assert scene.sign(now) == [LifeItem(WORKER.peer)]
    assert scene.sign(now) == [] and scene.due() == now + 1 / SIGNS_OF_ONE.per_second
    assert scene.away(now) == [LifeItem(WORKER.peer)], "that is more urgent, and takes the sign along"
    assert scene.due() is None
    assert scene.sign(now) == [LifeItem(WORKER.peer)], "it is back"
    assert LIVES_OF_ONE.per_second > SIGNS_OF_ONE.per_second


def test_what_is_gone_leaves_the_journal_in_time() -> None:
    scene = Scene()
    many = [key(f"member {number}") for number in range(SLACK + 2)]
    for one in many:
        scene.book.add(record(one, 1, chain=chain(one)))
    scene.gossip.report(WORKER.peer, 1.0)
    scene.bans.merge([ban_of(GUEST)])
    scene.changes(1.0)
    kept = len(scene.ledger.journal)
    assert kept == 3 + len(many) + 2
    for one in many[:SLACK]:
        scene.book.forget(one.peer)
    scene.changes(2.0)
    assert len(scene.ledger.journal) == kept, "a few are kept until a clean-up"
    for one in many[SLACK:]:
        scene.book.forget(one.peer)
    scene.gossip.forget(WORKER.peer)
    scene.changes(3.0)
    left = scene.ledger.journal.since(0)
    assert {item for item in left if not isinstance(item, BanItem)} == {
        FOUNDER.peer,
        WORKER.peer,
        INVITER.peer,
    }
    assert [item for item in left if isinstance(item, BanItem)] != []


def test_the_digest_covers_records_signs_absences_bans_and_its_own_record() -> None:
    digests = set()
    scene = Scene()

    def note() -> None:
        digests.add(scene.ledger.digest)
        assert len(scene.ledger.buckets) == 256 and scene.ledger.digest == scene.ledger.digest

    note()
    scene.own = 2
    note()
    scene.book.add(record(GUEST, 1, chain=GUEST_CHAIN))
    note()
    scene.book.add(record(GUEST, 2, chain=GUEST_CHAIN))
    note()
    scene.sign(1.0)
    note()
    scene.away(1.0)
    note()
    scene.bans.merge([ban_of(key("banned"))])
    note()
    scene.book.forget(GUEST.peer)
    note()
    assert len(digests) == 8


def test_one_that_has_left_counts_by_its_last_record_alone() -> None:
    digests = []
    for hears in (False, True):
        scene = Scene()
        if hears:
            scene.sign(1.0)
            scene.away(1.0)
        scene.book.add(record(WORKER, 9, left=True))
        digests.append(scene.ledger.digest)
    assert digests[0] == digests[1]
