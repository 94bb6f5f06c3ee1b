"""The congestion window on a path in virtual time: fills it, leaves room for others, forgets the past."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.link.bbr import MAX_WINDOW_BYTES, MIN_WINDOW_SEGMENTS, ModelWindow

from tests.unit.link.path_model import SEGMENT, Control, Cubic, Flow, Path, model

MIB = 1 << 20


def megabytes_a_second(control: Control, *, rtt: float, loss: float = 0.0) -> float:
    flow = Flow(control, limit=20 * MIB)
    Path([flow], rtt=rtt, loss=loss).run(60.0)
    assert flow.done is not None
    return 20 * MIB / flow.done / 1e6


@pytest.mark.parametrize(("rtt", "least"), [(0.02, 11.0), (0.05, 10.2), (0.1, 8.8)])
def test_alone_it_fills_the_path(rtt: float, least: float) -> None:
    assert megabytes_a_second(model(), rtt=rtt) > least


@pytest.mark.parametrize(("rtt", "least"), [(0.02, 10.8), (0.05, 9.8), (0.1, 8.0)])
def test_random_losses_say_nothing(rtt: float, least: float) -> None:
    assert megabytes_a_second(model(), rtt=rtt, loss=0.005) > least
    other = Flow(Cubic())
    Path([other], rtt=rtt, loss=0.005).run(10.0)
    assert other.arrived / 10 / 1e6 < least / 2, "the path does not tell them apart"


@pytest.mark.parametrize("rtt", [0.02, 0.05, 0.1])
def test_alone_it_makes_no_long_queue(rtt: float) -> None:
    path = Path([Flow(model())], rtt=rtt)
    path.run(8.0)
    calm = path.queues[200:]
    assert sum(calm) / len(calm) < 0.25 * rtt + 0.01


@pytest.mark.parametrize("rtt", [0.02, 0.05, 0.1])
def test_a_flow_that_was_there_first_keeps_a_share(rtt: float) -> None:
    cubic, ours = Flow(Cubic()), Flow(model(), start=3.0)
    path = Path([cubic, ours], rtt=rtt)
    path.run(5.0)
    before = cubic.arrived, ours.arrived
    path.run(20.0)
    shares = [
        (flow.arrived - was) / (15 * path.rate) for flow, was in zip((cubic, ours), before, strict=True)
    ]
    assert min(shares) > 0.2
    assert sum(shares) > 0.9


def test_two_of_ours_share() -> None:
    first, second = Flow(model()), Flow(model(), start=2.0)
    path = Path([first, second], rtt=0.05)
    path.run(6.0)
    before = first.arrived, second.arrived
    path.run(30.0)
    shares = [
        (flow.arrived - was) / (24 * path.rate) for flow, was in zip((first, second), before, strict=True)
    ]
    assert min(shares) > 0.15
    assert sum(shares) > 0.9


def test_a_longer_way_is_noticed() -> None:
    """The shortest round trip is looked for anew: a window by the old one would hold a third of the path."""
    window = model()
    flow = Flow(window)
    path = Path([flow], rtt=0.02)
    path.run(3.0)
    path.rtt = 0.08
    path.run(20.0)
    assert window.min_rtt is not None and window.min_rtt > 0.07
    before = flow.arrived
    path.run(24.0)
    assert flow.arrived - before > 0.8 * 4 * path.rate


def test_a_slower_path_is_noticed() -> None:
    window = model()
    path = Path([Flow(window)], rtt=0.05)
    path.run(3.0)
    path.rate = 2e6
    path.run(9.0)
    assert window.rate < 3e6
    assert window.window < 600_000


def test_little_to_send_says_little_of_the_path() -> None:
    window = model()
    path = Path([Flow(window, limit=20 * MIB)], rtt=0.05)
    path.run(30.0)
    rate, now = window.rate, path.now
    for number in range(200):
        window.acked(now + 0.1 * number, 100, 0.05, starved=True)
    assert window.rate == pytest.approx(rate, rel=0.01)


def test_after_silence_it_begins_carefully() -> None:
    window = model()
    Path([Flow(window, limit=20 * MIB)], rtt=0.05).run(30.0)
    assert window.window > 32 * SEGMENT
    window.silenced()
    assert window.window == MIN_WINDOW_SEGMENTS * SEGMENT
    assert megabytes_a_second(window, rtt=0.05) > 8.0


def test_within_a_lan_nothing_is_paced() -> None:
    window = model()
    Path([Flow(window, limit=20 * MIB)], rtt=0.0005).run(30.0)
    assert window.pacing_rate == 0.0


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["acked", "starved", "lost", "silenced"]),
        st.floats(0.0, 0.5),
        st.integers(1, 200 * SEGMENT),
        st.floats(0.00001, 3.0),
    ),
    max_size=200,
)


@given(EVENTS)
def test_it_stays_within_its_bounds(events: list[tuple[str, float, int, float]]) -> None:
    window, now = ModelWindow(SEGMENT), 1.0
    for kind, passed, size, rtt in events:
        now += passed
        if kind == "silenced":
            window.silenced()
        elif kind == "lost":
            window.lost(now, size, now - rtt)
        else:
            window.acked(now, size, rtt, starved=kind == "starved")
        assert MIN_WINDOW_SEGMENTS * SEGMENT <= window.window <= MAX_WINDOW_BYTES
        assert 0.0 <= window.pacing_rate < float("inf")
