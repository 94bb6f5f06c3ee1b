"""Events of a session: frozen values that its driver acts on, in order."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from meshd.mux.config import Priority


class Code(IntEnum):
    """Codes of Reset and Goodbye. Others may arrive (the wire allows any number)."""

    NONE = 0  # ended on purpose
    REFUSED = 1  # the service would not take the stream
    UNKNOWN_SERVICE = 2
    TOO_MANY = 3  # streams
    CANCELLED = 4  # its user went away
    BROKEN = 5  # the local socket behind the stream was reset
    SHUTDOWN = 6
    LOST = 8  # the session ended under it
    BANNED = 9
    LEFT = 10  # of a Goodbye: the node has given up its membership
    IDLE = 11  # of a Goodbye: nobody needs the session now; it is made again when somebody does


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """The peer opened a stream: reply with `accept` or `reset`. Data may follow before that."""

    stream_id: int
    service: str
    metadata: Mapping[str, str | int | bytes]
    priority: Priority


@dataclass(frozen=True, slots=True)
class StreamAccepted:
    """The peer's application took a stream that we opened."""

    stream_id: int


@dataclass(slots=True)  # not frozen: one is made for every message, and that would take thrice as long
class DataReceived:
    """Next bytes of a stream, in order. Say `consumed` once they have been handed on.

    A memoryview shows a buffer that may be larger than itself: copy what is kept. Pieces can be small: join
    those.
    """

    stream_id: int
    data: bytes | memoryview


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """The peer will send no more on this stream; our own half is untouched."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class StreamReset:
    """The peer threw the stream away, both directions; unread bytes are void."""

    stream_id: int
    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class Writable:
    """A `write` that took less than it was given can continue."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class PongReceived:
    """The reply to `ping`; `rtt` in seconds."""

    link_id: int
    ping_id: int
    rtt: float


@dataclass(frozen=True, slots=True)
class LinkDead:
    """A link proved dead: the session has let go of it already, the driver closes it."""

    link_id: int
    why: str


@dataclass(frozen=True, slots=True)
class Switched:
    """This link carries the data from now on (None: no link does)."""

    link_id: int | None


@dataclass(frozen=True, slots=True)
class GoodbyeReceived:
    """The peer ends the session on purpose: nothing more comes, all streams are void."""

    code: int
    reason: str


@dataclass(frozen=True, slots=True)
class SessionLost:
    """No link came back within the grace: all streams are void. Always the last event."""

    reason: str


Event = (
    StreamOpened
    | StreamAccepted
    | DataReceived
    | StreamEnded
    | StreamReset
    | Writable
    | PongReceived
    | LinkDead
    | Switched
    | GoodbyeReceived
    | SessionLost
)
