"""The life of a stream over one good link: open, accept, refuse, write, end, reset, credit.

The short cut: what it does is what the long way does, and what is not plain it leaves alone.
"""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import Busy, Closed, LocalProtocolError, RemoteProtocolError
from meshd.mux.config import MuxConfig, NodeBudget, Priority
from meshd.mux.events import (
    DataReceived,
    GoodbyeReceived,
    PongReceived,
    StreamAccepted,
    StreamEnded,
    StreamOpened,
    StreamReset,
    Switched,
    Writable,
)
from meshd.mux.session import MOST_FAST_BYTES, Session
from meshd.mux.upload import Upload
from meshd.wire.frame import Ping, ack_frame, data_header, encode

from tests.unit.mux.script import SESSION_ID, Two, Wire, quiet

KIB = 1 << 10


def test_the_first_bytes_travel_with_the_open() -> None:
    two = Two()
    wire = two.link()
    stream = two.leader.session.open("rpc", {"lease": b"\1\2", "n": 7, "who": "head"}, Priority.BULK)
    two.leader.live.add(stream)
    two.flows.begin(stream)
    two.leader.write(stream, b"hello")
    two.leader.write_eof(stream)
    two.send(two.leader, wire)
    two.deliver(two.follower, wire)
    opened, data, ended = two.follower.events[-3:]
    assert opened == StreamOpened(stream, "rpc", {"lease": b"\1\2", "n": 7, "who": "head"}, Priority.BULK)
    assert isinstance(data, DataReceived)
    assert ended == StreamEnded(stream)


def test_data_that_comes_in_asks_for_nothing_and_what_must_be_said_does() -> None:
    two = Two()
    wire = two.link()
    stream = two.leader.open()
    two.transfer()
    two.leader.write(stream, b"hello")
    two.send(two.leader, wire)
    two.deliver(two.follower, wire)
    assert not two.follower.session.due(wire.link_id, two.now)  # its acknowledgement can wait
    two.follower.session.reset(stream, 1, "enough")
    assert two.follower.session.due(wire.link_id, two.now)
    assert not two.follower.session.due(wire.link_id + 1, two.now)


def test_ids_are_even_for_the_leader_and_odd_for_the_follower() -> None:
    two = Two()
    assert [two.leader.open() for _ in range(3)] == [0, 2, 4]
    assert [two.follower.open() for _ in range(3)] == [1, 3, 5]


def test_the_opener_hears_when_its_stream_is_accepted() -> None:
    two = Two()
    two.link()
    stream = two.follower.open()
    two.transfer()
    assert two.follower.events.count(StreamAccepted(stream)) == 1
    assert two.leader.events.count(StreamAccepted(stream)) == 0


def test_a_refusal_has_a_code_and_a_reason() -> None:
    two = Two()
    wire = two.link()
    stream = two.leader.open()
    two.leader.write(stream, b"early")
    two.send(two.leader, wire)
    sent = bytes(two.wires[wire.link_id].to["follower"])
    two.wires[wire.link_id].to["follower"].clear()
    events = two.follower.session.receive(wire.link_id, sent, two.now)
    assert StreamOpened(stream, "echo", {}, Priority.INTERACTIVE) in events
    two.follower.live.add(stream)
    two.follower.reset(stream, 2, "no such service here")
    two.transfer()
    assert two.leader.events[-1] == StreamReset(stream, 2, "no such service here")
    assert StreamAccepted(stream) not in two.leader.events
    two.check_complete()


def test_both_directions_end_apart() -> None:
    two = Two()
    two.link()
    stream = two.leader.open()
    two.leader.write(stream, b"question")
    two.leader.write_eof(stream)
    two.transfer()
    assert StreamEnded(stream) in two.follower.events
    two.follower.write(stream, b"answer" * 1000)
    two.transfer()
    assert two.leader.session.status().streams[0].received == 6000
    two.follower.write_eof(stream)
    two.transfer()
    assert StreamEnded(stream) in two.leader.events
    two.check_complete()


def test_after_the_end_nothing_is_taken() -> None:
    two = Two()
    stream = two.leader.open()
    two.leader.write_eof(stream)
    two.leader.write_eof(stream)
    with pytest.raises(LocalProtocolError):
        two.leader.write(stream, b"x")
    with pytest.raises(Closed):
        two.leader.session.write(99, b"x")


def test_a_write_is_bounded_and_says_when_it_can_go_on() -> None:
    two = Two(quiet(stream_window=64 * KIB))
    two.follower.reads = False
    two.link()
    stream = two.leader.open()
    assert two.leader.write(stream, bytes(100 * KIB)) == 64 * KIB
    assert two.leader.write(stream, b"x") == 0
    two.transfer()
    assert two.leader.write(stream, b"x") == 0
    assert Writable(stream) not in two.leader.events
    two.follower.consume(stream, 40 * KIB)
    two.transfer()
    assert two.leader.events.count(Writable(stream)) == 1
    assert two.leader.write(stream, bytes(100 * KIB)) == 40 * KIB
    two.follower.reads = True
    two.follower.consume_all()
    two.finish()


def test_a_writer_that_was_never_short_is_not_woken() -> None:
    two = Two()
    two.link()
    stream = two.leader.open()
    two.leader.write(stream, bytes(1000))
    two.transfer()
    assert Writable(stream) not in two.leader.events


def test_streams_that_nobody_reads_leave_room_for_others_until_the_session_is_full() -> None:
    two = Two(quiet(stream_window=64 * KIB, session_window=128 * KIB))
    two.follower.reads = False
    two.link()
    first, second, third = (two.leader.open() for _ in range(3))
    for stream in (first, second, third):
        two.leader.write(stream, bytes(64 * KIB))
        two.transfer()
    status = two.follower.session.status()
    assert status.receive_buffered == 128 * KIB
    assert [stream.received for stream in status.streams] == [64 * KIB, 64 * KIB, 0]
    two.follower.consume(first, 64 * KIB)
    two.transfer()
    assert two.follower.session.status().streams[2].received == 64 * KIB
    two.finish()


def test_a_reset_gives_the_session_its_credit_back() -> None:
    two = Two(quiet(stream_window=64 * KIB, session_window=128 * KIB))
    two.follower.reads = False
    two.link()
    stuck = [two.leader.open() for _ in range(2)]
    for stream in stuck:
        two.leader.write(stream, bytes(64 * KIB))
    two.transfer()
    two.follower.reset(stuck[0])
    two.leader.reset(stuck[1])
    two.transfer()
    fresh = two.leader.open()
    assert two.leader.write(fresh, bytes(64 * KIB)) == 64 * KIB
    two.transfer()
    assert two.follower.session.status().streams[0].received == 64 * KIB
    two.finish()


def test_a_mutable_buffer_may_change_after_the_write() -> None:
    two = Two()
    two.link()
    stream = two.leader.open()
    buffer = bytearray(b"a" * 5000)
    view = memoryview(buffer)
    assert two.leader.session.write(stream, buffer) == 5000
    assert two.leader.session.write(stream, view) == 5000
    two.flows.out("leader", stream).written += b"a" * 10000
    buffer[:] = b"b" * 5000
    two.transfer()
    assert two.flows.out("leader", stream).read == 10000


def test_many_small_writes_cost_little() -> None:
    two = Two()
    stream = two.leader.open()
    for _ in range(5000):
        two.leader.write(stream, b"x")
    wire = two.link()
    assert len(two.leader.session.transmit(wire.link_id, two.now, 1 << 20)) < 20


def test_too_many_streams() -> None:
    two = Two(quiet(max_streams=2))
    two.link()
    two.leader.open()
    stream = two.leader.open()
    with pytest.raises(Busy):
        two.leader.open()
    two.leader.reset(stream)
    two.transfer()
    two.leader.open()


def test_metadata_that_is_too_large_opens_nothing() -> None:
    two = Two()
    with pytest.raises(LocalProtocolError):
        two.leader.session.open("s", {"key": bytes(5000)}, Priority.BULK)
    assert two.leader.session.status().streams == ()
    assert two.leader.open() == 0


def test_an_open_that_was_never_sent_leaves_no_trace() -> None:
    two = Two()
    stream = two.leader.open()
    two.leader.write(stream, b"never")
    two.leader.reset(stream)
    two.link()
    two.transfer()
    assert two.follower.opened == []
    two.check_complete()


def test_more_cannot_be_consumed_than_was_received() -> None:
    two = Two()
    two.follower.reads = False
    two.link()
    stream = two.leader.open()
    two.leader.write(stream, b"12345")
    two.transfer()
    two.follower.session.consumed(stream, 5)
    with pytest.raises(LocalProtocolError):
        two.follower.session.consumed(stream, 1)


def test_our_own_stream_is_not_ours_to_accept() -> None:
    two = Two()
    with pytest.raises(LocalProtocolError):
        two.leader.session.accept(two.leader.open())


def test_interactive_goes_before_bulk_and_bulk_is_not_starved() -> None:
    two = Two(quiet(stream_window=1 << 20))
    wire = two.link()
    two.transfer()
    bulk = two.leader.open(priority=Priority.BULK)
    quick = two.leader.open(priority=Priority.INTERACTIVE)
    two.leader.write(bulk, bytes(1 << 20))
    two.leader.write(quick, b"now")
    two.send(two.leader, wire, 20 * KIB)
    two.deliver(two.follower, wire)
    received = {stream.stream_id: stream.received for stream in two.follower.session.status().streams}
    assert received[quick] == 3
    two.leader.write(quick, bytes(1 << 19))
    two.transfer()
    assert {s.stream_id: s.received for s in two.follower.session.status().streams}[bulk] == 1 << 20


def test_streams_of_one_priority_share_alike() -> None:
    two = Two(quiet(stream_window=1 << 20))
    wire = two.link()
    two.transfer()
    streams = [two.leader.open(priority=Priority.BULK) for _ in range(4)]
    for stream in streams:
        two.leader.write(stream, bytes(1 << 19))
    for _ in range(8):
        two.send(two.leader, wire, 64 * KIB)
        two.deliver(two.follower, wire)
        two.send(two.follower, wire)
        two.deliver(two.leader, wire)
    received = [stream.received for stream in two.follower.session.status().streams]
    assert max(received) - min(received) <= 64 * KIB
    assert min(received) > 0


def test_a_ping_is_answered_with_its_number_and_round_trip() -> None:
    two = Two()
    wire = two.link()
    two.transfer()
    number = two.leader.session.ping(wire.link_id, two.now)
    two.send(two.leader, wire)
    two.now += 0.02
    two.deliver(two.follower, wire)
    two.send(two.follower, wire)
    two.now += 0.01
    two.deliver(two.leader, wire)
    pong = two.leader.events[-1]
    assert isinstance(pong, PongReceived)
    assert (pong.link_id, pong.ping_id, round(pong.rtt, 6)) == (wire.link_id, number, 0.03)
    with pytest.raises(Closed):
        two.leader.session.ping(77, two.now)


def test_goodbye_ends_it_on_both_sides() -> None:
    two = Two()
    two.link()
    stream = two.leader.open()
    two.leader.write(stream, b"x")
    two.transfer()
    two.leader.session.goodbye(6, "leaving")
    two.transfer()
    assert two.follower.goodbye == GoodbyeReceived(6, "leaving")
    for end in two.ends:
        assert end.session.status().streams == ()
        assert end.session.next_timeout() is None
        with pytest.raises(Closed):
            end.session.open("s", {}, Priority.BULK)
        with pytest.raises(Closed):
            end.session.write(stream, b"x")
        end.session.reset(stream, 0, "")
        end.session.consumed(stream, 1)


def test_the_first_link_carries_data_and_says_so() -> None:
    two = Two()
    wire = two.link()
    assert two.leader.events == [Switched(wire.link_id)]
    assert two.follower.events == []
    two.transfer()
    assert two.follower.events == [Switched(wire.link_id)]
    assert two.follower.session.data_link == wire.link_id
    with pytest.raises(LocalProtocolError):
        two.leader.session.link_up(wire.link_id, two.now)


def test_the_follower_does_not_choose() -> None:
    two = Two()
    two.link()
    other = two.link()
    two.transfer()
    with pytest.raises(LocalProtocolError):
        two.follower.session.switch_to(other.link_id, two.now)


def test_ids_of_sessions_have_one_length() -> None:
    with pytest.raises(LocalProtocolError):
        Session(side="leader", session_id=b"short")


def test_windows_grow_for_a_quick_reader_within_every_bound() -> None:
    budget = NodeBudget(300 * KIB)
    two = Two()
    config = MuxConfig(stream_window=64 * KIB, max_stream_window=1 << 20, session_window=512 * KIB)
    two.follower.session = Session(side="follower", session_id=SESSION_ID, config=config, budget=budget)
    two.leader.session = Session(side="leader", session_id=SESSION_ID, config=config)
    wire = two.link()
    stream = two.leader.open()
    for _ in range(200):
        two.leader.write(stream, bytes(32 * KIB))
        for end in two.ends:
            two.send(end, wire)
            two.deliver(two.other(end), wire)
    window = two.follower.session.status().streams[0].window
    assert window == 256 * KIB  # the next doubling would pass the node's budget
    assert budget.left == 300 * KIB - (256 - 64) * KIB
    two.finish()
    assert budget.left == 300 * KIB


def talking(config: MuxConfig | None = None) -> tuple[Two, Wire, int]:
    """Two sides at rest with one stream that both know."""
    two = Two(config)
    wire = two.link()
    stream = two.leader.open()
    two.leader.write(stream, b"a")
    two.transfer()
    two.follower.write(stream, b"b")
    two.transfer()
    two.now += 1
    two.leader.session.transmit(wire.link_id, two.now, KIB)
    return two, wire, stream


sizes = st.one_of(st.integers(1, 700), st.integers(1, 20 * KIB))


@settings(max_examples=150, deadline=None)
@given(talk=st.lists(st.tuples(st.booleans(), sizes, st.sampled_from((0.0, 0.2))), max_size=10))
def test_both_ways_leave_the_same_behind(talk: list[tuple[bool, int, float]]) -> None:
    (short, short_wire, stream), (long, long_wire, same) = talking(), talking()
    assert stream == same
    for number, (follower, size, pause) in enumerate(talk):
        data = bytes(size)
        for two, wire in ((short, short_wire), (long, long_wire)):
            two.now += pause
            end = two.follower if follower else two.leader
            passed = two is short and two.pass_on(end, stream, data)
            assert passed or two is long or number, "the first one; many at once may have to wait"
            if not passed:
                end.write(stream, data)
                two.send(end, wire)
            two.deliver(two.other(end), wire)
    for two in (short, long):
        two.transfer()  # acknowledgements may go some milliseconds sooner on the long way
    for one, other in zip(short.ends, long.ends, strict=True):
        mine, theirs = one.session.status(), other.session.status()
        assert mine.streams == theirs.streams
        assert (mine.sent, mine.received, mine.send_buffered) == (theirs.sent, theirs.received, 0)
    short.finish()


def test_a_message_of_one_frame_takes_it_both_ways() -> None:
    two, wire, stream = talking()
    assert two.pass_on(two.leader, stream, b"question")
    frame = bytes(wire.to["follower"])
    assert frame.endswith(data_header(stream, 1, 8, False) + b"question")
    assert two.follower.session.fast_path.receive(wire.link_id, frame, two.now) == (
        stream,
        b"question",
        False,
    )


Change = Callable[[Two, Wire, int], object]


def _bulk_waits(two: Two, _wire: Wire, _stream: int) -> None:
    other = two.leader.open(priority=Priority.BULK)
    two.leader.write(other, b"x")


def _peer_measures(two: Two, wire: Wire, _stream: int) -> None:
    wire.to["leader"] += encode(Ping(7, 0, hold=True))
    two.deliver(two.leader, wire)
    two.send(two.leader, wire)  # the pong


def _follows_a_lost_link(two: Two, wire: Wire, _stream: int) -> None:
    two.cut(wire)
    session = two.leader.session
    session.link_up(wire.link_id, two.now)
    session.transmit(wire.link_id, two.now, KIB)  # our Resume; the peer's has not come


NOT_PLAIN: dict[str, Change] = {
    "the peer measures": _peer_measures,
    "the peer has not said what it has": _follows_a_lost_link,
    "another stream waits": _bulk_waits,
    "an end was written": lambda two, _w, stream: two.leader.write_eof(stream),
    "it is reset": lambda two, _w, stream: two.leader.reset(stream),
    "bytes of its own wait": lambda two, _w, stream: two.leader.session.write(stream, b"before"),
    "a ping is asked for": lambda two, wire, _s: two.leader.session.ping(wire.link_id, two.now),
    "the link is gone": lambda two, wire, _s: two.cut(wire),
    "a stream was just opened": lambda two, _w, _s: two.leader.open(),
    "the session is over": lambda two, _w, _s: two.leader.session.goodbye(0, "bye"),
    "another link has taken over": lambda two, _w, _s: two.leader.session.switch_to(
        two.link().link_id, two.now
    ),
}


@pytest.mark.parametrize("what", NOT_PLAIN)
def test_what_is_not_plain_is_left_to_the_long_way(what: str) -> None:
    two, wire, stream = talking()
    NOT_PLAIN[what](two, wire, stream)
    before = two.leader.session.status()
    assert two.leader.session.fast_path.send(wire.link_id, stream, b"x", two.now) is None
    assert two.leader.session.status() == before


@pytest.mark.parametrize("data", [b"", bytes(MOST_FAST_BYTES + 1)])
def test_nothing_and_much_go_the_long_way(data: bytes) -> None:
    two, wire, stream = talking()
    assert two.leader.session.fast_path.send(wire.link_id, stream, data, two.now) is None


def test_credit_holds_on_the_short_way_too() -> None:
    two, wire, stream = talking(quiet(stream_window=KIB, max_stream_window=KIB, session_window=4 * KIB))
    two.follower.reads = False
    sent = 0
    while two.pass_on(two.leader, stream, bytes(100)):
        sent += 100
        two.deliver(two.follower, wire)
    assert KIB - 100 - 1 <= sent < KIB


def test_what_the_link_bears_holds_on_the_short_way_too() -> None:
    two, _, stream = talking()
    sent = 0
    while two.pass_on(two.leader, stream, bytes(4 * KIB)):
        sent += 4 * KIB
    assert 56 * KIB <= sent <= 64 * KIB  # pacing.FIRST_ALLOWANCE: nothing is known of the link


def test_a_node_with_a_limit_on_what_it_gives_goes_the_long_way() -> None:
    two = Two()
    budget = NodeBudget(1 << 20, upload=Upload(1e6))
    two.leader = type(two.leader)("leader", quiet(), two.flows, budget)
    wire = two.link()
    stream = two.leader.open()
    two.transfer()
    assert two.leader.session.fast_path.send(wire.link_id, stream, b"x", two.now) is None


def test_a_message_of_the_most_bytes_goes_at_once_as_one_frame() -> None:
    two, wire, stream = talking(quiet(stream_window=256 * KIB, session_window=1024 * KIB))
    data = bytes(range(256)) * (60 * KIB // 256)  # with the header less than pacing.FIRST_ALLOWANCE
    assert two.pass_on(two.leader, stream, data)
    frame = bytes(wire.to["follower"])
    assert frame.endswith(data_header(stream, 1, len(data), False) + data)
    arrived = two.follower.session.fast_path.receive(wire.link_id, frame, two.now)
    assert arrived is not None
    assert bytes(arrived[1]) == data


def _acked(two: Two, stream: int) -> tuple[bytes, bytes]:
    """Return what the follower answers to 10 KiB: its acknowledgements, and a frame of data behind them."""
    two.leader.write(stream, bytes(10 * KIB))
    wire = two.wires[two.leader.session.data_link or 0]
    two.send(two.leader, wire)
    two.deliver(two.follower, wire)
    two.now += 0.06  # acknowledgements of little wait for company that long
    sent = two.follower.pass_on(stream, b"answer", two.now)
    head = data_header(stream, 1, 6, False)
    assert sent.endswith(head + b"answer")
    return sent.removesuffix(head + b"answer"), head + b"answer"


def test_acknowledgements_before_the_data_take_the_short_cut_too() -> None:
    (short, short_wire, stream), (long, long_wire, same) = talking(), talking()
    assert stream == same
    acks, data = _acked(short, stream)
    assert acks
    assert (acks, data) == _acked(long, stream)
    arrived = short.leader.session.fast_path.receive(short_wire.link_id, acks + data, short.now)
    assert arrived == (stream, b"answer", True)
    long.leader.session.receive(long_wire.link_id, acks + data, long.now)
    mine, theirs = short.leader.session.status(), long.leader.session.status()
    assert mine == theirs
    assert mine.send_buffered == 0


@pytest.mark.parametrize("what", ["of what was not sent", "of an end", "of another stream", "cut", "many"])
def test_other_acknowledgements_go_the_long_way(what: str) -> None:
    two, wire, stream = talking()
    acks, data = _acked(two, stream)
    sent = 1 + 10 * KIB
    before = {
        "of what was not sent": ack_frame(stream, sent + 1, 1 << 20, False, False),
        "of an end": ack_frame(stream, sent, 1 << 20, False, True),
        "of another stream": ack_frame(stream + 4, 0, 0, False, False),
        "cut": acks[:-1],
        "many": acks * 3,
    }[what]
    status = two.leader.session.status()
    assert two.leader.session.fast_path.receive(wire.link_id, before + data, two.now) is None
    assert two.leader.session.status() == status


def _frame(stream: int, offset: int, payload: bytes, *, fin: bool = False) -> bytes:
    return data_header(stream, offset, len(payload), fin) + payload


@pytest.mark.parametrize(
    "what", ["an end", "a gap", "a repetition", "a part", "two", "an unknown stream", "another frame"]
)
def test_what_comes_otherwise_is_left_to_the_long_way(what: str) -> None:
    two, wire, stream = talking()
    plain = _frame(stream, 1, b"hello")
    data = {
        "an end": _frame(stream, 1, b"hello", fin=True),
        "a gap": _frame(stream, 2, b"hello"),
        "a repetition": _frame(stream, 0, b"hello"),
        "a part": plain[:-1],
        "two": plain + plain,
        "an unknown stream": _frame(stream + 2, 0, b"hello"),
        "another frame": b"\x05" + plain[1:],
    }[what]
    before = two.follower.session.status()
    assert two.follower.session.fast_path.receive(wire.link_id, data, two.now) is None
    assert two.follower.session.status() == before


def test_behind_part_of_a_frame_nothing_is_plain() -> None:
    two, wire, stream = talking()
    frame = _frame(stream, 1, b"hello")
    two.follower.session.receive(wire.link_id, frame[:7], two.now)
    assert two.follower.session.fast_path.receive(wire.link_id, frame, two.now) is None


def test_more_than_the_credit_breaks_the_session_as_ever() -> None:
    two, wire, stream = talking(quiet(stream_window=KIB, max_stream_window=KIB, session_window=4 * KIB))
    two.follower.reads = False
    data = _frame(stream, 1, bytes(2 * KIB))
    assert two.follower.session.fast_path.receive(wire.link_id, data, two.now) is None
    with pytest.raises(RemoteProtocolError):
        two.follower.session.receive(wire.link_id, data, two.now)


def test_much_that_came_may_have_to_be_acknowledged() -> None:
    two, wire, stream = talking()
    receive = two.follower.session.fast_path.receive
    little, much = bytes(KIB), bytes(8 * KIB)
    assert receive(wire.link_id, _frame(stream, 1, little), two.now) == (stream, little, False)
    assert receive(wire.link_id, _frame(stream, 1 + KIB, much), two.now) == (stream, much, True)
