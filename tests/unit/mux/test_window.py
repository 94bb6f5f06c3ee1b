"""Credit: announcements to the peer, and when a window grows."""

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.mux.config import NodeBudget
from meshd.mux.stream import SessionCredit, StreamWindow

RTT = 0.05


def window(
    first: int = 100, *, most: int = 800, session: int = 10_000, node: int | None = None
) -> StreamWindow:
    """One stream's window."""
    budget = None if node is None else NodeBudget(node)
    return StreamWindow(first, most=most, session=SessionCredit(session), node=budget)


def drain(stream: StreamWindow, *, seconds: float, start: float) -> None:
    """Read one whole window in ten steps, the last so many seconds after the first."""
    size = stream.size
    for n in range(10):
        stream.consume(size // 10, now=start + seconds * n / 9, rtt=lambda: RTT)


def test_credit_is_what_was_consumed_and_one_window() -> None:
    stream = window()
    assert stream.granted == 100
    assert not stream.consume(10, now=1.0, rtt=lambda: RTT)
    assert stream.grant() == 110
    assert not stream.consume(25, now=1.0, rtt=lambda: RTT)
    assert stream.consume(1, now=1.0, rtt=lambda: RTT)  # a quarter and one
    assert stream.grant() == 136
    assert not stream.consume(1, now=1.0, rtt=lambda: RTT)


def test_a_window_read_within_two_round_trips_doubles() -> None:
    stream = window()
    drain(stream, seconds=0.09, start=1.0)
    assert stream.size == 200


def test_a_window_read_slowly_does_not() -> None:
    stream = window()
    drain(stream, seconds=0.11, start=1.0)
    assert stream.size == 100


def test_a_pause_before_reading_counts_as_slow_only_once() -> None:
    stream = window()
    stream.consume(50, now=1.0, rtt=lambda: RTT)
    stream.consume(50, now=9.0, rtt=lambda: RTT)
    assert stream.size == 100
    drain(stream, seconds=0.05, start=9.0)
    assert stream.size == 200


def test_a_window_grows_to_the_stream_s_most() -> None:
    stream = window(most=300)
    for n in range(5):
        drain(stream, seconds=0.01, start=1.0 + n)
    assert stream.size == 300


def test_all_windows_together_stay_within_the_session_s() -> None:
    session = SessionCredit(350)
    first = StreamWindow(100, most=800, session=session, node=None)
    StreamWindow(100, most=800, session=session, node=None)
    for n in range(5):
        drain(first, seconds=0.01, start=1.0 + n)
    assert first.size == 250
    first.release()
    first.release()
    assert session.windows == 100


def test_the_node_s_budget_bounds_growth_and_gets_it_back() -> None:
    budget = NodeBudget(150)
    stream = StreamWindow(100, most=800, session=SessionCredit(10_000), node=budget)
    for n in range(5):
        drain(stream, seconds=0.01, start=1.0 + n)
    assert stream.size == 200
    assert budget.left == 50
    stream.release()
    stream.release()
    assert budget.left == 150


def test_without_a_measured_round_trip_only_very_quick_readers_grow() -> None:
    stream = window()
    stream.consume(50, now=1.0, rtt=lambda: None)
    stream.consume(50, now=1.007, rtt=lambda: None)
    assert stream.size == 200


def test_session_credit() -> None:
    credit = SessionCredit(100)
    credit.receive(100)
    with pytest.raises(RemoteProtocolError):
        credit.receive(1)
    credit = SessionCredit(100)
    credit.receive(80)
    credit.consumed = 20
    assert not credit.due()
    credit.consumed = 26
    assert credit.due()
    assert credit.grant() == 126
