"""The server's half of RFC 6455: its own examples, what a browser sends, and whatever else may come."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.websocket import (
    MAX_FRAME_PAYLOAD,
    FrameReader,
    accept,
    close_frame,
    frame,
    read_path,
    read_request,
    unmask,
)

REQUEST = (
    b"GET /browser/abc HTTP/1.1\r\nHost: relay.example:443\r\nConnection: keep-alive, Upgrade\r\n"
    b"Upgrade: websocket\r\nOrigin: null\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Extensions: permessage-deflate"
)
BINARY, CONTINUATION, TEXT, CLOSE, PING, PONG = 2, 0, 1, 8, 9, 10


def masked(opcode: int, payload: bytes, *, final: bool = True, mask: bytes = b"\x01\x02\x03\x04") -> bytes:
    """Return a frame as a browser sends it."""
    first = opcode | (0x80 if final else 0)
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", first, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", first, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", first, 0x80 | 127, size)
    return head + mask + unmask(payload, mask)


def test_the_request_of_a_browser() -> None:
    assert read_request(REQUEST) == ("/browser/abc", b"dGhlIHNhbXBsZSBub25jZQ==")


def test_the_path_of_any_request() -> None:
    assert read_path(b"GET /?x=1 HTTP/1.1\r\nHost: 192.168.1.5:17430") == "/?x=1"
    for wrong in (
        b"",
        b"GET / HTTP/1.0",
        b"PUT / HTTP/1.1",
        b"GET / HTTP/1.1\r\nHost",
        b"GET /\xe4 HTTP/1.1",
    ):
        with pytest.raises(RemoteProtocolError):
            read_path(wrong)


def test_the_answer_is_that_of_the_rfc() -> None:
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in accept(b"dGhlIHNhbXBsZSBub25jZQ==")


@pytest.mark.parametrize(
    ("part", "other"),
    [
        (b"GET ", b"POST "),
        (b"HTTP/1.1", b"HTTP/1.0"),
        (b"Upgrade: websocket", b"Upgrade: h2c"),
        (b"keep-alive, Upgrade", b"keep-alive"),
        (b"Version: 13", b"Version: 8"),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"dGhl"),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"\xff"),
        (b"Host: ", b"Host : "),
        (b"/browser/abc", b"/browser/\xe4"),
    ],
)
def test_other_requests_are_refused(part: bytes, other: bytes) -> None:
    assert part in REQUEST
    with pytest.raises(RemoteProtocolError):
        read_request(REQUEST.replace(part, other))


@given(st.binary(max_size=400))
def test_no_request_does_more_than_fail(head: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        read_request(head)


@given(st.lists(st.binary(max_size=300), max_size=5), st.integers(1, 64), st.booleans())
def test_payload_comes_in_order_however_it_is_cut(payloads: list[bytes], cut: int, split: bool) -> None:
    """Messages of one frame or two, in pieces of any length, with a ping between two fragments."""
    wire = b""
    for payload in payloads:
        if split:
            half = len(payload) // 2
            wire += masked(BINARY, payload[:half], final=False) + masked(PING, b"?")
            wire += masked(CONTINUATION, payload[half:])
        else:
            wire += masked(BINARY, payload)
    reader, found, replies = FrameReader(), b"", b""
    for at in range(0, len(wire), cut):
        got, reply = reader.feed(wire[at : at + cut])
        found += b"".join(got)
        replies += reply
    assert found == b"".join(payloads)
    assert replies == (b"\x8a\x01?" * len(payloads) if split else b"")
    assert not reader.is_over


def test_a_long_frame() -> None:
    payload = bytes(range(256)) * 256
    assert len(payload) == MAX_FRAME_PAYLOAD
    got, reply = FrameReader().feed(masked(BINARY, payload))
    assert (got, reply) == ([payload], b"")


@pytest.mark.parametrize(
    ("wire", "code"),
    [
        (masked(BINARY, bytes(MAX_FRAME_PAYLOAD + 1))[:14], 1009),
        (b"\x82\x01x", 1002),  # not masked
        (b"\xc2\x81\0\0\0\0x", 1002),  # compressed
        (masked(TEXT, b"x"), 1003),
        (masked(3, b"x"), 1002),
        (masked(CONTINUATION, b"x"), 1002),
        (masked(BINARY, b"x", final=False) + masked(BINARY, b"x"), 1002),
        (masked(PING, b"x", final=False), 1002),
        (masked(PING, bytes(126)), 1002),
    ],
)
def test_a_violation_ends_it_with_a_reason(wire: bytes, code: int) -> None:
    reader = FrameReader()
    _, reply = reader.feed(wire)
    assert reply == close_frame(code)
    assert reader.is_over
    assert reader.feed(masked(BINARY, b"more")) == ([], b"")


def test_the_end_is_answered_and_nothing_comes_after_it() -> None:
    reader = FrameReader()
    got, reply = reader.feed(masked(BINARY, b"last") + masked(CLOSE, b"\x03\xe8bye") + masked(BINARY, b"x"))
    assert got == [b"last"]
    assert reply == b"\x88\x02\x03\xe8"
    assert reader.is_over


@given(st.lists(st.binary(max_size=80), max_size=8))
def test_whatever_comes_is_held_in_bounds(pieces: list[bytes]) -> None:
    reader = FrameReader()
    for piece in pieces:
        payloads, reply = reader.feed(piece)
        assert sum(map(len, payloads)) + len(reply) <= sum(map(len, pieces)) + 4
    assert len(reader._buffer) <= sum(map(len, pieces))


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_frames_that_we_send(size: int) -> None:
    sent = frame([bytes(size)])
    head = {0: 2, 125: 2, 126: 4, 65535: 4, 65536: 10}[size]
    assert len(sent) == head + size
    assert sent[0] == 0x82
    assert not sent[1] & 0x80
