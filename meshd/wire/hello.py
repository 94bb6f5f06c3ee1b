"""The first messages on a proven link: the greeting of members, or the joining of a new one.

A greeting is Hello, Bans, Go or Refusal, before the link carries streams. The leader of the pair (higher
PeerId) says Hello first and names the session it holds and a fresh id; the follower answers which of them it
takes (mux/session_choice.py). When their revocation sets differ, both send theirs; then the leader says Go.
Format: docs/protocol-sessions.md, "Greeting".

On a link of purpose JOIN a joiner and its inviter say JoinRequest, and Welcome or NotAdmitted.
"""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.codec import Family, Message
from meshd.wire.limits import (
    MAX_BAN_BYTES,
    MAX_CHAIN_BYTES,
    MAX_ITEMS,
    MAX_NAME_BYTES,
    MAX_RECORD_BYTES,
    MAX_TIME,
    ROW,
    AtMost,
    Between,
    Items,
    Otherwise,
    Prose,
    ShortName,
    Size,
    Text,
)
from meshd.wire.versions import NativeVersion

_ID_BYTES = 16
HALF_ID_BYTES = 8

MAX_TOLD_RECORDS = 64  # in one Welcome


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


@dataclass(frozen=True, slots=True)
class JoinRequest(Message, tag="join"):
    """The joiner's own words: its name, and its role."""

    name: ShortName
    role: ShortName


@dataclass(frozen=True, slots=True)
class Welcome(Message, tag="welcome"):
    """Admitted: the joiner's certificate chain, records of members it may dial, and who is banned."""

    chain: Annotated[bytes, AtMost(MAX_CHAIN_BYTES)]
    records: Annotated[tuple[Annotated[bytes, AtMost(MAX_RECORD_BYTES)], ...], Items(MAX_TOLD_RECORDS)]
    bans: Annotated[tuple[Annotated[bytes, AtMost(MAX_BAN_BYTES)], ...], Items(MAX_ITEMS)]


@dataclass(frozen=True, slots=True)
class NotAdmitted(Message, tag="refused"):
    """A refusal to admit, with its reason and the remedy."""

    code: ShortName
    text: Prose
    hint: Prose = ""


JoinMessage = JoinRequest | Welcome | NotAdmitted


_JOINING: Family[JoinMessage] = Family("joining", JoinMessage)


def decode_joining(data: bytes) -> JoinMessage:
    """Read one joining message. Raises RemoteProtocolError."""
    return _JOINING.decode(data)
