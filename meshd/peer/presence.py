"""Decide with which members this node keeps a session, and which it believes to be present.

In a small mesh (up to nine) every member is connected with every other, and this module does nothing. In a
larger one presence_gossip.py knows which members are present, and topology.py derives from that with which to
keep a session. Others are connected on demand. A node that should have a session with another, and has none,
says so to all.
"""

from collections.abc import Callable, Collection, Mapping, Set

from meshd.identity.keys import PeerId
from meshd.identity.membership import place_of
from meshd.identity.record import PeerRecord
from meshd.peer.interface import Book
from meshd.peer.node import Node
from meshd.peer.presence_gossip import PresenceGossip, Signer
from meshd.peer.topology import DEGREE, Seat, wanted

LOSS_SECONDS = 6.0  # without a link to a member that had a session with us, until we report it as away
VAIN_SECONDS = 30.0  # the same without any earlier session: NAT traversal takes its time
TOLD_AGAIN_SECONDS, MAX_AGAIN_SECONDS = 60.0, 3600.0  # until a refuted report is repeated
NEW_SECONDS = 75.0  # a member that is known only by address is believed to be present for so long
ALONE_SECONDS = 30.0  # without any session: then the presence of others is unknown
DEMAND_SECONDS = 120.0  # a session on demand is kept for so long after its last use
FEW = 3  # with fewer sessions than this, other members are tried as well
# How long an unwanted member is tried: when we have few sessions, or to find a part of a mesh that was
# cut in two.
_LOOK_SECONDS = 15.0
ALONE_TRIES, AWAY_TRIES = 4, 1


def in_order(peers: Collection[PeerId]) -> list[PeerId]:
    """Sort by raw id: unlike the order of a set, this is the same in every process."""
    return sorted(peers, key=lambda peer: peer.raw)


class MemberPresence:
    """The members' presence as this node sees it, and the sessions that it keeps.

    Call `tick` every few seconds; the other methods are questions.
    """

    def __init__(self, *, node: Node, book: Book, signer: Signer, rng: Callable[[], float]) -> None:
        self._node = node
        self._book = book
        self._rng = rng
        self.gossip = PresenceGossip(
            me=node.peer,
            own=lambda: node.host.record().sequence,
            book=book,
            signer=signer,
        )
        self._met: dict[PeerId, float] = {}
        self._demanded: dict[PeerId, float] = {}
        self._tried: frozenset[PeerId] = frozenset()
        self._tried_until = 0.0
        self._wanted: frozenset[PeerId] = frozenset()
        self._seats: Mapping[PeerId, Seat] = {}  # of present members, from their records
        # The record from which each seat was made, and the seat.
        self._seat_of: dict[PeerId, tuple[PeerRecord | None, Seat]] = {}
        self._members: frozenset[PeerId] = frozenset()
        self._away: list[PeerId] = []
        self._seen: tuple[object, ...] = ()  # the state from which `_seats` were made
        self._look_at = 0.0  # when the seats change without an event
        # Since when a member is missed, and how long until that is reported.
        self._missed: dict[PeerId, tuple[float, float]] = {}
        self._said: dict[
            PeerId, tuple[float, float]
        ] = {}  # until when it is not reported again, and the next wait
        self._met_anybody: float | None = None  # when there was last a session, or we began
        self.large = False

    def tick(self, connected: Collection[PeerId]) -> None:
        """Update presence. `connected`: the members with a session now."""
        now = self._node.now()
        self._look_at_members(now)
        for peer in [peer for peer, until in self._demanded.items() if until <= now]:
            del self._demanded[peer]
        if connected or self._met_anybody is None:
            self._met_anybody = now
        if not self.large:
            return
        if self.gossip.refute(now):
            self._node.changed()
        self._look_who_is_there(frozenset(connected), now)
        self._miss(connected, now)
        self._try_others(now, len(connected))

    def _look_at_members(self, now: float) -> None:
        if self._seen[:1] == (self._book.version,):
            return
        self._members = frozenset(self._book.peers())
        self.large = len(self._members) > DEGREE
        for peer in self._members - self._met.keys():
            self._met[peer] = now
        for gone in self._met.keys() - self._members:
            self.forget(gone)

    def _look_who_is_there(self, connected: frozenset[PeerId], now: float) -> None:
        seen = (self._book.version, self.gossip.journal.mark, connected)
        if seen == self._seen and now < self._look_at:
            return
        self._seen = seen
        there = {peer for peer in self._members if peer in connected or self._is_there(peer, now)}
        self._away = [peer for peer in self._members if peer not in there]
        unproven = (met + NEW_SECONDS for peer, met in self._met.items() if self._book.record(peer) is None)
        dates = [date for date in unproven if date > now]
        verdict = self.gossip.next_verdict(now)
        self._look_at = min([*dates, *([verdict] if verdict is not None else [])], default=float("inf"))
        own = self._node.host.record().chain
        me = Seat(own.place, self._node.facts.role, own.admitter)
        seats = {self._node.peer: me, **{peer: self._seat(peer) for peer in there}}
        if seats != self._seats:
            self._seats = seats
            self._wanted = wanted(self._node.peer, seats)

    def wishes(self) -> Set[PeerId]:
        """Return the members with which a session is to be kept or made."""
        if not self.large:
            return self._members
        return (self._wanted | self._demanded.keys() | self._tried) & self._members

    def wants(self, peer: PeerId) -> bool:
        """Say whether a session with the member is to be kept or made."""
        return self.keeps(peer) or peer in self._demanded or peer in self._tried

    def keeps(self, peer: PeerId) -> bool:
        """Say whether the topology keeps a session, whatever the demand."""
        return peer in (self._wanted if self.large else self._members)

    def demand(self, peer: PeerId) -> None:
        """Note that somebody needs a session with the member now."""
        self._demanded[peer] = self._node.now() + DEMAND_SECONDS

    def present(self, peer: PeerId) -> bool:
        """Say whether gossip reports the member as present; also False while this node hears from nobody."""
        return self.large and not self._is_alone() and self._is_there(peer, self._node.now())

    def away_since(self, peer: PeerId) -> float | None:
        """Return the loop time since which the member is away; None if it is not known to be away."""
        away = self.gossip.away_since(peer, self._node.now())
        return self._met_anybody if away is None and self._is_alone() else away

    def met(self, peer: PeerId) -> float:
        """Return the loop time at which the member was first known here."""
        return self._met.get(peer, self._node.now())

    def forget(self, peer: PeerId) -> None:
        """Forget a node that is no longer a member."""
        self._met.pop(peer, None)
        self._missed.pop(peer, None)
        self._said.pop(peer, None)
        self._seat_of.pop(peer, None)
        self.gossip.forget(peer)

    def parted(self, peer: PeerId) -> None:
        """Note that the member said goodbye: its return is not awaited."""
        if peer in self._wanted:
            self._missed[peer] = self._node.now(), 0.0

    def _is_alone(self) -> bool:
        return self._met_anybody is None or self._node.now() - self._met_anybody >= ALONE_SECONDS

    def _seat(self, peer: PeerId) -> Seat:
        record = self._book.record(peer)
        made = self._seat_of.get(peer)
        if made is None or made[0] is not record:
            seat = Seat(place_of(peer))
            if record is not None:
                seat = Seat(record.chain.place, record.role, record.chain.admitter)
            made = self._seat_of[peer] = record, seat
        return made[1]

    def _is_there(self, peer: PeerId, now: float) -> bool:
        if self._book.record(peer) is None:
            return now - self._met.get(peer, now) < NEW_SECONDS
        return self.gossip.away_since(peer, now) is None

    def _miss(self, connected: Collection[PeerId], now: float) -> None:
        """Report wanted members without a session as away."""
        for peer in self._missed.keys() - self._wanted:
            del self._missed[peer]
        for peer in in_order(self._wanted):
            if peer in connected:
                self._missed[peer] = now, LOSS_SECONDS
                self._said.pop(peer, None)
                continue
            since, patience = self._missed.setdefault(peer, (now, VAIN_SECONDS))
            until, wait = self._said.get(peer, (0.0, TOLD_AGAIN_SECONDS))
            if now - since >= patience and now >= until and self.gossip.report(peer, now):
                self._said[peer] = now + wait, min(2 * wait, MAX_AGAIN_SECONDS)
                self._node.changed()

    def _try_others(self, now: float, sessions: int) -> None:
        """Try some more members while we have few sessions, and now and then an absent one."""
        if now < self._tried_until:
            return
        self._tried_until = now + _LOOK_SECONDS
        alone = sessions < FEW
        pool = in_order(self._members if alone else self._away)
        picked = (pool[int(self._rng() * len(pool))] for _ in range(ALONE_TRIES if alone else AWAY_TRIES))
        self._tried = frozenset(picked) if pool else frozenset()
