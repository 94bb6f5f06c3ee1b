"""The greeting on a proven link: Hello, Bans, Go or Refusal, before the link carries streams.

The leader of the pair (higher PeerId) says Hello first and names the session it holds and a fresh id; the
follower answers which of them it takes (mux/session_choice.py). When their revocation sets differ, both send
theirs; then the leader says Go. Format: docs/protocol.md, "Greeting".
"""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import (
    MAX_BAN_BYTES,
    MAX_ITEMS,
    MAX_NAME_BYTES,
    MAX_RECORD_BYTES,
    MAX_TEXT_BYTES,
    MAX_TIME,
)
from meshd.wire.message import Fields, pack, plain, unpack
from meshd.wire.native import NativeVersion

WIRE_VERSION = 1
_ID_BYTES = 16
HALF_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Hello:
    """First message of each side.

    `software` is its version of meshd, `clock` unix seconds, `incarnation` one start of the daemon.
    Session fields: a leader sets `fresh` (and `current` if it holds a session), a follower sets `chosen`.
    """

    version: int
    software: str
    features: tuple[str, ...]
    name: str
    role: str
    incarnation: bytes
    current: bytes
    fresh: bytes
    chosen: bytes
    native: NativeVersion
    largest_frame: int
    grace: int
    bans_count: int
    bans_digest: bytes
    clock: int
    record: bytes

    def encode(self) -> bytes:
        native = self.native
        return pack(
            {
                "type": "hello",
                "version": self.version,
                "software": self.software,
                "features": list(self.features),
                "name": self.name,
                "role": self.role,
                "incarnation": self.incarnation,
                "current": self.current,
                "fresh": self.fresh,
                "chosen": self.chosen,
                "native": [native.protocol, native.pin, native.sources, native.backend],
                "largest_frame": self.largest_frame,
                "grace": self.grace,
                "bans_count": self.bans_count,
                "bans_digest": self.bans_digest,
                "clock": self.clock,
                "record": self.record,
            }
        )


@dataclass(frozen=True, slots=True)
class Bans:
    """A part of the sender's revocation set; `last` marks the end."""

    entries: tuple[bytes, ...]
    last: bool

    def encode(self) -> bytes:
        return pack({"type": "bans", "entries": list(self.entries), "last": self.last})


@dataclass(frozen=True, slots=True)
class Go:
    """The leader is content: streams may flow."""

    def encode(self) -> bytes:
        return pack({"type": "go"})


@dataclass(frozen=True, slots=True)
class Refusal:
    """No: a stable code, a text and what to do about it."""

    code: str
    text: str
    hint: str = ""

    def encode(self) -> bytes:
        return pack(
            {"type": "refusal", "code": self.code, "text": plain(self.text), "hint": plain(self.hint)}
        )


Greeting = Hello | Bans | Go | Refusal


def decode(data: bytes) -> Greeting:
    """One greeting message. Raises RemoteProtocolError."""
    fields = unpack(data)
    kind = fields.text("type", most=16)
    if kind == "hello":
        return _hello(fields)
    if kind == "bans":
        return Bans(
            fields.raws("entries", most=MAX_BAN_BYTES, count=MAX_ITEMS),
            fields.flag("last"),
        )
    if kind == "go":
        return Go()
    if kind == "refusal":
        return Refusal(
            fields.text("code", most=MAX_NAME_BYTES),
            fields.text("text", most=MAX_TEXT_BYTES),
            fields.text("hint", most=MAX_TEXT_BYTES, default=""),
        )
    raise RemoteProtocolError(f"greeting of unknown type `{kind}`", code="message")


def _hello(fields: Fields) -> Hello:
    native = fields.texts("native", most=128, count=4)
    if len(native) != 4:
        raise RemoteProtocolError("field `native` must have 4 entries", code="message")
    return Hello(
        version=fields.number("version", low=1, high=1 << 16),
        software=fields.text("software", most=MAX_NAME_BYTES, default=""),
        features=fields.texts("features", most=MAX_NAME_BYTES, count=64),
        name=fields.text("name", most=MAX_NAME_BYTES),
        role=fields.text("role", most=MAX_NAME_BYTES),
        incarnation=fields.raw("incarnation", exact=_ID_BYTES),
        current=_optional(fields, "current", _ID_BYTES),
        fresh=_optional(fields, "fresh", HALF_ID_BYTES),
        chosen=_optional(fields, "chosen", _ID_BYTES),
        native=NativeVersion(*native),
        largest_frame=fields.number("largest_frame", low=1024, high=16 << 20),
        grace=fields.number("grace", low=1, high=24 * 3600),
        bans_count=fields.number("bans_count", low=0, high=MAX_ITEMS),
        bans_digest=fields.raw("bans_digest", most=64),
        clock=fields.number("clock", low=0, high=MAX_TIME),
        record=fields.raw("record", most=MAX_RECORD_BYTES),
    )


def _optional(fields: Fields, name: str, size: int) -> bytes:
    value = fields.raw(name, most=size)
    if len(value) not in (0, size):
        raise RemoteProtocolError(f"field `{name}` must be empty or {size} bytes", code="message")
    return value
