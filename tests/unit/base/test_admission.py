"""Places that are counted when somebody is let in."""

from meshd.base.admission import MANY, Rates, Slots, TokenBuckets
from meshd.base.peer_limits import Rate, Share

ALL = Share("things", 5, "node", "no more")
OF_ONE = Share("things", 3, "peer", "no more")
OF_ISSUER = Share("things", 4, "issuer", "no more")
SLOW = Rate("things", 1.0, 3.0, "peer", "no more")
VERY_SLOW = Rate("things", 0.1, 2, "peer", "not done")


def test_no_more_are_let_in_than_there_are_places() -> None:
    slots = Slots(ALL, OF_ONE)
    first = [slots.take("anna") for _ in range(10)]
    assert sum(one is not None for one in first) == OF_ONE.most
    second = [slots.take("bert") for _ in range(10)]
    assert sum(one is not None for one in second) == ALL.most - OF_ONE.most
    assert slots.take("carl") is None
    assert len(slots) == ALL.most


def test_a_place_is_given_back_once() -> None:
    slots = Slots(OF_ONE)
    held = [slots.take("anna") for _ in range(3)]
    assert slots.take("bert") is None
    for release in held[:1] * 4:
        assert release is not None
        release()
    assert len(slots) == 2
    assert slots.take("bert") is not None
    assert slots.take("bert") is None


def test_many_that_one_issuer_let_in_leave_places_for_others() -> None:
    slots = Slots(ALL, OF_ONE, OF_ISSUER)
    held = [slots.take(f"key {number}", "token") for number in range(10)]
    assert sum(one is not None for one in held) == OF_ISSUER.most
    assert slots.take("bert", "another") is not None
    for release in held:
        if release is not None:
            release()
    assert len(slots) == 1 and slots.take("carl", "token") is not None


def test_each_has_its_burst_and_then_its_rate() -> None:
    rates = Rates(SLOW)
    assert [rates.spend("anna", 0.0) for _ in range(5)] == [True, True, True, False, False]
    assert rates.spend("bert", 0.0)
    assert rates.spend("anna", 1.0)
    assert not rates.spend("anna", 1.0)


def test_of_too_many_the_one_silent_longest_is_forgotten() -> None:
    rates = Rates(SLOW, most=2)
    for who in ("anna", "bert", "anna", "carl"):
        assert rates.spend(who, 0.0)
    assert not rates.spend("anna", 0.0, 2.0)  # still known: it has one left
    assert len(rates._buckets) == 2


def test_a_key_that_owes_is_remembered_however_many_come() -> None:
    buckets: TokenBuckets[int] = TokenBuckets(VERY_SLOW)
    for _ in range(2):
        assert buckets.of(-1, 100).spend(1, 100)
    for number in range(20 * MANY):
        buckets.of(number, 100)
    assert not buckets.of(-1, 100).spend(1, 100)
    assert len(buckets._of) <= 2 * MANY
    assert buckets.of(-1, 110).spend(1, 110)
