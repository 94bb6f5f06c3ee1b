"""Test what a head's daemon reads of its llama-server's connection: weights by content, the neighbours."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import MAX_UNANSWERED
from meshd.rpc.mesh_head_view import MAX_WEIGHTS_ASKED, AbsentWeights, MeshHeadView

from tests.unit.rpc import mesh_talk as talk

HASH = bytes(range(32))


class View:
    """A view, and what it was told of weights."""

    def __init__(self) -> None:
        self.placed: list[tuple[bytes, int, str]] = []
        self.view = MeshHeadView(lambda *weight: self.placed.append(weight))


def asked(*sizes: int, identity: int = 4) -> bytes:
    return talk.load(*(talk.load_entry(size=size) for size in sizes), identity=identity)


def answered(*results: int, identity: int = 4) -> bytes:
    return talk.message(wire.LOADED, rest=bytes(results), identity=identity)


def test_everything_goes_on_and_the_weights_are_told() -> None:
    it = View()
    said = (talk.hello(), talk.allocate(), asked(16, 32), talk.write(), talk.graph(), asked(48, identity=5))
    loaded = answered(0, 1), talk.progress(), answered(4, identity=5)
    heard = (talk.welcome(), talk.allocated(), *loaded, talk.met(*talk.NEIGHBOURS))
    for message in said:
        assert it.view.to_peer(message) is message
    for message in heard:
        assert it.view.from_peer(message) is message
    assert it.placed == [(HASH, 16, ""), (HASH, 32, "no_such_hash"), (HASH, 48, "file_changed")]
    assert it.view.neighbours == frozenset(talk.NEIGHBOURS)


@given(st.lists(st.integers(1, 200), max_size=40))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    it, came = View(), b""
    it.view.to_peer(asked(16, 32))
    whole, at = talk.welcome() + talk.data(100) + answered(0, 3), 0
    for size in (*cuts, len(whole)):
        came += bytes(it.view.from_peer(whole[at : at + size]))
        at += size
    assert came == whole
    assert it.placed == [(HASH, 16, ""), (HASH, 32, "unreadable")]


def test_more_loads_than_may_wait_for_an_answer_end_it() -> None:
    it = View()
    for number in range(MAX_UNANSWERED):
        it.view.to_peer(asked(identity=number + 1))
    with pytest.raises(RemoteProtocolError, match="without an answer"):
        it.view.to_peer(asked(identity=MAX_UNANSWERED + 1))


@pytest.mark.parametrize(
    ("heard", "placed"),
    [
        (answered(0), 1),
        (answered(0, 0, 0), 2),
        (answered(0, len(wire.LOAD_RESULTS)), 1),
        (answered(0, 0) + answered(0, 0), 2),
        (answered(0, identity=9), 0),
        (talk.welcome(version=wire.VERSION + 1) + talk.welcome(), 0),
        (talk.met(1, rest=b"x") + talk.met(), 0),
    ],
)
def test_what_llama_server_refuses_passes_and_misleads_nobody(heard: bytes, placed: int) -> None:
    it = View()
    it.view.to_peer(asked(16, 32))
    assert it.view.from_peer(heard) is heard
    assert it.placed == [(HASH, 16, ""), (HASH, 32, "")][:placed]
    assert it.view.neighbours == frozenset()


def test_what_is_no_message_of_a_worker_ends_it() -> None:
    it = View()
    for _ in range(2):
        with pytest.raises(RemoteProtocolError):
            it.view.from_peer(talk.write())


def test_a_part_of_an_entry_ends_it() -> None:
    with pytest.raises(RemoteProtocolError, match="part of an entry"):
        View().view.to_peer(talk.load(talk.load_entry()[:-1]))


def test_of_too_many_that_are_not_answered_nothing_is_said() -> None:
    it, each = View(), wire.LOAD_ENTRIES
    count = MAX_WEIGHTS_ASKED // each
    for number in range(count + 1):
        it.view.to_peer(asked(*[16] * each, identity=number + 1))
    for number in range(count + 1):
        it.view.from_peer(answered(*[0] * each, identity=number + 1))
    assert len(it.placed) == MAX_WEIGHTS_ASKED
    it.view.to_peer(asked(16, identity=1))
    it.view.from_peer(answered(0, identity=1))
    assert len(it.placed) == MAX_WEIGHTS_ASKED + 1, "there is room again"


OTHER = bytes(reversed(HASH))


class Lacking(View):
    """A head that lacks the tensor with this hash."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[bytes] = []
        absent = AbsentWeights({HASH}, self.told.append)
        self.view = MeshHeadView(lambda *weight: self.placed.append(weight), absent=absent)


def load(*entries: tuple[bytes, int], identity: int = 4) -> bytes:
    """Return a load of tensors of 16 bytes each: hash, and place in the buffer."""
    return talk.load(
        *(talk.load_entry(size=16, offset=offset, digest=digest) for digest, offset in entries),
        identity=identity,
    )


def test_what_worker_and_head_lack_ends_it_before_llama_server_hears_of_it() -> None:
    it = Lacking()
    it.view.to_peer(load((OTHER, 0), (HASH, 256)))
    for _ in range(2):
        with pytest.raises(RemoteProtocolError, match="weights are missing that this node does not have"):
            it.view.from_peer(answered(0, 1))
    assert it.told == [HASH] and it.placed == [(OTHER, 16, "")]


def test_what_the_worker_has_or_the_head_can_send_goes_on() -> None:
    it = Lacking()
    assert it.view.to_peer(said := load((OTHER, 512), (HASH, 256))) is said
    assert it.view.from_peer(heard := answered(1, 0)) is heard
    for offset, size in ((512, 16), (512, 8), (520, 8)):
        message = talk.write(offset=offset, data=bytes(size))
        assert it.view.to_peer(message) is message
    other = talk.write(buffer=talk.BUFFER + 1, offset=7, data=bytes(99))
    assert it.view.to_peer(other) is other, "activations"
    assert it.told == []


@pytest.mark.parametrize(
    ("offset", "size"), [(0, 16), (256, 16), (256, 1), (511, 2), (520, 9), (512, 17), (0, 4096)]
)
def test_nothing_else_is_written_where_weights_are(offset: int, size: int) -> None:
    it = Lacking()
    it.view.to_peer(load((OTHER, 512), (HASH, 256)))
    it.view.from_peer(answered(1, 0))
    message = talk.write(offset=offset, data=bytes(size))
    passed = b""
    with pytest.raises(RemoteProtocolError, match="weights are missing"):
        for at in range(len(message)):
            passed += bytes(it.view.to_peer(message[at : at + 1]))
    assert passed == b"" and it.told == [b""]


def test_what_was_written_before_weights_are_asked_for_there() -> None:
    it = Lacking()
    it.view.to_peer(talk.write())
    with pytest.raises(RemoteProtocolError, match="weights are missing"):
        it.view.to_peer(load((OTHER, 256)))


def test_a_buffer_of_that_number_that_comes_later_is_another() -> None:
    it = Lacking()
    it.view.to_peer(load((OTHER, 512)))
    it.view.from_peer(answered(0))
    it.view.to_peer(talk.message(wire.FREE, talk.BUFFER))
    it.view.to_peer(talk.write())
    assert it.told == []


def test_too_many_weights_to_look_at_each_answer() -> None:
    it, each = Lacking(), wire.LOAD_ENTRIES
    for number in range(MAX_WEIGHTS_ASKED // each):
        it.view.to_peer(asked(*[16] * each, identity=number + 1))
    with pytest.raises(RemoteProtocolError, match="weights are missing"):
        it.view.to_peer(asked(16, identity=MAX_WEIGHTS_ASKED))


def test_parts_of_weights_are_told_as_weights_are() -> None:
    it = View()
    it.view.to_peer(talk.load_parts(talk.load_part(), talk.load_part(piece=10, count=1), identity=4))
    it.view.from_peer(answered(0, 1))
    assert it.placed == [(HASH, 12, ""), (HASH, 10, "no_such_hash")]


def test_a_part_that_this_node_lacks_as_well_ends_it() -> None:
    told: list[bytes] = []
    view = MeshHeadView(lambda *_weight: None, absent=AbsentWeights({HASH}, told.append))
    view.to_peer(talk.load_parts(talk.load_part(), identity=4))
    with pytest.raises(RemoteProtocolError, match="weights are missing"):
        view.from_peer(answered(1))
    assert told == [HASH]


def test_a_part_that_the_worker_lacks_may_be_written_to_its_pieces() -> None:
    view = MeshHeadView(lambda *_weight: None, absent=AbsentWeights(set(), lambda _digest: None))
    view.to_peer(talk.load_parts(talk.load_part(), identity=4))
    view.from_peer(answered(1))
    view.to_peer(talk.write(offset=16, data=bytes(4)))
    with pytest.raises(RemoteProtocolError, match="weights are missing"):
        view.to_peer(talk.write(offset=17, data=bytes(4)))
