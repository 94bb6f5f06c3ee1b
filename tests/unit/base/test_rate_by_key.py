"""A bucket for each, and a bounded number of them."""

from meshd.base.peer_limits import Rate
from meshd.base.rate_by_key import MANY, Rates, TokenBuckets

SLOW = Rate("things", 1.0, 3.0, "peer", "no more")
VERY_SLOW = Rate("things", 0.1, 2, "peer", "not done")


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
