"""The bucket: never more than the rate and a burst, the same for all, nobody waits for the absent."""

import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.mux.upload import Upload

RATE = 1_000_000.0
ALL = 1 << 30


def test_alone_it_gets_a_burst_and_then_the_rate() -> None:
    bucket, now, sent = Upload(RATE), 0.0, 0
    first = bucket.room(1, ALL, now)
    assert first == 0.2 * RATE
    while now < 10.0:
        room = bucket.room(1, ALL, now)
        bucket.spend(1, room, now)
        sent += room
        later = bucket.wait(1, ALL, now)
        assert later > now
        now = later
    assert 0.99 * RATE * 10 < sent - first < 1.01 * RATE * 10


def test_it_gives_no_more_than_is_wanted() -> None:
    assert Upload(RATE).room(1, 100, 0.0) == 100


def test_control_counts_and_data_waits_for_it() -> None:
    bucket = Upload(RATE)
    bucket.spend_control(300_000, 0.0)  # more than there was: control goes whatever it is
    assert bucket.room(1, ALL, 0.0) == 0
    assert bucket.wait(1, ALL, 0.0) == pytest.approx(0.12)
    assert bucket.room(1, ALL, 0.1199) == 0
    assert bucket.room(1, ALL, 0.121) >= bucket.share


def test_a_flood_of_control_does_not_silence_data_for_long() -> None:
    bucket = Upload(RATE)
    bucket.spend_control(1 << 30, 0.0)
    assert bucket.room(1, ALL, 0.0) == 0
    assert bucket.wait(1, ALL, 0.0) < 1.0


def _empty() -> Upload:
    bucket = Upload(RATE)
    bucket.spend_control(200_000, 0.0)
    return bucket


def _refused(bucket: Upload, who: int, now: float) -> float:
    assert bucket.room(who, ALL, now) == 0
    return bucket.wait(who, ALL, now)


def test_who_was_given_less_goes_first_and_is_not_waited_for_when_there_is_enough() -> None:
    bucket = _empty()
    assert _refused(bucket, 1, 0.0) == pytest.approx(0.02)
    assert _refused(bucket, 2, 0.0) == pytest.approx(0.04)
    assert _refused(bucket, 2, 0.03) == pytest.approx(0.04)  # what there is belongs to the first
    assert bucket.room(2, ALL, 0.041) == bucket.share  # enough for both
    bucket.spend(2, bucket.share, 0.041)
    assert _refused(bucket, 2, 0.042) > 0.05
    assert bucket.room(1, ALL, 0.042) == bucket.share


def test_a_small_wish_needs_no_whole_share() -> None:
    bucket = _empty()
    assert bucket.room(1, 1000, 0.0011) == 1000


def test_who_is_absent_or_leaves_is_not_waited_for() -> None:
    bucket = _empty()
    _refused(bucket, 1, 0.0)
    _refused(bucket, 2, 0.0)
    bucket.leave(1)
    bucket.leave(1)
    assert bucket.room(2, ALL, 0.021) > 0
    bucket = _empty()
    _refused(bucket, 1, 0.0)
    _refused(bucket, 2, 0.0)
    bucket.spend_control(250_000, 0.25)
    assert _refused(bucket, 2, 0.26) == pytest.approx(0.34)
    assert _refused(bucket, 2, 0.28) == pytest.approx(0.32)  # the first was due at 0.02, and has not come


def test_who_comes_back_has_saved_nothing_up() -> None:
    bucket, now = Upload(RATE), 0.0
    bucket.spend(9, bucket.room(9, 1000, now), now)
    for _ in range(500):  # the other one has it all for ten seconds
        bucket.spend(1, bucket.room(1, ALL, now), now)
        now = bucket.wait(1, ALL, now)
    sent = {1: 0, 9: 0}
    _refused(bucket, 9, now)
    for _ in range(200):
        now += 0.01
        for who in (1, 9):
            room = bucket.room(who, ALL, now)
            bucket.spend(who, room, now)
            sent[who] += room
            bucket.wait(who, ALL, now)
    assert sent[9] == pytest.approx(sent[1], rel=0.1)


def test_what_is_remembered_is_bounded() -> None:
    bucket = Upload(1e9)
    tracemalloc.start()
    try:
        for who in range(20_000):
            now = who * 0.01
            bucket.spend(who, bucket.room(who, ALL, now), now)
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 200_000, "ten bytes for each who ever came"


def test_a_low_rate_still_moves_whole_frames() -> None:
    bucket = Upload(1000.0)
    assert bucket.share == 4096
    bucket.spend(1, bucket.room(1, ALL, 0.0), 0.0)
    assert _refused(bucket, 1, 0.0) == pytest.approx(4.096, rel=0.01)


@given(
    seed=st.integers(0, 1 << 30),
    count=st.integers(2, 6),
    rate=st.sampled_from([20_000.0, 1e6, 50e6]),
    late=st.sampled_from([0.0, 0.02]),
)
def test_those_who_wait_get_the_same_whatever_their_timers_do(
    seed: int, count: int, rate: float, late: float
) -> None:
    """Each comes back when it was told to, or up to 20 ms later; all of them want all there is."""
    rng = random.Random(seed)
    bucket = Upload(rate)
    seconds = max(20.0, 400 * bucket.share / rate)
    wakes = dict.fromkeys(range(count), 0.0)
    sent = dict.fromkeys(range(count), 0)
    while (now := min(wakes.values())) < seconds:
        who = min(wakes, key=lambda one: wakes[one])
        room = bucket.room(who, ALL, now)
        bucket.spend(who, room, now)
        sent[who] += room
        wakes[who] = bucket.wait(who, ALL, now) + rng.random() * late
    total = sum(sent.values())
    assert total <= seconds * rate + 0.2 * rate + 2 * bucket.share
    assert total >= 0.9 * seconds * rate
    assert max(sent.values()) - min(sent.values()) <= 0.2 * total / count
