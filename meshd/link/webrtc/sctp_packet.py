"""SCTP packets as the webrtc link sends and reads them (RFC 9260): bytes and values. Pure.

Only what runs all the time is here: DATA and SACK. The chunks that begin and end an association are
aiortc's (sctp_association.py). Every DATA chunk is a whole message, so nothing is put together again: the
link is a byte stream and has no use for boundaries.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from google_crc32c import value as crc32c

from meshd.base.errors import RemoteProtocolError

SCTP_PORT = 5000  # both sides; there is one association in each DTLS connection (RFC 8841)
DATA, INIT, INIT_ACK, SACK, HEARTBEAT, HEARTBEAT_ACK, ABORT = range(7)
ERROR, COOKIE_ECHO, COOKIE_ACK = 9, 10, 11
STREAM = 0
BINARY = 53  # payload protocol of our bytes (RFC 8831 8)
FAREWELL = 51  # "string": the one word that ends a link
WHOLE = 0x03  # begins and ends a message
MAX_GAPS = 250  # a SACK with more would not fit a DTLS record of 1500 bytes, and be thrown away
TSNS = 1 << 32
_HALF = 1 << 31

_COMMON = struct.Struct("!HHL")
_CHUNK = struct.Struct("!BBH")
_DATA = struct.Struct("!BBHLHHL")
_DATA_BODY = struct.Struct("!LHHL")
_SACK = struct.Struct("!BBHLLHH")
_SACK_BODY = struct.Struct("!LLHH")
_PARAMETER = struct.Struct("!HH")
HEARTBEAT_INFO = 1
_ZERO = bytes(4)
_PAD = (b"", b"\0\0\0", b"\0\0", b"\0")

CHUNK_OVERHEAD = 12 + 16  # common header and chunk header


@dataclass(frozen=True, slots=True)
class SackBody:
    """The peer's acknowledgement: all up to `cumulative`, and blocks `(start, end)` counted from there."""

    cumulative: int
    window: int
    gaps: tuple[tuple[int, int], ...]


def seal(tag: int, chunks: bytes) -> bytes:
    """Return a packet with its checksum (CRC32c, RFC 9260 appendix A)."""
    head = _COMMON.pack(SCTP_PORT, SCTP_PORT, tag)
    return b"".join((head, crc32c(b"".join((head, _ZERO, chunks))).to_bytes(4, "little"), chunks))


def data_chunk(tsn: int, sequence: int, protocol: int, payload: bytes) -> bytes:
    """Return one whole message as a DATA chunk."""
    size = len(payload)
    head = _DATA.pack(DATA, WHOLE, size + 16, tsn, STREAM, sequence, protocol)
    return b"".join((head, payload, _PAD[size & 3]))


def sack_chunk(cumulative: int, window: int, gaps: Sequence[tuple[int, int]]) -> bytes:
    """Return an acknowledgement; gaps beyond the first 250 are left out until those have closed."""
    sent = gaps[:MAX_GAPS]
    head = _SACK.pack(SACK, 0, 16 + 4 * len(sent), cumulative, window, len(sent), 0)
    return head + b"".join(_pair(start, end) for start, end in sent)


_pair = struct.Struct("!HH").pack


def open_packet(packet: bytes) -> tuple[int, list[tuple[int, int, bytes]]]:
    """Return the tag and the chunks `(type, flags, body)`. Raises RemoteProtocolError when it is not a
    packet.
    """
    size = len(packet)
    if size < 16:
        raise RemoteProtocolError("an SCTP packet is too short", code="sctp")
    checksum = int.from_bytes(packet[8:12], "little")
    if checksum != crc32c(b"".join((packet[:8], _ZERO, packet[12:]))):
        raise RemoteProtocolError("an SCTP packet has a wrong checksum", code="sctp")
    chunks = []
    at = 12
    while at <= size - 4:
        kind, flags, length = _CHUNK.unpack_from(packet, at)
        if length < 4 or at + length > size:
            raise RemoteProtocolError("an SCTP chunk has a wrong length", code="sctp")
        chunks.append((kind, flags, packet[at + 4 : at + length]))
        at += (length + 3) & ~3
    return _COMMON.unpack_from(packet)[2], chunks


def open_data(body: bytes) -> tuple[int, int, bytes]:
    """Return TSN, payload protocol, payload of a DATA chunk. Raises RemoteProtocolError."""
    if len(body) <= 12:
        raise RemoteProtocolError("a DATA chunk has no data", code="sctp")
    tsn, _, _, protocol = _DATA_BODY.unpack_from(body)
    return tsn, protocol, body[12:]


def open_sack(body: bytes) -> SackBody:
    """Read a SACK, whose gaps must be in order and apart. Raises RemoteProtocolError."""
    if len(body) < 12:
        raise RemoteProtocolError("a SACK is too short", code="sctp")
    cumulative, window, count, repeats = _SACK_BODY.unpack_from(body)
    if len(body) < 12 + 4 * (count + repeats):
        raise RemoteProtocolError("a SACK is truncated", code="sctp")
    numbers = struct.unpack_from(f"!{2 * count}H", body, 12)
    if any(high <= low for low, high in zip(numbers[1:-1:2], numbers[2::2], strict=True)):
        raise RemoteProtocolError("the gaps of a SACK are out of order", code="sctp")
    gaps = tuple(zip(numbers[::2], numbers[1::2], strict=True))
    if any(not 1 < start <= end for start, end in gaps):
        raise RemoteProtocolError("a gap of a SACK is empty", code="sctp")
    return SackBody(cumulative, window, gaps)


def probe_chunk(size: int, token: bytes) -> bytes:
    """Return a HEARTBEAT that makes a packet of `size` bytes, a multiple of 4; its reply tells (RFC 8899)."""
    info = size - 12 - 4  # common header, chunk header
    words = size.to_bytes(2, "big") + token
    parameter = _PARAMETER.pack(HEARTBEAT_INFO, info) + words + bytes(info - 4 - len(words))
    return _CHUNK.pack(HEARTBEAT, 0, len(parameter) + 4) + parameter


def probed(body: bytes, token: bytes) -> int:
    """Return the size that a HEARTBEAT-ACK confirms; 0: it does not answer one of ours."""
    return int.from_bytes(body[4:6], "big") if body[6 : 6 + len(token)] == token else 0


def heartbeat_ack(body: bytes) -> bytes:
    """Return the reply to a HEARTBEAT, with the same content."""
    return _CHUNK.pack(HEARTBEAT_ACK, 0, len(body) + 4) + body + _PAD[len(body) & 3]


def are_parameters(body: bytes) -> bool:
    """Return True if `body` is a list of parameters with consistent lengths (RFC 9260 3.2.1)."""
    at = 0
    while at <= len(body) - 4:
        length = int.from_bytes(body[at + 2 : at + 4], "big")
        if length < 4:
            return False
        at += (length + 3) & ~3
    return True


def ahead(tsn: int, of: int) -> int:
    """Return how far `tsn` is ahead of `of` on the circle of 2³² numbers; negative: behind (RFC 1982)."""
    return (tsn - of + _HALF) % TSNS - _HALF
