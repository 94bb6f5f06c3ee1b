"""Messages between a browser and a node: what is written can be read, hostile ones are refused."""

import json
import struct
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.base.peer_limits import BROWSER_HEADERS
from meshd.gateway.browser_frames import (
    LARGEST_NUMBER,
    LARGEST_OFFSET,
    MAX_DATA_BYTES,
    MAX_HEAD_BYTES,
    MAX_MESSAGE_BYTES,
    Allow,
    ChannelRefused,
    Data,
    Failed,
    Forget,
    FromBrowser,
    FromNode,
    HeadReader,
    Hello,
    Ping,
    Place,
    Pong,
    RequestHead,
    Welcome,
    answer_head,
    decode_from_browser,
    decode_from_node,
    encode,
    with_length,
)

from tests.unit.gateway.golden_messages import FROM_BROWSER as FROM_BROWSER_RECORDED
from tests.unit.gateway.golden_messages import FROM_NODE as FROM_NODE_RECORDED
from tests.unit.gateway.golden_messages import RECORDED, made

NUMBERS = st.integers(0, LARGEST_NUMBER)
OFFSETS = st.integers(0, LARGEST_OFFSET - MAX_DATA_BYTES)
PLACES = st.builds(Place, NUMBERS, OFFSETS, OFFSETS)
SOME_PLACES = st.lists(PLACES, max_size=8).map(tuple)
PIECES = st.builds(Data, NUMBERS, OFFSETS, st.binary(max_size=100), st.booleans())
NONCES = st.integers(0, (1 << 64) - 1)
FROM_BROWSER = st.one_of(
    st.builds(Hello, st.binary(min_size=16, max_size=16), SOME_PLACES),
    PIECES,
    st.builds(Allow, PLACES),
    st.builds(Forget, NUMBERS),
    st.builds(Ping, NONCES),
)
FROM_NODE = st.one_of(
    st.builds(Welcome, st.booleans(), NUMBERS, SOME_PLACES),
    PIECES,
    st.builds(Allow, PLACES),
    st.builds(Failed, NUMBERS, st.text(max_size=100)),
    st.builds(Pong, NONCES),
    st.builds(ChannelRefused, st.text(max_size=100)),
)


@given(FROM_BROWSER)
def test_what_a_browser_writes_is_read(message: FromBrowser) -> None:
    assert decode_from_browser(encode(message)) == message


@given(FROM_NODE)
def test_what_a_node_writes_is_read(message: FromNode) -> None:
    assert decode_from_node(encode(message)) == message


@given(st.binary(max_size=200))
def test_any_bytes_meet_declared_errors_only(data: bytes) -> None:
    for read in (decode_from_browser, decode_from_node):
        try:
            message = read(data)
        except RemoteProtocolError:
            continue
        assert read(encode(message)) == message


@given(FROM_BROWSER, st.data())
def test_broken_messages_meet_declared_errors_only(message: FromBrowser, data: st.DataObject) -> None:
    whole = bytearray(encode(message))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    for broken in (bytes(whole), cut):
        try:
            decode_from_browser(broken)
        except RemoteProtocolError:
            pass


@pytest.mark.parametrize(
    "message",
    [
        b"",
        b"\x00",
        b"\x0a" + bytes(30),
        encode(Pong(1)),  # of the other direction
        encode(Ping(1)) + b"x",
        bytes([3]) + bytes(MAX_MESSAGE_BYTES),
        encode(Hello(bytes(16), (Place(1, 0, 0),)))[:-1],
        encode(Hello(bytes(16), (Place(1, 0, 0),) * 9)),
        encode(Hello(bytes(16), (Place(1, LARGEST_OFFSET + 1, 0),))),
        encode(Data(1, LARGEST_OFFSET, b"x", False)),
        encode(Allow(Place(1, 0, LARGEST_OFFSET + 1))),
    ],
)
def test_a_message_beyond_the_rules_is_refused(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_from_browser(message)


def test_a_page_of_another_version_is_told_what_to_do() -> None:
    later = bytearray(encode(Hello(bytes(16))))
    later[1] = 2
    with pytest.raises(RemoteProtocolError, match="download the page again"):
        decode_from_browser(bytes(later))


def test_the_longest_piece_is_a_message_and_no_longer_one_is_written() -> None:
    assert len(encode(Data(1, 0, bytes(MAX_DATA_BYTES), True))) == MAX_MESSAGE_BYTES
    with pytest.raises(LocalProtocolError):
        encode(Data(1, 0, bytes(MAX_DATA_BYTES + 1), True))


def test_a_long_reason_is_cut_between_letters() -> None:
    message = decode_from_node(encode(Failed(1, "ä" * 1000)))
    assert message == Failed(1, "ä" * 250)


def test_messages_are_written_and_read_as_once_recorded() -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert made() == recorded
    for row, message in zip(recorded["from_browser"], FROM_BROWSER_RECORDED, strict=True):
        assert decode_from_browser(bytes.fromhex(row["bytes"])) == message
    for row, answer in zip(recorded["from_node"], FROM_NODE_RECORDED, strict=True):
        assert decode_from_node(bytes.fromhex(row["bytes"])) == answer


# heads


def _head(**fields: object) -> bytes:
    return with_length({"method": "POST", "path": "/v1/x?y=1", "headers": [["A", "b"]], **fields})


@given(st.lists(st.integers(0, 80), max_size=5))
def test_a_head_is_read_however_it_is_cut(cuts: list[int]) -> None:
    whole = _head() + b"the body"
    reader, found = HeadReader(), None
    edges = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    for begin, end in pairwise(edges):
        if found is None:
            found = reader.feed(whole[begin:end])
        else:
            found = found[0], found[1] + whole[begin:end]
    assert found == (RequestHead("POST", "/v1/x?y=1", (("A", "b"),)), b"the body")


@pytest.mark.parametrize(
    "stream",
    [
        struct.pack(">I", MAX_HEAD_BYTES + 1),
        struct.pack(">I", 2) + b"[]",
        struct.pack(">I", 1) + b"{",
        struct.pack(">I", 1) + b"\xff",
        struct.pack(">I", 9000) + b"[" * 9000,
        _head(method=1),
        _head(path="/\r\nHost: x"),
        _head(path="/ä"),
        _head(headers=[["A", "b\n"]]),
        _head(headers=[["A"]]),
        _head(headers=[["A", 1]]),
        _head(headers=None),
        _head(headers=[["A", "b"]] * (BROWSER_HEADERS.most + 1)),
    ],
)
def test_a_head_beyond_the_rules_is_refused(stream: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        HeadReader().feed(stream)


@given(st.binary(max_size=100))
def test_any_head_meets_declared_errors_only(text: bytes) -> None:
    try:
        HeadReader().feed(struct.pack(">I", len(text)) + text)
    except RemoteProtocolError:
        pass


def test_the_head_of_an_answer_is_json_behind_its_length() -> None:
    head = answer_head(200, [("Content-Type", "text/plain")])
    assert struct.unpack_from(">I", head) == (len(head) - 4,)
    assert json.loads(head[4:]) == {"status": 200, "headers": [["Content-Type", "text/plain"]]}
    with pytest.raises(LocalProtocolError):
        answer_head(200, [("A", "b" * MAX_HEAD_BYTES)])
