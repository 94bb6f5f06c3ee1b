"""The requests to the daemon: frozen values whose classes carry their name and the type of their reply.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class PingRequest(Request[PingReply], name="ping"):
        peer: str

is all that the socket needs to know of it: `decode_request` reads it by its name, `Client.ask` returns a
PingReply, and a daemon answers it by the method that is marked with `@PingRequest.answer`.
"""

import json
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import is_dataclass
from types import MappingProxyType
from typing import ClassVar, Generic, TypeVar, cast

from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.wire.codec import unbounded_plan_of

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
Q = TypeVar("Q")
S = TypeVar("S")
_KINDS: dict[str, "type[Request[object]]"] = {}
_MARK = "_answers"
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
T = TypeVar("T")


class UnknownRequest(RemoteProtocolError):
    """Raised for a request that no module has defined so far."""


class Request(Generic[R_co]):
    """`R_co` is the type of the reply."""

    __slots__ = ()
    request_name: ClassVar[str]

    def __init_subclass__(cls, name: str = "") -> None:
        if name in _KINDS:
            raise LocalProtocolError(f"two requests have the name `{name}`")
        if name:  # else it is the same class once more: what `slots=True` makes of it
            cls.request_name = name
        _KINDS[cls.request_name] = cls

    @classmethod
    def reply_type(cls) -> type[R_co]:
        """Return the type as which a reply is read."""
        reply: type[R_co] = typing.get_args(vars(cls)["__orig_bases__"][0])[0]
        return reply

    @classmethod
    def answer(
        cls: Callable[..., Q], method: Callable[[S, Q], Awaitable[R_co]]
    ) -> Callable[[S, Q], Awaitable[R_co]]:
        """Mark the method of an `Answers` that answers it."""
        setattr(method, _MARK, cls)
        return method


class Answers:
    """Answers requests by its methods that are marked for them; the user sees what MeshdError they raise."""

    _methods: ClassVar[Mapping[object, str]] = MappingProxyType({})

    def __init_subclass__(cls) -> None:
        own = {getattr(value, _MARK, None): name for name, value in vars(cls).items()}
        own.pop(None, None)
        cls._methods = MappingProxyType({**cls._methods, **own})

    @classmethod
    def answered(cls) -> frozenset[object]:
        """Return the requests that have a method."""
        return frozenset(cls._methods)

    async def answer(self, request: Request[R]) -> R:
        """Return the reply of the request's method."""
        method: Callable[[Request[R]], Awaitable[R]] = getattr(self, self._methods[type(request)])
        return await method(request)


def requests() -> Mapping[str, type[Request[object]]]:
    """Return the requests defined so far, by name."""
    return MappingProxyType(dict(_KINDS))


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
    kind = _KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        shown = name if isinstance(name, str) else type(name).__name__
        raise UnknownRequest(f"unknown request `{shown[:40]}`", code="message")
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
