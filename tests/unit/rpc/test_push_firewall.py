"""From server to server: what a head may arrange, and what one server may say to the next."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import protocol as rpc
from meshd.rpc.firewall import Firewall
from meshd.rpc.pending_work import Arrived, Outward
from meshd.rpc.push_firewall import PushFilter, Vouched

from tests.unit.rpc import talk
from tests.unit.rpc.talk import BASE, ROOM, Talk, Tensor

YES, NO = talk.answer(b"\1"), talk.answer(b"\0")
HUGE = rpc.MAX_PEER_DATA_BYTES


def introduced(answer: bytes = YES) -> Talk:
    """Neighbour 1 was asked about, and the session named."""
    it = Talk()
    it.say(talk.session() + talk.check(1))
    it.hear(answer)
    return it


def test_what_a_head_arranges_goes_on_as_it_is() -> None:
    it = introduced()
    for message in (talk.push(Tensor()), talk.take(Tensor()), talk.push(Tensor(), offset=8, size=8)):
        assert it.firewall.from_peer(message) is message
    it.say(talk.get_tensor(Tensor(), size=4))
    it.hear(talk.answer(bytes(4)))  # neither was to be answered


@pytest.mark.parametrize(
    ("why", "message"),
    [
        ("PEER_CHECK: neighbour 65536", talk.check(65_536)),
        ("PEER_CHECK: neighbour", talk.check(1, zero=1)),
        ("PEER_CHECK of 23 bytes", talk.check(session=bytes(15))),
        ("PEER_SESSION: sent twice", talk.session()),
        ("PEER_SESSION of 17 bytes", talk.session(bytes(17))),
        ("PUSH_TENSOR: neighbour 2, which was not confirmed", talk.push(Tensor(), number=2)),
        ("PUSH_TENSOR: neighbour", talk.push(Tensor(), zero=1)),
        ("PUSH_TENSOR: beyond", talk.push(Tensor(), offset=1)),
        ("PUSH_TENSOR: beyond", talk.push(Tensor(), offset=(1 << 64) - 8)),
        ("PUSH_TENSOR: .* for one message", talk.push(Tensor(), size=HUGE - 7)),
        ("PUSH_TENSOR: a tensor outside", talk.push(Tensor(data=BASE + ROOM))),
        ("PUSH_TENSOR: a tensor without a buffer", talk.push(Tensor(buffer=0, data=0))),
        ("TAKE_TENSOR: beyond", talk.take(Tensor(), size=17)),
        ("TAKE_TENSOR: beyond", talk.take(Tensor(), offset=(1 << 64) - 8)),
        ("TAKE_TENSOR: .* for one message", talk.take(Tensor(), size=(1 << 64) - 1)),
        ("TAKE_TENSOR: a tensor outside", talk.take(Tensor(data=BASE - 1))),
        ("TAKE_TENSOR of 319 bytes", talk.request(rpc.TAKE_TENSOR, bytes(319))),
        ("command 70", talk.peer_hello()),
        ("command 71", talk.peer_data()),
    ],
)
def test_what_a_head_may_not_arrange_is_refused(why: str, message: bytes) -> None:
    it = introduced()
    with pytest.raises(RemoteProtocolError, match=why):
        it.say(message)


def test_a_neighbour_that_is_not_reached_gets_nothing() -> None:
    for it in (introduced(NO), Talk()):
        with pytest.raises(RemoteProtocolError, match="not confirmed"):
            it.say(talk.push(Tensor()))
    it = introduced()
    it.say(talk.check(1))
    it.hear(NO)  # not any more
    with pytest.raises(RemoteProtocolError, match="not confirmed"):
        it.say(talk.push(Tensor()))


def test_nothing_is_taken_before_the_session_has_a_name() -> None:
    with pytest.raises(RemoteProtocolError, match="before PEER_SESSION"):
        Talk().say(talk.take(Tensor()))


def test_without_the_feature_there_are_no_neighbours() -> None:
    for message in (talk.check(), talk.push(Tensor()), talk.take(Tensor()), talk.session()):
        firewall = Firewall()
        firewall.from_peer(talk.hello(talk.caps(7)))
        firewall.to_peer(talk.hello_answer(talk.caps(15)))
        with pytest.raises(RemoteProtocolError, match=f"command {message[0]}"):
            firewall.from_peer(message)


# One server to the next.


def greeted(arrived: Arrived | None = None) -> PushFilter:
    it = PushFilter(arrived)
    it.from_peer(talk.peer_hello())
    it.to_peer(YES)
    return it


def test_tensors_flow_through() -> None:
    it = greeted()
    for message in (talk.peer_data(), talk.peer_data(b"")):
        assert it.from_peer(message) is message
    begun = rpc.REQUEST.pack(rpc.PEER_DATA, HUGE)
    assert it.from_peer(begun) is begun
    body = bytes(1 << 20)
    for _ in range(64):
        assert it.from_peer(body) is body
        assert it.held_bytes == 0
    assert bytes(it.from_peer(talk.peer_data())) == talk.peer_data()


def test_data_need_not_wait_for_the_answer() -> None:
    it = PushFilter()
    said = talk.peer_hello() + talk.peer_data()
    assert it.from_peer(said) is said


@pytest.mark.parametrize(
    ("why", "message"),
    [
        ("PEER_HELLO: sent twice", talk.peer_hello()),
        ("PEER_DATA of 7 bytes", talk.request(rpc.PEER_DATA, bytes(7))),
        (f"PEER_DATA of {HUGE + 1} bytes", rpc.REQUEST.pack(rpc.PEER_DATA, HUGE + 1)),
        ("PEER_DATA of 18446744073709551615 bytes", rpc.REQUEST.pack(rpc.PEER_DATA, (1 << 64) - 1)),
        *(
            (f"command {number} between", talk.request(number))
            for number in range(256)
            if number not in (70, 71)
        ),
    ],
)
def test_nothing_else_is_said_between_servers(why: str, message: bytes) -> None:
    it = greeted()
    with pytest.raises(RemoteProtocolError, match=why):
        it.from_peer(message)
    with pytest.raises(RemoteProtocolError, match=why):
        it.from_peer(talk.peer_data())


@pytest.mark.parametrize(
    ("why", "message"),
    [
        ("before PEER_HELLO", talk.peer_data()),
        ("PEER_HELLO of 15 bytes", talk.peer_hello(bytes(15))),
        ("PEER_HELLO of 17 bytes", talk.peer_hello(bytes(17))),
        ("command 14", talk.hello()),
    ],
)
def test_the_session_comes_first(why: str, message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=why):
        PushFilter().from_peer(message)


@pytest.mark.parametrize("answer", [talk.answer(b""), talk.answer(b"\1\1"), struct.pack("<Q", 1 << 40)])
def test_the_answer_is_one_byte(answer: bytes) -> None:
    it = PushFilter()
    it.from_peer(talk.peer_hello())
    with pytest.raises(RemoteProtocolError, match="an answer of"):
        it.to_peer(answer)


def test_there_is_one_answer() -> None:
    for it in (PushFilter(), greeted()):
        with pytest.raises(RemoteProtocolError, match="an answer to nothing"):
            it.to_peer(YES)


def test_a_tensor_has_arrived_with_its_last_byte() -> None:
    arrived = Arrived()
    it = greeted(arrived)
    message = talk.peer_data(bytes(100))
    for byte in range(len(message) - 1):
        it.from_peer(message[byte : byte + 1])
        assert 77 not in arrived
    it.from_peer(message[-1:] + talk.peer_data(bytes(9), token=78)[:-1])
    assert 77 in arrived
    assert 78 not in arrived


@pytest.mark.parametrize("answer", [b"", NO, YES[:-1]])
def test_nothing_arrives_before_the_server_has_said_that_it_serves_the_session(answer: bytes) -> None:
    arrived = Arrived()
    it = PushFilter(arrived)
    it.from_peer(talk.peer_hello())
    if answer:
        it.to_peer(answer)
    it.from_peer(talk.peer_data())
    assert 77 not in arrived


@given(st.sets(st.integers(0, 500), max_size=10))
def test_what_has_arrived_does_not_depend_on_how_it_is_cut(cuts: set[int]) -> None:
    arrived = Arrived()
    it = greeted(arrived)
    data = b"".join(talk.peer_data(bytes(size), token=size) for size in (0, 300, 1, 40))
    at = 0
    for cut in [*sorted(cuts), len(data)]:
        it.from_peer(data[at:cut])
        at = max(at, cut)
    assert all(token in arrived for token in (0, 300, 1, 40))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60))
def test_any_split_goes_on_whole(cuts: list[int]) -> None:
    data = talk.peer_hello() + talk.peer_data(b"one") + talk.peer_data(bytes(300)) + talk.peer_data(b"")
    it, passed, at = PushFilter(), b"", 0
    for cut in cuts:
        passed += bytes(it.from_peer(data[at : at + cut]))
        assert it.held_bytes <= 25
        at += cut
    passed += bytes(it.from_peer(data[at:])) if at < len(data) else b""
    assert passed == data


# The sending side, whose server was told at once that it is served.


@given(st.integers(0, len(YES)), st.integers(0, len(YES)))
def test_the_answer_that_was_told_already_goes_no_further(one: int, other: int) -> None:
    said: list[int] = []
    it = Vouched(Outward(said.append))
    cuts = sorted((one, other))
    pieces = [YES[: cuts[0]], YES[cuts[0] : cuts[1]], YES[cuts[1] :] + b"more"]
    assert b"".join(bytes(it.from_peer(piece)) for piece in pieces) == b"more"
    message = talk.peer_hello() + talk.peer_data(token=5)
    assert bytes(it.to_peer(message)) == message
    assert said == [5], "what is pushed is seen"


@pytest.mark.parametrize("answer", [NO, talk.answer(b""), talk.answer(b"\1\1"), b"\2"])
def test_another_answer_than_was_told_ends_the_connection(answer: bytes) -> None:
    it = Vouched(Outward(lambda _token: None))
    for said in (answer, YES, b"more"):
        with pytest.raises(RemoteProtocolError, match="does not serve this session"):
            it.from_peer(said)
