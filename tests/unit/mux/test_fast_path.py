"""The short cut: what it does is what the long way does, and what is not plain it leaves alone."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.mux.config import MuxConfig, NodeBudget, Priority
from meshd.mux.session import MOST_FAST_BYTES
from meshd.mux.upload import Upload
from meshd.wire.frame import Ping, ack_frame, data_header, encode

from .script import Two, Wire, quiet

KIB = 1 << 10


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
