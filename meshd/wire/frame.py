"""Frames of a link: the incremental parser, and the way in to the other files of frames.

A frame is a type (1 byte, the high bit says that a receiver which does not know it must give up), a length
(4 bytes, big-endian) and that many bytes of body. docs/protocol.md has the tables; frame_types.py has the
values, frame_body.py the bodies of control frames.

Data frames are not put together: their payload is handed on in pieces as it comes, each a Data of its own
with its own offset. So a payload is copied at most once on the way in, and never on the way out.
"""

import struct

from meshd.base.errors import RemoteProtocolError
from meshd.wire.frame_body import FRAME_HEAD, ack_frame, check_head, decode, encode, encode_hello
from meshd.wire.frame_types import ACK, DATA, HELLO, LINK_ACK, MAX_OFFSET, Ack, Data, Frame, LinkAck
from meshd.wire.limits import MAX_CONTROL_BYTES, MAX_FRAME_BYTES

__all__ = ["FrameParser", "HelloReader", "ack_frame", "data_header", "encode", "encode_hello"]

_DATA = struct.Struct(">BIIQB")  # the head and the fixed part of Data: type, length, stream, offset, flags
_DATA_FIXED = _DATA.size - FRAME_HEAD.size
_FIN = 1
_MOST_ACKS = 3  # before data that is looked at in one go: of the link, of its stream, of another one
DATA_OVERHEAD = _DATA.size  # bytes of a Data frame that are not payload


def data_header(stream_id: int, offset: int, size: int, fin: bool) -> bytes:
    """Return the head of a Data frame with `size` bytes of payload."""
    return _DATA.pack(DATA, _DATA_FIXED + size, stream_id, offset, fin)


class FrameParser:
    """Bytes in as a link delivers them, frames out. Holds at most one unfinished control frame.

    Once it has raised it must not be used again.
    """

    def __init__(self, *, max_frame: int = MAX_FRAME_BYTES) -> None:
        self._max_payload = max_frame
        self._held = bytearray()  # a head, or a control frame, that is not complete
        self._wanted = FRAME_HEAD.size  # bytes that _held needs before it says more
        self._stream_id = self._offset = self._left = self._skip = 0  # of the frame whose body is passing
        self._fin = False

    def whole(self, data: bytes | memoryview, at: int = 0) -> tuple[int, int] | None:
        """Return stream and offset, if `data` from `at` to its end is one whole Data frame without `fin`.

        None for whatever else; it is `feed`'s then. The payload is what follows DATA_OVERHEAD bytes.
        """
        size = len(data) - at
        if size <= _DATA.size or self._left or self._skip or self._held:
            return None
        kind: int
        kind, length, stream_id, offset, flags = _DATA.unpack_from(data, at)
        payload = size - _DATA.size
        if kind != DATA or flags or length != _DATA_FIXED + payload or payload > self._max_payload:
            return None
        return None if offset + payload > MAX_OFFSET else (stream_id, offset)

    def acks_before_data(self, data: bytes | memoryview) -> tuple[list[LinkAck | Ack], int] | None:
        """Return the acknowledgements at the beginning of `data`, and the offset of the Data frame behind
        them.

        None, with nothing done, if anything else stands there.
        """
        bodies: list[tuple[int, bytes | memoryview]] = []
        at, size = 0, len(data)
        while size - at >= _DATA.size and not (self._left or self._skip or self._held):
            kind: int
            kind, length = FRAME_HEAD.unpack_from(data, at)
            if kind == DATA:
                acks = _acks(bodies)
                return None if acks is None else (acks, at)
            start, at = at + FRAME_HEAD.size, at + FRAME_HEAD.size + length
            if kind not in (LINK_ACK, ACK) or len(bodies) == _MOST_ACKS or at > size:
                return None
            bodies.append((kind, data[start:at]))
        return None

    def feed(self, data: bytes | memoryview) -> list[Frame]:
        """Return the frames, and pieces of Data frames, that `data` completes. Raises RemoteProtocolError."""
        frames: list[Frame] = []
        size = len(data)
        view = memoryview(data)
        at = 0
        while at < size:
            if self._left:
                count = min(self._left, size - at)
                frames.append(self._piece(data, view, at, count))
                at += count
            elif self._skip:
                count = min(self._skip, size - at)
                self._skip -= count
                at += count
            elif self._held:
                at = self._top_up(view, at, frames)
            else:
                at = self._begin(data, view, at, frames)
        return frames

    def _piece(self, data: bytes | memoryview, view: memoryview, at: int, count: int) -> Data:
        whole = len(data)
        payload: bytes | memoryview
        if count == whole:
            payload = data
        elif count * 2 >= whole:
            payload = view[at : at + count]
        else:
            payload = data[at : at + count]  # a view of bytes would keep more alive than it shows
        offset = self._offset
        self._offset = offset + count
        self._left -= count
        return Data(self._stream_id, offset, payload, self._fin and not self._left)

    def _begin(self, data: bytes | memoryview, view: memoryview, at: int, frames: list[Frame]) -> int:
        """Start on the frame at `at`; return where parsing continues."""
        there = len(data) - at
        if there >= FRAME_HEAD.size:
            kind: int
            length: int
            kind, length = FRAME_HEAD.unpack_from(data, at)
            if kind == DATA:
                if there >= _DATA.size:
                    self._start_data(_DATA.unpack_from(data, at), frames)
                    return at + _DATA.size
            elif not check_head(kind, length):
                self._skip = length
                return at + FRAME_HEAD.size
            elif there >= FRAME_HEAD.size + length:
                frames.append(decode(kind, view[at + FRAME_HEAD.size : at + FRAME_HEAD.size + length]))
                return at + FRAME_HEAD.size + length
        self._wanted = FRAME_HEAD.size
        return self._top_up(view, at, frames)

    def _top_up(self, view: memoryview, at: int, frames: list[Frame]) -> int:
        """Collect a head or a control frame that came in parts; return where parsing continues."""
        held = self._held
        while True:
            count = min(self._wanted - len(held), len(view) - at)
            held += view[at : at + count]
            at += count
            if len(held) < self._wanted:
                return at
            kind, length = FRAME_HEAD.unpack_from(held)
            if kind == DATA:
                if self._wanted < _DATA.size:
                    self._wanted = _DATA.size
                    continue
                self._start_data(_DATA.unpack_from(held), frames)
            elif not check_head(kind, length):
                self._skip = length
            elif self._wanted < FRAME_HEAD.size + length:
                self._wanted = FRAME_HEAD.size + length
                continue
            else:
                frames.append(decode(kind, bytes(held[FRAME_HEAD.size :])))
            self._held = bytearray()
            return at

    def _start_data(self, head: tuple[int, int, int, int, int], frames: list[Frame]) -> None:
        _, length, self._stream_id, self._offset, flags = head
        self._left = length - _DATA_FIXED
        self._fin = bool(flags & _FIN)
        if not 0 <= self._left <= self._max_payload:
            raise RemoteProtocolError(f"data frame of {length} bytes", code="frame")
        if self._offset + self._left > MAX_OFFSET:
            raise RemoteProtocolError(f"offset {self._offset}", code="frame")
        if not self._left:
            if not self._fin:
                raise RemoteProtocolError("a data frame has no data", code="frame")
            frames.append(Data(self._stream_id, self._offset, b"", True))


def _acks(bodies: list[tuple[int, bytes | memoryview]]) -> list[LinkAck | Ack] | None:
    """Decode acknowledgements; None if one of them is malformed."""
    acks: list[LinkAck | Ack] = []
    for kind, body in bodies:
        try:
            frame = decode(kind, body)
        except RemoteProtocolError:
            return None
        if isinstance(frame, LinkAck | Ack):
            acks.append(frame)
    return acks


class HelloReader:
    """Takes the peer's Hello off the front of a link's bytes, before a session gets the rest."""

    def __init__(self, *, limit: int = MAX_CONTROL_BYTES) -> None:
        self.rest = b""  # what followed the Hello: the first bytes for Session.receive
        self._limit = limit  # bytes of payload
        self._held = bytearray()

    def feed(self, data: bytes) -> bytes | None:
        """Return the Hello's payload once it is complete. Raises RemoteProtocolError (any other frame, too
        long).
        """
        self._held += data
        if self._held and self._held[0] != HELLO:
            raise RemoteProtocolError(f"frame of type {self._held[0]:#x} instead of a hello", code="hello")
        if len(self._held) < FRAME_HEAD.size:
            return None
        _, length = FRAME_HEAD.unpack_from(self._held)
        if length > self._limit:
            raise RemoteProtocolError(f"hello of {length} bytes", code="hello")
        end = FRAME_HEAD.size + length
        if len(self._held) < end:
            return None
        self.rest = bytes(self._held[end:])
        return bytes(self._held[FRAME_HEAD.size : end])
