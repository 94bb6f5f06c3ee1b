"""Requests that are no HTTP, as anybody may send them to the API: they need no key."""

import asyncio
import contextlib
import json
from collections.abc import Mapping

_HOST = b"Host: localhost\r\n"
_LOOK = b"GET /health HTTP/1.1\r\n" + _HOST
_POST = b"POST /v1/completions HTTP/1.1\r\n" + _HOST + b"Content-Type: application/json\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n"
_GZIP = b"Content-Encoding: gzip\r\nContent-Length: 40\r\n\r\n" + b"\x1f\x8b" * 20

# Each with what the client is told.
MALFORMED: Mapping[str, tuple[bytes, int, str]] = {
    "a header": (_LOOK + b"A\x01b: x\r\n\r\n", 400, "invalid_http"),
    "no HTTP at all": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400, "invalid_http"),
    # what `fetch("http://localhost:8090/aaa…", {mode: "no-cors"})` of any web page sends
    "a long path": (
        b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n" + _HOST + b"Sec-Fetch-Site: cross-site\r\n\r\n",
        431,
        "headers_too_large",
    ),
    "a long header": (_LOOK + b"A: " + b"a" * 40_000 + b"\r\n\r\n", 431, "headers_too_large"),
    "a head without an end": (_LOOK + (b"A: " + b"a" * 30_000 + b"\r\n") * 20, 431, "headers_too_large"),
    "endless cookies": (_LOOK + b"Cookie: " + b"a" * 300_000 + b"\r\n\r\n", 431, "headers_too_large"),
    "many headers": (_LOOK + b"A: a\r\n" * 300 + b"\r\n", 400, "invalid_http"),
    "packed chunks": (
        _POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
        501,
        "unsupported_transfer_encoding",
    ),
    "packed chunks in two headers": (
        _POST + b"Transfer-Encoding: gzip\r\n" + _CHUNKED + b"0\r\n\r\n",
        400,
        "invalid_http",
    ),
    "two hosts": (_LOOK + _HOST + b"\r\n", 400, "invalid_http"),
    "two lengths": (_POST + b"Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}", 400, "invalid_http"),
    "a length and chunks": (_POST + b"Content-Length: 2\r\n" + _CHUNKED, 400, "invalid_http"),
    "a chunk": (_POST + _CHUNKED + b"zz\r\n", 400, "invalid_http"),
}
# Of these the head is well, so whoever has no key hears that, and the rest is read and dropped.
BROKEN_BODIES: Mapping[str, bytes] = {
    "a packed body": _POST + _GZIP,
    "a packed body of a look": _LOOK + _GZIP,
}


async def told(port: int, sent: bytes) -> bytes:
    """Return what the API answers."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(sent)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split()[0])
        return head + await reader.readexactly(length)
    finally:
        writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def error_of(answer: bytes) -> tuple[int, str]:
    """Its status, and the code of its error."""
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), str(json.loads(body)["error"]["code"])
