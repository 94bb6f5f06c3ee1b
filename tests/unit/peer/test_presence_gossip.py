"""Who is there: the greatest statement about a member counts, whatever the order, and at what rate."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.admission import TokenBuckets
from meshd.base.peer_limits import AWAY_OF_ISSUER, AWAY_OF_ONE, AWAY_OF_SUBJECT, REFUTATIONS
from meshd.identity.keys import KeyPair, PeerId
from meshd.identity.membership import Chain
from meshd.identity.record import Away, PeerRecord, Presence
from meshd.identity.revocation import RevocationSet
from meshd.peer.news import LifeItem, NewsLedger
from meshd.peer.presence_gossip import SUSPECT_SECONDS, PresenceGossip, Signer
from meshd.rendezvous.book import AddressBook

from tests.unit.identity.cast import (
    ADMIN,
    ADMIN_CHAIN,
    FOUNDER,
    GUEST,
    GUEST_CHAIN,
    INVITER,
    INVITER_CHAIN,
    MESH,
    ROOT,
    STRANGER,
    WORKER,
    certificate,
    key,
)
from tests.unit.rendezvous.test_book import record

CAST = {
    WORKER.peer: record(WORKER, 1),
    GUEST.peer: record(GUEST, 1, chain=GUEST_CHAIN),
    ADMIN.peer: record(ADMIN, 1, chain=ADMIN_CHAIN),
    INVITER.peer: record(INVITER, 1, chain=INVITER_CHAIN),
}


INVITE = b"invited!"


def _by_root(one: KeyPair, invite: bytes) -> Chain:
    return Chain((certificate(ROOT, one, invite=invite),), ROOT.peer)


def _invited(one: KeyPair) -> Chain:
    return Chain((certificate(INVITER, one), *INVITER_CHAIN.certificates), ROOT.peer)


def gossip(*others: PeerRecord, own: int = 1) -> PresenceGossip:
    """Return the gossip of the founder, which knows the others' records."""
    book = AddressBook(me=FOUNDER.peer, verify=lambda _: None, save=lambda: None)
    for one in (*CAST.values(), *others):
        book.add(one)
    return PresenceGossip(me=FOUNDER.peer, own=lambda: own, book=book, signer=Signer(FOUNDER, MESH))


def away(order: tuple[int, int] = (1, 0), *, of: KeyPair = WORKER, by: KeyPair = GUEST) -> Away:
    return Away.sign(by, mesh=MESH, peer=of.peer, order=order)


def sign(count: int, sequence: int = 1) -> Presence:
    return Presence.sign(WORKER, mesh=MESH, sequence=sequence, count=count)


def test_who_is_said_to_be_away_is_away_after_a_while() -> None:
    there = gossip()
    assert there.away_since(WORKER.peer, 100) is None
    assert there.hear_away(away(), 100, teller=GUEST.peer)
    assert there.away_since(WORKER.peer, 100 + SUSPECT_SECONDS - 0.1) is None
    assert there.next_verdict(100) == 100 + SUSPECT_SECONDS
    assert there.away_since(WORKER.peer, 100 + SUSPECT_SECONDS) == 100


def test_a_later_sign_of_life_or_record_refutes_it() -> None:
    there = gossip()
    there.hear_away(away(), 100, teller=GUEST.peer)
    assert there.hear_sign(sign(1))
    assert there.away_since(WORKER.peer, 200) is None
    assert there.statements(WORKER.peer) == (sign(1), None)
    assert there.hear_away(away((1, 1)), 200, teller=GUEST.peer)
    there._book.add(record(WORKER, 2))
    assert there.away_since(WORKER.peer, 300) is None
    assert there.statements(WORKER.peer) == (None, None)


def test_what_is_said_against_no_sign_that_is_known_here_is_not_believed() -> None:
    there = gossip()
    for order in ((0, 9), (1, 1), (2, 0), ((1 << 62) - 1, 0)):
        assert there.hear_away(away(order), 100, teller=GUEST.peer) is None
    assert there.hear_away(away(by=STRANGER), 100, teller=GUEST.peer) is None
    assert there.hear_away(away(of=STRANGER), 100, teller=GUEST.peer) is None
    assert there.hear_away(away(by=WORKER), 100, teller=GUEST.peer) is None, "it is there to say so"
    assert there.away_since(WORKER.peer, 999) is None


def test_a_forged_statement_is_a_fault() -> None:
    there = gossip()
    forged = Away(WORKER.peer, 1, 0, GUEST.peer, bytes(64))
    assert there.hear_away(forged, 100, teller=GUEST.peer) is False
    assert there.hear_sign(Presence(WORKER.peer, 1, 1, bytes(64))) is False
    assert there.statements(WORKER.peer) == (None, None)


def test_what_others_forge_in_the_name_of_one_does_not_silence_it() -> None:
    there = gossip()
    for _ in range(3 * int(AWAY_OF_ONE.burst)):
        forged = Away(WORKER.peer, 1, 0, GUEST.peer, bytes(64))
        assert there.hear_away(forged, 100, teller=ADMIN.peer) is False
    assert there.hear_away(away(), 100, teller=ADMIN.peer)


def test_what_is_said_of_us_is_refuted_at_a_pace() -> None:
    there = gossip()
    refuted = 0
    for _ in range(50):
        order = there.order(FOUNDER.peer)
        there.hear_away(away(order, of=FOUNDER), 100, teller=WORKER.peer)
        assert there._accused
        refuted += there.refute(100)
        assert there.away_since(FOUNDER.peer, 200) is None
    assert refuted == REFUTATIONS.burst
    assert there.refute(100 + 1 / REFUTATIONS.per_second), "when its turn comes"
    own, _ = there.statements(FOUNDER.peer)
    assert own is not None and own.holds(MESH) and own.order == (1, refuted + 1)


def test_who_has_no_session_with_us_does_not_say_to_us_that_we_are_away() -> None:
    there = gossip()
    assert there.hear_away(away(of=FOUNDER), 100, teller=GUEST.peer) is None
    assert not there.refute(100)


def test_one_that_says_much_is_not_listened_to() -> None:
    others = [key(f"subject {number}") for number in range(3 * int(AWAY_OF_ONE.burst))]
    there = gossip(*(record(one, 1, chain=_by_root(one, b"")) for one in others))
    believed = sum(there.hear_away(away(of=one), 100, teller=GUEST.peer) is True for one in others)
    assert believed == AWAY_OF_ONE.burst
    assert there.hear_away(away(of=others[-1], by=ADMIN), 100, teller=GUEST.peer), "others are"


@pytest.mark.parametrize("by_root", [True, False])
def test_all_that_one_invite_or_inviter_let_in_speak_with_one_voice(by_root: bool) -> None:
    """However many keys they are."""
    liars = [key(f"liar {number}") for number in range(8)]
    subjects = [key(f"subject {number}") for number in range(3 * int(AWAY_OF_ISSUER.burst))]
    there = gossip(
        *(record(one, 1, chain=_by_root(one, INVITE) if by_root else _invited(one)) for one in liars),
        *(record(one, 1, chain=_by_root(one, b"")) for one in subjects),
    )
    believed = 0
    for at, one in enumerate(subjects):
        by = liars[at % len(liars)]
        believed += there.hear_away(away(of=one, by=by), 100, teller=GUEST.peer) is True
    assert believed == AWAY_OF_ISSUER.burst
    assert there.hear_away(away(of=subjects[-1], by=ADMIN), 100, teller=GUEST.peer), "others are heard"


def test_who_lives_is_not_accused_faster_than_it_can_answer_however_many_keys_say_it() -> None:
    liars = [key(f"liar {number}") for number in range(40)]
    there = gossip(*(record(one, 1, chain=_by_root(one, INVITE)) for one in liars))
    believed = 0
    for count in range(40):
        believed += there.hear_away(away((1, count), by=liars[count]), 100, teller=GUEST.peer) is True
        there.hear_sign(sign(count + 1))
    assert believed == AWAY_OF_SUBJECT.burst < REFUTATIONS.burst
    assert AWAY_OF_SUBJECT.per_second < REFUTATIONS.per_second
    assert 1 / REFUTATIONS.per_second < SUSPECT_SECONDS, "kept busy, it answers in time all the same"


def test_who_is_no_member_any_more_has_said_nothing() -> None:
    there = gossip()
    there.hear_away(away(), 100, teller=GUEST.peer)
    there.forget(GUEST.peer)
    assert there.away_since(WORKER.peer, 999) is None


def test_what_we_report_is_told_once() -> None:
    there = gossip()
    assert there.report(WORKER.peer, 100)
    assert not there.report(WORKER.peer, 101)
    _, said = there.statements(WORKER.peer)
    assert said is not None and said.reporter == FOUNDER.peer and said.holds(MESH)


STATEMENTS: list[Away | Presence] = [
    *(away((1, count), by=by) for count in range(4) for by in (GUEST, ADMIN)),
    *(sign(count) for count in range(1, 4)),
]


@settings(max_examples=60)
@given(st.integers(0, 10_000))
def test_all_come_to_the_same_whatever_the_order(seed: int) -> None:
    """As long as each is told again what it did not take, which the comparison of hashes sees to."""
    digests = set()
    for shift in range(2):
        there = gossip()
        rng = random.Random(seed + shift)
        for _ in range(4):
            for one in rng.sample(STATEMENTS, len(STATEMENTS)):
                there._reporters, there._issuers = TokenBuckets(AWAY_OF_ONE), TokenBuckets(AWAY_OF_ISSUER)
                there._accusations = TokenBuckets(AWAY_OF_SUBJECT)
                if isinstance(one, Away):
                    there.hear_away(one, 100, teller=ADMIN.peer)
                else:
                    there.hear_sign(one)
        assert there.mark_of(WORKER.peer) == (1, 3, 1)
        digests.add(ledger(there).digest)
    assert len(digests) == 1


def ledger(there: PresenceGossip, own: int = 1) -> NewsLedger:
    return NewsLedger(
        me=FOUNDER.peer, own=lambda: own, book=there._book, bans=RevocationSet(MESH), gossip=there
    )


def test_the_ledger_finds_what_differs_and_little_else() -> None:
    one, other = gossip(), gossip()
    assert ledger(one).digest == ledger(other).digest != ledger(other, own=2).digest
    other.hear_away(away(), 100, teller=GUEST.peer)
    assert ledger(one).digest != ledger(other).digest
    found = ledger(one).differing(ledger(other).buckets)
    assert LifeItem(WORKER.peer) in found and WORKER.peer in found
    assert {item.raw[0] for item in found if isinstance(item, PeerId)} == {WORKER.peer.raw[0]}
    same = ledger(one)
    assert same.differing(ledger(gossip()).buckets) == []
    one.hear_sign(sign(1))
    assert same.differing(ledger(gossip()).buckets) != [], "made anew when something has changed"
