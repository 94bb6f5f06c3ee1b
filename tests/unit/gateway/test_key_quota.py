"""Limits of one key: requests at a time and a minute, tokens a day."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from meshd.gateway.api_key import ApiKey, KeyLimits
from meshd.gateway.key_quota import DAY_SECONDS, KeyQuota

NOON = 20000 * DAY_SECONDS + DAY_SECONDS / 2


def quota(**limits: int) -> KeyQuota:
    return KeyQuota(ApiKey("sk-12345678", "anna", KeyLimits(**limits)), 0.0)


def test_without_limits_everything_is_let_in() -> None:
    one = quota()
    one.add_tokens(10**12, NOON)
    assert all(one.begin(0.0, NOON) is None for _ in range(1000))


def test_requests_at_a_time() -> None:
    one = quota(concurrent=2)
    assert one.begin(0.0, NOON) is None and one.begin(0.0, NOON) is None
    excess = one.begin(0.0, NOON)
    assert excess is not None and not excess.is_quota
    assert excess.message == "2 requests of the key `anna` are already in progress"
    one.end()
    assert one.begin(0.0, NOON) is None
    single = quota(concurrent=1)
    single.begin(0.0, NOON)
    excess = single.begin(0.0, NOON)
    assert excess is not None
    assert excess.message == "1 request of the key `anna` is already in progress"


def test_one_that_comes_too_soon_is_told_when_the_next_may_come() -> None:
    one = quota(requests_per_minute=2)
    told = [excess for _ in range(3) if (excess := one.begin(0.0, NOON)) is not None]
    assert [excess.retry_after for excess in told] == [30]
    assert told[0].message == "more than 2 requests per minute of the key `anna`: the next one in 30 s"


def test_tokens_a_day_end_at_midnight() -> None:
    one = quota(tokens_per_day=100)
    one.add_tokens(99, NOON)
    assert one.begin(0.0, NOON) is None
    one.add_tokens(50, NOON)  # an answer that has begun is finished
    excess = one.begin(0.0, NOON)
    assert excess is not None and excess.is_quota
    assert excess.retry_after == DAY_SECONDS / 2
    assert excess.message == "the 100 tokens per day of the key `anna` are used up: more in 12 h 0 min"
    assert one.begin(0.0, NOON + excess.retry_after) is None
    assert one.tokens_today(NOON + excess.retry_after) == 0


@example(1, [0.0, 8.99, 0.0])
@example(1, [4.9655, 0.0])
@given(st.integers(1, 600), st.lists(st.floats(0.0, 30.0), max_size=80))
def test_requests_a_minute(most: int, pauses: list[float]) -> None:
    """At most twice the limit in any minute, as what was saved up may be used at once; and whoever waits as
    long as he was told is let in."""
    one, now = quota(requests_per_minute=most), 0.0
    let_in: list[float] = []
    for pause in pauses:
        now += pause
        excess = one.begin(now, NOON)
        if excess is not None:
            assert not excess.is_quota
            now += excess.retry_after
            assert one.begin(now, NOON) is None
        let_in.append(now)
        assert sum(now - 60 <= at for at in let_in) <= 2 * most + 1


@pytest.mark.parametrize("limits", [{"concurrent": 1}, {"requests_per_minute": 1}])
def test_a_refused_request_does_not_count(limits: dict[str, int]) -> None:
    one = quota(**limits)
    assert one.begin(0.0, NOON) is None
    for _ in range(5):
        assert one.begin(0.0, NOON) is not None
    assert one.active == 1
    one.end()
    assert one.begin(60.0, NOON) is None
