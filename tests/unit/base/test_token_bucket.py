"""The token bucket: nobody gets more than rate and burst over any span, and nothing is refused."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.token_bucket import TokenBucket


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
