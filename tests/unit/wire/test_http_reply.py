"""HTTP replies: however they are cut, with lengths, chunks or none, and those that are no HTTP."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.igd import HttpReply, ReplyParser

HEAD = b"HTTP/1.1 200 OK\r\nServer: router\r\nserver: second\r\n"


def _parse(data: bytes, *cuts: int, most: int = 4096) -> HttpReply:
    parser, at = ReplyParser(most=most), 0
    for cut in (*sorted(cut for cut in cuts if cut < len(data)), len(data)):
        parser.feed(data[at:cut])
        at = cut
    return parser.eof()


@given(st.binary(max_size=300), st.lists(st.integers(0, 400), max_size=8), st.sampled_from(["length", "end"]))
def test_a_body(body: bytes, cuts: list[int], how: str) -> None:
    length = f"Content-Length: {len(body)}\r\n".encode() if how == "length" else b""
    reply = _parse(HEAD + length + b"\r\n" + body, *cuts)
    assert (reply.status, reply.body, reply.headers["server"]) == (200, body, "router")


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(0, 400), max_size=8))
def test_chunks(chunks: list[bytes], cuts: list[int]) -> None:
    written = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks)
    data = HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + written + b"0\r\n\r\n"
    assert _parse(data, *cuts).body == b"".join(chunks)


def test_bare_line_feeds_and_a_word_before() -> None:
    reply = _parse(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.0 500 Internal\nContent-Length: 2\n\nok rest")
    assert (reply.status, reply.body) == (500, b"ok")


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/2 abc\r\n\r\n",
        HEAD + b"Content-Length: 10\r\n\r\nshort",
        HEAD + b"Content-Length: -1\r\n\r\n",
        HEAD + b"Content-Length: 99999\r\n\r\n",
        HEAD + b"Transfer-Encoding: gzip\r\n\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nfffffff\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1" * 100,
        HEAD + b"\r\n" + b"x" * 5000,
        b"x" * 20_000,
        HEAD,
        b"",
    ],
)
def test_what_is_no_reply(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        _parse(data)


@given(st.binary(max_size=200), st.integers(0, 200))
def test_any_bytes(data: bytes, cut: int) -> None:
    try:
        assert len(_parse(HEAD + data, cut, most=100).body) <= 100
    except RemoteProtocolError:
        pass
