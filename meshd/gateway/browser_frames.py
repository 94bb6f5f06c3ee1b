"""The messages between a browser and this node over a data channel. Pure.

Numbers are big endian. The first byte is the kind. A request and its answer are a stream of bytes each, with
offsets: a length (u32), the head as JSON of that length, then the body. `src/remote/requests.ts` is the other
end; both are tested with the same recorded messages.
"""

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NoReturn

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.base.peer_limits import BROWSER_HEADERS, BROWSER_REQUESTS

VERSION = 1
MAX_MESSAGE_BYTES = 16 << 10  # what every browser can send in one piece
SESSION_BYTES = 16
MAX_HEAD_BYTES = 64 << 10  # of a request or an answer
MAX_WHY_BYTES = 500
LARGEST_OFFSET = (1 << 53) - 1  # the largest number that JavaScript has exactly
LARGEST_NUMBER = (1 << 32) - 1


class Kind(IntEnum):
    """The first byte of a message."""

    HELLO = 1
    WELCOME = 2
    DATA = 3
    ALLOW = 4
    FORGET = 5
    FAILED = 6
    PING = 7
    PONG = 8
    REFUSED = 9


_OPENING = struct.Struct(f">BB{SESSION_BYTES}sB")
_WELCOMING = struct.Struct(">BBBIB")
_PLACE = struct.Struct(">IQQ")
_PIECE = struct.Struct(">BIQB")
_NUMBERED = struct.Struct(">BI")
_NONCE = struct.Struct(">BQ")
_LENGTH = struct.Struct(">I")
MAX_DATA_BYTES = MAX_MESSAGE_BYTES - _PIECE.size


@dataclass(frozen=True, slots=True)
class Place:
    """The progress of the sender of this with the stream of one request: received so far, allowed to come."""

    number: int
    taken: int
    allowed: int


@dataclass(frozen=True, slots=True)
class Hello:
    """Browser, first on each connection: its session, and the requests it still has, with their answers."""

    session: bytes
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Welcome:
    """Node, first: the requests it still has. All numbers up to `highest` were begun once, and never again.

    `is_new`: it knows nothing of the session: it began now, or was away for too long.
    """

    is_new: bool
    highest: int
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class Data:
    """Bytes of a request, or of its answer, at an offset; the first ones of a new number begin a request."""

    number: int
    offset: int
    data: bytes
    is_last: bool


@dataclass(frozen=True, slots=True)
class Allow:
    """The receiver's progress with a stream: see `Place`."""

    place: Place


@dataclass(frozen=True, slots=True)
class Forget:
    """Browser: it has the whole answer, or wants no more of it."""

    number: int


@dataclass(frozen=True, slots=True)
class Failed:
    """Node: this request has no answer, or no more of it."""

    number: int
    why: str


@dataclass(frozen=True, slots=True)
class Ping:
    """Browser: is anybody there?"""

    nonce: int


@dataclass(frozen=True, slots=True)
class Pong:
    """Node: yes."""

    nonce: int


@dataclass(frozen=True, slots=True)
class ChannelRefused:
    """Node, last: the channel is of no use, for a reason that a person can read."""

    why: str


FromBrowser = Hello | Data | Allow | Forget | Ping
FromNode = Welcome | Data | Allow | Failed | Pong | ChannelRefused


def encode(message: FromBrowser | FromNode) -> bytes:
    """Return the message as bytes, at most MAX_MESSAGE_BYTES."""
    match message:
        case Hello(session, places):
            return _OPENING.pack(Kind.HELLO, VERSION, session, len(places)) + _packed(places)
        case Welcome(is_new, highest, places):
            return _WELCOMING.pack(Kind.WELCOME, VERSION, is_new, highest, len(places)) + _packed(places)
        case Data(number, offset, data, is_last):
            if len(data) > MAX_DATA_BYTES:
                raise LocalProtocolError(f"{len(data)} bytes are too many for one message")
            return _PIECE.pack(Kind.DATA, number, offset, is_last) + data
        case Allow(place):
            return bytes([Kind.ALLOW]) + _packed([place])
        case Forget(number):
            return _NUMBERED.pack(Kind.FORGET, number)
        case Failed(number, why):
            return _NUMBERED.pack(Kind.FAILED, number) + _cut(why)
        case Ping(nonce):
            return _NONCE.pack(Kind.PING, nonce)
        case Pong(nonce):
            return _NONCE.pack(Kind.PONG, nonce)
        case ChannelRefused(why):
            return bytes([Kind.REFUSED]) + _cut(why)


def decode_from_browser(message: bytes) -> FromBrowser:
    """Read what a browser sends. Raises RemoteProtocolError."""
    read = _decoded(message)
    if not isinstance(read, FromBrowser):
        _refuse("a message of the other direction")
    return read


def decode_from_node(message: bytes) -> FromNode:
    """Read what a node sends, as pages do it in TypeScript. Raises RemoteProtocolError."""
    read = _decoded(message)
    if not isinstance(read, FromNode):
        _refuse("a message of the other direction")
    return read


def _decoded(message: bytes) -> FromBrowser | FromNode:
    if not 0 < len(message) <= MAX_MESSAGE_BYTES or message[0] not in list(Kind):
        _refuse("a message of an unknown kind, or of the wrong length")
    try:
        return _decode(Kind(message[0]), message)
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError("browser: a message cannot be read", code="browser") from error


def _decode(kind: Kind, message: bytes) -> FromBrowser | FromNode:
    match kind:
        case Kind.HELLO:
            _, version, session, count = _OPENING.unpack_from(message)
            _check_version(version)
            return Hello(session, _places(message[_OPENING.size :], count))
        case Kind.WELCOME:
            _, version, is_new, highest, count = _WELCOMING.unpack_from(message)
            _check_version(version)
            return Welcome(bool(is_new), highest, _places(message[_WELCOMING.size :], count))
        case Kind.DATA:
            _, number, offset, last = _PIECE.unpack_from(message)
            data = message[_PIECE.size :]
            if offset + len(data) > LARGEST_OFFSET or last > 1:
                _refuse("an offset out of bounds")
            return Data(number, offset, data, bool(last))
        case Kind.ALLOW:
            [place] = _places(message[1:], 1)
            return Allow(place)
        case Kind.FORGET:
            return Forget(_NUMBERED.unpack(message)[1])
        case Kind.FAILED:
            return Failed(_NUMBERED.unpack_from(message)[1], message[_NUMBERED.size :].decode())
        case Kind.PING:
            return Ping(_NONCE.unpack(message)[1])
        case Kind.PONG:
            return Pong(_NONCE.unpack(message)[1])
        case Kind.REFUSED:
            return ChannelRefused(message[1:].decode())


def _places(data: bytes, count: int) -> tuple[Place, ...]:
    if count > BROWSER_REQUESTS.most or len(data) != count * _PLACE.size:
        _refuse("too many requests, or a message of the wrong length")
    places = tuple(Place(*_PLACE.unpack_from(data, at * _PLACE.size)) for at in range(count))
    if any(place.taken > LARGEST_OFFSET or place.allowed > LARGEST_OFFSET for place in places):
        _refuse("an offset out of bounds")
    return places


def _packed(places: Sequence[Place]) -> bytes:
    return b"".join(_PLACE.pack(place.number, place.taken, place.allowed) for place in places)


def _check_version(version: int) -> None:
    if version != VERSION:
        _refuse(f"the page speaks version {version}, this node {VERSION}: download the page again")


def _cut(text: str) -> bytes:
    return text.encode()[:MAX_WHY_BYTES].decode(errors="ignore").encode()


def _refuse(what: str) -> NoReturn:
    raise RemoteProtocolError(f"browser: {what}", code="browser")


# The heads, which begin a stream.


@dataclass(frozen=True, slots=True)
class RequestHead:
    """A request: `path` with its query; header names in any case, each at most once or as given."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...] = ()


def answer_head(status: int, headers: Sequence[tuple[str, str]]) -> bytes:
    """Return the beginning of an answer's stream."""
    return with_length({"status": status, "headers": [list(pair) for pair in headers]})


def with_length(fields: object) -> bytes:
    """Return a head behind its length. Raises LocalProtocolError if it is too long."""
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode()
    if len(text) > MAX_HEAD_BYTES:
        raise LocalProtocolError(f"a head of {len(text)} bytes")
    return _LENGTH.pack(len(text)) + text


class HeadReader:
    """Collects a request's stream until its head is whole."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> tuple[RequestHead, bytes] | None:
        """Return the head and the bytes of the body behind it; None if more must come.

        Raises RemoteProtocolError.
        """
        self._held += data
        if len(self._held) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._held)
        if length > MAX_HEAD_BYTES:
            _refuse(f"a head of {length} bytes")
        end = _LENGTH.size + length
        if len(self._held) < end:
            return None
        head, rest = _parsed_head(bytes(self._held[_LENGTH.size : end])), bytes(self._held[end:])
        self._held.clear()
        return head, rest


def _parsed_head(text: bytes) -> RequestHead:
    try:
        read = json.loads(text)
        method, path, headers = read["method"], read["path"], read.get("headers", [])
        pairs = tuple((name, value) for name, value in headers)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise RemoteProtocolError("browser: a head cannot be read", code="browser") from error
    words = (method, path, *(word for pair in pairs for word in pair))
    if len(pairs) > BROWSER_HEADERS.most:
        _refuse("a head with too many headers")
    if not all(isinstance(word, str) and _is_printable(word) for word in words):
        _refuse("a head with something else than printable ASCII")
    return RequestHead(method, path, pairs)


def _is_printable(word: str) -> bool:
    return all(" " <= letter <= "~" for letter in word)
