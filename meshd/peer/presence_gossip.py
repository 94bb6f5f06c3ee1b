"""Gossip about the presence of a large mesh's members; silent while nothing changes. Pure.

A member is present until a node reports it as away: a node that should have a session with it, and has none.
The report reaches all nodes, and so the member itself, which refutes it with a later sign of life if it
lives; a report that stays unrefuted for a while is believed. Of the statements about a member the greatest
counts: (sequence of its record, count of its sign of life, away or not). So all nodes reach the same result,
in whatever order they hear the statements, and only the member itself can raise the number against which
others speak.
"""

from collections.abc import Callable
from dataclasses import dataclass

from meshd.base.admission import TokenBuckets
from meshd.base.change_journal import Journal
from meshd.base.peer_limits import AWAY_OF_ISSUER, AWAY_OF_ONE, AWAY_OF_SUBJECT, REFUTATIONS
from meshd.identity.keys import KeyPair, MeshId, PeerId
from meshd.identity.membership import Admitter
from meshd.identity.record import Away, Presence
from meshd.peer.interface import Book

SUSPECT_SECONDS = 8.0  # for a live node to refute a report of its absence

Order = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Signer:
    """The key and mesh with which our own statements are signed."""

    key: KeyPair
    mesh: MeshId


@dataclass(slots=True)
class _MemberLife:
    sign: Presence | None = None
    away: Away | None = None
    since: float = 0.0  # loop time at which `away` was heard


class PresenceGossip:
    """The reported presence of each member in `book`; `now` is loop time in seconds."""

    def __init__(self, *, me: PeerId, own: Callable[[], int], book: Book, signer: Signer) -> None:
        """Start without reports. `own` returns the sequence number of our record."""
        self._me = me
        self._own = own
        self._book = book
        self._signer = signer
        self._of: dict[PeerId, _MemberLife] = {}
        self.journal: Journal[PeerId] = Journal()  # members by the last report about them
        self.turns: Journal[PeerId] = Journal()  # members that were reported away, or are back
        self._reporters: TokenBuckets[PeerId] = TokenBuckets(AWAY_OF_ONE)
        self._issuers: TokenBuckets[Admitter] = TokenBuckets(AWAY_OF_ISSUER)
        self._accusations: TokenBuckets[tuple[Admitter, PeerId]] = TokenBuckets(AWAY_OF_SUBJECT)
        self._refutations = REFUTATIONS.bucket(0.0)
        self._accused = False

    # Questions.

    def order(self, peer: PeerId) -> Order:
        """Return the order of the last known sign of life; a record counts as one."""
        record, life = self._book.record(peer), self._of.get(peer)
        known = (record.sequence if record is not None else -1, 0)
        if peer == self._me:
            known = self._own(), 0
        return max(known, life.sign.order) if life is not None and life.sign is not None else known

    def statements(self, peer: PeerId) -> tuple[Presence | None, Away | None]:
        """Return the statements about a member that count, besides its record: sign of life and absence."""
        life = self._of.get(peer)
        if life is None:
            return None, None
        order = self.order(peer)
        sign = life.sign if life.sign is not None and life.sign.order == order else None
        away = life.away if life.away is not None and life.away.order == order else None
        return sign, away

    def mark_of(self, peer: PeerId) -> tuple[int, int, int]:
        """Return a key that orders reports about one node: the greater is the newer."""
        return *self.order(peer), self.statements(peer)[1] is not None

    def away_since(self, peer: PeerId, now: float) -> float | None:
        """Return the loop time of an unrefuted report of absence; None: the member is present."""
        if self.statements(peer)[1] is None:
            return None
        since = self._of[peer].since
        return since if now - since >= SUSPECT_SECONDS else None

    def next_verdict(self, now: float) -> float | None:
        """Return when the next suspected member will be believed to be away."""
        dates = (life.since + SUSPECT_SECONDS for life in self._of.values() if life.away is not None)
        return min((date for date in dates if date > now), default=None)

    # Statements of others.

    def hear_sign(self, sign: Presence) -> bool | None:
        """Take a sign of life in.

        Returns False if it is invalid, None if it is not new or the node is unknown.
        """
        if sign.peer == self._me:
            return None
        record = self._book.record(sign.peer)
        if record is None or record.sequence > sign.sequence or sign.order <= self.order(sign.peer):
            return None
        if not sign.holds(self._signer.mesh):
            return False
        if self.statements(sign.peer)[1] is not None:
            self.turns.touch(sign.peer)
        self._of.setdefault(sign.peer, _MemberLife()).sign = sign
        self.journal.touch(sign.peer)
        return True

    def hear_away(self, away: Away, now: float, *, teller: PeerId) -> bool | None:
        """Take a report of absence in; returns as `hear_sign`. A report about us is refuted by `refute`.

        A reporter without a session to us does not tell us so itself: such a report only wants to keep us
        busy.
        """
        about_us = away.peer == self._me
        if away.order != self.order(away.peer) or (about_us and (self._accused or teller == away.reporter)):
            return None
        # A report counts against its reporter, and against the reporter's admitter.
        reporter = self._book.record(away.reporter)
        if reporter is None or away.reporter in (away.peer, self._me):
            return None
        if about_us:  # however many there were: others may have believed this one
            self._accused = away.holds(self._signer.mesh)
            return self._accused
        if self.statements(away.peer)[1] is not None:
            return None
        admitter = reporter.chain.admitter  # a reporter may have many keys, but few admitters
        buckets = (
            self._reporters.of(away.reporter, now),
            self._issuers.of(admitter, now),
            self._accusations.of((admitter, away.peer), now),
        )
        if not all(bucket.has(1, now) for bucket in buckets):
            return None
        if not away.holds(self._signer.mesh):
            return False
        for bucket in buckets:  # not before the reporter's signature is checked
            bucket.spend(1, now)
        self._keep(away, now)
        return True

    def _keep(self, away: Away, now: float) -> None:
        life = self._of.setdefault(away.peer, _MemberLife())
        life.away, life.since = away, now
        self._turn(away.peer)

    def _turn(self, peer: PeerId) -> None:
        self.journal.touch(peer)
        self.turns.touch(peer)

    # Our statements.

    def refute(self, now: float) -> bool:
        """Sign a sign of life if a node has reported us away; return True if there is something to send."""
        if not self._accused or not self._refutations.spend(1, now):
            return False
        self._accused = False
        sequence, count = self.order(self._me)
        sign = Presence.sign(self._signer.key, mesh=self._signer.mesh, sequence=sequence, count=count + 1)
        self._of.setdefault(self._me, _MemberLife()).sign = sign
        self.journal.touch(self._me)
        return True

    def report(self, peer: PeerId, now: float) -> bool:
        """Report that a member is away, unless that is known already, or we have reported too much."""
        if self._book.record(peer) is None or self.statements(peer)[1] is not None:
            return False
        if not self._reporters.of(self._me, now).spend(1, now):
            return False
        signer = self._signer
        self._keep(Away.sign(signer.key, mesh=signer.mesh, peer=peer, order=self.order(peer)), now)
        return True

    def forget(self, peer: PeerId) -> None:
        """Forget a node that is no longer a member, and its reports about others."""
        self._of.pop(peer, None)
        self.journal.drop(peer)
        self.turns.drop(peer)
        for other, life in self._of.items():
            if life.away is not None and life.away.reporter == peer:
                life.away = None
                self._turn(other)
