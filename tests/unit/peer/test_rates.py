"""So many at once, then so many a second, for each sender."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.peer.rates import MOST_SENDERS, Rates


def test_a_burst_then_the_rate() -> None:
    rates = Rates(rate=2.0, burst=3)
    assert [rates.take("a", 10.0) for _ in range(5)] == [True, True, True, False, False]
    assert rates.take("b", 10.0)
    assert not rates.take("a", 10.4)
    assert rates.take("a", 11.0)
    assert [rates.take("a", 100.0) for _ in range(4)] == [True, True, True, False]


@given(st.lists(st.floats(0, 5), max_size=60))
def test_never_more_than_the_rate_allows(pauses: list[float]) -> None:
    rates, now, taken = Rates(rate=1.0, burst=4), 0.0, 0
    for pause in pauses:
        now += pause
        taken += rates.take("a", now)
    assert taken <= 4 + now + 1e-6


def test_senders_are_bounded() -> None:
    rates = Rates(rate=1.0, burst=1)
    for number in range(2 * MOST_SENDERS):
        assert rates.take(number, 0.0)
    assert len(rates._buckets) == MOST_SENDERS
    assert not rates.take(2 * MOST_SENDERS - 1, 0.0)
