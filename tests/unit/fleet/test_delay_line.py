"""The delay line: everything comes out, in order, as late as it should, and no more is held than allowed."""

from hypothesis import given
from hypothesis import strategies as st
from meshd.fleet.delay_line import DelayLine


def everything(line: DelayLine, now: float) -> bytes:
    got = b""
    while (data := line.take(now)) is not None:
        got += data
    return got


def test_bytes_come_out_as_late_as_they_went_in() -> None:
    line = DelayLine(0.25)
    line.put(b"a", 1.0)
    line.put(b"b", 1.125)
    assert line.next_at == 1.25
    assert line.take(1.0) is None
    assert line.take(1.25) == b"a"
    assert line.take(2.0) == b"b"
    assert line.next_at is None


def test_many_are_under_way_at_once() -> None:
    line = DelayLine(1.0)
    for number in range(10):
        line.put(bytes([number]), 0.0)
    assert [line.take(1.0) for _ in range(11)] == [*(bytes([number]) for number in range(10)), None]


def test_the_end_travels_as_bytes_do() -> None:
    line = DelayLine(0.5)
    line.put(b"last", 0.0)
    line.put(b"", 0.25)
    assert line.take(0.5) == b"last"
    assert line.take(0.75) == b""


def test_what_comes_after_a_hold_waits_and_what_came_before_does_not() -> None:
    line = DelayLine(0.0)
    line.put(b"before", 1.0)
    line.hold(0.5, 1.0)
    line.put(b"after", 1.0)
    assert line.take(1.0) == b"before"
    assert line.take(1.25) is None
    assert line.take(1.5) == b"after"


def test_two_holds_add_up() -> None:
    line = DelayLine(0.0)
    line.hold(0.5, 1.0)
    line.hold(0.5, 1.0)
    line.put(b"x", 1.0)
    assert line.next_at == 2.0


def test_it_is_full_and_has_room_again() -> None:
    line = DelayLine(1.0, limit=10)
    room = []
    for size in (5, 5):
        line.put(bytes(size), 0.0)
        room.append(line.room)
    assert room == [True, False]
    line.take(1.0)
    assert (line.room, line.held) == (True, 5)


@given(st.lists(st.tuples(st.binary(max_size=20), st.floats(0, 0.1)), max_size=30), st.floats(0, 1))
def test_nothing_is_lost_or_moved(chunks: list[tuple[bytes, float]], seconds: float) -> None:
    line = DelayLine(seconds)
    now, sent, got = 0.0, b"", b""
    for data, pause in chunks:
        now += pause
        line.put(data, now)
        sent += data
        got += everything(line, now)
    assert line.held == len(sent) - len(got)
    assert got + everything(line, now + seconds) == sent
