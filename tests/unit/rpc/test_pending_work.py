"""What an rpc-server owes, told by the bytes of its connections."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import ARRIVED, OWED
from meshd.rpc import protocol as rpc
from meshd.rpc.pending_work import Arrived, Outward, Owed, Step
from meshd.rpc.push_firewall import PushFilter

from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor

GRAPH = talk.graph([Tensor(op=talk.ADD)], [1])
PUSH, TAKE = talk.push(Tensor()), talk.take(Tensor())
GET = talk.get_tensor(Tensor())
HEAD = rpc.REQUEST.size


class Open:
    """An inspector that lets everything pass."""

    def to_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        return data

    def from_peer(self, data: bytes | memoryview) -> bytes | memoryview:
        return data


@dataclass
class Case:
    """A connection of a head."""

    arrived: Arrived = field(default_factory=Arrived)
    graphs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.owed = Owed(Open(), arrived=self.arrived, graph_done=self.graphs.append)

    def step(self) -> Step | None:
        return self.owed.step

    def asks(self, *requests: bytes) -> Step | None:
        for request in requests:
            assert self.owed.from_peer(request) is request
        return self.step()

    def answers(self, count: int = 16) -> Step | None:
        self.owed.to_peer(talk.answer(bytes(count)))
        return self.step()


def test_nothing_is_owed_for_what_has_no_answer() -> None:
    case = Case()
    assert case.asks(talk.set_tensor(Tensor()), GRAPH, talk.recompute()) is None


def test_an_answer_settles_all_that_came_before_it() -> None:
    case = Case()
    size = len(GRAPH) - HEAD + len(GET) - HEAD
    assert case.asks(GRAPH, GET, GET) == Step(size, True)
    assert case.answers() == Step(len(GET) - HEAD, False)
    assert case.graphs == [size]
    assert case.answers() is None
    assert case.owed.done == 2


def test_an_answer_that_has_only_begun_is_owed() -> None:
    case = Case()
    case.asks(GET)
    whole = talk.answer(bytes(16))
    case.owed.to_peer(whole[:12])
    assert case.step() is not None
    case.owed.to_peer(whole[12:])
    assert case.step() is None


def test_a_push_is_owed_until_it_leaves() -> None:
    case = Case()
    outward = Outward(case.owed.pushed)
    assert case.asks(talk.set_tensor(Tensor()), GRAPH, PUSH) is not None
    data = talk.peer_hello() + talk.peer_data(token=5)
    assert outward.to_peer(data) is data
    assert case.step() is not None, "that was another one"
    message = talk.peer_data()
    for at in range(len(message)):
        outward.to_peer(message[at : at + 1])
    assert case.step() is None
    assert outward.bytes == len(data) + len(message)
    assert len(case.graphs) == 1


def test_an_answer_on_its_way_is_not_settled_by_a_push() -> None:
    case = Case()
    case.asks(GET, GRAPH, PUSH, GET)
    case.owed.pushed(77)
    assert case.answers() == Step(len(GET) - HEAD, False)
    assert case.answers() is None


def test_waiting_for_anothers_tensor_is_no_debt() -> None:
    case = Case()
    assert case.asks(TAKE, GRAPH, GET) is None
    push = PushFilter(case.arrived)
    push.from_peer(talk.peer_hello())
    push.to_peer(talk.answer(b"\1"))
    data = talk.peer_data()
    assert bytes(push.from_peer(data)) == data
    assert case.arrived.bytes == len(talk.peer_hello() + data)
    step = case.step()
    assert step is not None and step.graph
    assert step.size >= 16, "what it takes is part of the step"
    assert case.answers() is None
    assert 77 not in case.arrived


def test_what_came_early_counts() -> None:
    case = Case()
    case.arrived.add(77)
    assert case.asks(TAKE, GRAPH, PUSH) is not None
    case.owed.pushed(77)
    assert case.asks(TAKE, GRAPH, PUSH) is None, "the next one has not come"


def test_a_server_that_takes_nothing_more_owes_that() -> None:
    case = Case()
    case.asks(talk.set_tensor(Tensor()))
    case.owed.target_waits(True)
    assert case.step() is not None
    done = case.owed.done
    case.owed.target_waits(False)
    assert case.step() is None
    assert case.owed.done == done + 1


def test_hello_may_have_three_answers() -> None:
    case = Case()
    case.asks(talk.hello())
    assert case.answers(28) is None
    assert case.answers(40) is None
    assert case.answers(24) is None
    assert case.asks(GET) is not None


def test_what_is_kept_has_a_bound() -> None:
    case = Case()
    for _ in range(OWED.most + 10):
        case.owed.from_peer(PUSH)
    assert case.step() is not None
    for token in range(ARRIVED.most + 1):
        case.arrived.add(token)
    assert 0 not in case.arrived and ARRIVED.most in case.arrived


@given(st.lists(st.sampled_from([GRAPH, GET, talk.set_tensor(Tensor()), PUSH, TAKE]), max_size=30), st.data())
def test_how_it_is_cut_makes_no_difference(requests: list[bytes], data: st.DataObject) -> None:
    whole, pieces = Case(), Case()
    stream = b"".join(requests)
    whole.asks(stream)
    cuts = sorted(data.draw(st.sets(st.integers(0, len(stream)), max_size=10)))
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        if begin < end:
            pieces.owed.from_peer(stream[begin:end])
    assert whole.step() == pieces.step()


@given(st.lists(st.binary(max_size=64), max_size=20))
def test_whatever_a_server_sends_to_another_passes_and_ends_nothing(pieces: list[bytes]) -> None:
    outward = Outward(lambda _token: None)
    assert b"".join(bytes(outward.to_peer(piece)) for piece in pieces) == b"".join(pieces)
