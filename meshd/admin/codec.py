"""Converts the values of api.py to JSON and back, driven by their annotations.

Decoding refuses what does not fit with RemoteProtocolError (code `message`) that names the field. Fields
that are not known are ignored: a newer daemon may send more.
"""

import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, is_dataclass
from enum import StrEnum
from typing import TypeVar

from meshd.admin.api import REQUESTS
from meshd.admin.request import Request
from meshd.base.errors import RemoteProtocolError

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
T = TypeVar("T")
_HINTS: dict[type, Mapping[str, object]] = {}  # resolving annotations is slow; the kinds are few


def to_json(value: object) -> Json:
    """A value of api.py (or what stands in one) as plain JSON values."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_json(getattr(value, f.name)) for f in fields(value)}
    raise TypeError(f"{type(value).__name__} has no JSON form")


def to_fields(value: object) -> Mapping[str, Json]:
    """As `to_json`, of a value with fields."""
    body = to_json(value)
    assert isinstance(body, Mapping)
    return body


def encode_request(request: Request[object]) -> bytes:
    """One line."""
    return encode_line({"request": request.request_name, **to_fields(request)})


def encode_line(body: Json) -> bytes:
    """One line of ASCII, so that no text of a peer can break it."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode_request(line: bytes) -> Request[object]:
    """The request of one line. Raises RemoteProtocolError."""
    body = decode_line(line)
    name = body.get("request")
    kind = REQUESTS.get(name) if isinstance(name, str) else None
    if kind is None:
        shown = name if isinstance(name, str) else type(name).__name__
        raise RemoteProtocolError(f"unknown request `{shown[:40]}`", code="message")
    return from_json(kind, body)


def decode_line(line: bytes) -> Mapping[str, object]:
    """The JSON object of one line. Raises RemoteProtocolError."""
    try:
        body = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not a line of JSON: {type(error).__name__}", code="message") from None
    if not isinstance(body, dict):
        raise RemoteProtocolError("not a JSON object", code="message")
    return body


def from_json(kind: type[T], body: object, *, where: str = "") -> T:
    """A `kind` of api.py from decoded JSON. Raises RemoteProtocolError that names the field."""
    if not isinstance(body, Mapping):
        raise _misfit(where or kind.__name__, "an object")
    values: dict[str, object] = {}
    hints = _hints(kind)
    assert is_dataclass(kind)
    for item in fields(kind):
        name = f"{where}.{item.name}" if where else item.name
        if item.name in body:
            values[item.name] = _fit(hints[item.name], body[item.name], name)
        elif item.default is MISSING:
            raise RemoteProtocolError(f"`{name}` is missing", code="message")
    return kind(**values)


def _hints(kind: type) -> Mapping[str, object]:
    if kind not in _HINTS:
        _HINTS[kind] = typing.get_type_hints(kind)
    return _HINTS[kind]


def _fit(hint: object, value: object, where: str) -> object:
    origin, choices = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Union or origin is types.UnionType:
        plain = [one for one in choices if one is not type(None)]
        if value is None and len(plain) < len(choices):
            return None
        return _fit(plain[0], value, where)  # api.py has no union but `X | None`
    if origin is typing.Literal:
        if not isinstance(value, str) or value not in choices:
            raise _misfit(where, f"one of {', '.join(map(str, choices))}")
        return value
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        if not isinstance(value, str) or value not in list(hint):
            raise _misfit(where, f"one of {', '.join(hint)}")
        return hint(value)
    if origin is tuple:
        if not isinstance(value, list):
            raise _misfit(where, "a list")
        return tuple(_fit(choices[0], one, f"{where}[{i}]") for i, one in enumerate(value))
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return _finite(value, where)
    if hint in (str, int, bool) and type(value) is hint:
        return value
    if isinstance(hint, type) and is_dataclass(hint):
        return from_json(hint, value, where=where)
    raise _misfit(where, getattr(hint, "__name__", str(hint)))


def _finite(value: int | float, where: str) -> float:
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _misfit(where, "a finite number")
    return number


def _misfit(where: str, expected: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"`{where}` is not {expected}", code="message")


def _no_constant(name: str) -> object:
    raise ValueError(name)
