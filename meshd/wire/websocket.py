"""WebSockets (RFC 6455), the server's half that a relay needs: bytes in, bytes out.

A browser asks by HTTP, and then sends frames, masked, of binary messages. A message's boundaries mean nothing
here: payload is passed on as it comes, so no message is ever put together. No extensions, no text. Whoever
violates the protocol gets a closing frame with a reason, and nothing after it.
"""

import base64
import hashlib
from collections.abc import Iterable

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_UNPROVEN_BYTES

MAX_REQUEST_BYTES = MAX_UNPROVEN_BYTES
MAX_FRAME_PAYLOAD = 64 << 10
_MAX_FIELDS = 64
_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455 1.3
_CONTINUATION, _TEXT, _BINARY, _CLOSE, _PING, _PONG = 0, 1, 2, 8, 9, 10
_FINAL = 0x80
_MASKED = 0x80
_MAX_CONTROL_PAYLOAD = 125
_NORMAL, _VIOLATION, _NOT_TAKEN, _TOO_LONG = 1000, 1002, 1003, 1009


def read_request(head: bytes) -> tuple[str, bytes]:
    """Return path and key of an opening request, `head` up to its empty line. Raises RemoteProtocolError."""
    path, fields = _read_head(head)
    key = fields.get(b"sec-websocket-key", b"").strip()
    if (
        b"websocket" not in _words(fields.get(b"upgrade", b""))
        or b"upgrade" not in _words(fields.get(b"connection", b""))
        or fields.get(b"sec-websocket-version", b"").strip() != b"13"
        or not _is_key(key)
    ):
        raise _wrong("not a request for a WebSocket of version 13")
    return path, key


def read_path(head: bytes) -> str:
    """Return the path of any GET request, `head` up to its empty line. Raises RemoteProtocolError."""
    return _read_head(head)[0]


def _read_head(head: bytes) -> tuple[str, dict[bytes, bytes]]:
    lines = head.split(b"\r\n")
    parts = lines[0].split(b" ")
    if len(parts) != 3 or parts[0] != b"GET" or parts[2] != b"HTTP/1.1" or len(lines) > _MAX_FIELDS:
        raise _wrong("not a GET request of HTTP/1.1")
    fields: dict[bytes, bytes] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip():
            raise _wrong("a header field is malformed")
        name = name.lower()
        fields[name] = fields[name] + b"," + value if name in fields else value
    try:
        return parts[1].decode("ascii"), fields
    except UnicodeDecodeError:
        raise _wrong("a path that is not ASCII") from None


def accept(key: bytes) -> bytes:
    """Return the answer that opens the WebSocket asked for with `key`."""
    proof = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
    return (
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Accept: " + proof + b"\r\n\r\n"
    )


def refuse() -> bytes:
    """Return the answer to what is no such request, or asks for what is not here."""
    return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def frame(pieces: Iterable[bytes | memoryview]) -> bytes:
    """Return one binary message in one frame."""
    payload = b"".join(pieces)
    return _head(_BINARY, len(payload)) + payload


def close_frame(code: int = _NORMAL) -> bytes:
    """Return the frame that ends the WebSocket."""
    return _head(_CLOSE, 2) + code.to_bytes(2, "big")


class FrameReader:
    """Takes in what the browser sends after its request; `reply` is to be sent back, `is_over` is the end."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._is_within = False  # a message that has not ended
        self.is_over = False

    def feed(self, data: bytes | memoryview) -> tuple[list[bytes], bytes]:
        """Return payload in order, and bytes to send back. Holds at most a frame of 64 KiB and one chunk."""
        payloads: list[bytes] = []
        reply = bytearray()
        self._buffer += data
        while not self.is_over:
            try:
                found = self._next()
            except _Violation as violation:
                reply += close_frame(violation.code)
                self._end()
                break
            if found is None:
                break
            opcode, payload = found
            if opcode == _CLOSE:
                reply += _head(_CLOSE, len(payload[:2])) + payload[:2]
                self._end()
            elif opcode == _PING:
                reply += _head(_PONG, len(payload)) + payload
            elif opcode in (_BINARY, _CONTINUATION) and payload:
                payloads.append(payload)
        return payloads, bytes(reply)

    def _end(self) -> None:
        self.is_over = True
        self._buffer.clear()

    def _next(self) -> tuple[int, bytes] | None:
        """Cut off one frame (RFC 6455 5.2); None: it is not whole."""
        buffer = self._buffer
        if len(buffer) < 2:
            return None
        opcode, size = self._check(buffer[0], buffer[1])
        at = 2
        if size >= 126:
            wide = 2 if size == 126 else 8
            at += wide
            if len(buffer) < at:
                return None
            size = int.from_bytes(buffer[2:at], "big")
        if size > MAX_FRAME_PAYLOAD:
            raise _Violation(_TOO_LONG)
        end = at + 4 + size
        if len(buffer) < end:
            return None
        payload = unmask(bytes(buffer[at + 4 : end]), bytes(buffer[at : at + 4]))
        if opcode < _CLOSE:
            self._is_within = not buffer[0] & _FINAL
        del buffer[:end]
        return opcode, payload

    def _check(self, first: int, second: int) -> tuple[int, int]:
        """Return opcode and the short length of a frame's first two bytes. Raises _Violation."""
        opcode, size = first & 0x0F, second & 0x7F
        if first & 0x70 or not second & _MASKED:
            raise _Violation(_VIOLATION)
        if opcode in (_CLOSE, _PING, _PONG):
            if size > _MAX_CONTROL_PAYLOAD or not first & _FINAL:
                raise _Violation(_VIOLATION)
        elif opcode == _TEXT:
            raise _Violation(_NOT_TAKEN)
        elif opcode != (_CONTINUATION if self._is_within else _BINARY):
            raise _Violation(_VIOLATION)
        return opcode, size


class _Violation(Exception):
    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


def unmask(payload: bytes, mask: bytes) -> bytes:
    """Return `payload` with every four bytes xor'd with `mask` (RFC 6455 5.3); so it is masked, too."""
    size = len(payload)
    pattern = (mask * (size // 4 + 1))[:size]
    return (int.from_bytes(payload, "big") ^ int.from_bytes(pattern, "big")).to_bytes(size, "big")


def _head(opcode: int, size: int) -> bytes:
    if size < 126:
        return bytes([_FINAL | opcode, size])
    if size < 1 << 16:
        return bytes([_FINAL | opcode, 126]) + size.to_bytes(2, "big")
    return bytes([_FINAL | opcode, 127]) + size.to_bytes(8, "big")


def _words(value: bytes) -> set[bytes]:
    return {word.strip().lower() for word in value.split(b",")}


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        return False


def _wrong(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(what, code="websocket")
