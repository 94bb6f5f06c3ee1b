"""The news between connected members, over a stream of service `news`: signed records, bans, signs of life
and statements that somebody is away; and hashes, by which two find out that one of them lacks something.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated

from meshd.wire.codec import Family, Message
from meshd.wire.limits import MAX_BAN_BYTES, MAX_RECORD_BYTES, As, AtMost, Name, Size

NEWS_SERVICE = "news"
PRESENCE_BYTES = 108
AWAY_BYTES = 140
DIGEST_BYTES = 16
BUCKETS, BUCKET_BYTES = 256, 8
MAX_PRESENCES = 256  # in one message


def cut(whole: bytes, size: int) -> tuple[bytes, ...]:
    """Split `whole` into parts of `size` bytes."""
    return tuple(whole[at : at + size] for at in range(0, len(whole), size))


@dataclass(frozen=True, slots=True)
class RecordNews(Message, tag="record"):
    """A member's signed record (identity/record.py)."""

    record: Annotated[bytes, AtMost(MAX_RECORD_BYTES)]


@dataclass(frozen=True, slots=True)
class BanNews(Message, tag="ban"):
    """A signed ban (identity/revocation.py)."""

    ban: Annotated[bytes, AtMost(MAX_BAN_BYTES)]


@dataclass(frozen=True, slots=True)
class PresenceNews(Message, tag="presence"):
    """Signs of life (identity/record.py), each of the same size; at most 256."""

    entries: Annotated[
        tuple[bytes, ...],
        Name("all"),
        As(
            Annotated[bytes, AtMost(MAX_PRESENCES * PRESENCE_BYTES, step=PRESENCE_BYTES)],
            b"".join,
            partial(cut, size=PRESENCE_BYTES),
        ),
    ]


@dataclass(frozen=True, slots=True)
class AwayNews(Message, tag="away"):
    """A statement that a member is away (identity/record.py)."""

    away: Annotated[bytes, Size(AWAY_BYTES)]


@dataclass(frozen=True, slots=True)
class DigestNews(Message, tag="digest"):
    """A hash of all that the sender tells (peer/news.py); a peer with another one says `buckets`."""

    digest: Annotated[bytes, Size(DIGEST_BYTES)]


@dataclass(frozen=True, slots=True)
class BucketsNews(Message, tag="buckets"):
    """A hash for each of 256 buckets of its news; the receiver sends what it has in those that differ."""

    hashes: Annotated[
        tuple[bytes, ...],
        Name("all"),
        As(Annotated[bytes, Size(BUCKETS * BUCKET_BYTES)], b"".join, partial(cut, size=BUCKET_BYTES)),
    ]


News = RecordNews | BanNews | PresenceNews | AwayNews | DigestNews | BucketsNews


_NEWS: Family[News] = Family("news", News)


def decode(data: bytes) -> News | None:
    """Read one piece of news; None for a kind of a later version. Raises RemoteProtocolError."""
    return _NEWS.decode_known(data)
