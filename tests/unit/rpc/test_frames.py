"""Messages: any split gives the same; bytes not judged are held, the rest flows."""

import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc.frames import Messages, Sender

HEADER = struct.Struct("<BI")
HELD = 3  # bytes of a body that `Judge` wants to see, or all if there are fewer
MOST = 1000
SENDER = Sender("somebody", "say something else")


class Judge:
    """Messages of kind, size and body; notes what it saw, and refuses kind 9."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bytes]] = []
        self.messages = Messages(HEADER.size, SENDER)

    def feed(self, data: bytes | memoryview) -> bytes | memoryview:
        return self.messages.feed(data, self._look)

    def _look(self, data: bytes | memoryview, at: int, have: int) -> int:
        kind, size = map(int, HEADER.unpack_from(data, at))
        if kind == 9 or size > MOST:
            raise RemoteProtocolError("not this one")
        needed = HEADER.size + min(size, HELD)
        if have < needed:
            return -needed
        self.seen.append((kind, size, bytes(data[at + HEADER.size : at + needed])))
        return HEADER.size + size


def message(kind: int, body: bytes) -> bytes:
    return HEADER.pack(kind, len(body)) + body


ROWS = st.lists(st.tuples(st.integers(0, 8), st.binary(max_size=40)), max_size=8)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


@given(ROWS, st.lists(st.integers(0, 400), max_size=12), st.booleans())
def test_any_split_gives_the_same_messages_and_the_same_bytes(
    rows: list[tuple[int, bytes]], cuts: list[int], views: bool
) -> None:
    judge, data, passed = Judge(), b"".join(message(*row) for row in rows), b""
    for piece in pieces(data, cuts):
        passed += judge.feed(memoryview(piece) if views else piece)
        assert judge.messages.held_bytes < HEADER.size + HELD
    assert judge.seen == [(kind, len(body), body[:HELD]) for kind, body in rows]
    assert passed == data
    assert judge.messages.held_bytes == 0


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_garbage_is_refused_or_held_and_never_more_than_came(chunks: list[bytes]) -> None:
    judge, passed = Judge(), b""
    for number, chunk in enumerate(chunks):
        try:
            passed += judge.feed(chunk)
        except RemoteProtocolError:
            break
        assert len(passed) + judge.messages.held_bytes == sum(map(len, chunks[: number + 1]))
    assert b"".join(chunks).startswith(passed)


def test_whole_messages_go_on_as_they_came() -> None:
    data = message(1, b"abc") + message(2, bytes(100))
    assert Judge().feed(data) is data


def test_the_rest_of_a_long_message_goes_on_as_it_came() -> None:
    judge = Judge()
    judge.feed(message(1, bytes(100))[:50])
    rest = bytes(55)
    assert judge.feed(rest) is rest
    assert judge.messages.held_bytes == 0


def test_what_is_not_judged_is_held_back() -> None:
    judge = Judge()
    first, second = message(1, b"ab"), message(2, b"abcdef")
    assert judge.feed(first + second[:7]) == first
    assert judge.messages.held_bytes == 7
    assert judge.feed(second[7:]) == second


def test_nothing_of_a_chunk_with_a_refused_message_goes_on() -> None:
    judge = Judge()
    with pytest.raises(RemoteProtocolError, match="not this one"):
        judge.feed(message(1, b"ab") + message(9, b""))


def test_who_has_refused_refuses_all_that_comes() -> None:
    judge = Judge()
    for data in (message(9, b""), message(9, b""), message(1, b"good")):
        with pytest.raises(RemoteProtocolError) as caught:
            judge.feed(data)
        assert caught.value.what == "somebody sent something that the firewall refuses: not this one"
        assert caught.value.hint == "say something else"
    assert judge.seen == []
