"""Control messages: msgpack maps with string keys, read field by field with limits.

msgpack lives here only. Unknown fields are ignored (later versions add some); missing, mistyped or
oversized ones raise RemoteProtocolError that names the field.
"""

from collections.abc import Mapping, Sequence

import msgpack

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_CONTROL_BYTES, MAX_ITEMS, MAX_NESTING, MAX_TEXT_BYTES

Value = None | bool | int | float | str | bytes | Sequence["Value"] | Mapping[str, "Value"]


def pack(fields: Mapping[str, Value]) -> bytes:
    """One message as bytes."""
    packed: bytes = msgpack.packb(fields, use_bin_type=True)
    return packed


def plain(text: str, most: int = MAX_TEXT_BYTES) -> str:
    """`text` as a peer takes it: printable, at most `most` bytes of UTF-8; what does not fit is cut off.

    Reasons and names are made of file names, numbers and other programs' words: a message must not be
    refused, and its reason lost, for one of them.
    """
    printable = "".join(letter if letter.isprintable() else "?" for letter in text[:most])
    return printable.encode()[:most].decode("utf-8", "ignore")


def unpack(data: bytes | memoryview, *, limit: int = MAX_CONTROL_BYTES) -> "Fields":
    """Read one message of at most `limit` bytes. Raises RemoteProtocolError (code `message`)."""
    if len(data) > limit:
        raise RemoteProtocolError(f"message of {len(data)} bytes, at most {limit} are taken", code="message")
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
    _check_depth(value, MAX_NESTING)
    if not isinstance(value, dict):
        raise RemoteProtocolError("a message must be a map", code="message")
    return Fields(value)


def _check_depth(value: object, left: int) -> None:
    if left < 0:
        raise RemoteProtocolError(f"message nested deeper than {MAX_NESTING}", code="message")
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise RemoteProtocolError("a field's name must be text", code="message")
            _check_depth(item, left - 1)
    elif isinstance(value, list):
        for item in value:
            _check_depth(item, left - 1)
    elif not isinstance(value, None | bool | int | float | str | bytes):
        raise RemoteProtocolError(f"a value of type {type(value).__name__}", code="message")


class Fields:
    """A received message. Every reader raises RemoteProtocolError (code `message`) naming the field."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def __contains__(self, name: str) -> bool:
        return self._values.get(name) is not None

    def names(self) -> list[str]:
        """Names of all fields that are there."""
        return list(self._values)

    def text(self, name: str, *, most: int, default: str | None = None) -> str:
        """Text of at most `most` bytes of UTF-8, without control characters."""
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
        """Bytes: exactly `exact`, or at most `most`."""
        value = self._values.get(name, default)
        if not isinstance(value, bytes):
            raise _bad(name, "bytes")
        if exact is not None and len(value) != exact:
            raise _bad(name, f"{exact} bytes")
        if most is not None and len(value) > most:
            raise _bad(name, f"at most {most} bytes")
        return value

    def number(self, name: str, *, low: int, high: int, default: int | None = None) -> int:
        """An integer in [low, high]."""
        value = self._values.get(name, default)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise _bad(name, f"an integer from {low} to {high}")
        return value

    def real(self, name: str, *, low: float, high: float) -> float:
        """A finite number in [low, high]."""
        value = self._values.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise _bad(name, f"a number from {low} to {high}")
        return float(value)

    def flag(self, name: str, *, default: bool | None = None) -> bool:
        """True or false."""
        value = self._values.get(name, default)
        if not isinstance(value, bool):
            raise _bad(name, "true or false")
        return value

    def texts(self, name: str, *, most: int, count: int) -> tuple[str, ...]:
        """A list of at most `count` texts of at most `most` bytes each."""
        return tuple(Fields({name: item}).text(name, most=most) for item in self._list(name, count))

    def raws(self, name: str, *, most: int, count: int) -> tuple[bytes, ...]:
        """A list of at most `count` byte strings of at most `most` bytes each."""
        return tuple(Fields({name: item}).raw(name, most=most) for item in self._list(name, count))

    def numbers(self, name: str, *, low: int, high: int, count: int) -> tuple[int, ...]:
        """A list of at most `count` integers in [low, high]."""
        return tuple(
            Fields({name: item}).number(name, low=low, high=high) for item in self._list(name, count)
        )

    def maps(self, name: str, *, count: int) -> "tuple[Fields, ...]":
        """A list of at most `count` maps."""
        return tuple(Fields({name: item}).map(name) for item in self._list(name, count))

    def lists(self, name: str, *, count: int) -> tuple[list[object], ...]:
        """A list of at most `count` lists, for compact rows that the caller checks by pattern."""
        rows = []
        for item in self._list(name, count):
            if not isinstance(item, list):
                raise _bad(name, "a list of lists")
            rows.append(item)
        return tuple(rows)

    def map(self, name: str) -> "Fields":
        """A map with text keys."""
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
