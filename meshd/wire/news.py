"""News between connected members: signed records and bans, over a stream of service `news`."""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_BAN_BYTES, MAX_RECORD_BYTES
from meshd.wire.message import pack, unpack

NEWS_SERVICE = "news"


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


News = RecordNews | BanNews


def decode(data: bytes) -> News | None:
    """One piece of news; None for a kind of a later version. Raises RemoteProtocolError."""
    fields = unpack(data)
    kind = fields.text("type", most=16)
    if kind == "record":
        return RecordNews(fields.raw("record", most=MAX_RECORD_BYTES))
    if kind == "ban":
        return BanNews(fields.raw("ban", most=MAX_BAN_BYTES))
    if not kind:
        raise RemoteProtocolError("news without a type", code="message")
    return None
