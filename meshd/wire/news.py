"""News between connected members, over a stream of service `news`: signed records, bans, signs of life and
statements that somebody is away; and hashes, by which two find out that one of them lacks something."""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import MAX_BAN_BYTES, MAX_RECORD_BYTES
from meshd.wire.message import pack, unpack

NEWS_SERVICE = "news"
PRESENCE_BYTES = 108
AWAY_BYTES = 140
DIGEST_BYTES = 16
BUCKETS, BUCKET_BYTES = 256, 8
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


@dataclass(frozen=True, slots=True)
class AwayNews:
    """A statement that a member is away (identity/away.py)."""

    away: bytes

    def encode(self) -> bytes:
        return pack({"type": "away", "away": self.away})


@dataclass(frozen=True, slots=True)
class DigestNews:
    """A hash of all that the sender tells (peer/news_digest.py); a peer with another one says `buckets`."""

    digest: bytes

    def encode(self) -> bytes:
        return pack({"type": "digest", "digest": self.digest})


@dataclass(frozen=True, slots=True)
class BucketsNews:
    """A hash for each of 256 parts of it; the receiver tells what it has in those that differ."""

    hashes: tuple[bytes, ...]

    def encode(self) -> bytes:
        return pack({"type": "buckets", "all": b"".join(self.hashes)})


News = RecordNews | BanNews | PresenceNews | AwayNews | DigestNews | BucketsNews


def decode(data: bytes) -> News | None:
    """One piece of news; None for a kind of a later version. Raises RemoteProtocolError."""
    fields = unpack(data)
    kind = fields.text("type", most=16)
    if kind == "record":
        return RecordNews(fields.raw("record", most=MAX_RECORD_BYTES))
    if kind == "ban":
        return BanNews(fields.raw("ban", most=MAX_BAN_BYTES))
    if kind == "away":
        return AwayNews(fields.raw("away", exact=AWAY_BYTES))
    if kind == "digest":
        return DigestNews(fields.raw("digest", exact=DIGEST_BYTES))
    if kind == "buckets":
        whole = fields.raw("all", exact=BUCKETS * BUCKET_BYTES)
        return BucketsNews(tuple(whole[at : at + BUCKET_BYTES] for at in range(0, len(whole), BUCKET_BYTES)))
    if kind == "presence":
        joined = fields.raw("all", most=MAX_PRESENCES * PRESENCE_BYTES)
        if len(joined) % PRESENCE_BYTES:
            raise RemoteProtocolError("signs of life are truncated", code="message")
        cuts = range(0, len(joined), PRESENCE_BYTES)
        return PresenceNews(tuple(joined[at : at + PRESENCE_BYTES] for at in cuts))
    if not kind:
        raise RemoteProtocolError("a news message has no type", code="message")
    return None
