"""Control messages as msgpack maps with string keys, behind a 4-byte length where a stream carries several.

msgpack lives here only, and is imported with the first message, as small commands need none. Messages that
are declared are read and written by codec.py; `Fields` reads signed statements, proofs and what is kept of
them, field by field, with limits. Unknown fields are ignored (later versions add some); missing, mistyped
or oversized ones raise RemoteProtocolError that names the field.
"""

import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_CONTROL_BYTES, MAX_ITEMS, MAX_NESTING, MAX_TEXT_BYTES

Value = None | bool | int | float | str | bytes | Sequence["Value"] | Mapping[str, "Value"]
_LEAVES = frozenset({type(None), bool, int, float, str, bytes})
_HEADER = struct.Struct(">I")


def pack(fields: Mapping[str, Value]) -> bytes:
    """Return one message as bytes."""
    import msgpack

    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def pack_message(fields: Mapping[str, object]) -> bytes:
    """Pack like `pack`, for messages between nodes, on the event loop's thread only."""
    return _packer()(fields)


@cache
def _packer() -> Callable[[Mapping[str, object]], bytes]:
    """Return a shared packer, because creating one takes as long as packing a small message.

    Its buffer stays as large as the largest message was.
    """
    import msgpack

    pack: Callable[[Mapping[str, object]], bytes] = msgpack.Packer(use_bin_type=True).pack
    return pack


def plain(text: str, most: int = MAX_TEXT_BYTES) -> str:
    """Return `text` as a peer accepts it: printable, at most `most` bytes of UTF-8; the rest is cut off.

    Reasons and names contain file names, numbers and other programs' words: a message must not be refused,
    and its reason lost, for one of them.
    """
    if len(text) <= most and text.isascii() and text.isprintable():
        return text
    printable = "".join(letter if letter.isprintable() else "?" for letter in text[:most])
    return printable.encode()[:most].decode("utf-8", "ignore")


def unpack(data: bytes | memoryview, *, limit: int = MAX_CONTROL_BYTES) -> "Fields":
    """Read one message of at most `limit` bytes. Raises RemoteProtocolError (code `message`)."""
    return Fields(unpack_map(data, limit=limit))


def unpack_map(data: bytes | memoryview, *, limit: int = MAX_CONTROL_BYTES) -> dict[str, object]:
    """Return the fields of one message of at most `limit` bytes: of lists and maps, 8 deep, and leaves.

    Raises RemoteProtocolError (code `message`).
    """
    if len(data) > limit:
        raise RemoteProtocolError(f"message of {len(data)} bytes, at most {limit} are taken", code="message")
    import msgpack

    try:
        value = msgpack.unpackb(
            data,
            raw=False,
            strict_map_key=True,
            max_str_len=limit,
            max_bin_len=limit,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_ITEMS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, RecursionError, msgpack.UnpackException) as error:
        raise RemoteProtocolError(f"not a message: {type(error).__name__}", code="message") from error
    if type(value) is not dict:
        raise RemoteProtocolError("a message must be a map", code="message")
    _check(value, MAX_NESTING)
    return value


def _check(value: object, left: int) -> None:
    """Raise RemoteProtocolError for keys that are not text, other types, and deep nesting."""
    if isinstance(value, dict):
        for key in value:
            if type(key) is not str:
                raise RemoteProtocolError("a field's name must be text", code="message")
        items: Iterable[object] = value.values()
    elif isinstance(value, list):
        items = value
    else:
        raise RemoteProtocolError(f"a value of type {type(value).__name__}", code="message")
    if value and not left:
        raise RemoteProtocolError(f"message nested deeper than {MAX_NESTING}", code="message")
    for item in items:
        if type(item) not in _LEAVES:
            _check(item, left - 1)


class Fields:
    """A received message. Every reader raises RemoteProtocolError (code `message`) naming the field."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> list[str]:
        """Return the names of all fields that are present."""
        return list(self._values)

    def text(self, name: str, *, most: int, default: str | None = None) -> str:
        """Return text of at most `most` bytes of UTF-8, without control characters."""
        value = self._values.get(name, default)
        if not isinstance(value, str):
            raise _bad(name, "text")
        if len(value.encode("utf-8", "surrogatepass")) > most:
            raise _bad(name, f"at most {most} bytes of text")
        if not value.isprintable():
            raise _bad(name, "printable text")
        return value

    def raw(
        self, name: str, *, exact: int | None = None, most: int | None = None, default: bytes | None = None
    ) -> bytes:
        """Return bytes: exactly `exact`, or at most `most`."""
        value = self._values.get(name, default)
        if not isinstance(value, bytes):
            raise _bad(name, "bytes")
        if exact is not None and len(value) != exact:
            raise _bad(name, f"{exact} bytes")
        if most is not None and len(value) > most:
            raise _bad(name, f"at most {most} bytes")
        return value

    def number(self, name: str, *, low: int, high: int, default: int | None = None) -> int:
        """Return an integer in [low, high]."""
        value = self._values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _bad(name, f"an integer from {low} to {high}")
        return value

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        """Return true or false."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise _bad(name, "true or false")
        return value

    def texts(self, name: str, *, most: int, count: int) -> tuple[str, ...]:
        """Return a list of at most `count` texts of at most `most` bytes each."""
        return tuple(Fields({name: item}).text(name, most=most) for item in self._list(name, count))

    def raws(self, name: str, *, most: int, count: int) -> tuple[bytes, ...]:
        """Return a list of at most `count` byte strings of at most `most` bytes each."""
        return tuple(Fields({name: item}).raw(name, most=most) for item in self._list(name, count))

    def maps(self, name: str, *, count: int) -> "tuple[Fields, ...]":
        """Return a list of at most `count` maps."""
        return tuple(Fields({name: item}).map(name) for item in self._list(name, count))

    def map(self, name: str) -> "Fields":
        """Return a map with text keys."""
        value = self._values.get(name)
        if not isinstance(value, dict):
            raise _bad(name, "a map")
        return Fields(value)

    def _list(self, name: str, count: int) -> list[object]:
        value = self._values.get(name)
        if not isinstance(value, list):
            raise _bad(name, "a list")
        if len(value) > count:
            raise _bad(name, f"at most {count} entries")
        return value


def _bad(name: str, expected: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"field `{name}` must be {expected}", code="message")


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
