"""What this node tells on: records and bans as they change, each node's records at a pace. Pure.

Every stream of news reads the same journal with its own mark, so a change costs each stream one look,
and nothing is queued for anybody. A record that changes more often than its share is told on when its turn
comes, in the form that it has by then.
"""

from dataclasses import dataclass

from meshd.base.change_journal import Journal
from meshd.base.peer_limits import LIVES_OF_ONE, NEWS_OF_ONE, SIGNS_OF_ONE
from meshd.base.rate_by_key import TokenBuckets
from meshd.base.token_bucket import TokenBucket
from meshd.identity.keys import PeerId
from meshd.identity.revocation import RevocationSet
from meshd.peer.interface import Book
from meshd.peer.presence_gossip import PresenceGossip

SLACK = 64  # journal entries of vanished items, until they are cleaned up


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
    """`collect` before each look at `journal`."""

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
        self._held: dict[Item, float] = {}  # whose turn comes when
        self._held_signs: dict[Item, float] = {}

    def collect(self, own: int, now: float) -> None:
        """Take in what changed since the last time. `own`: the sequence number of our own record."""
        if own != self._own:
            self._own = own
            self.journal.touch(self._me)
        for digest in self._bans.journal.since(self._bans_mark):
            self.journal.touch(BanItem(digest))
        for peer in self._book.journal.since(self._book_mark):
            self._tell_at_a_pace(peer, self._news.of(peer, now), self._held, now)
        self._collect_gossip(now)
        self._bans_mark, self._book_mark = self._bans.journal.mark, self._book.journal.mark
        for held in (self._held, self._held_signs):
            for item in [item for item, due in held.items() if due <= now]:
                del held[item]
                self.journal.touch(item)
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
        """When the next turn comes of a record that is held back; None: none is."""
        return min((*self._held.values(), *self._held_signs.values()), default=None)

    def _tell_at_a_pace(self, item: Item, pace: TokenBucket, held: dict[Item, float], now: float) -> None:
        if item in held:
            return
        pause = pace.take(1, now)
        if pause:
            held[item] = now + pause
        else:
            self.journal.touch(item)
