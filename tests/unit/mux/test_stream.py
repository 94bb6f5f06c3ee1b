"""The two halves of a stream by themselves."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.mux.config import NodeBudget
from meshd.mux.stream import Piece, ReceiveHalf, SendHalf, SessionCredit, StreamWindow


def half(window: int = 1000) -> ReceiveHalf:
    """A half that receives."""
    return ReceiveHalf(StreamWindow(window, most=window, session=SessionCredit(10_000), node=None))


@given(st.lists(st.tuples(st.sampled_from("wtar"), st.integers(1, 3000)), max_size=60))
def test_whatever_is_taken_lost_and_taken_again_is_what_was_written(steps: list[tuple[str, int]]) -> None:
    send = SendHalf(1 << 30)
    written = bytearray()
    seen = bytearray()  # what a receiver that got everything up to the last loss would have
    for kind, count in steps:
        if kind == "w":
            piece = bytes((len(written) + n * n) & 255 for n in range(count))
            written += piece
            send.write(piece)
        elif kind == "t":
            start = send.cursor
            out: list[Piece] = []
            send.take(min(count, send.sendable()), out)
            taken = b"".join(out)
            assert written[start : start + len(taken)] == taken
            assert send.cursor == start + len(taken)
            seen[start:] = taken
        elif kind == "a":
            send.acknowledge(min(send.acked + count, send.sent))
        else:
            send.rewind()
        assert 0 <= send.acked <= send.cursor <= send.sent <= send.written == len(written)
    send.rewind()
    out = []
    send.take(send.sendable(), out)
    assert b"".join(out) == written[send.acked :]


def test_nothing_is_copied() -> None:
    send = SendHalf(1 << 30)
    data = bytes(10_000)
    send.write(data)
    out: list[Piece] = []
    send.take(4000, out)
    send.take(6000, out)
    assert [piece.obj is data for piece in out if isinstance(piece, memoryview)] == [True, True]


def test_small_writes_are_gathered_and_large_ones_are_not() -> None:
    send = SendHalf(1 << 30)
    for _ in range(1000):
        send.write(b"x")
    send.write(bytes(5000))
    out: list[Piece] = []
    send.take(6000, out)
    assert [len(piece) for piece in out] == [1, 999, 5000]


def test_tiny_pieces_in_flight_cost_room() -> None:
    send = SendHalf(1 << 30)
    for _ in range(1000):
        send.write(b"x")
        send.take(1, [])
    assert send.overhead() > 100 * 1000
    send.acknowledge(1000)
    assert send.overhead() == 0


def test_more_than_was_sent_cannot_be_acknowledged() -> None:
    send = SendHalf(1 << 30)
    send.write(b"abc")
    send.take(2, [])
    with pytest.raises(RemoteProtocolError):
        send.acknowledge(3)


@given(st.binary(min_size=1, max_size=300), st.data())
def test_pieces_in_any_order_and_overlap(text: bytes, draw: st.DataObject) -> None:
    receive = half()
    got = bytearray()
    for _ in range(draw.draw(st.integers(0, 12))):
        start = draw.draw(st.integers(0, len(text) - 1))
        end = draw.draw(st.integers(start + 1, len(text)))
        for piece in receive.take(start, text[start:end], end == len(text)):
            got += piece
        assert got == text[: receive.received]
    for piece in receive.take(0, text, True):
        got += piece
    assert got == text
    assert receive.ended
    assert receive.highest == len(text)
    assert receive.unread() == len(text)


def test_an_end_may_come_alone_and_before_its_data() -> None:
    receive = half()
    assert receive.take(3, b"", True) == []
    assert not receive.ended
    assert receive.take(0, b"abc", False) == [b"abc"]
    assert receive.ended


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


@pytest.mark.parametrize(("seconds", "size"), [(0.09, 200), (0.11, 100)])
def test_a_window_doubles_when_it_is_read_within_two_round_trips(seconds: float, size: int) -> None:
    stream = window()
    drain(stream, seconds=seconds, start=1.0)
    assert stream.size == size


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
