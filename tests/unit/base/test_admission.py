"""Limits on work from outside: buckets, rates, reserved places, and a queue that several fill."""

import weakref

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.admission import MANY, FairQueue, Rate, Rates, Share, Slots, TokenBucket, TokenBuckets

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
    assert len(rates) == 2


def test_a_key_that_owes_is_remembered_however_many_come() -> None:
    buckets: TokenBuckets[int] = TokenBuckets(VERY_SLOW)
    kept: weakref.WeakSet[TokenBucket] = weakref.WeakSet()
    for _ in range(2):
        assert buckets.of(-1, 100).spend(1, 100)
    for number in range(20 * MANY):
        kept.add(buckets.of(number, 100))
    assert not buckets.of(-1, 100).spend(1, 100)
    assert len(kept) <= 2 * MANY
    assert buckets.of(-1, 110).spend(1, 110)


def test_a_burst_is_free_and_then_the_rate_holds() -> None:
    bucket = TokenBucket(rate=100, burst=50, now=0)
    assert bucket.take(50, 0) == 0
    assert bucket.take(100, 0) == 1.0
    assert bucket.take(0, 1.0) == 0
    assert not bucket.full(1.2)
    assert bucket.full(1.5)


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 3)), max_size=50))
def test_who_rests_as_told_is_held_to_the_rate(takes: list[tuple[float, float]]) -> None:
    now, taken = 0.0, 0.0
    bucket = TokenBucket(rate=100, burst=50, now=now)
    for amount, idle in takes:
        now += bucket.take(amount, now)
        taken += amount
        assert taken <= 50 + 100 * now + 1e-6
        now += idle


def test_who_spends_more_than_there_is_gets_nothing_and_owes_nothing() -> None:
    bucket = TokenBucket(rate=2.0, burst=4.0, now=0.0)
    assert bucket.spend(3.0, 0.0)
    assert not bucket.spend(2.0, 0.0)
    assert bucket.spend(1.0, 0.0)
    assert not bucket.spend(2.0, 0.5)
    assert bucket.spend(2.0, 1.0)


def test_whether_there_is_enough_is_asked_for_nothing() -> None:
    bucket = TokenBucket(rate=2.0, burst=4.0, now=0.0)
    assert all(bucket.has(4.0, 0.0) for _ in range(9))
    assert bucket.spend(4.0, 0.0)
    assert not bucket.has(1.0, 0.4)
    assert bucket.has(1.0, 0.5) and not bucket.has(4.1, 99.0)


def test_items_come_in_order() -> None:
    queue: FairQueue[int] = FairQueue(8)
    for number in range(5):
        queue.put(number, number % 2)
    assert [queue.pop() for _ in range(5)] == [0, 1, 2, 3, 4]
    assert len(queue) == 0


def test_who_floods_displaces_its_own_items() -> None:
    queue: FairQueue[str] = FairQueue(8)
    for who in ("anna", "bert", "carl"):
        queue.put(who, who)
    for _ in range(1000):
        queue.put("noise", "hostile")
    assert [queue.pop() for _ in range(8)] == ["anna", "bert", "carl", *["noise"] * 5]


@given(st.lists(st.integers(0, 5), max_size=80))
def test_who_has_no_more_than_its_part_loses_nothing(puts: list[int]) -> None:
    queue: FairQueue[int] = FairQueue(12)
    for who in puts:
        queue.put(who, who)
    left = [queue.pop() for _ in range(len(queue))]
    assert len(left) == min(len(puts), 12)
    for who in set(puts):
        assert left.count(who) >= min(puts.count(who), 2)  # 12 places, six that fill them


class _Producer:
    """The name of one, which is gone when nobody has it any more."""


def test_who_has_many_names_is_counted_by_what_they_have_in_common() -> None:
    queue: FairQueue[str] = FairQueue(8)
    for who in ("anna", "bert", "carl"):
        queue.put(who, "ours", who, "a key")
    producers: weakref.WeakSet[_Producer] = weakref.WeakSet()
    for _ in range(1000):
        producer = _Producer()
        producers.add(producer)
        queue.put("noise", "theirs", producer, "a key")
        del producer
    assert len(producers) <= 8, "those that have nothing in the queue are forgotten"
    assert [queue.pop() for _ in range(8)] == ["anna", "bert", "carl", *["noise"] * 5]
    assert not producers
