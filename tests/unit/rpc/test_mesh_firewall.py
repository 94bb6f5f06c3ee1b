"""The firewall of a mesh-server: what a head may say, and what it may be told."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import MAX_UNANSWERED
from meshd.rpc.mesh_push_firewall import MeshPushFilter

from tests.fuzz.mesh import SAMPLES
from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import ADD, LEAVES, NUMBERS, Q4_0, ROOM, MeshTalk, Tensor

TOP = (1 << 64) - 1
GOOD = (
    talk.write(),
    talk.write(offset=ROOM - 16),
    talk.read(identity=20),
    talk.write(row=3, data=bytes(2 * 8), offset=ROOM - 24),
    talk.read(identity=24, row=4, size=32),
    talk.message(wire.FILL, 1, 255, 0, ROOM),
    talk.message(wire.COPY, 1, 1, 0, 16, 16),
    talk.graph(uid=5),
    talk.compute(5),
    talk.node("RMS_NORM", 1),
    talk.node("UNARY", 1, parameter=len(wire.UNARY_KINDS) - 1),
    talk.graph(
        (Tensor(buffer=0, ne=(4, 0, 1, 1)), *LEAVES, Tensor(viewed=2, operation=NUMBERS["VIEW"])), (3,)
    ),
    talk.message(wire.SYNC, identity=21),
    talk.load(talk.load_entry(), talk.load_entry(kind=Q4_0, size=18), identity=22),
    talk.push(),
    talk.push(wire.TAKE, neighbour=0),
    talk.push(row=2),
    talk.push(wire.TAKE, row=2),
    talk.allocate(2, 1, 100, identity=23),
    talk.message(wire.FREE, 2),
)
ANSWERS = (
    talk.data(16, identity=20),
    talk.message(wire.SYNCED, identity=21),
    talk.message(wire.LOADED, rest=b"\0\1", identity=22),
    talk.allocated(identity=23),
    talk.data(2 * 10, identity=24),
)


def test_what_a_head_says_and_hears_goes_on_as_it_is() -> None:
    it = MeshTalk()
    for message in GOOD:
        assert it.firewall.from_peer(message) is message
    for message in reversed(ANSWERS):  # they may overtake each other
        assert it.firewall.to_peer(message) is message
    for unasked in (talk.progress(), talk.failed()):
        assert it.hear(unasked) == unasked
    assert it.firewall.held_bytes == 0


@pytest.mark.parametrize("samples", [GOOD, SAMPLES], ids=["here", "fuzz"])
def test_every_request_is_tried(samples: tuple[bytes, ...]) -> None:
    """A new one has no judge before somebody says it."""
    said = {wire.HEADER.unpack_from(message)[1] for message in (*samples, talk.hello())}
    assert said == {number for number, message in wire.MESSAGES.items() if message.sender == "head"}


@given(st.lists(st.integers(1, 300), max_size=40))
def test_it_does_not_matter_how_the_bytes_are_cut(cuts: list[int]) -> None:
    whole, it, came, at = b"".join(GOOD), MeshTalk(), b"", 0
    for size in (*cuts, len(whole)):
        came += it.say(whole[at : at + size])
        at += size
    assert came == whole


def unlike(**changes: object) -> bytes:
    """A graph of ADD whose first source is changed."""
    fields = {field: getattr(LEAVES[0], field) for field in Tensor.__slots__} | changes
    return talk.graph((Tensor(**fields), LEAVES[1], ADD))


@pytest.mark.parametrize(
    ("why", "message"),
    [
        ("HELLO comes first, and once", talk.hello()),
        ("message 99", wire.HEADER.pack(0, 99, 0, 1)),
        ("message 129", talk.welcome()),
        ("message 192", talk.pushed()),
        ("message 255", talk.failed()),
        ("SYNC: a reserved field", talk.message(wire.SYNC, zero=1)),
        ("SYNC of 1 bytes", wire.HEADER.pack(1, wire.SYNC, 0, 1)),
        ("FREE of 3 bytes", wire.HEADER.pack(3, wire.FREE, 0, 1)),
        ("WRITE of 4294967295 bytes", wire.HEADER.pack(2**32 - 1, wire.WRITE, 0, 1)),
        ("GRAPH of 8519705 bytes", wire.HEADER.pack(8519705, wire.GRAPH, 0, 1)),
        ("SYNC without an id", talk.message(wire.SYNC, identity=0)),
        ("FILL without an id", talk.message(wire.FILL, talk.BUFFER, 7, 16, 64, identity=0)),
        ("COMPUTE without an id", talk.message(wire.COMPUTE, 1, 0, 0, identity=0)),
        ("ALLOCATE: device 2", talk.allocate(2, device=2)),
        ("ALLOCATE: a number that is not free", talk.allocate(1)),
        ("ALLOCATE: a number that is not free", talk.allocate(0)),
        ("FREE: buffer 2", talk.message(wire.FREE, 2)),
        ("FILL: more than a byte", talk.message(wire.FILL, 1, 256, 0, 1)),
        ("FILL: bytes behind", talk.message(wire.FILL, 1, 0, 1, ROOM)),
        ("FILL: bytes behind", talk.message(wire.FILL, 1, 0, TOP, 1)),
        ("WRITE: bytes behind", talk.write(offset=ROOM - 15)),
        ("WRITE: bytes behind", talk.write(offset=TOP, data=b"x")),
        ("WRITE: buffer 3", talk.write(3)),
        ("WRITE: half floats that are no whole rows", talk.write(row=8)),
        ("WRITE: more than a piece", talk.write(row=wire.PIECE_BYTES // 4 + 1, data=b"")),
        ("WRITE: bytes behind", talk.write(row=3, data=bytes(2 * 8), offset=ROOM - 23)),
        ("WRITE: more than a piece", talk.write(row=7, data=bytes(wire.PIECE_BYTES))),
        ("READ: a part of a row", talk.read(row=3)),
        ("READ: more than a piece", talk.read(row=wire.PIECE_BYTES // 4 + 1, size=0)),
        ("PUSH: more than a piece", talk.push(row=(1 << 32) - 1, size=0)),
        ("READ: a reserved field", talk.read(zero=1)),
        ("READ: bytes behind", talk.read(row=4, offset=ROOM - 15)),
        ("READ: bytes behind", talk.read(offset=ROOM - 15)),
        ("READ: more than a piece", talk.read(size=wire.PIECE_BYTES + 1)),
        ("COPY: bytes behind", talk.message(wire.COPY, 1, 1, ROOM - 15, 0, 16)),
        ("COPY: bytes behind", talk.message(wire.COPY, 1, 1, 0, TOP, 16)),
        ("COPY: places that overlap", talk.message(wire.COPY, 1, 1, 0, 15, 16)),
        ("COPY: buffer 8", talk.message(wire.COPY, 1, 8, 0, 15, 16)),
        ("COMPUTE: a graph that is not kept", talk.compute(5)),
        ("COMPUTE: a graph that is not kept", talk.compute(0)),
        ("COMPUTE: a reserved field", talk.compute(5, zero=1)),
        ("LOAD: a part of an entry", talk.load(bytes(55))),
        ("LOAD: type 32", talk.load(talk.load_entry(kind=32))),
        ("LOAD: bytes behind", talk.load(talk.load_entry(), talk.load_entry(size=ROOM + 1))),
        ("PUSH: neighbour 1", talk.push(neighbour=1)),
        ("TAKE: neighbour 3", talk.push(wire.TAKE, neighbour=3)),
        ("PUSH: more than a piece", talk.push(size=wire.PIECE_BYTES + 1)),
        ("TAKE: bytes behind", talk.push(wire.TAKE, offset=ROOM)),
        ("PUSH: buffer 4", talk.push(buffer=4)),
        ("PUSH: a part of a row", talk.push(row=5)),
        ("TAKE: a part of a row", talk.push(wire.TAKE, row=5)),
        ("GRAPH: device 2", talk.graph(device=2)),
        ("GRAPH: a reserved field", talk.graph(zero=1)),
        ("GRAPH: 0 nodes", talk.graph(nodes=())),
        ("GRAPH: 3 nodes of 2", talk.graph(counts=(3, 2))),
        ("GRAPH: 1 nodes of 32769", talk.graph(counts=(1, 32769))),
        ("GRAPH: 1 nodes and 2 tensors in", talk.graph(counts=(1, 2))),
        ("GRAPH: a node that is there twice", talk.graph(nodes=(2, 2))),
        ("GRAPH: a node that is no tensor", talk.graph(nodes=(3,))),
        ("GRAPH: type 32", unlike(kind=32)),
        ("GRAPH: operation 63", unlike(operation=63)),
        ("GRAPH: buffer 9", unlike(buffer=9)),
        ("GRAPH: bytes behind", unlike(offset=ROOM - 15)),
        ("GRAPH: bytes behind", unlike(offset=TOP)),
        ("GRAPH: bytes behind", unlike(ne=(4, 2, 1, 1), nb=(4, ROOM, 16, 16))),
        ("GRAPH: a tensor that is larger than", unlike(ne=(4, 1025, 1, 1), nb=(4, 0, 16, 16))),
        ("GRAPH: a row that is not whole blocks", unlike(kind=Q4_0, nb=(18, 18, 18, 18))),
        ("GRAPH: a row that is not whole blocks", unlike(kind=Q4_0, ne=(64, 1, 1, 1), nb=(2, 36, 36, 36))),
        ("GRAPH: a dimension that no tensor has", unlike(ne=(4, 2, 1, 1), nb=(4, 17, 16, 16))),
        ("GRAPH: a dimension that no tensor has", unlike(ne=(2**32 - 1, 1, 1, 1))),
        ("GRAPH: a tensor that is too large", unlike(buffer=0, ne=(1 << 20, 1 << 20, 1 << 20, 1))),
        ("GRAPH: a tensor that is too large", unlike(buffer=0, ne=(4, 2, 1, 1), nb=(4, 1 << 60, 16, 16))),
        ("GRAPH: a tensor that is a view of itself", unlike(viewed=1)),
        ("GRAPH: a tensor whose source is behind it", unlike(viewed=2)),
        ("GRAPH: a tensor whose source is behind it", unlike(sources=(2,))),
        ("GRAPH: ADD of a tensor that lies nowhere", unlike(buffer=0)),
        ("GRAPH: ADD with other sources", talk.node("ADD", 1)),
        ("GRAPH: ADD with other sources", talk.node("ADD", 1, 2, 1)),
        (
            "GRAPH: ADD whose result lies nowhere",
            talk.graph((*LEAVES, Tensor(operation=6, sources=(1, 2), buffer=0))),
        ),
        ("GRAPH: UNARY of kind 22", talk.node("UNARY", 1, parameter=22)),
        ("GRAPH: GLU of kind -1", talk.node("GLU", 1, parameter=-1)),
        ("GRAPH: VIEW is no view", talk.graph((*LEAVES, Tensor(operation=2, viewed=1, offset=16)))),
    ],
)
def test_what_may_not_pass_is_refused_with_its_reason(why: str, message: bytes) -> None:
    it = MeshTalk()
    with pytest.raises(RemoteProtocolError, match=f"something that the firewall refuses: {why}"):
        it.say(message)
    with pytest.raises(RemoteProtocolError, match=why):  # and nothing else from then on
        it.say(talk.write())


def test_before_welcome_nothing_but_hello_passes() -> None:
    with pytest.raises(RemoteProtocolError, match="HELLO comes first"):
        MeshTalk(greeted=False).say(talk.allocate())
    it = MeshTalk(greeted=False)
    it.say(talk.hello())
    with pytest.raises(RemoteProtocolError, match="ALLOCATE before WELCOME"):
        it.say(talk.allocate())


def test_before_welcome_nothing_is_held_either() -> None:
    large = wire.HEADER.pack(8 << 20, wire.GRAPH, 0, 1)
    with pytest.raises(RemoteProtocolError, match="HELLO comes first"):
        MeshTalk(greeted=False).say(large)
    it = MeshTalk(greeted=False)
    it.say(talk.hello())
    with pytest.raises(RemoteProtocolError, match="GRAPH before WELCOME"):
        it.say(large)


@pytest.mark.parametrize(
    ("why", "answer"),
    [
        ("DATA that nobody asked for", talk.data(identity=8)),
        ("DATA that nobody asked for", talk.data(identity=11)),
        ("DATA of 15 bytes, not 16", talk.data(15)),
        ("LOADED of 1 bytes, not 2", talk.message(wire.LOADED, rest=b"\0", identity=11)),
        ("message 1", talk.hello()),
        ("message 192", talk.pushed()),
        ("PROGRESS that nobody asked for", talk.progress(identity=12)),
        ("SYNCED of 1 bytes", wire.HEADER.pack(1, wire.SYNCED, 0, 12)),
        ("FAILED of 257 bytes", talk.failed(bytes(257))),
    ],
)
def test_answers_are_to_what_was_asked(why: str, answer: bytes) -> None:
    it = MeshTalk()
    it.say(talk.read() + talk.load(talk.load_entry(), talk.load_entry(), identity=11))
    it.say(talk.message(wire.SYNC, identity=12))
    with pytest.raises(
        RemoteProtocolError, match=f"mesh-server sent something that the firewall refuses: {why}"
    ):
        it.hear(answer)


@pytest.mark.parametrize(
    ("why", "answer"),
    [
        ("version 1 of the protocol", talk.welcome(version=1)),
        ("WELCOME with 17 devices", talk.message(wire.WELCOME, wire.VERSION, 17, 0, 0, 0, identity=1)),
        ("WELCOME of .* bytes", talk.welcome(rest=b"x")),
        ("WELCOME of 20 bytes", talk.message(wire.WELCOME, wire.VERSION, 0, 0, 0, 1, identity=1)),
    ],
)
def test_a_welcome_has_what_it_says(why: str, answer: bytes) -> None:
    it = MeshTalk(greeted=False)
    it.say(talk.hello())
    with pytest.raises(RemoteProtocolError, match=why):
        it.hear(answer)


def test_nothing_is_told_of_progress_before_welcome() -> None:
    with pytest.raises(RemoteProtocolError, match="PROGRESS that nobody asked for"):
        MeshTalk(greeted=False).hear(talk.progress())


def test_an_older_release_has_fewer_operations_and_types() -> None:
    it = MeshTalk(greeted=False)
    it.say(talk.hello())
    it.hear(talk.welcome(operations=(0, NUMBERS["ADD"]), types=(0,)))
    it.say(talk.allocate() + talk.graph())
    with pytest.raises(RemoteProtocolError, match="operation 9, which the worker does not have"):
        it.say(talk.node("MUL", 1, 2))
    with pytest.raises(RemoteProtocolError, match="type 9"):
        again = MeshTalk(greeted=False)
        again.say(talk.hello())
        again.hear(talk.welcome(types=(0,)))
        again.say(talk.allocate() + talk.load(talk.load_entry(kind=9)))


def test_graphs_are_kept_as_the_server_keeps_them() -> None:
    it = MeshTalk()
    for uid in range(1, wire.STORED_GRAPHS + 1):
        it.say(talk.graph(uid=uid))
    it.say(talk.graph(uid=1))  # the latest now
    it.say(talk.graph(uid=100) + talk.compute(1) + talk.compute(3))
    with pytest.raises(RemoteProtocolError, match="not kept"):
        it.say(talk.compute(2))
    other = MeshTalk()
    other.say(talk.graph(uid=4))
    with pytest.raises(RemoteProtocolError, match="not kept"):
        other.say(talk.compute(4, device=1))
    lacking = MeshTalk()
    lacking.say(talk.graph(uid=4) + talk.allocate(2, identity=8))
    lacking.hear(talk.allocated(0, identity=8))  # no memory for another buffer: the server forgets no graph
    lacking.say(talk.compute(4))
    freed = MeshTalk()
    freed.say(talk.graph(uid=4) + talk.message(wire.FREE, 1))
    with pytest.raises(RemoteProtocolError, match="not kept"):
        freed.say(talk.compute(4))


def test_memory_has_a_limit_and_comes_back() -> None:
    it = MeshTalk(memory=2 * ROOM)
    it.say(talk.allocate(2, identity=8))
    it.hear(talk.allocated(0, identity=8))  # there was none: what it was to take is free again
    it.say(talk.allocate(3, identity=9) + talk.message(wire.FREE, 3))
    it.hear(talk.allocated(1, identity=9))
    it.say(talk.allocate(4, identity=10))
    with pytest.raises(RemoteProtocolError, match="1 bytes more than 8192, of 8192 lent"):
        it.say(talk.allocate(5, size=1, identity=11))
    with pytest.raises(RemoteProtocolError, match="buffer 2"):
        gone = MeshTalk()
        gone.say(talk.allocate(2, identity=8))
        gone.hear(talk.allocated(0, identity=8))
        gone.say(talk.write(2))


def test_buffers_and_open_requests_are_counted() -> None:
    it = MeshTalk()
    for number in range(2, wire.BUFFERS + 1):
        it.say(talk.allocate(number, size=0, identity=number))
        it.hear(talk.allocated(identity=number))
    with pytest.raises(RemoteProtocolError, match="more than 1024 buffers"):
        it.say(talk.allocate(9999))
    it = MeshTalk()
    for number in range(1, MAX_UNANSWERED + 1):
        it.say(talk.message(wire.SYNC, identity=number))
    with pytest.raises(RemoteProtocolError, match="more than 4096 requests"):
        it.say(talk.message(wire.SYNC, identity=99999))
    it = MeshTalk()
    it.say(talk.read())
    with pytest.raises(RemoteProtocolError, match="an id that is in use"):
        it.say(talk.read())


def test_data_flow_through_and_are_not_held() -> None:
    it = MeshTalk()
    it.say(talk.allocate(2, size=wire.PIECE_BYTES, identity=8))
    large = talk.write(2, data=bytes(wire.PIECE_BYTES))
    assert it.say(large[:40]) == large[:40]
    assert it.say(large[40:90]) == large[40:90]
    assert it.firewall.held_bytes == 0
    it = MeshTalk()
    it.say(talk.allocate(2, size=wire.PIECE_BYTES, identity=8) + talk.read(2, size=wire.PIECE_BYTES))
    answer = talk.data(wire.PIECE_BYTES)
    assert it.hear(answer[:17]) == answer[:17]


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
            said = f"another worker's mesh-server sent something that the firewall refuses: {why}"
            with pytest.raises(RemoteProtocolError, match=said):
                getattr(MeshPushFilter(), way)(bad)
