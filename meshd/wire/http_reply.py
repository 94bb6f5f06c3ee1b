"""Reading one HTTP/1 reply (RFC 9112), as far as routers' UPnP services need it: status, headers, body.

Small limits, no continuation lines, no trailers, no compression (none is asked for). Routers write careless
HTTP, so a bare line feed is taken for a line's end.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError

MAX_HEAD_BYTES = 16 << 10
MAX_BODY_BYTES = 256 << 10  # descriptions of routers have 2 to 20 KiB


@dataclass(frozen=True, slots=True)
class HttpReply:
    """`headers` have lower-case names; of a repeated one the first counts."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class ReplyParser:
    """Takes bytes as they come; `reply` is None until all is there."""

    def __init__(self, *, most: int = MAX_BODY_BYTES) -> None:
        self._most = most
        self._buffer = bytearray()
        self._status = 0
        self._headers: dict[str, str] | None = None
        self._left: int | None = None  # of the body; None: until the connection ends
        self._chunked = False
        self._body = bytearray()
        self.reply: HttpReply | None = None

    def feed(self, data: bytes) -> None:
        """Take bytes in. Raises RemoteProtocolError (code `http`)."""
        if self.reply is not None:
            return
        self._buffer += data
        while self._headers is None:
            end = _head_end(self._buffer)
            if end is None:
                if len(self._buffer) > MAX_HEAD_BYTES:
                    raise _broken("its head is too long")
                return
            head = bytes(self._buffer[:end])
            del self._buffer[:end]
            self._status, headers = parse_head(head)
            if self._status >= 200:  # 100 Continue and its like come before the reply itself
                self._begin_body(headers)
        self._take_body()

    def eof(self) -> HttpReply:
        """Handle the end of the connection. Raises RemoteProtocolError when the reply is incomplete."""
        if self.reply is None and self._headers is not None and self._left is None and not self._chunked:
            self.reply = HttpReply(self._status, self._headers, bytes(self._body))
        if self.reply is None:
            raise _broken("it ends too early")
        return self.reply

    def _begin_body(self, headers: dict[str, str]) -> None:
        self._headers = headers
        coding = headers.get("transfer-encoding", "").strip().lower()
        if coding:
            if coding != "chunked":
                raise _broken(f"its coding is `{coding[:32]}`")
            self._chunked = True
        elif (length := headers.get("content-length")) is not None:
            if not (length.isascii() and length.isdigit() and len(length) <= 9):
                raise _broken("its length is not a number")
            self._left = int(length)
            if self._left > self._most:
                raise _broken(f"it announces {self._left} bytes")

    def _take_body(self) -> None:
        assert self._headers is not None
        done = self._take_chunks() if self._chunked else self._take_plain()
        if len(self._body) > self._most:
            raise _broken(f"it has more than {self._most} bytes")
        if done:
            self.reply = HttpReply(self._status, self._headers, bytes(self._body))

    def _take_plain(self) -> bool:
        take = len(self._buffer) if self._left is None else min(self._left, len(self._buffer))
        self._body += self._buffer[:take]
        del self._buffer[:take]
        if self._left is None:
            return False
        self._left -= take
        return self._left == 0

    def _take_chunks(self) -> bool:
        while len(self._body) <= self._most:
            line_end = self._buffer.find(b"\n")
            if line_end < 0:
                if len(self._buffer) > 64:
                    raise _broken("a chunk's length is too long")
                return False
            text = bytes(self._buffer[:line_end]).split(b";")[0].strip()
            if not 1 <= len(text) <= 8 or not all(c in b"0123456789abcdefABCDEF" for c in text):
                raise _broken("a chunk's length is not a number")
            size = int(text, 16)
            if size > self._most:
                raise _broken(f"it announces {size} bytes")
            if size == 0:
                return True
            at = line_end + 1
            mark = bytes(self._buffer[at + size : at + size + 2])
            if mark in (b"", b"\r"):
                return False
            if not mark.startswith((b"\r\n", b"\n")):
                raise _broken("a chunk does not end where announced")
            self._body += self._buffer[at : at + size]
            del self._buffer[: at + size + (1 if mark[0] == 10 else 2)]
        return False


def parse_head(head: bytes) -> tuple[int, dict[str, str]]:
    """Return status and headers of a reply's head. Raises RemoteProtocolError (code `http`)."""
    if len(head) > MAX_HEAD_BYTES:
        raise _broken("its head is too long")
    first, *lines = head.decode("latin-1").replace("\r\n", "\n").split("\n")
    version, _, rest = first.partition(" ")
    code = rest.strip()[:3]
    if not version.startswith("HTTP/1.") or not (len(code) == 3 and code.isascii() and code.isdigit()):
        raise _broken("its first line is not HTTP")
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if colon and name.strip():
            headers.setdefault(name.strip().lower(), value.strip())
    return int(code), headers


def _head_end(data: bytearray) -> int | None:
    ends = [at + len(mark) for mark in (b"\r\n\r\n", b"\n\n") if (at := data.find(mark)) >= 0]
    return min(ends, default=None)


def _broken(why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"a reply that is not HTTP: {why}", code="http")
