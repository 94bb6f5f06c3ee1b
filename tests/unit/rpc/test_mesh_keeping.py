"""Keeping, in the mesh protocol: what was asked for by content, missed and then sent is recognised."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from meshd.model.ggml import TENSOR_TYPE_NAMES
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_keeping import MAX_WANTED, MeshKeeping, Missed

from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import Q4_0, MeshTalk

D1, D2, D3 = (bytes([n]) * 32 for n in (1, 2, 3))
HIT, MISS, DIFFERS = (
    wire.LOAD_RESULTS.index(name) for name in ("loaded", "no-such-hash", "type-or-size-differs")
)
CONTENT = bytes(range(16))


class FakeSink:
    """Puts together what it gets; refuses tensors in `refuses`."""

    def __init__(self) -> None:
        self.hits: list[bytes] = []
        self.coming: dict[bytes, bytearray] = {}
        self.whole: dict[bytes, bytes] = {}
        self.pieces = 0
        self.refuses: set[bytes] = set()

    def loaded(self, digest: bytes) -> None:
        self.hits.append(digest)

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        self.pieces += 1
        if tensor.digest in self.refuses:
            return False
        there = self.coming.setdefault(tensor.digest, bytearray(tensor.size))
        there[offset : offset + len(data)] = data
        if last:
            self.whole[tensor.digest] = bytes(self.coming.pop(tensor.digest))
        return True


def entry(place: int, digest: bytes, *, kind: int = talk.F32, size: int = 16) -> bytes:
    return wire.LOAD_ENTRY.pack(talk.BUFFER, kind, 64 * place, size, digest)


def asked(sink: FakeSink, results: Sequence[int]) -> MeshTalk:
    """A connection that has asked for three tensors of 16 bytes."""
    it = MeshTalk(keeping=MeshKeeping(sink))
    it.say(talk.load(entry(0, D1), entry(1, D2), entry(2, D3)))
    it.hear(talk.message(wire.LOADED, rest=bytes(results), identity=4))
    return it


def test_what_was_missed_and_comes_is_kept() -> None:
    sink = FakeSink()
    it = asked(sink, (HIT, MISS, MISS))
    assert sink.hits == [D1]
    it.say(talk.write(offset=128, data=b"c" * 16) + talk.write(offset=64, data=b"b" * 16))
    assert sink.whole == {D3: b"c" * 16, D2: b"b" * 16}
    it.say(talk.write(offset=64, data=b"x" * 16))
    assert sink.pieces == 2, "what it has come to hold later is an input, no weight"


def test_half_rows_are_no_weights() -> None:
    sink = FakeSink()
    it = asked(sink, (HIT, MISS, MISS))
    it.say(talk.write(offset=128, data=b"c" * 16, row=7))
    assert not sink.pieces
    it.say(talk.write(offset=64, data=b"b" * 16))
    assert sink.whole == {D2: b"b" * 16}


@given(sizes=st.lists(st.integers(1, 7), max_size=16), cuts=st.lists(st.integers(1, 40), max_size=40))
def test_in_whatever_pieces_it_comes(sizes: Sequence[int], cuts: Sequence[int]) -> None:
    sink = FakeSink()
    it = asked(sink, (MISS, MISS, DIFFERS))
    stream, at = b"", 0
    for size in (*sizes, 16):
        piece = CONTENT[at : at + size]
        stream += talk.write(offset=at, data=piece) if piece else b""
        at += len(piece)
    stream += talk.write(offset=64, data=CONTENT) + talk.write(offset=128, data=CONTENT)
    passed, begin = b"", 0
    for size in (*cuts, len(stream)):
        passed += it.say(stream[begin : begin + size])
        begin += size
    assert passed == stream
    assert sink.whole == {D1: CONTENT, D2: CONTENT}, "and not the one that is here as something else"


class KindSink(FakeSink):
    """Notes of what type each piece is."""

    def __init__(self) -> None:
        super().__init__()
        self.kinds: list[int] = []

    def piece(self, tensor: Missed, offset: int, data: bytes, *, last: bool) -> bool:
        self.kinds.append(tensor.kind)
        return super().piece(tensor, offset, data, last=last)


def test_the_type_is_that_of_ggml() -> None:
    sink = KindSink()
    it = MeshTalk(keeping=MeshKeeping(sink))
    it.say(talk.load(entry(0, D1, kind=Q4_0, size=18)))
    it.hear(talk.message(wire.LOADED, rest=bytes([MISS]), identity=4))
    it.say(talk.write(data=bytes(18)))
    assert sink.kinds == [TENSOR_TYPE_NAMES["q4_0"].number]


def test_a_part_that_is_left_out_or_too_long_is_not_kept() -> None:
    for offset, size in ((4, 12), (0, 17)):
        sink = FakeSink()
        it = asked(sink, (MISS, HIT, HIT))
        it.say(talk.write(offset=offset, data=bytes(size)))
        assert sink.pieces == 0
        it.say(talk.write(offset=0, data=bytes(4)))
        assert sink.whole == {}


def test_what_the_sink_refuses_is_not_offered_again() -> None:
    sink = FakeSink()
    sink.refuses.add(D1)
    it = asked(sink, (MISS, MISS, MISS))
    it.say(talk.write(offset=0, data=CONTENT[:8]) + talk.write(offset=8, data=CONTENT[8:]))
    it.say(talk.write(offset=64, data=CONTENT))
    assert sink.whole == {D2: CONTENT}
    assert sink.pieces == 2


def test_a_load_of_no_known_type_is_left_to_the_server() -> None:
    sink = FakeSink()
    it = MeshTalk(keeping=MeshKeeping(sink))
    it.say(talk.load(entry(0, D1), entry(1, D2, kind=len(wire.TYPES))))
    it.hear(talk.message(wire.LOADED, rest=bytes([MISS, MISS]), identity=4))
    it.say(talk.write(data=CONTENT))
    assert sink.pieces == 0


def test_of_too_many_nothing_is_kept() -> None:
    sink = FakeSink()
    it = MeshTalk(keeping=MeshKeeping(sink))
    loads = range(MAX_WANTED // wire.LOAD_ENTRIES + 1)
    for number in loads:
        it.say(talk.load(*[entry(0, D1)] * wire.LOAD_ENTRIES, identity=100 + number))
    for number in loads:
        hits = bytes([HIT]) * wire.LOAD_ENTRIES
        it.hear(talk.message(wire.LOADED, rest=hits, identity=100 + number))
    assert len(sink.hits) == MAX_WANTED
    it.say(talk.load(entry(0, D2), identity=100))
    it.hear(talk.message(wire.LOADED, rest=bytes([HIT]), identity=100))
    assert sink.hits[-1] == D2, "there is room again"


def test_a_view_without_keeping_lets_the_same_pass() -> None:
    message = talk.load(entry(0, D1)) + talk.write(data=CONTENT)
    assert MeshTalk().say(message) == message
