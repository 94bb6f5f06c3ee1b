"""The history of a gateway's work against a plain list of what was counted, and its size."""

import sys

from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.events import BUCKET_SECONDS, BUCKETS, WorkCounts, WorkHistory

STEPS = st.lists(
    st.tuples(
        st.floats(0, 3000, allow_nan=False) | st.floats(0, 30, allow_nan=False),
        st.integers(0, 1 << 40),
        st.booleans(),
    ),
    max_size=60,
)
MOST_BYTES = 4000
EMPTY = (0,) * BUCKETS


def model(counted: list[tuple[float, int, int]], now: float) -> WorkHistory:
    """Sum by bucket all that was counted, however long ago."""
    newest = int(now // BUCKET_SECONDS)
    tokens, requests = [0] * BUCKETS, [0] * BUCKETS
    for at, some, came in counted:
        place = int(at // BUCKET_SECONDS) - newest + BUCKETS - 1
        if place >= 0:
            tokens[place] += some
            requests[place] += came
    return WorkHistory(tuple(tokens), tuple(requests), now - newest * BUCKET_SECONDS)


@given(STEPS, st.floats(0, 1e6), st.floats(0, 2000))
def test_it_is_as_a_list_of_all_that_was_counted(
    steps: list[tuple[float, int, bool]], began: float, rest: float
) -> None:
    counts, counted, now = WorkCounts(), list[tuple[float, int, int]](), began
    for passed, tokens, is_request in steps:
        now += passed
        if is_request:
            counts.add_request(now)
        else:
            counts.add_tokens(tokens, now)
        counted.append((now, 0 if is_request else tokens, int(is_request)))
    now += rest
    assert counts.read(now) == model(counted, now)
    assert counts.read(now) == model(counted, now), "reading changes nothing"


def test_a_quarter_of_an_hour_later_nothing_is_left() -> None:
    counts = WorkCounts()
    counts.add_tokens(5, 12.0)
    last = 10.0 + BUCKETS * BUCKET_SECONDS - 0.5
    assert counts.read(last).tokens == (5, *EMPTY[1:])
    assert counts.read(last + 1).tokens == EMPTY


def test_a_time_before_the_newest_bucket_counts_there() -> None:
    counts = WorkCounts()
    counts.add_tokens(1, 95.0)
    counts.add_tokens(2, 3.0)
    assert counts.read(0.0) == WorkHistory((*EMPTY[1:], 3), EMPTY, 0.0)


def test_it_is_small() -> None:
    counts = WorkCounts()
    counts.add_tokens(1 << 60, 1e6)
    kept = list(vars(counts).values())
    assert sum(map(sys.getsizeof, [counts, vars(counts), *kept])) < MOST_BYTES
