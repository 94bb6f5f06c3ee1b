"""Bodies of control frames: values to bytes and back, with every limit of the wire.

`encode` raises LocalProtocolError for what does not fit; `decode` raises RemoteProtocolError (code `frame`
or `message`) for whatever is not exactly as docs/protocol.md says.
"""

import struct
from collections.abc import Callable, Mapping

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.wire.frame_types import (
    ACK,
    CRITICAL,
    GOODBYE,
    HELLO,
    LINK_ACK,
    LINK_LOST,
    MAX_DATA,
    MAX_METADATA_BYTES,
    MAX_METADATA_ITEMS,
    MAX_OFFSET,
    OPEN,
    PING,
    PONG,
    RESET,
    RESET_ACK,
    RESUME,
    SWITCH,
    Ack,
    Control,
    Goodbye,
    HelloFrame,
    LinkAck,
    LinkLost,
    MaxData,
    Open,
    Ping,
    Pong,
    Reset,
    ResetAck,
    Resume,
    ResumeEntry,
    Switch,
)
from meshd.wire.limits import MAX_CONTROL_BYTES, MAX_NAME_BYTES, MAX_STREAMS, MAX_TEXT_BYTES
from meshd.wire.message import Fields, pack, unpack

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
    return _encode_small(frame)


def _encode_small(frame: LinkAck | MaxData | ResetAck | Ping | Pong | Switch | LinkLost) -> bytes:
    match frame:
        case LinkAck(received):
            return _framed(LINK_ACK, _U64.pack(received))
        case MaxData(credit):
            return _framed(MAX_DATA, _U64.pack(credit))
        case ResetAck(stream_id):
            return _framed(RESET_ACK, _U32.pack(stream_id))
        case Ping(number, heard_ms, hold):
            return _framed(PING, _PING.pack(number, min(heard_ms, 0xFFFFFFFF), hold))
        case Pong(number, heard_ms):
            return _framed(PONG, _PONG.pack(number, min(heard_ms, 0xFFFFFFFF)))
        case Switch(sequence):
            return _framed(SWITCH, _U32.pack(sequence))
        case LinkLost(sequence):
            return _framed(LINK_LOST, _U32.pack(sequence))


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
    for name, value in _texts(fields):
        metadata[name] = value
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


def _texts(fields: Fields) -> list[tuple[str, str]]:
    if "text" not in fields:
        return []
    texts = fields.map("text")
    return [(name, texts.text(name, most=MAX_METADATA_BYTES)) for name in texts.names()]


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
