"""Frames of a link: their types, the bodies of control frames, and the incremental parser.

A frame is a type (1 byte, the high bit says that a receiver which does not know it must give up), a length
(4 bytes, big-endian) and that many bytes of body. docs/protocol-sessions.md has the tables.

Data frames are not put together: their payload is handed on in pieces as it comes, each a Data of its own
with its own offset. So a payload is copied at most once on the way in, and never on the way out.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.wire.limits import MAX_CONTROL_BYTES, MAX_FRAME_BYTES, MAX_NAME_BYTES, MAX_STREAMS, MAX_TEXT_BYTES
from meshd.wire.message import pack, unpack

HELLO, RESUME, OPEN, DATA, ACK, RESET, RESET_ACK = 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87
MAX_DATA, LINK_ACK, PING, PONG, SWITCH, GOODBYE = 0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x8D
LINK_LOST = 0x0E  # a hint: a peer that does not know it loses time, nothing else
CRITICAL = 0x80
MAX_METADATA_BYTES = 4 << 10  # packed service and metadata of Open
MAX_METADATA_ITEMS = 32
MAX_OFFSET = 1 << 62  # no honest stream comes near it, and sums of two stay within 64 bits
FRAME_HEAD = struct.Struct(">BI")
_ACK = struct.Struct(">BIIBQQ")  # with the head
_ACK_BODY = struct.Struct(">IBQQ")
_OPEN = struct.Struct(">IBQ")
_RESET = struct.Struct(">IIQQ")
_RESUME = struct.Struct(">QII")
_RESUME_ENTRY = struct.Struct(">IBQQQ")
_U32 = struct.Struct(">I")
_U64 = struct.Struct(">Q")
_PING = struct.Struct(">II?")
_PONG = struct.Struct(">II")
_MOST_ENTRIES = 4 * MAX_STREAMS  # both sides' streams, and as many that are about to be forgotten
__all__ = ["FrameParser", "ack_frame", "data_header", "encode", "encode_hello"]
_DATA = struct.Struct(">BIIQB")  # the head and the fixed part of Data: type, length, stream, offset, flags
_DATA_FIXED = _DATA.size - FRAME_HEAD.size
_FIN = 1
_MOST_ACKS = 3  # before data that is looked at in one go: of the link, of its stream, of another one
DATA_OVERHEAD = _DATA.size  # bytes of a Data frame that are not payload


@dataclass(frozen=True, slots=True)
class HelloFrame:
    """First frame on a link, each way; belongs to the link and not to a session."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class ResumeEntry:
    """One side's state of one live stream. Offsets in bytes of the direction they speak of."""

    stream_id: int
    received: int  # all bytes below it are here
    credit: int  # the peer may send up to this offset
    sent: int  # highest offset ever sent
    accepted: bool = False
    ended: bool = False  # the peer's fin is here
    eof: bool = False  # our fin has been written
    resetting: bool = False  # we reset it and wait for ResetAck


@dataclass(frozen=True, slots=True)
class Resume:
    """The first frame of a session on a link: all that the sender knows of its live streams."""

    max_data: int  # session credit, absolute
    opened: int  # lowest id that the sender has not opened yet
    seen: int  # lowest id of the receiver's that the sender has not seen yet
    streams: tuple[ResumeEntry, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """A new stream; `window` is what the receiver of this frame may send on it at once."""

    stream_id: int
    service: str
    metadata: Mapping[str, str | int | bytes]
    priority: int  # 0 interactive, 1 bulk
    window: int


@dataclass(slots=True)  # not frozen: one is made for every message, and that would take thrice as long
class Data:
    """Bytes of a stream from `offset` on; `fin`: nothing comes after them."""

    stream_id: int
    offset: int
    payload: bytes | memoryview
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Ack:
    """Everything below `received` is here; the peer may send up to `credit` (absolute)."""

    stream_id: int
    received: int
    credit: int
    accepted: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The stream is thrown away, both directions.

    `final` is the highest offset its sender ever sent, `received` the highest it ever received: with them
    both sides settle the session's credit to the same numbers.
    """

    stream_id: int
    code: int
    reason: str
    final: int
    received: int


@dataclass(frozen=True, slots=True)
class ResetAck:
    """The Reset is known here: no frame of this stream follows."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class MaxData:
    """The session's credit: the sum of the highest offsets of all streams may reach it (absolute)."""

    credit: int


@dataclass(frozen=True, slots=True)
class LinkAck:
    """The bytes that came over this link since its Hello."""

    received: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a Pong. The stamp stays with the sender, under `number`, where nobody can forge it."""

    number: int
    heard_ms: int  # since the sender last heard anything on this link
    hold: bool = False  # send no data on this link until a Ping without it (or a second has passed)


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to the Ping of that number."""

    number: int
    heard_ms: int


@dataclass(frozen=True, slots=True)
class Switch:
    """This link carries the data from now on; of two, the one with the higher sequence counts."""

    sequence: int


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The follower has lost the link that this Switch chose."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The session ends on purpose."""

    code: int
    reason: str


Control = (
    Ack
    | LinkAck
    | MaxData
    | Open
    | Reset
    | ResetAck
    | Ping
    | Pong
    | Switch
    | LinkLost
    | Resume
    | Goodbye
    | HelloFrame
)
Frame = Data | Control


# Frames of one number: their types and forms.
_NUMBERS: Mapping[type, tuple[int, struct.Struct]] = {
    LinkAck: (LINK_ACK, _U64),
    MaxData: (MAX_DATA, _U64),
    ResetAck: (RESET_ACK, _U32),
    Switch: (SWITCH, _U32),
    LinkLost: (LINK_LOST, _U32),
}


def encode_hello(payload: bytes) -> bytes:
    """Encode the first frame on every link, each way; `payload` is a packed message of at most 64 KiB."""
    if len(payload) > MAX_CONTROL_BYTES:
        raise LocalProtocolError(f"hello of {len(payload)} bytes, at most {MAX_CONTROL_BYTES} fit")
    return _framed(HELLO, payload)


def ack_frame(stream_id: int, received: int, credit: int, accepted: bool, ended: bool) -> bytes:
    """Encode an Ack (a function of its own, because it is frequent)."""
    return _ACK.pack(ACK, _ACK_BODY.size, stream_id, accepted | ended << 1, received, credit)


def encode(frame: Control) -> bytes:
    """Encode one control frame. Raises LocalProtocolError when the metadata is too large for the wire."""
    match frame:
        case Ack(stream_id, received, credit, accepted, ended):
            return ack_frame(stream_id, received, credit, accepted, ended)
        case Open():
            return _encode_open(frame)
        case Reset(stream_id, code, reason, final, received):
            return _framed(RESET, _RESET.pack(stream_id, code, final, received) + _text_bytes(reason))
        case Resume():
            return _encode_resume(frame)
        case Goodbye(code, reason):
            return _framed(GOODBYE, _U32.pack(code) + _text_bytes(reason))
        case HelloFrame(payload):
            return encode_hello(payload)
        case Ping(number, heard_ms, hold):
            return _framed(PING, _PING.pack(number, min(heard_ms, 0xFFFFFFFF), hold))
        case Pong(number, heard_ms):
            return _framed(PONG, _PONG.pack(number, min(heard_ms, 0xFFFFFFFF)))
        case LinkAck(number) | MaxData(number) | ResetAck(number) | Switch(number) | LinkLost(number):
            kind, form = _NUMBERS[type(frame)]
            return _framed(kind, form.pack(number))


def _framed(kind: int, body: bytes) -> bytes:
    return FRAME_HEAD.pack(kind, len(body)) + body


def _text_bytes(text: str) -> bytes:
    printable = "".join(letter if letter.isprintable() else "?" for letter in text[:MAX_TEXT_BYTES])
    return printable.encode("utf-8", "replace")[:MAX_TEXT_BYTES].decode("utf-8", "ignore").encode()


def _encode_open(frame: Open) -> bytes:
    text = {name: value for name, value in frame.metadata.items() if isinstance(value, str)}
    number = {name: value for name, value in frame.metadata.items() if isinstance(value, int)}
    raw = {name: value for name, value in frame.metadata.items() if isinstance(value, bytes)}
    try:
        packed = pack({"service": frame.service, "text": text, "number": number, "raw": raw})
        _decode_service(packed)  # what the peer would not take is not sent
    except (RemoteProtocolError, OverflowError, UnicodeEncodeError) as error:
        raise LocalProtocolError(f"stream to `{frame.service}` cannot be opened: {error}") from error
    return _framed(OPEN, _OPEN.pack(frame.stream_id, frame.priority, frame.window) + packed)


def _encode_resume(frame: Resume) -> bytes:
    parts = [_RESUME.pack(frame.max_data, frame.opened, frame.seen)]
    for entry in frame.streams:
        flags = entry.accepted | entry.ended << 1 | entry.eof << 2 | entry.resetting << 3
        parts.append(_RESUME_ENTRY.pack(entry.stream_id, flags, entry.received, entry.credit, entry.sent))
    return _framed(RESUME, b"".join(parts))


def check_head(kind: int, size: int) -> bool:
    """Check a control frame's head before its body is awaited.

    Raises RemoteProtocolError when it is longer than its type allows, or unknown and critical.
    """
    if kind in _DECODERS:
        if size > _LONGEST.get(kind, MAX_CONTROL_BYTES):
            raise _bad(f"frame of type {kind:#x} with {size} bytes")
        return True
    if kind & CRITICAL:
        raise _bad(f"frame of unknown type {kind:#x}")
    if size > MAX_CONTROL_BYTES:
        raise _bad(f"frame of unknown type {kind:#x} with {size} bytes")
    return False


def decode(kind: int, body: bytes | memoryview) -> Control:
    """Decode a complete control frame whose head has passed `check_head`. Raises RemoteProtocolError."""
    try:
        return _DECODERS[kind](body)
    except (struct.error, UnicodeDecodeError) as error:
        raise _bad(f"frame of type {kind:#x} is malformed") from error


def _decode_open(body: bytes | memoryview) -> Open:
    stream_id, priority, window = _OPEN.unpack_from(body)
    service, metadata = _decode_service(body[_OPEN.size :])
    if priority > 1:
        raise _bad(f"priority {priority}")
    return Open(stream_id, service, metadata, priority, _offset(window))


def _decode_service(packed: bytes | memoryview) -> tuple[str, dict[str, str | int | bytes]]:
    fields = unpack(packed, limit=MAX_METADATA_BYTES)
    service = fields.text("service", most=MAX_NAME_BYTES)
    metadata: dict[str, str | int | bytes] = {}
    if "text" in fields:
        texts = fields.map("text")
        for name in texts.names():
            metadata[name] = texts.text(name, most=MAX_METADATA_BYTES)
    if "number" in fields:
        numbers = fields.map("number")
        for name in numbers.names():
            metadata[name] = numbers.number(name, low=-(1 << 63), high=(1 << 63) - 1)
    if "raw" in fields:
        raws = fields.map("raw")
        for name in raws.names():
            metadata[name] = raws.raw(name, most=MAX_METADATA_BYTES)
    if not service or len(metadata) > MAX_METADATA_ITEMS:
        raise _bad("an open without a service, or with too many fields")
    return service, metadata


def _decode_ack(body: bytes | memoryview) -> Ack:
    stream_id, flags, received, credit = _ACK_BODY.unpack(body)
    return Ack(stream_id, _offset(received), _offset(credit), bool(flags & 1), bool(flags & 2))


def _decode_reset(body: bytes | memoryview) -> Reset:
    stream_id, code, final, received = _RESET.unpack_from(body)
    return Reset(stream_id, code, _text(body[_RESET.size :]), _offset(final), _offset(received))


def _decode_goodbye(body: bytes | memoryview) -> Goodbye:
    (code,) = _U32.unpack_from(body)
    return Goodbye(code, _text(body[_U32.size :]))


def _decode_resume(body: bytes | memoryview) -> Resume:
    max_data, opened, seen = _RESUME.unpack_from(body)
    rest = body[_RESUME.size :]
    if len(rest) > _MOST_ENTRIES * _RESUME_ENTRY.size:
        raise _bad("resume of too many streams")
    entries = []
    for stream_id, flags, received, credit, sent in _RESUME_ENTRY.iter_unpack(rest):
        entry = ResumeEntry(
            stream_id=stream_id,
            received=_offset(received),
            credit=_offset(credit),
            sent=_offset(sent),
            accepted=bool(flags & 1),
            ended=bool(flags & 2),
            eof=bool(flags & 4),
            resetting=bool(flags & 8),
        )
        entries.append(entry)
    return Resume(_offset(max_data), opened, seen, tuple(entries))


def _offset(value: int) -> int:
    if value > MAX_OFFSET:
        raise _bad(f"offset {value}")
    return value


def _text(raw: bytes | memoryview) -> str:
    if len(raw) > MAX_TEXT_BYTES:
        raise _bad(f"text of {len(raw)} bytes")
    text = bytes(raw).decode("utf-8")
    if not text.isprintable():
        raise _bad("text with control characters")
    return text


def _bad(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(what, code="frame")


_DECODERS: Mapping[int, Callable[[bytes | memoryview], Control]] = {
    HELLO: lambda body: HelloFrame(bytes(body)),
    RESUME: _decode_resume,
    OPEN: _decode_open,
    ACK: _decode_ack,
    RESET: _decode_reset,
    RESET_ACK: lambda body: ResetAck(*_U32.unpack(body)),
    MAX_DATA: lambda body: MaxData(_offset(*_U64.unpack(body))),
    LINK_ACK: lambda body: LinkAck(*_U64.unpack(body)),
    PING: lambda body: Ping(*_PING.unpack(body)),
    PONG: lambda body: Pong(*_PONG.unpack(body)),
    SWITCH: lambda body: Switch(*_U32.unpack(body)),
    LINK_LOST: lambda body: LinkLost(*_U32.unpack(body)),
    GOODBYE: _decode_goodbye,
}
_LONGEST: Mapping[int, int] = {
    RESUME: _RESUME.size + _MOST_ENTRIES * _RESUME_ENTRY.size,
    OPEN: _OPEN.size + MAX_METADATA_BYTES,
    ACK: _ACK_BODY.size,
    RESET: _RESET.size + MAX_TEXT_BYTES,
    RESET_ACK: _U32.size,
    MAX_DATA: _U64.size,
    LINK_ACK: _U64.size,
    PING: _PING.size,
    PONG: _PONG.size,
    SWITCH: _U32.size,
    LINK_LOST: _U32.size,
    GOODBYE: _U32.size + MAX_TEXT_BYTES,
}


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
