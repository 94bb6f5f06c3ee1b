"""Messages behind a length: whole, in order, bounded, however the bytes come in."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_CONTROL_BYTES
from meshd.wire.message import LengthParser, framed


@given(
    st.lists(st.binary(max_size=50), max_size=8),
    st.lists(st.integers(1, 30), min_size=1),
    st.binary(max_size=3),
)
def test_messages_come_out_as_they_went_in(messages: list[bytes], cuts: list[int], rest: bytes) -> None:
    data = b"".join(map(framed, messages)) + rest
    parser, got, at, turn = LengthParser(), list[bytes](), 0, 0
    while at < len(data):
        size = cuts[turn % len(cuts)]
        parser.feed(memoryview(data)[at : at + size])
        got.extend(parser.messages())
        at, turn = at + size, turn + 1
    assert got == messages
    assert parser.rest() == rest
    assert parser.rest() == b""


def test_the_longest_message_is_taken_and_one_byte_more_is_not() -> None:
    parser = LengthParser()
    parser.feed(framed(bytes(MAX_CONTROL_BYTES)))
    assert parser.next() == bytes(MAX_CONTROL_BYTES)
    parser.feed(framed(bytes(MAX_CONTROL_BYTES + 1))[:4])  # refused before any of it has come
    with pytest.raises(RemoteProtocolError, match="65537 bytes announced"):
        parser.next()


def test_a_limit_of_its_own() -> None:
    parser = LengthParser(limit=3)
    parser.feed(framed(b"abc") + framed(b"abcd"))
    assert parser.next() == b"abc"
    with pytest.raises(RemoteProtocolError):
        parser.next()


@given(st.binary(max_size=200))
def test_noise_raises_only_the_declared_error(data: bytes) -> None:
    parser = LengthParser(limit=64)
    parser.feed(data)
    try:
        taken = sum(4 + len(message) for message in parser.messages())
    except RemoteProtocolError:
        return
    assert taken + len(parser.rest()) == len(data)
