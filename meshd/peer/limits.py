"""Limit what peers make this node do: dials to addresses that only they name, failures of their work. Pure.

An inviter can make up any number of peers, and name any host for them: one outside the mesh, which would get
many dials, or the host of a real peer, which would then no longer be dialled. So dials to one host are
counted for each issuer, and for all issuers together at twice that rate: one issuer alone leaves half of a
host to the others. Beyond that, each peer has a small reserve for hosts where a link to it was proven, and an
inviter of this node has a reserve for any host. Made-up peers have none.

A few unexpected failures are tolerated. A peer that continues to cause them gets no links for a while:
whether on purpose or not, this node cannot work with it. Broken rules end a link and are only counted. Both
are shown to users for an hour.
"""

from collections import Counter
from dataclasses import dataclass, field

from meshd.base.admission import Rates, TokenBucket
from meshd.base.errors import Refused
from meshd.base.hosts import is_loopback
from meshd.base.peer_limits import (
    DIALLED_KNOWN,
    DIALS,
    DIALS_OF_ISSUER,
    DIALS_RESERVED,
    DIALS_TO_HOST,
    DIALS_TO_HOST_OF_ISSUER,
    FAULTS,
    FAULTS_KNOWN,
    PROVEN_HOSTS,
    PROVEN_PEERS,
    RETRIES,
)
from meshd.base.unproven_connections import origin
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter
from meshd.link.interface import RELAYED, LinkInfo
from meshd.wire.address import Candidate

Issuer = Admitter | PeerId  # a peer without a record counts as its own issuer
REFUSED_SECONDS = 60.0
TOLD_MINUTES = 60  # failures that are older are not shown
_MAX_WORDS = 200


class DialRates:
    """The dial rates of a node: a peer that leaves and returns keeps its rates. `now` in loop seconds."""

    def __init__(self) -> None:
        most = DIALLED_KNOWN.most
        self._of_peer = Rates(DIALS, most=most)
        self._of_issuer = Rates(DIALS_OF_ISSUER, most=most)
        self._to_host_of_issuer = Rates(DIALS_TO_HOST_OF_ISSUER, most=most)
        self._to_host = Rates(DIALS_TO_HOST, most=most)
        self._reserved = Rates(DIALS_RESERVED, most=most)
        self._proven: dict[PeerId, tuple[Issuer, list[str]]] = {}  # hosts by peer, both with the latest last
        self.retries = Rates(RETRIES, most=most)

    def link_made(self, link: LinkInfo) -> None:
        """Remember the host of a link whose peer has proven its key, whichever side dialled."""
        host, peer = link.remote.rpartition(":")[0].strip("[]"), link.peer
        if link.path == RELAYED or is_loopback(host):  # the address of a relay, or an address of many peers
            return
        _, hosts = self._proven.pop(peer, (None, []))
        if len(self._proven) >= PROVEN_PEERS.most:
            self._forget_one()
        host = _machine(host)
        kept = [*(other for other in hosts if other != host), host][-PROVEN_HOSTS.most :]
        self._proven[peer] = link.member.chain.admitter, kept

    def may_dial(
        self,
        peer: PeerId,
        admitter: Admitter | None,
        place: Candidate,
        now: float,
        *,
        invited_us: bool = False,
    ) -> bool:
        """Spend one dial of `place`, which only `peer` names, or return False and spend nothing."""
        if not self._of_peer.has(peer, now):
            return False
        # The shares of the issuer and the host come first.
        issuer: Issuer = admitter or peer
        host = place.place if is_loopback(place.host) else _machine(place.host)
        shares = (
            (self._of_issuer, issuer),
            (self._to_host_of_issuer, (issuer, host)),
            (self._to_host, host),
        )
        # If one of them is used up, the peer's reserve may remain.
        if all(rates.has(key, now) for rates, key in shares):
            for rates, key in shares:
                rates.spend(key, now)
        elif not (
            (invited_us or host in self._proven.get(peer, (None, ()))[1]) and self._reserved.spend(peer, now)
        ):
            return False
        return self._of_peer.spend(peer, now)

    def _forget_one(self) -> None:
        """Forget the least recently linked peer of the issuer that has the most."""
        counts = Counter(issuer for issuer, _ in self._proven.values())
        largest = max(counts, key=counts.__getitem__)
        del self._proven[next(peer for peer, (issuer, _) in self._proven.items() if issuer == largest)]


def _machine(host: str) -> str:
    """Return what counts as one host: an IPv4 address, an IPv6 /64, a link-local address with its zone."""
    return host if "%" in host else origin(host)  # the link-local /64 belongs to every machine on that link


@dataclass(slots=True)
class _Record:
    """Faults per minute, oldest first."""

    minutes: dict[int, int] = field(default_factory=dict)
    what: str = ""

    def add(self, now: float, what: str) -> None:
        minute = int(now // 60)
        self.minutes[minute] = self.minutes.get(minute, 0) + 1
        self.what = what[:_MAX_WORDS]
        self.drop_old(now)

    def drop_old(self, now: float) -> None:
        while self.minutes and next(iter(self.minutes)) <= now // 60 - TOLD_MINUTES:
            del self.minutes[next(iter(self.minutes))]


class Faults:
    """The faults of peers. `now` in loop seconds."""

    def __init__(self) -> None:
        self._buckets: dict[PeerId, TokenBucket] = {}
        self._until: dict[PeerId, float] = {}
        self._records: dict[PeerId, _Record] = {}

    def blame(self, peer: PeerId, now: float, what: str) -> None:
        """Count one more unexpected failure of the peer's work."""
        bucket = self._buckets.pop(peer, None) or FAULTS.bucket(now)
        self._buckets[peer] = bucket
        if not bucket.spend(1, now):
            self._until.pop(peer, None)
            self._until[peer] = now + REFUSED_SECONDS
        for kept in (self._buckets, self._until):
            if len(kept) > FAULTS_KNOWN.most:
                del kept[next(iter(kept))]
        self.broke(peer, now, what)

    def broke(self, peer: PeerId, now: float, what: str) -> None:
        """Count one more violation of the protocol."""
        record = self._records.pop(peer, None) or _Record()
        self._records[peer] = record
        if len(self._records) > FAULTS_KNOWN.most:
            del self._records[next(iter(self._records))]
        record.add(now, what)

    def refusal(self, peer: PeerId, now: float) -> Refused | None:
        """Return why the peer's links are refused now, or None."""
        if now >= self._until.get(peer, now):
            return None
        return Refused(
            "too much work for this node failed on the other one",
            code="faults",
            hint="read the log of the other node (`meshd logs`); it accepts links again after one minute",
        )

    def recent(self, peer: PeerId, now: float) -> tuple[int, str]:
        """Return the number of faults in the last hour, and the last one's text."""
        record = self._records.get(peer)
        if record is None:
            return 0, ""
        record.drop_old(now)
        count = sum(record.minutes.values())
        return count, record.what if count else ""
