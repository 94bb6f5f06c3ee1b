"""The estimate of what a link bears, step by step (tests/sim has whole links)."""

import weakref
from itertools import pairwise

import pytest
from meshd.mux.pacing import FIRST_ALLOWANCE, FLOOR_SECONDS, Pacing

KIB = 1 << 10
MB = 1_000_000


def loaded(rate: float, rtt: float, *, seconds: float = 2.0) -> Pacing:
    """After so long of bulk over a link of that rate and round trip, with perfect acknowledgements."""
    pacing = Pacing(0.0)
    now = free_at = 0.0
    arriving: list[tuple[float, int]] = []
    while now < seconds:
        room = pacing.allowance() - pacing.in_flight
        if room > 0:
            size = min(room, pacing.frame_size())
            pacing.on_sent(size, now, starved=False)
            free_at = max(free_at, now) + size / rate
            arriving.append((free_at + rtt, pacing.sent))
        else:
            now, total = arriving.pop(0)
            pacing.on_acked(total, now)
    return pacing


def test_before_anything_is_known_64_kib_may_fly() -> None:
    assert Pacing(0.0).allowance() == FIRST_ALLOWANCE == 64 * KIB
    assert Pacing(0.0).rate is None


def test_a_slow_link_is_measured_and_its_queue_is_50_ms() -> None:
    pacing = loaded(MB, 0.0)
    assert pacing.rate is not None
    assert 0.95 * MB < pacing.rate < 1.1 * MB
    assert pacing.allowance() < 0.075 * MB
    assert pacing.frame_size() <= 0.022 * MB


def test_distance_is_added() -> None:
    pacing = loaded(MB, 0.1, seconds=4)
    assert 0.13 * MB < pacing.allowance() < 0.21 * MB


def test_a_fast_link_may_have_more_in_flight() -> None:
    pacing = loaded(500 * MB, 0.0002, seconds=0.5)
    assert pacing.allowance() > 2 * MB
    assert pacing.frame_size() == 256 * KIB


def test_a_very_slow_link_keeps_a_least() -> None:
    pacing = loaded(20_000, 0.0, seconds=8)
    assert pacing.allowance() >= 16 * KIB
    assert pacing.frame_size() == 4 * KIB


def test_an_application_with_little_to_say_never_lowers_the_rate() -> None:
    pacing = loaded(10 * MB, 0.01)
    before = pacing.rate
    assert before is not None
    now = 3.0
    pacing.on_acked(pacing.sent, now)
    for _ in range(300):
        now += 0.1
        pacing.on_sent(100, now, starved=True)
        pacing.on_acked(pacing.sent, now + 0.01)
    assert now > 30
    assert pacing.rate == before


def test_a_small_first_message_does_not_shrink_what_follows() -> None:
    pacing = Pacing(0.0)
    pacing.on_sent(300, 0.0, starved=True)
    pacing.on_acked(300, 0.1)
    assert pacing.allowance() >= FIRST_ALLOWANCE


def test_a_rate_that_falls_is_believed_after_ten_seconds() -> None:
    pacing = loaded(10 * MB, 0.01)
    now = 3.0
    pacing.on_acked(pacing.sent, now)
    while now < 20:
        pacing.on_sent(20_000, now, starved=False)
        now += 0.02
        pacing.on_acked(pacing.sent, now)
    assert pacing.rate is not None
    assert pacing.rate < 1.1 * MB


def test_nonsense_is_ignored() -> None:
    pacing = Pacing(0.0)
    pacing.on_sent(1000, 0.0, starved=False)
    pacing.on_acked(2000, 1.0)
    assert pacing.acked == 0
    pacing.on_acked(500, 1.0)
    pacing.on_acked(400, 1.0)
    assert pacing.acked == 500
    assert pacing.in_flight == 500


def test_the_shortest_round_trip_is_measured_anew_on_a_drained_link() -> None:
    pacing = loaded(MB, 0.02, seconds=3)
    full = pacing.allowance()
    pacing.on_acked(pacing.sent, 3.0)
    now = 13.1
    for _ in range(2):
        pacing.on_pong(0.07, now, probe=False)
        assert pacing.allowance() < full / 2, "the link is being drained"
    pacing.on_pong(0.05, now, probe=True)
    assert pacing.rtt_min == 0.05
    assert pacing.allowance() <= 0.07 * MB  # the path is filled again step by step
    pacing.on_sent(50_000, now, starved=False)
    pacing.on_acked(pacing.sent, now + 0.05)
    assert pacing.allowance() > 0.09 * MB


def test_the_shortest_round_trip_of_minutes_outlasts_a_machine_that_computes() -> None:
    pacing = Pacing(0.0)
    pacing.on_pong(0.0002, 0.0, probe=False)
    for second in range(20, 200, 20):  # each of them makes `rtt_min` anew
        pacing.on_pong(0.02, float(second), probe=True)
        pacing.on_pong(0.02, float(second) + 15.0, probe=True)
    assert pacing.rtt_floor == 0.0002 and pacing.rtt_min == 0.02


def test_a_path_that_has_become_longer_is_believed_in_time() -> None:
    pacing = Pacing(0.0)
    pacing.on_pong(0.001, 0.0, probe=False)
    for second in range(0, int(2 * FLOOR_SECONDS), 10):
        pacing.on_pong(0.05, float(second), probe=False)
    assert pacing.rtt_floor == 0.05


class _Moment(float):
    """A time of which a test sees whether it is kept."""


def test_marks_are_bounded() -> None:
    pacing = Pacing(0.0)
    kept: weakref.WeakSet[_Moment] = weakref.WeakSet()
    for n in range(10_000):
        now = _Moment(n / 1000)
        kept.add(now)
        pacing.on_sent(1, now, starved=False)
    assert 1 < len(kept) <= 257  # `now` itself is one
    pacing.on_acked(10_000, 11.0)
    assert pacing.in_flight == 0


@pytest.mark.parametrize("chunk", [4 * KIB, 16 * KIB, 64 * KIB])
def test_the_rate_of_a_burst_is_not_believed(chunk: int) -> None:
    """A limiter that passes up to `chunk` bytes at once and then rests, 1 MB/s over all."""
    pacing = Pacing(0.0)
    now = rests_until = 0.0
    waiting: list[tuple[float, int, int]] = []  # (when sent, size, total)
    worst = 0
    while now < 20:
        while (room := pacing.allowance() - pacing.in_flight) > 0:
            size = min(room, pacing.frame_size())
            pacing.on_sent(size, now, starved=False)
            waiting.append((now, size, pacing.sent))
        now = max(now, rests_until) + 0.0005
        passed = 0
        total = pacing.acked
        while waiting and (not passed or passed + waiting[0][1] <= chunk):
            _, size, total = waiting.pop(0)
            passed += size
        rests_until = now + passed / MB
        pacing.on_acked(total, now)
        if now > 1:
            worst = max(worst, pacing.in_flight)
    assert worst < 100_000 + chunk


def test_a_first_short_sample_does_not_open_the_gates() -> None:
    pacing = Pacing(0.0)
    pacing.on_sent(20_000, 0.0, starved=False)
    pacing.on_sent(40_000, 0.0005, starved=False)
    pacing.on_acked(20_000, 0.001)  # 20 MB/s, if it were to be believed
    assert pacing.allowance() <= 64 * KIB + 20_000


def test_short_pauses_of_the_sender_do_not_keep_a_fast_link_slow() -> None:
    """Each allowance is acknowledged whole, a little late, and the next one leaves a little later."""
    pacing = Pacing(0.0)
    now = 0.0
    while now < 2:
        pacing.on_sent(max(pacing.allowance() - pacing.in_flight, 1), now, starved=False)
        now += 0.002
        pacing.on_acked(pacing.sent, now)
        now += 0.0005
    assert pacing.allowance() > 256 * KIB


def test_seconds_of_small_messages_do_not_make_a_burst_slow() -> None:
    """A token's few kilobytes, acknowledged after 20 ms, then a prompt's activations."""
    pacing = Pacing(0.0)
    now = 0.0
    for _ in range(90):
        pacing.on_sent(4_000, now, starved=True)
        now += 0.02
        pacing.on_acked(pacing.sent, now)
        now += 0.08
    assert pacing.allowance() >= FIRST_ALLOWANCE
    assert pacing.frame_size() >= 16 * KIB, "what it took says nothing about the link"
    first = prompt(pacing, now)
    assert first - now <= 0.12, "at most six round trips: what may be in flight doubles with each"
    assert prompt(pacing, first + 5) - first - 5 <= 0.06, "the next one finds what the first has found"


def prompt(pacing: Pacing, now: float, *, rtt: float = 0.02, size: int = 1_200_000) -> float:
    """Activations of a prompt over a wide line of that round trip; returns when the last is acknowledged."""
    left = size
    while left:
        room = pacing.allowance() - pacing.in_flight
        while room > 0 and left:
            count = min(room, pacing.frame_size(), left)
            left -= count
            pacing.on_sent(count, now, starved=not left)
            room -= count
        now += rtt
        pacing.on_acked(pacing.sent, now)
    return now


def test_small_messages_that_are_acknowledged_with_their_answer_are_no_queue() -> None:
    """Test a model that computes for 100 ms a token."""
    pacing = Pacing(0.0)
    pacing.on_pong(0.02, 0.0, probe=False)
    now = prompt(pacing, 0.0)
    for _ in range(20):
        pacing.on_sent(3000, now, starved=True)
        now += 0.12
        pacing.on_acked(pacing.sent, now)
    assert prompt(pacing, now + 5) - now - 5 <= 0.06


def test_a_burst_that_meets_a_queue_is_smaller_the_next_time() -> None:
    """A limiter lets some bursts pass at once, then holds to 1 MB/s: each further one is half as large."""
    pacing = Pacing(0.0)
    now = 0.0
    for _ in range(4):
        now = prompt(pacing, now) + 1
    bursts = []
    for _ in range(4):
        pacing.on_sent(1000, now, starved=True)
        bursts.append(pacing.allowance())
        pacing.on_sent(bursts[-1] - 1000, now, starved=True)
        now += bursts[-1] / MB
        pacing.on_acked(pacing.sent, now)
        now += 1
    assert bursts[0] > 300 * KIB
    for one, following in pairwise(bursts):
        assert following <= max(one // 2, FIRST_ALLOWANCE)
    assert bursts[-1] < bursts[0] / 4


def test_what_a_link_can_do_is_known_once_it_was_the_bottleneck() -> None:
    assert Pacing(0.0).full_rate is None
    slow, fast = loaded(MB, 0.04), loaded(200 * MB, 0.01, seconds=0.5)
    assert slow.full_rate is not None and 0.9 * MB < slow.full_rate < 1.3 * MB
    assert fast.full_rate is not None and fast.full_rate > 100 * MB


def test_little_to_send_and_the_first_rounds_say_nothing_of_it() -> None:
    pacing = Pacing(0.0)
    for number in range(1, 4000):  # one small message a round trip: more than a mebibyte in all
        pacing.on_sent(300, number * 0.1, starved=True)
        pacing.on_acked(pacing.sent, number * 0.1 + 0.04)
    assert pacing.rate is not None and pacing.full_rate is None
    started = loaded(100 * MB, 0.05, seconds=0.12)
    assert started.rate is not None and started.full_rate is None, "it has sent what the start allows"
