"""What the other side of one stream of news has told, so that it is not told back, and is answered. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeVar

from meshd.base.peer_limits import NEWS_HEARD
from meshd.identity.keys import PeerId
from meshd.peer.news_outbox import Item, LifeItem
from meshd.peer.presence_gossip import PresenceGossip

COMPARE_SECONDS = 60.0  # from one comparison to the next, while both sides have the same
Order = tuple[int, ...]
K = TypeVar("K")


@dataclass(slots=True)
class Told:
    """What the other side has told us, and what the two have compared."""

    heard: dict[Item, Order] = field(default_factory=dict)
    asked: list[Item] = field(default_factory=list)  # what the other side seems to lack
    doubts: dict[PeerId, Order] = field(default_factory=dict)  # the sign of life against which it spoke
    refuted: dict[PeerId, None] = field(default_factory=dict)  # of these doubts, which we know to be void
    compared_at: float = 0.0
    pause: float = COMPARE_SECONDS
    begun: bool = False  # the first comparison is over: later ones wait for quiet

    def hear(self, item: Item, order: Order) -> None:
        """It need not be told back."""
        _keep(self.heard, item, order)

    def knows(self, item: Item, order: Order) -> bool:
        """Has the other side told us this itself?"""
        return self.heard.get(item, (-1,)) >= order

    def hear_sign(self, peer: PeerId, order: Order) -> None:
        """It has told a sign of life."""
        self.hear(LifeItem(peer), (*order, 0))
        if self.doubts.get(peer, order) < order:
            del self.doubts[peer]

    def hear_away(self, peer: PeerId, order: Order, gossip: PresenceGossip) -> None:
        """It has told that `peer` is away: it may take it to be so, whether we listened to that or not."""
        self.hear(LifeItem(peer), (*order, 1))
        _keep(self.doubts, peer, order)
        self.look_at((peer,), gossip)

    def look_at(self, peers: Iterable[PeerId], gossip: PresenceGossip) -> None:
        """Of which of them do we know a later sign of life than the one against which it spoke?"""
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
