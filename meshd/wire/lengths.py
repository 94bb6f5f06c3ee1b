"""Frames messages by a 4-byte length (big endian): the greeting and message streams."""

import struct
from collections.abc import Iterator

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_CONTROL_BYTES

_HEADER = struct.Struct(">I")


def framed(message: bytes) -> bytes:
    """Return the message with its length before it."""
    return _HEADER.pack(len(message)) + message


class LengthParser:
    """Cuts a byte stream into messages of at most `limit` bytes each; keeps at most limit + 4 + one chunk."""

    def __init__(self, *, limit: int = MAX_CONTROL_BYTES) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def feed(self, data: bytes | memoryview) -> None:
        """Take received bytes in; `messages` yields what is whole."""
        self._buffer += data

    def messages(self) -> Iterator[bytes]:
        """Yield whole messages, oldest first. Raises RemoteProtocolError for one that is too long."""
        while (message := self.next()) is not None:
            yield message

    def next(self) -> bytes | None:
        """Return the next whole message, or None for "need more". Raises RemoteProtocolError if it is too
        long.
        """
        if len(self._buffer) < _HEADER.size:
            return None
        (length,) = _HEADER.unpack_from(self._buffer)
        if length > self._limit:
            raise RemoteProtocolError(
                f"message of {length} bytes announced, at most {self._limit} are taken", code="message"
            )
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        message = bytes(self._buffer[_HEADER.size : end])
        del self._buffer[:end]
        return message

    def rest(self) -> bytes:
        """Take out what was received behind the last whole message."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest
