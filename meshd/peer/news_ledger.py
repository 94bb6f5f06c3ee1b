"""Decide which news go to which peer: changes, what the peer has, what differs by hash. Pure.

Every stream of news reads the same journal (`NewsOutbox`) with its own mark, so a change costs each stream
one look, and nothing is queued per peer. A record that changes more often than its share is passed on when
its turn comes, in its latest form. `Told` notes for one stream what the other side has sent, so that it is
not sent back. `NewsLedger` hashes everything: so two nodes find out what one of them lacks.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from meshd.base.admission import TokenBucket, TokenBuckets
from meshd.base.change_journal import Journal
from meshd.base.peer_limits import LIVES_OF_ONE, NEWS_HEARD, NEWS_OF_ONE, SIGNS_OF_ONE
from meshd.identity.keys import PeerId
from meshd.identity.revocation import RevocationSet
from meshd.peer.interface import Book
from meshd.peer.presence_gossip import PresenceGossip
from meshd.wire.news import BUCKET_BYTES, BUCKETS, DIGEST_BYTES

SLACK = 64  # journal entries of vanished items that are kept until a clean-up
COMPARE_SECONDS = 60.0  # between comparisons, while both sides have the same
Order = tuple[int, ...]
K = TypeVar("K")
_ENTRY = struct.Struct(">32sQQIB")


@dataclass(frozen=True, slots=True)
class BanItem:
    """A ban, by its hash."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class LifeItem:
    """A report about a node's presence: its last sign of life, or that it is away."""

    peer: PeerId


Item = PeerId | BanItem | LifeItem
"""One piece of news: a node's record, a ban, or a node's presence."""


class NewsOutbox:
    """The changes to pass on. Call `collect` before each look at `journal`."""

    def __init__(self, *, me: PeerId, book: Book, bans: RevocationSet, gossip: PresenceGossip) -> None:
        self._me = me
        self._gossip = gossip
        self._book = book
        self._bans = bans
        self.journal: Journal[Item] = Journal()
        self._book_mark = self._bans_mark = self._gossip_mark = self._turns_mark = 0
        self._own = -1
        self._news: TokenBuckets[PeerId] = TokenBuckets(NEWS_OF_ONE)
        self._turns: TokenBuckets[PeerId] = TokenBuckets(LIVES_OF_ONE)
        self._signs: TokenBuckets[PeerId] = TokenBuckets(SIGNS_OF_ONE)
        self._held: dict[Item, float] = {}  # when the turn of a delayed item comes
        self._held_signs: dict[Item, float] = {}

    def collect(self, own: int, now: float) -> None:
        """Take in what changed since the last time. `own`: the sequence number of our own record."""
        # Our record and bans go out at once, other records at a pace.
        if own != self._own:
            self._own = own
            self.journal.touch(self._me)
        for digest in self._bans.journal.since(self._bans_mark):
            self.journal.touch(BanItem(digest))
        for peer in self._book.journal.since(self._book_mark):
            self._tell_at_a_pace(peer, self._news.of(peer, now), self._held, now)
        self._collect_gossip(now)
        self._bans_mark, self._book_mark = self._bans.journal.mark, self._book.journal.mark
        # Items that were held back and are due now.
        for held in (self._held, self._held_signs):
            for item in [item for item, due in held.items() if due <= now]:
                del held[item]
                self.journal.touch(item)
        # Clean up when many items have vanished.
        if (
            len(self.journal)
            > 1 + len(self._bans) + len(self._book.journal) + len(self._gossip.journal) + SLACK
        ):
            self._drop_what_is_gone()

    def _collect_gossip(self, now: float) -> None:
        turned = set(self._gossip.turns.since(self._turns_mark))
        for peer in self._gossip.journal.since(self._gossip_mark):
            item = LifeItem(peer)
            if peer in turned:
                self._held_signs.pop(item, None)
                self._tell_at_a_pace(item, self._turns.of(peer, now), self._held, now)
            elif item not in self._held:
                self._tell_at_a_pace(item, self._signs.of(peer, now), self._held_signs, now)
        self._gossip_mark, self._turns_mark = self._gossip.journal.mark, self._gossip.turns.mark

    def _drop_what_is_gone(self) -> None:
        for item in self.journal.since(0):
            if isinstance(item, BanItem):
                gone = self._bans.entry(item.digest) is None
            elif isinstance(item, LifeItem):
                gone = item.peer not in self._gossip.journal
            else:
                gone = item != self._me and self._book.newest(item) is None
            if gone:
                self.journal.drop(item)

    @property
    def due(self) -> float | None:
        """The time of the next delayed item; None if there is none."""
        return min((*self._held.values(), *self._held_signs.values()), default=None)

    def _tell_at_a_pace(self, item: Item, pace: TokenBucket, held: dict[Item, float], now: float) -> None:
        if item in held:
            return
        pause = pace.take(1, now)
        if pause:
            held[item] = now + pause
        else:
            self.journal.touch(item)


@dataclass(slots=True)
class Told:
    """The news that the other side has sent, and the state of the comparison."""

    heard: dict[Item, Order] = field(default_factory=dict)
    asked: list[Item] = field(default_factory=list)  # what the other side seems to lack
    # The signs of life against which the other side spoke.
    doubts: dict[PeerId, Order] = field(default_factory=dict)
    # Doubts that we know to be wrong.
    refuted: dict[PeerId, None] = field(default_factory=dict)
    compared_at: float = 0.0
    pause: float = COMPARE_SECONDS
    begun: bool = False  # the first comparison is over: later ones wait for quiet

    def hear(self, item: Item, order: Order) -> None:
        """Note that the item need not be sent back."""
        _keep(self.heard, item, order)

    def knows(self, item: Item, order: Order) -> bool:
        """Say whether the other side has sent this itself."""
        return self.heard.get(item, (-1,)) >= order

    def hear_sign(self, peer: PeerId, order: Order) -> None:
        """Note that the other side has sent a sign of life."""
        self.hear(LifeItem(peer), (*order, 0))
        if self.doubts.get(peer, order) < order:
            del self.doubts[peer]

    def hear_away(self, peer: PeerId, order: Order, gossip: PresenceGossip) -> None:
        """Note that the other side says that `peer` is away: it may believe it, whether we did or not."""
        self.hear(LifeItem(peer), (*order, 1))
        _keep(self.doubts, peer, order)
        self.look_at((peer,), gossip)

    def look_at(self, peers: Iterable[PeerId], gossip: PresenceGossip) -> None:
        """Refute doubts about the peers of whom we know a later sign of life."""
        for peer in peers:
            order = self.doubts.get(peer)
            if order is not None and order < gossip.order(peer):
                del self.doubts[peer]
                self.refuted[peer] = None


def _keep(kept: dict[K, Order], key: K, order: Order) -> None:
    kept.pop(key, None)
    kept[key] = order
    if len(kept) > NEWS_HEARD.most:
        del kept[next(iter(kept))]


class NewsLedger:
    """Hashes of the current content of `book`, `bans` and `gossip`; recomputed on demand after a change."""

    def __init__(self, *, me: PeerId, book: Book, bans: RevocationSet, gossip: PresenceGossip) -> None:
        self._me = me
        self._book = book
        self._bans = bans
        self._gossip = gossip
        self._marks: tuple[int, ...] = ()
        self._buckets: tuple[bytes, ...] = ()
        self._digest = b""

    def digest(self, own: int) -> bytes:
        """Return the digest, 16 bytes. `own`: the sequence number of our record."""
        self._look(own)
        return self._digest

    def buckets(self, own: int) -> tuple[bytes, ...]:
        """Return the hashes, 8 bytes for each of 256 parts."""
        self._look(own)
        return self._buckets

    def differing(self, theirs: tuple[bytes, ...], own: int) -> list[Item]:
        """Return our items in the parts that differ on the other side."""
        self._look(own)
        parts = {at for at, (a, b) in enumerate(zip(self._buckets, theirs, strict=True)) if a != b}
        found: list[Item] = [BanItem(digest) for digest in self._bans.digests() if digest[0] in parts]
        for peer in (self._me, *(record.peer for record in self._book.records())):
            if peer.raw[0] in parts:
                found += (peer, LifeItem(peer))
        return found

    def marks(self, own: int) -> tuple[int, ...]:
        """Return numbers that change whenever the content changes."""
        return own, self._book.journal.mark, self._bans.journal.mark, self._gossip.journal.mark

    def _look(self, own: int) -> None:
        marks = self.marks(own)
        if marks == self._marks:
            return
        self._marks = marks
        parts: list[list[bytes]] = [[] for _ in range(BUCKETS)]
        for digest in self._bans.digests():
            parts[digest[0]].append(digest)
        for record in self._book.records():
            sequence, count, away = (0, 0, 0) if record.has_left else self._gossip.mark_of(record.peer)
            raw = record.peer.raw
            parts[raw[0]].append(_ENTRY.pack(raw, record.sequence, sequence, count, away))
        raw = self._me.raw
        parts[raw[0]].append(_ENTRY.pack(raw, own, *self._gossip.order(self._me), 0))
        self._buckets = tuple(
            hashlib.sha256(b"".join(sorted(part))).digest()[:BUCKET_BYTES] for part in parts
        )
        self._digest = hashlib.sha256(b"".join(self._buckets)).digest()[:DIGEST_BYTES]
