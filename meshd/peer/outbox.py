"""What this node tells on: records and bans as they change, each node's records at a pace. Pure.

Every stream of news reads the same journal with a mark of its own, so a change costs each stream one look,
and nothing is queued for anybody. A record that changes more often than its share is told on when its turn
comes, in the form that it has by then.
"""

from dataclasses import dataclass

from meshd.base.bucket import TokenBucket
from meshd.base.journal import Journal
from meshd.base.paces import Paces
from meshd.base.shares import LIVES_OF_ONE, NEWS_OF_ONE
from meshd.identity.keys import PeerId
from meshd.identity.revocation import RevocationSet
from meshd.peer.interface import Book

SLACK = 64  # entries of the journal of what is gone, until they are looked for


@dataclass(frozen=True, slots=True)
class BanItem:
    """A ban, by its hash."""

    digest: bytes


@dataclass(frozen=True, slots=True)
class LifeItem:
    """What is said of a node's being there: its last sign of life, or that it is away."""

    peer: PeerId


Item = PeerId | BanItem | LifeItem
"""What is told: a node's record, a ban, or whether a node is there."""


class Outbox:
    """`collect` before each look at `journal`."""

    def __init__(self, *, me: PeerId, book: Book, bans: RevocationSet, lives: Journal[PeerId]) -> None:
        self._me = me
        self._lives = lives
        self._book = book
        self._bans = bans
        self.journal: Journal[Item] = Journal()
        self._book_mark = self._bans_mark = self._lives_mark = 0
        self._own = -1
        self._news: Paces[PeerId] = Paces(NEWS_OF_ONE)
        self._signs: Paces[PeerId] = Paces(LIVES_OF_ONE)
        self._held: dict[Item, float] = {}  # whose turn comes when

    def collect(self, own: int, now: float) -> None:
        """Take in what changed since the last time. `own`: the sequence number of our own record."""
        if own != self._own:
            self._own = own
            self.journal.touch(self._me)
        for digest in self._bans.journal.since(self._bans_mark):
            self.journal.touch(BanItem(digest))
        for peer in self._book.journal.since(self._book_mark):
            self._tell_at_a_pace(peer, self._news.of(peer, now), now)
        for peer in self._lives.since(self._lives_mark):
            self._tell_at_a_pace(LifeItem(peer), self._signs.of(peer, now), now)
        self._bans_mark, self._book_mark = self._bans.journal.mark, self._book.journal.mark
        self._lives_mark = self._lives.mark
        for item in [item for item, due in self._held.items() if due <= now]:
            del self._held[item]
            self.journal.touch(item)
        if len(self.journal) > 1 + len(self._bans) + len(self._book.journal) + len(self._lives) + SLACK:
            self._drop_what_is_gone()

    def _drop_what_is_gone(self) -> None:
        for item in self.journal.since(0):
            if isinstance(item, BanItem):
                gone = self._bans.entry(item.digest) is None
            elif isinstance(item, LifeItem):
                gone = item.peer not in self._lives
            else:
                gone = item != self._me and self._book.newest(item) is None
            if gone:
                self.journal.drop(item)

    @property
    def due(self) -> float | None:
        """When the next turn comes of a record that is held back; None: none is."""
        return min(self._held.values(), default=None)

    def _tell_at_a_pace(self, item: Item, pace: TokenBucket, now: float) -> None:
        if item in self._held:
            return
        pause = pace.take(1, now)
        if pause:
            self._held[item] = now + pause
        else:
            self.journal.touch(item)
