"""Compressed streams: frames of at most 128 KiB, each compressed in the way that suits what is in it.

A frame is kind << 24 | bytes that it makes (4 bytes), bytes of its body (4), little endian, and the body:

- 0 stored: the bytes themselves;
- 1 stream: a piece of one deflate stream for the whole direction (RFC 1951), ended by a sync flush whose last
  four bytes, always 00 00 FF FF, are left out (as in RFC 7692). Repeats within 32 KiB pay off;
- 2 planes: every 4th byte from the 1st on, then from the 2nd, the 3rd, the 4th; of each its length (4 bytes)
  and a deflate stream of its own, or the bytes themselves if that would not be shorter. For floats of four
  bytes, whose exponents are alike and whose lowest bits are not.

The encoder tries the ways on samples of a large piece, and takes none where none saves much. Small pieces go
the way of the stream; while they do not shrink, ever fewer are tried.
"""

import struct
import zlib
from collections.abc import Sequence
from enum import Enum

from meshd.base.errors import LocalProtocolError, RemoteProtocolError

MOST_RAW = 128 << 10  # a frame is held back until it is whole: 50 ms at 20 Mbit/s, if nothing shrinks
STORED, STREAM, PLANES = range(3)
_HEADER = struct.Struct("<II")
_LENGTH = struct.Struct("<I")
_MOST_BODY = MOST_RAW + (1 << 10)  # deflate makes what it cannot shrink longer by 5 bytes in 16 KiB
_FLUSHED = b"\x00\x00\xff\xff"
_RAW_DEFLATE = -15
_LEVEL = 1
_WIDTH = 4

_SAMPLED_FROM = 16 << 10  # bytes; below it a trial costs as much as the work
_SAMPLE = 8 << 10
_CLEAR = 0.3  # of the size: what shrinks so well are masks, graphs and text, and no other way is tried
_FLOATS = 0.5  # of the size: no float array shrinks so well
_WORTH = 0.95  # of the size: more, and it goes as it is
_PEEK = 1 << 10  # bytes of a small piece that tell whether it has floats
_TINY = 32  # bytes that no way makes smaller
_ROWS = 256  # bytes that divide a row of floats: embeddings have a multiple of 64
_MARK = 16  # of each so many, by which a repeat is known
_MOST_DISTINCT = 0.95  # of the marks
_MOST_SKIPPED = 64  # small pieces that go untried after several that did not shrink


class Compression(Enum):
    """Name what a sender compresses: nothing, what repeats itself (graphs, masks), or floats as well."""

    NOTHING = "nothing"
    REPEATS = "repeats"
    ALL = "all"


class Encoder:
    """Compresses one direction. Without `floats` only what repeats itself, which costs little."""

    def __init__(self, *, floats: bool = True) -> None:
        self._floats = floats
        self._deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
        self._failures = 0  # small pieces in a row that did not shrink, and how many go untried
        self._skipped = 0

    def encode(self, data: bytes | memoryview) -> bytes:
        """Return `data` as frames. Nothing is held back."""
        frames = []
        for begin in range(0, len(data), MOST_RAW):
            raw = bytes(data[begin : begin + MOST_RAW])
            kind, body = self._large(raw) if len(raw) >= _SAMPLED_FROM else self._small(raw)
            frames += [_HEADER.pack(kind << 24 | len(raw), len(body)), body]
        return b"".join(frames)

    def _large(self, raw: bytes) -> tuple[int, bytes]:
        middle = (len(raw) - _SAMPLE) // 2
        sample = raw[middle : middle + _SAMPLE]
        plain = len(_deflated(sample))
        if plain < _CLEAR * _SAMPLE:
            return STREAM, self._next(raw)
        if not self._floats:
            return STORED, raw
        if plain > _FLOATS * _SAMPLE and _repeats(
            raw
        ):  # rows of the same tokens: a plane's window holds four times as many of them
            body = _apart(raw, [True] * _WIDTH)
            return (PLANES, body) if len(body) < len(raw) else (STORED, raw)
        tried = [len(_deflated(plane)) for plane in _planes_of(sample)]
        shrinks = [size < _WORTH * _SAMPLE / _WIDTH for size in tried]
        planes = sum(size if good else _SAMPLE // _WIDTH for size, good in zip(tried, shrinks, strict=True))
        if min(plain, planes) > _WORTH * _SAMPLE:
            return STORED, raw
        if plain < planes:
            return STREAM, self._next(raw)
        body = _apart(raw, shrinks)
        return (PLANES, body) if len(body) < len(raw) else (STORED, raw)

    def _small(self, raw: bytes) -> tuple[int, bytes]:
        if len(raw) < _TINY:
            return STORED, raw
        if not self._floats and len(raw) > _PEEK and len(_deflated(raw[:_PEEK])) > _FLOATS * _PEEK:
            return STORED, raw
        if self._skipped:
            self._skipped -= 1
            return STORED, raw
        body = self._next(raw)
        if len(body) > _WORTH * len(raw):
            self._failures += 1
            self._skipped = min(1 << self._failures, _MOST_SKIPPED)
        else:
            self._failures = 0
        return STREAM, body

    def _next(self, raw: bytes) -> bytes:
        """Compress in the stream's context. The result must be sent: later frames refer to it."""
        flushed = self._deflate.compress(raw) + self._deflate.flush(zlib.Z_SYNC_FLUSH)
        return flushed[: -len(_FLUSHED)]


class Decoder:
    """Decompresses one direction. Call `feed`, then `next` until it has no more."""

    def __init__(self) -> None:
        self._inflate = zlib.decompressobj(_RAW_DEFLATE)
        self._buffer = b""
        self._at = 0

    def feed(self, data: bytes | memoryview) -> None:
        """Take received bytes in; call it only when no whole frame waits, so that less than one is held
        beside it.
        """
        if self.waits:
            raise LocalProtocolError("a compressed stream was fed before it was drained")
        self._buffer = b"".join((memoryview(self._buffer)[self._at :], data))
        self._at = 0

    @property
    def waits(self) -> bool:
        """True if `next` has a frame, or an error."""
        if self._at + _HEADER.size > len(self._buffer):
            return False
        kind, size, length = self._header()
        return _why_not(kind, size, length) != "" or self._at + _HEADER.size + length <= len(self._buffer)

    @property
    def is_between(self) -> bool:
        """True if the stream may end here."""
        return self._at == len(self._buffer)

    def next(self) -> bytes | None:
        """Return the next frame's data, at most MOST_RAW bytes, or None. Raises RemoteProtocolError."""
        if not self.waits:
            return None
        kind, size, length = self._header()
        why = _why_not(kind, size, length)
        if why:
            raise _bad(why)
        begin = self._at + _HEADER.size
        body = self._buffer[begin : begin + length]
        self._at = begin + length
        if kind == STORED:
            return body
        try:
            return self._streamed(body, size) if kind == STREAM else _together(body, size)
        except zlib.error as error:
            raise _bad(str(error)) from None

    def _header(self) -> tuple[int, int, int]:
        first, length = _HEADER.unpack_from(self._buffer, self._at)
        return first >> 24, first & 0xFFFFFF, length

    def _streamed(self, body: bytes, size: int) -> bytes:
        made = self._inflate.decompress(body + _FLUSHED, size + 1)  # one more shows that there is too much
        if len(made) != size or self._inflate.unconsumed_tail or self._inflate.eof:
            raise _bad("a frame decompresses to another size than announced")
        return made


def _why_not(kind: int, size: int, length: int) -> str:
    """Return what is wrong with a frame's header; empty if nothing is."""
    if kind > PLANES:
        return f"kind {kind} of a frame is not known"
    if not 0 < size <= MOST_RAW or not 0 < length <= _MOST_BODY or (kind == STORED and size != length):
        return f"a frame of {length} bytes for {size} cannot be"
    return ""


def _repeats(raw: bytes) -> bool:
    """Return True if parts repeat at the distance of rows of activations."""
    seen = [raw[begin : begin + _MARK] for begin in range(0, len(raw) - _MARK, _ROWS)]
    return len(set(seen)) < _MOST_DISTINCT * len(seen)


def _planes_of(raw: bytes) -> list[bytes]:
    return [raw[number::_WIDTH] for number in range(_WIDTH)]


def _apart(raw: bytes, shrinks: Sequence[bool]) -> bytes:
    parts = []
    for plane, good in zip(_planes_of(raw), shrinks, strict=True):
        body = _deflated(plane) if good else plane
        body = body if len(body) < len(plane) else plane
        parts += [_LENGTH.pack(len(body)), body]
    return b"".join(parts)


def _together(body: bytes, size: int) -> bytes:
    made = bytearray(size)
    at = 0
    for number in range(_WIDTH):
        wanted = len(range(number, size, _WIDTH))
        if at + _LENGTH.size > len(body):
            raise _bad("a frame ends in the middle of its planes")
        (length,) = _LENGTH.unpack_from(body, at)
        at += _LENGTH.size
        made[number::_WIDTH] = _plane(body[at : at + length], length, wanted)
        at += length
    if at != len(body):
        raise _bad("a frame continues after its planes")
    return bytes(made)


def _plane(data: bytes, length: int, wanted: int) -> bytes:
    if len(data) == length == wanted:
        return data
    inflate = zlib.decompressobj(_RAW_DEFLATE)
    plane = inflate.decompress(data, wanted + 1)
    if len(data) != length or len(plane) != wanted or not inflate.eof or inflate.unused_data:
        raise _bad("a plane decompresses to the wrong size")
    return plane


def _deflated(raw: bytes) -> bytes:
    deflate = zlib.compressobj(_LEVEL, zlib.DEFLATED, _RAW_DEFLATE)
    return deflate.compress(raw) + deflate.flush()


def _bad(what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"compressed stream: {what}", code="compressed")
