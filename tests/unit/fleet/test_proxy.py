"""The delay line: everything comes out, in order, as late as it should, and no more is held than allowed."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.fleet.proxy import DelayLine, RpcCounts, RpcListener

HEADER = 9
SET_TENSOR, GET_TENSOR, GRAPH_COMPUTE, HELLO, GRAPH_RECOMPUTE = 6, 8, 10, 14, 16
SILENT = (4, 5, SET_TENSOR, GRAPH_COMPUTE, 12, GRAPH_RECOMPUTE, 17)  # requests without an answer


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


def request(command: int, body: bytes = b"") -> bytes:
    return struct.pack("<BQ", command, len(body)) + body


def answer(body: bytes) -> bytes:
    return struct.pack("<Q", len(body)) + body


def set_tensor(name: bytes, data: bytes) -> bytes:
    return request(SET_TENSOR, bytes(228) + name.ljust(64, b"\0") + bytes(13) + data)


def test_kinds_of_bytes() -> None:
    counts = RpcCounts()
    one = RpcListener(counts)
    one.sent(request(HELLO, bytes(24)))
    one.answered(answer(bytes(28)))
    one.sent(set_tensor(b"blk.0.attn_q.weight", bytes(1000)))
    one.sent(set_tensor(b"inp_embd", bytes(50)))
    one.sent(request(GRAPH_COMPUTE, bytes(300)))
    one.sent(request(GET_TENSOR, bytes(312)))
    one.answered(answer(bytes(400)))
    tensor = HEADER + 228 + 64 + 13
    assert counts == RpcCounts(
        connections=1,
        requests=5,
        round_trips=2,
        weights=tensor + 1000,
        tensors=tensor + 50 + 8 + 400,
        graphs=HEADER + 300,
        control=HEADER + 24 + 8 + 28 + HEADER + 312,
    )


def test_requests_that_leave_together_are_one_round_trip() -> None:
    counts = RpcCounts()
    one = RpcListener(counts)
    one.sent(request(HELLO, bytes(24)))
    one.sent(request(HELLO, bytes(24)))
    one.answered(answer(bytes(28)))
    one.answered(answer(bytes(28)))
    assert counts.round_trips == 1


def test_where_computing_begins() -> None:
    one = RpcListener(RpcCounts())
    before = request(HELLO, bytes(24))
    assert one.sent(before + request(GRAPH_RECOMPUTE, bytes(4)) + before) == [len(before)]
    cut = request(GRAPH_COMPUTE, bytes(100))
    assert one.sent(cut[:5]) == []
    assert one.sent(cut[5:]) == [0]


@pytest.mark.parametrize("command", range(18))
def test_an_answer_belongs_to_the_request_that_waits_for_one(command: int) -> None:
    counts = RpcCounts()
    one = RpcListener(counts)
    one.sent(request(command) + request(GET_TENSOR))
    tensors = counts.tensors
    one.answered(answer(bytes(100)))
    assert (counts.tensors - tensors == 108) is (command in SILENT or command == GET_TENSOR)


@given(st.lists(st.integers(1, 400), max_size=20))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    tensors = set_tensor(b"a.weight", bytes(99)), set_tensor(b"b", bytes(7))
    stream = request(SET_TENSOR) + tensors[0] + request(GRAPH_COMPUTE, bytes(33)) + tensors[1]
    back = answer(bytes(10)) + answer(b"")
    whole, cut = RpcCounts(), RpcCounts()
    one, other = RpcListener(whole), RpcListener(cut)
    one.sent(stream)
    one.answered(back)
    for feed, data in ((other.sent, stream), (other.answered, back)):
        at = 0
        for size in [*cuts, len(data)]:
            feed(data[at : at + size])
            at += size
    assert cut == whole
    assert cut.bytes == len(stream) + len(back)


@given(st.lists(st.tuples(st.booleans(), st.binary(max_size=400)), max_size=20))
def test_every_byte_is_counted_once_whatever_it_says(parts: list[tuple[bool, bytes]]) -> None:
    counts = RpcCounts()
    one = RpcListener(counts)
    for up, data in parts:
        if up:
            one.sent(data)
        else:
            one.answered(data)
    waiting = HEADER + 228 + 64 + 8  # a header is counted when it is whole
    total = sum(len(data) for _, data in parts)
    assert total - waiting < counts.bytes <= total
