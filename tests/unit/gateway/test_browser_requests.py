"""Requests over channels that are lost: bytes arrive once, no request is begun twice, memory is bounded."""

import pytest
from hypothesis import settings
from meshd.base.errors import RemoteProtocolError
from meshd.gateway.browser_frames import (
    MAX_DATA_BYTES,
    Allow,
    Data,
    Failed,
    Forget,
    Hello,
    Place,
    Welcome,
    decode_from_node,
    encode,
)
from meshd.gateway.browser_requests import (
    ANSWER_WINDOW,
    REQUEST_WINDOW,
    Arrived,
    Begun,
    Dropped,
    PageRequests,
)

from tests.unit.gateway.browser_wire import HELD, SESSION, Channels, Wire
from tests.unit.gateway.page_client import FORGOTTEN


def up() -> Wire:
    wire = Wire()
    wire.connect()
    wire.run()
    return wire


def test_a_request_and_its_answer() -> None:
    wire = up()
    number = wire.page.open(b"question")
    wire.run()
    assert wire.events == [Begun(number), Arrived(number, b"question", True)]
    wire.node.write(number, b"answer")
    wire.node.end(number)
    wire.run()
    asked = wire.page.asked[number]
    assert (bytes(asked.got), asked.is_whole) == (b"answer", True)
    assert wire.events[-1] == Dropped(number) and len(wire.node) == 0
    assert (wire.share.requests, wire.share.shared) == (0, 0)


def test_what_was_under_way_at_a_cut_is_sent_again_and_nothing_else() -> None:
    wire = up()
    number = wire.page.open(b"question")
    wire.run()
    wire.node.write(number, bytes(40_000))
    wire.send()
    assert len(wire.to_page) == 3
    wire.deliver(1)  # the rest is lost
    wire.connect()
    wire.node.write(number, b"end")
    wire.node.end(number)
    wire.send()
    [_, *pieces] = map(decode_from_node, wire.to_page)
    assert [piece.offset for piece in pieces if isinstance(piece, Data)] == [16370, 32740]
    wire.run()
    asked = wire.page.asked[number]
    assert bytes(asked.got) == bytes(40_000) + b"end" and asked.is_whole
    assert wire.events.count(Begun(number)) == 1


def test_a_request_that_never_arrived_is_begun_on_the_next_channel() -> None:
    wire = up()
    first, second = wire.page.open(b"one"), wire.page.open(b"two")
    wire.send()  # both under way
    wire.connect()
    wire.run()
    assert [event for event in wire.events if isinstance(event, Begun)] == [Begun(first), Begun(second)]
    assert wire.arrived(first) == b"one" and wire.arrived(second) == b"two"


def test_a_request_whose_page_is_away_for_a_minute_is_cancelled_and_not_run_again() -> None:
    wire = up()
    number = wire.page.open(b"question")
    wire.run()
    while_up = wire.node.expires
    wire.now = 10.0
    wire.cut()
    assert (while_up, wire.node.expires) == (None, 70.0)
    assert wire.node.close() == [Dropped(number)]
    assert (wire.share.requests, wire.share.shared) == (0, 0)
    wire.node = PageRequests(wire.share, 71.0)
    wire.connect()
    wire.run()
    assert wire.page.asked[number].failure == FORGOTTEN
    assert wire.events.count(Begun(number)) == 1


def test_a_failure_is_told_again_after_a_cut() -> None:
    wire = up()
    number = wire.page.open(b"question")
    wire.run()
    wire.node.write(number, b"a part")
    wire.node.fail(number, "the model is gone")
    wire.send()
    assert Failed(number, "the model is gone") in map(decode_from_node, wire.to_page)
    wire.connect()
    wire.run()
    assert wire.page.asked[number].failure == "the model is gone"
    assert len(wire.node) == 0


def test_a_forgotten_request_is_dropped_even_if_the_word_was_lost() -> None:
    wire = up()
    number = wire.page.open(b"question")
    wire.run()
    wire.page.forget(number)
    wire.send()
    wire.connect()  # the message is lost; the hello no longer names the request
    wire.run()
    assert wire.events[-1] == Dropped(number)
    assert wire.page.asked[number].failure is None


def test_a_request_too_many_fails_and_those_before_it_go_on() -> None:
    wire = up()
    numbers = [wire.page.open(b"q") for _ in range(9)]
    wire.run()
    failures = [wire.page.asked[number].failure for number in numbers]
    assert failures[:8] == [None] * 8 and "8 requests already" in str(failures[8])
    assert wire.share.requests == 8
    wire.node.end(numbers[0])
    wire.run()
    again = wire.page.open(b"q")
    wire.run()
    assert wire.page.asked[again].failure is None


def test_all_pages_of_a_browser_share_its_requests() -> None:
    wire = up()
    for _ in range(8):
        wire.page.open(b"q")
    wire.run()
    other = Wire()
    other.share = wire.share
    other.node = PageRequests(wire.share, 0.0)
    other.connect()
    number = other.page.open(b"q")
    other.run()
    assert "8 requests already" in str(other.page.asked[number].failure)
    wire.node.close()
    again = other.page.open(b"q")
    other.run()
    assert other.page.asked[again].failure is None


def test_a_page_that_does_not_read_stops_its_answer_at_the_bounds() -> None:
    wire = up()
    number = wire.page.open(b"q", reads=False)
    wire.run()
    written = 0
    while room := wire.node.room(number):
        wire.node.write(number, bytes(room))
        written += room
        wire.run()
    assert written <= ANSWER_WINDOW + HELD
    assert len(wire.page.asked[number].got) == ANSWER_WINDOW
    wire.page.read(number)
    wire.run()
    assert wire.node.room(number) > 0


def test_pages_that_read_nothing_leave_room_for_one_that_reads() -> None:
    wire = up()
    stuck = [wire.page.open(b"q", reads=False) for _ in range(7)]
    live = wire.page.open(b"q")
    wire.run()
    for _ in range(100):
        for number in stuck:
            wire.node.write(number, bytes(wire.node.room(number)))
        wire.run()
    assert not any(map(wire.node.room, stuck))
    sent = 0
    while sent < 1 << 20:
        room = min(wire.node.room(live), 16 << 10)
        assert room > 0
        wire.node.write(live, bytes(room))
        sent += room
        wire.run()
    assert len(wire.page.asked[live].got) == sent


def test_a_long_request_waits_until_it_is_read() -> None:
    wire = up()
    number = wire.page.open(bytes(1 << 20))
    wire.send()
    while wire.to_node or wire.to_page:
        wire.deliver()
        wire.send()
    assert len(wire.arrived(number)) == REQUEST_WINDOW  # nobody has read any of it
    wire.node.read(number, REQUEST_WINDOW)
    wire.events.clear()
    wire.run()
    assert wire.arrived(number) == bytes((1 << 20) - REQUEST_WINDOW)


def test_answers_take_turns() -> None:
    wire = up()
    numbers = [wire.page.open(b"q") for _ in range(3)]
    wire.run()
    for number in numbers:
        wire.node.write(number, bytes(3 * MAX_DATA_BYTES))
    wire.send()
    order = [piece.number for piece in map(decode_from_node, wire.to_page) if isinstance(piece, Data)]
    assert [*order[:3]] == [*order[3:6]] == [*order[6:9]] and sorted(order[:3]) == numbers


def test_only_the_latest_ping_is_answered() -> None:
    wire = up()
    for nonce in range(1000):
        wire.page.ping(nonce)
    wire.run()
    assert wire.page.pongs == [999]


@pytest.mark.parametrize(
    "message",
    [
        Data(5, 1, b"x", False),  # a request without its beginning
        Data(1, 2, b"x", False),  # a gap
        Data(1, 1, bytes(MAX_DATA_BYTES), False),  # beyond the window, which is full
        Data(2, 1, b"x", True),  # beyond its end
        Allow(Place(1, 1, 0)),  # received what was not sent
        Hello(SESSION),
    ],
)
def test_a_page_that_breaks_the_rules_is_refused(message: Data | Allow | Hello) -> None:
    wire = up()
    wire.page.open(b"q", is_whole=False)
    wire.page.open(b"q")
    wire.run()
    if isinstance(message, Data) and len(message.data) > 1:
        for at in range(REQUEST_WINDOW // MAX_DATA_BYTES):
            wire.node.receive(encode(Data(1, 1 + at * MAX_DATA_BYTES, message.data, False)))
        message = Data(1, 1 + (at + 1) * MAX_DATA_BYTES, message.data, False)
    with pytest.raises(RemoteProtocolError):
        wire.node.receive(encode(message))


def test_refusals_that_nobody_takes_are_bounded() -> None:
    wire = up()
    for number in range(1, 73):
        wire.node.receive(encode(Data(number, 0, b"x", False)))
    with pytest.raises(RemoteProtocolError, match="too many"):
        wire.node.receive(encode(Data(73, 0, b"x", False)))


def test_a_word_about_an_unknown_request_is_nothing() -> None:
    wire = up()
    assert wire.node.receive(encode(Forget(9))) == []
    assert wire.node.receive(encode(Allow(Place(9, 0, 0)))) == []
    wire.node.write(9, b"x")
    wire.node.end(9)
    wire.node.fail(9, "x")
    wire.node.read(9, 1)
    assert wire.node.room(9) == 0 and wire.node.transmit() is None


def test_without_a_channel_nothing_is_sent() -> None:
    wire = Wire()
    assert wire.node.transmit() is None
    assert wire.node.expires == 60.0
    wire.connect()
    first = wire.node.transmit()
    assert first is not None and decode_from_node(first) == Welcome(True, 0)


Channels.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestChannels = Channels.TestCase
