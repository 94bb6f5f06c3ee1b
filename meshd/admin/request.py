"""The requests to the daemon: frozen values whose classes carry their name and the type of their reply.

    @dataclass(frozen=True, slots=True, kw_only=True)
    class PingRequest(Request[PingReply], name="ping"):
        peer: str

is all that the socket needs to know of it: the codec reads it by its name, `Client.ask` returns a PingReply,
and a daemon answers it by the method that is marked with `@PingRequest.answer`.
"""

import typing
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import ClassVar, Generic, TypeVar

from meshd.base.errors import LocalProtocolError

R_co = TypeVar("R_co", covariant=True)
R = TypeVar("R")
Q = TypeVar("Q")
S = TypeVar("S")
_KINDS: dict[str, "type[Request[object]]"] = {}
_MARK = "_answers"


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
