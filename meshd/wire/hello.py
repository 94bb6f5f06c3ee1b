"""The greeting on a proven link: Hello, Bans, Go or Refusal, before the link carries streams.

The leader of the pair (higher PeerId) says Hello first and names the session it holds and a fresh id; the
follower answers which of them it takes (mux/session_choice.py). When their revocation sets differ, both send
theirs; then the leader says Go. Format: docs/protocol.md, "Greeting".
"""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.bounds import ROW, AtMost, Between, Items, Otherwise, Prose, ShortName, Size, Text
from meshd.wire.codec import Family, Message
from meshd.wire.limits import MAX_BAN_BYTES, MAX_ITEMS, MAX_NAME_BYTES, MAX_RECORD_BYTES, MAX_TIME
from meshd.wire.native import NativeVersion

_ID_BYTES = 16
HALF_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Hello(Message, tag="hello"):
    """First message of each side.

    `software` is its version of meshd, `clock` unix seconds, `incarnation` one start of the daemon.
    Session fields: a leader sets `fresh` (and `current` if it holds a session), a follower sets `chosen`.
    """

    version: Annotated[int, Between(1, 1 << 16)]
    software: Annotated[str, Text(MAX_NAME_BYTES), Otherwise("")]
    features: Annotated[tuple[ShortName, ...], Items(64)]
    name: ShortName
    role: ShortName
    incarnation: Annotated[bytes, Size(_ID_BYTES)]
    current: Annotated[bytes, Size(0, _ID_BYTES)]
    fresh: Annotated[bytes, Size(0, HALF_ID_BYTES)]
    chosen: Annotated[bytes, Size(0, _ID_BYTES)]
    native: Annotated[NativeVersion, ROW]
    largest_frame: Annotated[int, Between(1024, 16 << 20)]
    grace: Annotated[int, Between(1, 24 * 3600)]
    bans_count: Annotated[int, Between(0, MAX_ITEMS)]
    bans_digest: Annotated[bytes, AtMost(64)]
    clock: Annotated[int, Between(0, MAX_TIME)]
    record: Annotated[bytes, AtMost(MAX_RECORD_BYTES)]


@dataclass(frozen=True, slots=True)
class Bans(Message, tag="bans"):
    """A part of the sender's revocation set; `last` marks the end."""

    entries: Annotated[tuple[Annotated[bytes, AtMost(MAX_BAN_BYTES)], ...], Items(MAX_ITEMS)]
    last: bool


@dataclass(frozen=True, slots=True)
class Go(Message, tag="go"):
    """The leader agrees: streams may flow."""


@dataclass(frozen=True, slots=True)
class Refusal(Message, tag="refusal"):
    """A refusal: a stable code, a text and what to do about it."""

    code: ShortName
    text: Prose
    hint: Prose = ""


Greeting = Hello | Bans | Go | Refusal


_GREETING: Family[Greeting] = Family("greeting", Greeting)


def decode(data: bytes) -> Greeting:
    """Read one greeting message. Raises RemoteProtocolError."""
    return _GREETING.decode(data)
