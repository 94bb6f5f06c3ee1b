"""News between connected members: signed records, bans and signs of life, over a stream of service `news`."""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_BAN_BYTES, MAX_RECORD_BYTES
from meshd.wire.message import pack, unpack

NEWS_SERVICE = "news"
PRESENCE_BYTES = 108
MAX_PRESENCES = 256  # in one message


@dataclass(frozen=True, slots=True)
class RecordNews:
    """A member's signed record (identity/record.py)."""

    record: bytes

    def encode(self) -> bytes:
        return pack({"type": "record", "record": self.record})


@dataclass(frozen=True, slots=True)
class BanNews:
    """A signed ban (identity/revocation.py)."""

    ban: bytes

    def encode(self) -> bytes:
        return pack({"type": "ban", "ban": self.ban})


@dataclass(frozen=True, slots=True)
class PresenceNews:
    """Signs of life (identity/presence.py), each of the same size; at most 256."""

    entries: tuple[bytes, ...]

    def encode(self) -> bytes:
        return pack({"type": "presence", "all": b"".join(self.entries)})


News = RecordNews | BanNews | PresenceNews


def decode(data: bytes) -> News | None:
    """One piece of news; None for a kind of a later version. Raises RemoteProtocolError."""
    fields = unpack(data)
    kind = fields.text("type", most=16)
    if kind == "record":
        return RecordNews(fields.raw("record", most=MAX_RECORD_BYTES))
    if kind == "ban":
        return BanNews(fields.raw("ban", most=MAX_BAN_BYTES))
    if kind == "presence":
        joined = fields.raw("all", most=MAX_PRESENCES * PRESENCE_BYTES)
        if len(joined) % PRESENCE_BYTES:
            raise RemoteProtocolError("signs of life that are cut off", code="message")
        cuts = range(0, len(joined), PRESENCE_BYTES)
        return PresenceNews(tuple(joined[at : at + PRESENCE_BYTES] for at in cuts))
    if not kind:
        raise RemoteProtocolError("news without a type", code="message")
    return None
