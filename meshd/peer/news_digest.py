"""Hashes of all that this node tells, by which two nodes find out that one of them lacks something. Pure.

News have 256 parts, by the first byte of a node's id or a ban's hash. Two nodes with the same digest
have told each other everything; else they compare the parts, and send the contents of those that differ.
"""

import hashlib
import struct

from meshd.identity.keys import PeerId
from meshd.identity.revocation import RevocationSet
from meshd.peer.interface import Book
from meshd.peer.news_outbox import BanItem, Item, LifeItem
from meshd.peer.presence_gossip import PresenceGossip
from meshd.wire.news import BUCKET_BYTES, BUCKETS, DIGEST_BYTES

_ENTRY = struct.Struct(">32sQQIB")


class NewsLedger:
    """Of the current content of `book`, `bans` and `gossip`; recomputed on demand after a change."""

    def __init__(self, *, me: PeerId, book: Book, bans: RevocationSet, gossip: PresenceGossip) -> None:
        self._me = me
        self._book = book
        self._bans = bans
        self._gossip = gossip
        self._marks: tuple[int, ...] = ()
        self._buckets: tuple[bytes, ...] = ()
        self._digest = b""

    def digest(self, own: int) -> bytes:
        """16 bytes. `own`: the sequence number of our record."""
        self._look(own)
        return self._digest

    def buckets(self, own: int) -> tuple[bytes, ...]:
        """8 bytes for each of 256 parts."""
        self._look(own)
        return self._buckets

    def differing(self, theirs: tuple[bytes, ...], own: int) -> list[Item]:
        """What we have in the parts that the other side has in another form, or not at all."""
        self._look(own)
        parts = {at for at, (a, b) in enumerate(zip(self._buckets, theirs, strict=True)) if a != b}
        found: list[Item] = [BanItem(digest) for digest in self._bans.digests() if digest[0] in parts]
        for peer in (self._me, *(record.peer for record in self._book.records())):
            if peer.raw[0] in parts:
                found += (peer, LifeItem(peer))
        return found

    def marks(self, own: int) -> tuple[int, ...]:
        """Others whenever something has changed."""
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
