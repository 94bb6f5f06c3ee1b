"""Messages: any split gives the same; what is not looked at yet is held, the rest flows."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import HEAD, WHOLE, Kinds, Look, Messages, refused

from tests.unit.rpc import mesh_talk as talk

NEEDED = 20  # bytes of a WRITE that `Reader` wants to see: its fields, and four of the data
REFUSED = 99  # a buffer


class Reader:
    """Looks at ALLOCATE, LOAD and WRITE, and refuses a WRITE to one buffer; SYNC and READ are noted."""

    def __init__(self) -> None:
        self.looked: list[tuple[int, int, bytes]] = []
        self.noted: list[int] = []
        self.messages = Messages(KINDS, self.noted.append)

    def feed(self, data: bytes | memoryview) -> bytes | memoryview:
        return self.messages.feed(data, self)

    def write(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        buffer, _row, _offset = wire.MESSAGES[wire.WRITE].body.unpack_from(data, at)
        if buffer == REFUSED:
            raise refused("not this one")
        self.looked.append((identity, size, bytes(data[at : at + min(size, NEEDED)])))

    def whole(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        self.looked.append((identity, size, bytes(data[at : at + size])))


KINDS = Kinds(
    HEAD,
    {
        wire.WRITE: Look(NEEDED, Reader.write),
        wire.LOAD: Look(WHOLE, Reader.whole),
        wire.ALLOCATE: Look(wire.MESSAGES[wire.ALLOCATE].body.size, Reader.whole),
    },
    noted=(wire.SYNC, wire.READ),
)
MESSAGES = st.one_of(
    st.builds(lambda data: talk.write(data=data), st.binary(max_size=40)),
    st.builds(lambda count: talk.load(*[talk.load_entry()] * count), st.integers(0, 3)),
    st.sampled_from((talk.allocate(), talk.message(wire.SYNC), talk.read(), talk.graph(), talk.hello())),
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def expected(row: list[bytes]) -> tuple[list[tuple[int, int, bytes]], list[int]]:
    looked, noted = [], []
    for message in row:
        size, number, _zero, identity = wire.HEADER.unpack_from(message)
        body = message[wire.HEADER.size :]
        if number in (wire.WRITE, wire.LOAD, wire.ALLOCATE):
            looked.append((identity, size, body[:NEEDED] if number == wire.WRITE else body))
        elif number in (wire.SYNC, wire.READ):
            noted.append(number)
    return looked, noted


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(0, 2000), max_size=12), st.booleans())
def test_any_split_gives_the_same_messages_and_the_same_bytes(
    row: list[bytes], cuts: list[int], views: bool
) -> None:
    it, passed, began = Reader(), b"", 0
    most = wire.HEADER.size + max(NEEDED, 3 * wire.LOAD_ENTRY.size)
    for piece in pieces(b"".join(row), cuts):
        passed += it.feed(memoryview(piece) if views else piece)
        began += it.messages.began
        assert it.messages.held_bytes < most
    assert (it.looked, it.noted) == expected(row)
    assert passed == b"".join(row)
    assert began == len(row)
    assert it.messages.held_bytes == 0


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_garbage_is_refused_or_held_and_never_more_than_came(chunks: list[bytes]) -> None:
    it, passed = Reader(), b""
    for number, chunk in enumerate(chunks):
        try:
            passed += it.feed(chunk)
        except RemoteProtocolError:
            break
        assert len(passed) + it.messages.held_bytes == sum(map(len, chunks[: number + 1]))
    assert b"".join(chunks).startswith(passed)


def testwhole_messages_go_on_as_they_came() -> None:
    data = talk.write(data=b"abc") + talk.graph() + talk.message(wire.SYNC)
    assert Reader().feed(data) is data


def test_the_rest_of_a_long_message_goes_on_as_it_came() -> None:
    it, long = Reader(), talk.write(data=bytes(100))
    assert it.feed(long[:50]) == long[:50]
    rest = long[50:]
    assert it.feed(rest) is rest and it.messages.began == 0
    assert it.messages.held_bytes == 0


def test_what_nobody_looks_at_is_held_only_until_its_header_is_there() -> None:
    it, graph = Reader(), talk.graph()
    assert it.feed(graph[:15]) == b"" and it.messages.held_bytes == 15
    assert it.feed(graph[15:17]) == graph[:17]
    assert it.messages.held_bytes == 0


def test_what_is_to_be_looked_at_is_held_back() -> None:
    it, first, second = Reader(), talk.message(wire.SYNC), talk.write(data=b"abcdef")
    assert it.feed(first + second[:30]) == first
    assert it.messages.held_bytes == 30
    assert it.feed(second[30:]) == second


def test_nothing_of_a_chunk_with_a_refused_message_goes_on() -> None:
    with pytest.raises(RemoteProtocolError, match="not this one"):
        Reader().feed(talk.write() + talk.write(REFUSED))


def test_who_has_refused_refuses_all_that_comes() -> None:
    it = Reader()
    for data in (talk.write(REFUSED), talk.write(REFUSED), talk.write()):
        with pytest.raises(RemoteProtocolError) as caught:
            it.feed(data)
        assert caught.value.what == "the head's llama-server broke the protocol: not this one"
        assert caught.value.hint == HEAD.hint
    assert it.looked == []


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("message 0", wire.HEADER.pack(0, 0, 0, 1)),
        ("message 99", wire.HEADER.pack(0, 99, 0, 1)),
        ("message 129", talk.welcome()),
        ("message 192", talk.pushed()),
        ("message 255", talk.failed()),
        ("SYNC: a reserved field is not 0", talk.message(wire.SYNC, zero=1)),
        ("SYNC of 1 bytes", wire.HEADER.pack(1, wire.SYNC, 0, 1)),
        ("FREE of 3 bytes", wire.HEADER.pack(3, wire.FREE, 0, 1)),
        ("WRITE of 4294967295 bytes", wire.HEADER.pack(2**32 - 1, wire.WRITE, 0, 1)),
        ("GRAPH of 8519705 bytes", wire.HEADER.pack(8519705, wire.GRAPH, 0, 1)),
    ],
)
def test_what_is_no_message_of_its_sender_is_refused(why: str, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"broke the protocol: {why}"):
        Reader().feed(data)
