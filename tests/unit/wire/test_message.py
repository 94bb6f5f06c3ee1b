"""Messages: read back, limits, each field's type, noise."""

from collections.abc import Callable

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_CONTROL_BYTES, MAX_NESTING
from meshd.wire.message import Fields, LengthParser, Value, framed, pack, unpack

thorough = settings(deadline=None, max_examples=300)


def test_each_kind_of_field_is_read_back() -> None:
    fields = unpack(
        pack(
            {
                "text": "ä word",
                "raw": b"\0\xff",
                "number": -5,
                "flag": True,
                "texts": ["a", "b"],
                "raws": [b"a"],
                "maps": [{"x": 1}],
                "map": {"y": 2},
                "unknown": None,
            }
        )
    )
    assert fields.text("text", most=10) == "ä word"
    assert fields.raw("raw", exact=2) == b"\0\xff"
    assert fields.raw("raw", most=2) == b"\0\xff"
    assert fields.number("number", low=-5, high=-5) == -5
    assert fields.flag("flag") is True
    assert fields.texts("texts", most=1, count=2) == ("a", "b")
    assert fields.raws("raws", most=1, count=1) == (b"a",)
    assert fields.maps("maps", count=1)[0].number("x", low=0, high=9) == 1
    assert fields.map("map").number("y", low=0, high=9) == 2
    assert "text" in fields
    assert "unknown" not in fields
    assert "missing" not in fields
    assert fields.names()[0] == "text"


def test_defaults_stand_in_for_missing_fields() -> None:
    empty = unpack(pack({}))
    assert empty.text("x", most=9, default="d") == "d"
    assert empty.number("x", low=0, high=9, default=3) == 3
    assert empty.flag("x", default=False) is False


READERS: list[tuple[Callable[[Fields], object], Value]] = [
    (lambda f: f.text("x", most=3), "four"),
    (lambda f: f.text("x", most=3), "ää"),
    (lambda f: f.text("x", most=9), "a\nb"),
    (lambda f: f.text("x", most=9), "\x1b[2J"),
    (lambda f: f.text("x", most=9), b"raw"),
    (lambda f: f.text("x", most=9), None),
    (lambda f: f.raw("x"), "text"),
    (lambda f: f.raw("x", exact=2), b"one"),
    (lambda f: f.raw("x", most=2), b"one"),
    (lambda f: f.number("x", low=0, high=9), 10),
    (lambda f: f.number("x", low=0, high=9), -1),
    (lambda f: f.number("x", low=0, high=9), True),
    (lambda f: f.number("x", low=0, high=9), 1.0),
    (lambda f: f.flag("x"), 1),
    (lambda f: f.texts("x", most=9, count=1), ["a", "b"]),
    (lambda f: f.texts("x", most=9, count=9), ["a", 1]),
    (lambda f: f.texts("x", most=9, count=9), "ab"),
    (lambda f: f.raws("x", most=9, count=9), ["a"]),
    (lambda f: f.maps("x", count=9), [1]),
    (lambda f: f.map("x"), [1]),
]


@pytest.mark.parametrize(("read", "value"), READERS)
def test_a_wrong_value_is_refused_by_name(read: Callable[[Fields], object], value: Value) -> None:
    with pytest.raises(RemoteProtocolError, match="`x`") as caught:
        read(unpack(pack({"x": value})))
    assert caught.value.code == "message"


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        pack({})[:0],
        msgpack.packb([1]),
        msgpack.packb("text"),
        msgpack.packb({1: 2}),
        msgpack.packb({b"x": 2}),
        msgpack.packb({"x": {1: 2}}),
        msgpack.packb({"x": msgpack.ExtType(1, b"")}),
        msgpack.packb({"x": msgpack.Timestamp(0)}),
        msgpack.packb({"x": 1}) + b"\0",
        b"\x81\xa1\xff\x01",  # a name that is not UTF-8
        b"\xdf\xff\xff\xff\xff",  # a map of 4 thousand million entries
        b"\x81\xa1x\xdd\xff\xff\xff\xff",  # a list of as many
    ],
)
def test_what_is_not_a_map_of_plain_values_is_refused(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack(data)


def test_nesting_is_limited() -> None:
    value: Value = 1
    for _ in range(MAX_NESTING - 1):
        value = [value]
    unpack(pack({"x": value}))
    with pytest.raises(RemoteProtocolError, match="nested"):
        unpack(pack({"x": [value]}))
    with pytest.raises(RemoteProtocolError):
        unpack(b"\x81\xa1x" + b"\x91" * 5000 + b"\x01")


def test_length_is_limited() -> None:
    with pytest.raises(RemoteProtocolError, match="at most"):
        unpack(bytes(MAX_CONTROL_BYTES + 1))
    with pytest.raises(RemoteProtocolError):
        unpack(pack({"x": 1}), limit=1)


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), VALUES, max_size=5))
@thorough
def test_any_plain_map_is_packed_and_read(values: dict[str, Value]) -> None:
    try:
        fields = unpack(pack(values))
    except RemoteProtocolError as error:
        assert "nested" in error.what
        return
    assert fields.names() == list(values)


@given(st.binary(max_size=200))
@thorough
def test_noise_raises_only_the_declared_error(data: bytes) -> None:
    try:
        fields = unpack(data)
    except RemoteProtocolError:
        return
    assert isinstance(fields, Fields)


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
def test_noise_behind_a_length_raises_only_the_declared_error(data: bytes) -> None:
    parser = LengthParser(limit=64)
    parser.feed(data)
    try:
        taken = sum(4 + len(message) for message in parser.messages())
    except RemoteProtocolError:
        return
    assert taken + len(parser.rest()) == len(data)
