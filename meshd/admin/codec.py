"""The lines of the control socket: values of api.py as JSON, by their annotations (wire/codec.py).

What does not fit raises RemoteProtocolError (code `message`) that names the field. Fields that are not known
are ignored: a newer daemon may send more.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import TypeVar, cast

from meshd.admin.api import REQUESTS
from meshd.admin.request import Request
from meshd.base.errors import RemoteProtocolError
from meshd.wire.codec import unbounded_plan_of

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
T = TypeVar("T")


def to_json(value: object) -> Json:
    """Return a value of api.py, or a part of one, as plain JSON values."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, tuple | list):
        return [to_json(item) for item in value]
    return to_fields(value)


def to_fields(value: object) -> Mapping[str, Json]:
    """Return a value with fields as a JSON object."""
    if not is_dataclass(value) or isinstance(value, type):
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return cast("dict[str, Json]", unbounded_plan_of(type(value)).write(value))


def encode_request(request: Request[object]) -> bytes:
    """Return the line of a request."""
    return encode_line({"request": request.request_name, **to_fields(request)})


def encode_line(body: Json) -> bytes:
    """Return one line of ASCII, so that no text of a peer can break it."""
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def decode_request(line: bytes) -> Request[object]:
    """Read the request of one line. Raises RemoteProtocolError."""
    body = decode_line(line)
    name = body.get("request")
    kind = REQUESTS.get(name) if isinstance(name, str) else None
    if kind is None:
        shown = name if isinstance(name, str) else type(name).__name__
        raise RemoteProtocolError(f"unknown request `{shown[:40]}`", code="message")
    return from_json(kind, body)


def decode_line(line: bytes) -> Mapping[str, object]:
    """Read the JSON object of one line. Raises RemoteProtocolError."""
    try:
        body = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"not a line of JSON: {type(error).__name__}", code="message") from None
    if not isinstance(body, dict):
        raise RemoteProtocolError("not a JSON object", code="message")
    return body


def from_json(kind: type[T], body: object) -> T:
    """Read a `kind` of api.py from decoded JSON. Raises RemoteProtocolError that names the field."""
    return unbounded_plan_of(kind).read(body)


def _no_constant(name: str) -> object:
    raise ValueError(name)
