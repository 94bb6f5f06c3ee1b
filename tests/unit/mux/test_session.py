"""The life of a stream over one good link: open, accept, refuse, write, end, reset, credit."""

import pytest
from meshd.base.errors import Busy, Closed, LocalProtocolError
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
from meshd.mux.session import Session

from tests.unit.mux.script import SESSION_ID, Two, quiet

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
