"""Test that a peer that breaks the rules ends the session with a RemoteProtocolError, and nothing else."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import Closed, RemoteProtocolError
from meshd.mux.config import MuxConfig, NodeBudget, Priority, Side
from meshd.mux.events import DataReceived, StreamEnded, StreamOpened
from meshd.mux.session import Session
from meshd.wire.frame import (
    Ack,
    Control,
    Data,
    Frame,
    FrameParser,
    Goodbye,
    HelloFrame,
    LinkAck,
    LinkLost,
    MaxData,
    Open,
    Ping,
    Pong,
    Reset,
    ResetAck,
    Resume,
    ResumeEntry,
    Switch,
    data_header,
    encode,
)
from meshd.wire.limits import MAX_STREAMS

from tests.unit.mux.script import SESSION_ID, quiet

WINDOW = 1000
CONFIG = quiet(stream_window=WINDOW, max_stream_window=4000, session_window=1800)


def data(stream_id: int, offset: int, payload: bytes, fin: bool = False) -> bytes:
    """A Data frame."""
    return data_header(stream_id, offset, len(payload), fin) + payload


def encoded(frame: Control | Data) -> bytes:
    """Any frame."""
    if isinstance(frame, Data):
        return data(frame.stream_id, frame.offset, bytes(frame.payload), frame.fin)
    return encode(frame)


def opened(*stream_ids: int) -> bytes:
    """Open frames from the peer."""
    return b"".join(encode(Open(stream_id, "s", {}, 0, WINDOW)) for stream_id in stream_ids)


def follower() -> Session:
    """The side under test, with a link; it has opened stream 1 and sent ten bytes on it."""
    session = Session(side="follower", session_id=SESSION_ID, config=CONFIG)
    session.link_up(1, 0.0)
    session.receive(1, encode(Switch(1)), 0.0)
    session.write(session.open("s", {}, Priority.BULK), b"0123456789")
    session.transmit(1, 0.0, 1 << 20)
    return session


def replies(session: Session) -> list[Frame]:
    """Return what it sends."""
    return FrameParser().feed(b"".join(session.transmit(1, 1.0, 1 << 20)))


BROKEN: dict[str, bytes] = {
    "a second hello": encode(HelloFrame(b"")),
    "an open of our parity": encode(Open(3, "s", {}, 0, 0)),
    "data before open": data(0, 0, b"x"),
    "data on a stream that we never opened": data(3, 0, b"x"),
    "more than the stream's credit": opened(0) + data(0, 0, bytes(WINDOW + 1)),
    "an offset beyond the stream's credit": opened(0) + data(0, WINDOW, b"x"),
    "more than the session's credit": opened(0, 2) + data(0, 0, bytes(WINDOW)) + data(2, 0, bytes(801)),
    "an end that moves": opened(0) + data(0, 0, b"xy", True) + data(0, 0, b"x", True),
    "data after the end": opened(0) + data(0, 0, b"xy", True) + data(0, 2, b"z"),
    "an end before what came": opened(0) + data(0, 0, b"xyz") + data(0, 0, b"x", True),
    "an ack for more than was sent": encode(Ack(1, 11, 5000)),
    "an ack for an end that was not sent": encode(Ack(1, 10, 5000, ended=True)),
    "an ack for a stream that was never opened": encode(Ack(3, 0, 0)),
    "a reset for a stream that was never opened": encode(Reset(3, 0, "", 0, 0)),
    "a reset that claims more than was sent": encode(Reset(1, 0, "", 0, 11)),
    "a reset with an end beyond the credit": encode(Reset(1, 0, "", WINDOW + 1, 0)),
    "a reset with an end before what came": opened(0) + data(0, 0, b"xyz") + encode(Reset(0, 0, "", 2, 0)),
    "a reset ack without a reset": encode(ResetAck(1)),
    "a resume of a stream that we never opened": encode(Resume(0, 0, 0, (ResumeEntry(3, 0, 0, 0),))),
    "a resume that has forgotten a live stream": encode(Resume(0, 0, 3, ())),
    "a resume that has more than was sent": encode(Resume(0, 0, 3, (ResumeEntry(1, 11, 0, 0),))),
    "too many streams": opened(*range(0, 2 * MAX_STREAMS + 2, 2)),
    "too many pieces out of order": opened(0) + b"".join(data(0, n, b"x") for n in range(2, 600, 2)),
    "pieces that overlap for ever": opened(0) + b"".join(data(0, 1 + n, bytes(900)) for n in range(3)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_rule_ends_the_session(name: str) -> None:
    session = follower()
    with pytest.raises(RemoteProtocolError):
        session.receive(1, BROKEN[name], 1.0)
    assert session.receive(1, opened(0), 1.0) == []
    assert session.status().streams == ()
    with pytest.raises(Closed):
        session.write(1, b"x")


def test_only_the_leader_switches() -> None:
    leader = Session(side="leader", session_id=SESSION_ID, config=CONFIG)
    leader.link_up(1, 0.0)
    with pytest.raises(RemoteProtocolError):
        leader.receive(1, encode(Switch(9)), 0.0)


def test_pieces_in_any_order_come_out_in_order() -> None:
    session = follower()
    pieces = [data(0, 6, b"gh", True), data(0, 2, b"cd"), data(0, 3, b"defg"), data(0, 0, b"abc")]
    events = session.receive(1, opened(0) + b"".join(pieces), 1.0)
    got = b"".join(bytes(event.data) for event in events if isinstance(event, DataReceived))
    assert got == b"abcdefgh"
    assert events[-1] == StreamEnded(0)


def test_an_open_below_the_last_one_is_taken_for_a_stream_that_is_gone() -> None:
    session = follower()
    events = session.receive(1, opened(4) + opened(2) + opened(4), 1.0)
    assert [event.stream_id for event in events if isinstance(event, StreamOpened)] == [4]


def test_an_open_that_comes_after_its_reset_is_not_believed() -> None:
    session = follower()
    assert session.receive(1, encode(Reset(0, 1, "", 0, 0)) + opened(0), 1.0) == []
    assert ResetAck(0) in replies(session)


def test_frames_for_forgotten_streams_are_answered_again_and_again() -> None:
    session = follower()
    session.receive(1, opened(0) + data(0, 0, b"abc", True), 1.0)
    session.accept(0)
    session.consumed(0, 3)
    session.write_eof(0)
    assert Data(0, 0, b"", fin=True) in replies(session)
    session.receive(1, encode(Ack(0, 0, WINDOW, ended=True)), 1.0)
    assert [stream.stream_id for stream in session.status().streams] == [1]
    for _ in range(2):
        assert session.receive(1, opened(0) + data(0, 0, b"abc", True) + data(0, 1, b"b"), 1.0) == []
        assert Ack(0, 3, 3, accepted=True, ended=True) in replies(session)
        assert session.receive(1, encode(Reset(0, 1, "", 3, 0)), 1.0) == []
        assert ResetAck(0) in replies(session)
    assert session.receive(1, encode(Ack(0, 0, WINDOW)) + encode(ResetAck(0)), 1.0) == []


def test_answers_about_forgotten_streams_are_bounded() -> None:
    session = follower()
    flood = b"".join(encode(Reset(stream_id, 1, "", 0, 0)) for stream_id in range(0, 20_000, 2))
    with pytest.raises(RemoteProtocolError):
        session.receive(1, flood, 1.0)


def test_streams_that_ended_and_were_never_read_are_refused_in_the_end() -> None:
    session = Session(side="follower", session_id=SESSION_ID, config=quiet(session_window=1 << 20))
    session.link_up(1, 0.0)
    session.receive(1, encode(Switch(1)), 0.0)
    count = 0
    while not any(isinstance(frame, Reset) for frame in replies(session)):
        stream_id = 2 * count
        events = session.receive(1, opened(stream_id) + data(stream_id, 0, b"x", True), 1.0)
        if any(isinstance(event, StreamOpened) for event in events):
            session.write_eof(stream_id)
            replies(session)
            session.receive(1, encode(Ack(stream_id, 0, WINDOW, ended=True)), 1.0)
        count += 1
        assert count < 5000
    assert count == 2 * MAX_STREAMS + 1


def test_nonsense_about_the_link_does_no_harm() -> None:
    session = follower()
    frames: list[Control] = [
        LinkAck(1 << 50),
        LinkAck(0),
        Pong(77, 0),
        LinkLost(5),
        MaxData(0),
        Switch(0),
        Switch(1),
    ]
    assert session.receive(1, b"".join(encode(frame) for frame in frames), 1.0) == []
    session.write(1, b"more")
    assert Data(1, 10, b"more") in replies(session)


def test_a_flood_of_pings_is_bounded() -> None:
    session = follower()
    session.receive(1, b"".join(encode(Ping(number, 0)) for number in range(5000)), 1.0)
    assert sum(isinstance(frame, Pong) for frame in replies(session)) <= 64


def test_bytes_of_a_link_that_is_gone_are_nothing() -> None:
    session = follower()
    session.link_down(1, 1.0)
    assert session.receive(1, b"\xff" * 100, 1.0) == []
    assert session.transmit(1, 1.0, 1000) == []


SIDES: st.SearchStrategy[Side] = st.sampled_from(("leader", "follower"))
SMALL = st.integers(0, 12)
ENTRIES = st.builds(ResumeEntry, SMALL, SMALL, st.integers(0, 2000), SMALL, st.booleans())
FRAMES: st.SearchStrategy[Control | Data] = st.one_of(
    st.builds(Open, SMALL, st.just("s"), st.just({}), st.integers(0, 1), st.integers(0, 2000)),
    st.builds(Data, SMALL, SMALL, st.binary(min_size=1, max_size=30), st.booleans()),
    st.builds(Data, SMALL, SMALL, st.just(b""), st.just(True)),
    st.builds(Ack, SMALL, SMALL, st.integers(0, 2000), st.booleans(), st.booleans()),
    st.builds(Reset, SMALL, SMALL, st.just("why"), SMALL, SMALL),
    st.builds(ResetAck, SMALL),
    st.builds(MaxData, st.integers(0, 5000)),
    st.builds(LinkAck, st.integers(0, 500)),
    st.builds(Ping, SMALL, SMALL, st.booleans()),
    st.builds(Pong, SMALL, SMALL),
    st.builds(Switch, SMALL),
    st.builds(LinkLost, SMALL),
    st.builds(Goodbye, SMALL, st.just("bye")),
    st.builds(Resume, st.integers(0, 5000), SMALL, SMALL, st.lists(ENTRIES, max_size=3).map(tuple)),
)


@given(st.lists(FRAMES, max_size=12), SIDES, st.integers(0, 3))
def test_any_frames_keep_the_bounds(frames: list[Control | Data], side: Side, writes: int) -> None:
    budget = NodeBudget(10_000)
    config = MuxConfig(stream_window=WINDOW, max_stream_window=4000, session_window=1800)
    session = Session(side=side, session_id=SESSION_ID, config=config, budget=budget)
    session.link_up(1, 0.0)
    for _ in range(writes):
        session.write(session.open("s", {}, Priority.BULK), b"0123456789")
        session.transmit(1, 0.0, 1 << 20)
    try:
        for at, frame in enumerate(frames):
            raw = encoded(frame)
            session.receive(1, raw, at / 10)
            session.transmit(1, at / 10, 1 << 20)
            session.handle_timeout(at / 10)
            status = session.status()
            assert 0 <= status.receive_buffered <= 1800
            assert 0 <= status.send_buffered <= 1800
            assert status.sent >= 0
    except RemoteProtocolError:
        assert session.status().streams == ()
        assert budget.left == 10_000


LAST = 0xFFFFFFFC  # of a leader's: the next id has to fit into four bytes


@pytest.mark.parametrize("make", [lambda id: Open(id, "s", {}, 0, WINDOW), lambda id: Reset(id, 1, "", 0, 0)])
def test_the_last_id_leaves_none_for_another_stream(make: Callable[[int], Control]) -> None:
    """The next id is part of what a session says on each new link."""
    session = follower()
    session.receive(1, encode(make(LAST)), 1.0)
    session.link_up(2, 2.0)
    assert session.transmit(2, 2.0, 1 << 16)
    with pytest.raises(RemoteProtocolError, match="no id for another"):
        follower().receive(1, encode(make(LAST + 2)), 1.0)
