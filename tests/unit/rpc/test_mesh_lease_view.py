"""Test what a worker's daemon reads of a head's connection: all passes, memory and computations are seen."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import MAX_UNANSWERED
from meshd.rpc.mesh_keeping import MeshKeeping
from meshd.rpc.mesh_lease_view import MeshLeaseView, MeshPushFilter

from tests.fuzz.mesh import SAMPLES
from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import BUFFER, ROOM, MeshTalk
from tests.unit.rpc.test_mesh_keeping import FakeSink

SAID = b"".join(SAMPLES)
ANSWERS = (
    talk.welcome(),
    talk.data(16, identity=20),
    talk.message(wire.SYNCED, identity=21),
    talk.message(wire.LOADED, rest=b"\0\1", identity=4),
    talk.met(0, 15),
    talk.failed(),
    talk.progress(),
)


@pytest.fixture(params=[False, True], ids=["", "keeping"])
def it(request: pytest.FixtureRequest) -> MeshTalk:
    keeping: bool = request.param
    return MeshTalk(keeping=MeshKeeping(FakeSink()) if keeping else None)


def test_what_a_head_says_and_hears_goes_on_as_it_is(it: MeshTalk) -> None:
    for message in SAMPLES:
        assert it.view.from_peer(message) is message
    for message in ANSWERS:
        assert it.view.to_peer(message) is message
    assert it.view.held_bytes == 0


def test_every_request_and_answer_is_tried() -> None:
    said = {wire.HEADER.unpack_from(message)[1] for message in (*SAMPLES, *ANSWERS, talk.allocated())}
    assert said == {number for number, message in wire.MESSAGES.items() if message.sender != "neighbour"}


@given(st.lists(st.integers(1, 300), max_size=40))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    it, came, at = MeshTalk(keeping=MeshKeeping(FakeSink())), b"", 0
    for size in (*cuts, len(SAID)):
        came += it.say(SAID[at : at + size])
        at += size
    assert came == SAID


def test_computations_and_results_are_told_in_their_order() -> None:
    seen: list[int] = []
    view = MeshLeaseView(seen=seen.append)
    view.from_peer(talk.write() + talk.graph(uid=5) + talk.push(wire.TAKE) + talk.message(wire.SYNC))
    view.from_peer(talk.write() + talk.compute(5) + talk.push() + talk.read())
    view.to_peer(talk.message(wire.SYNCED) + talk.progress() + talk.data())
    assert seen == [wire.GRAPH, wire.TAKE, wire.COMPUTE, wire.PUSH, wire.READ, wire.DATA]


def test_what_a_graph_asks_for_is_left_to_the_server(it: MeshTalk) -> None:
    """Also nonsense: mesh-server refuses it, and this daemon holds none of it back."""
    nonsense = talk.message(wire.GRAPH, 1, 99, 5, 5, 0, rest=bytes(100))
    assert it.say(nonsense[:40]) == nonsense[:40]
    assert it.say(nonsense[40:]) == nonsense[40:]
    for odd in (talk.compute(77), talk.write(9, offset=1 << 60), talk.message(wire.FREE, 9)):
        assert it.say(odd) == odd


def test_what_is_no_message_ends_it_both_ways() -> None:
    for way, data, who in (
        ("say", talk.welcome(), "the head's llama-server"),
        ("say", wire.HEADER.pack(3, wire.FREE, 0, 1), "the head's llama-server"),
        ("hear", talk.write(), "the worker's mesh-server"),
    ):
        it = MeshTalk()
        for again in (data, talk.message(wire.SYNC)):
            with pytest.raises(RemoteProtocolError, match=f"{who} broke the protocol"):
                getattr(it, way)(again)


@pytest.mark.parametrize("why", ["an id that is in use", "more than 4096 requests", "more than 1024 buffers"])
def test_what_is_remembered_has_limits(why: str) -> None:
    it = MeshTalk(keeping=MeshKeeping(FakeSink()))
    over: dict[str, Callable[[int], bytes]] = {
        "an id that is in use": lambda _number: talk.allocate(2, identity=9),
        "more than 4096 requests": lambda number: talk.load(talk.load_entry(), identity=number + 10),
        "more than 1024 buffers": lambda number: talk.allocate(number + 2, identity=number + 10),
    }
    with pytest.raises(RemoteProtocolError, match=why):
        for number in range(MAX_UNANSWERED + 1):
            it.say(over[why](number))


def test_answers_are_to_what_was_asked() -> None:
    for answer in (talk.allocated(identity=4), talk.message(wire.LOADED, rest=b"\0", identity=2)):
        it = MeshTalk(keeping=MeshKeeping(FakeSink()))
        it.say(talk.load(talk.load_entry()))
        with pytest.raises(RemoteProtocolError, match="that nobody asked for"):
            it.hear(answer)


def test_a_part_of_an_entry_ends_it() -> None:
    with pytest.raises(RemoteProtocolError, match="a part of an entry"):
        MeshTalk(keeping=MeshKeeping(FakeSink())).say(talk.load(bytes(55)))


def test_buffers_count_once_the_server_has_made_them_and_until_they_are_freed() -> None:
    it = MeshTalk()
    assert it.view.memory_held() == {0: ROOM}
    it.say(talk.allocate(2, 1, 100, identity=8) + talk.allocate(3, 1, 10, identity=9))
    assert it.view.memory_held() == {0: ROOM}
    it.hear(talk.allocated(identity=8) + talk.allocated(0, identity=9))
    assert it.view.memory_held() == {0: ROOM, 1: 100}
    it.say(talk.message(wire.FREE, BUFFER) + talk.message(wire.FREE, 3))
    assert it.view.memory_held() == {1: 100}


def test_a_second_request_for_a_buffer_does_not_change_what_it_holds() -> None:
    it = MeshTalk()
    it.say(talk.allocate(BUFFER, 1, 1 << 40, identity=8))
    assert it.view.memory_held() == {0: ROOM}


def test_what_is_freed_before_it_was_made_never_counts() -> None:
    it = MeshTalk()
    freed = talk.message(wire.FREE, 2) + talk.message(wire.FREE, BUFFER)
    it.say(talk.allocate(2, 1, 100, identity=8) + freed)
    it.hear(talk.allocated(identity=8))
    assert it.view.memory_held() == {}


def test_of_buffers_that_come_and_go_there_may_be_any_number() -> None:
    it = MeshTalk()
    for number in range(2, 2 * wire.BUFFERS):
        it.say(talk.allocate(number, size=1, identity=number))
        it.hear(talk.allocated(number % 2, identity=number))
        it.say(talk.message(wire.FREE, number))
    assert it.view.memory_held() == {0: ROOM}


def test_between_workers_nothing_but_pushes_passes() -> None:
    it = MeshPushFilter()
    whole = talk.pushed() + talk.pushed(0) + talk.pushed(wire.PIECE_BYTES)
    assert b"".join(bytes(it.from_peer(part)) for part in (whole[:5], whole[5:30], whole[30:])) == whole
    assert bytes(it.to_peer(talk.pushed())) == talk.pushed()
    for bad, why in (
        (talk.write(), "message 5"),
        (talk.failed(), "message 255"),
        (wire.HEADER.pack(7, wire.PUSHED, 0, 0), "PUSHED of 7 bytes"),
        (wire.HEADER.pack(wire.PIECE_BYTES + 9, wire.PUSHED, 0, 0), "PUSHED of"),
        (wire.HEADER.pack(8, wire.PUSHED, 1, 0), "PUSHED: a reserved field"),
    ):
        for way in ("from_peer", "to_peer"):
            with pytest.raises(RemoteProtocolError, match=f"another worker's mesh-server broke.* {why}"):
                getattr(MeshPushFilter(), way)(bad)


def test_parts_of_tensors_are_answered_and_nothing_of_them_is_kept() -> None:
    sink = FakeSink()
    it = MeshTalk(keeping=MeshKeeping(sink))
    it.view.from_peer(talk.load_parts(talk.load_part(), talk.load_part()))
    it.view.to_peer(talk.message(wire.LOADED, rest=b"\0\1", identity=8))
    with pytest.raises(RemoteProtocolError, match="nobody asked for"):
        it.view.to_peer(talk.message(wire.LOADED, rest=b"\0\1", identity=8))


@pytest.mark.parametrize(
    ("said", "why"),
    [
        (talk.load_parts(talk.load_part()[:-1]), "a part of an entry"),
        (talk.load_parts(talk.load_part(), identity=4) + talk.load(talk.load_entry(), identity=4), "in use"),
    ],
)
def test_parts_that_are_no_request_end_it(said: bytes, why: str) -> None:
    it = MeshTalk(keeping=MeshKeeping(FakeSink()))
    with pytest.raises(RemoteProtocolError, match=why):
        it.view.from_peer(said)


def test_sums_are_told_and_their_parts_pass_between_workers() -> None:
    seen: list[int] = []
    view = MeshLeaseView(seen=seen.append)
    view.from_peer(talk.hello() + talk.add_up())
    assert seen == [wire.SUM]
    counted: list[int] = []
    between = MeshPushFilter(arrived=counted.append, left=counted.append)
    for message in (talk.summand(), talk.summand(0)):
        assert between.from_peer(message) is message
        assert between.to_peer(message) is message
    assert counted == []  # a token has hundreds
    with pytest.raises(RemoteProtocolError):
        between.from_peer(talk.summand(wire.SUMMAND_BYTES + 1))
