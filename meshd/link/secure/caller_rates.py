"""Limits callers: members by their key, everybody who proves nothing by its address. Pure.

A caller costs a key exchange and signatures before this node knows who it is, or whether it stays. A member
that comes and goes is turned away as soon as it names its key, and a caller that is turned away, or proves
nothing, uses up its address: connections from there are ignored for a moment. Only proven callers count for a
key, and only those reached at an address count for it, so nobody uses up another one's.

Many may share an address (a NAT, an IPv6 /64, one machine). Where a member has proven itself in the last
hour, by the very address and not its /64, more is listened to than elsewhere; and for QUIC, whose callers
keep their UDP port, that port has a share of its own, which nobody else behind the same NAT can use up.
"""

from collections.abc import Iterator

from meshd.base.admission import Rates
from meshd.base.peer_limits import (
    CALLERS_KNOWN,
    CALLERS_PLACES,
    CALLERS_PLACES_OF_PEER,
    CALLS,
    CALLS_FAILED,
    CALLS_FAILED_KNOWN,
)
from meshd.base.unproven_connections import origin
from meshd.identity.keys import PeerId

MOST_ADDRESSES = CALLERS_KNOWN.most
KNOWN_SECONDS = 3600.0
OFTEN = "this node has connected and disconnected too often"

Place = tuple[str, int]  # port 0: any


class Callers:
    """The limits of one node, for all kinds of its links; `now` in loop seconds."""

    def __init__(self) -> None:
        self._members = Rates(CALLS)
        self._addresses = Rates(CALLS_FAILED, most=MOST_ADDRESSES)
        self._known = Rates(CALLS_FAILED_KNOWN, most=CALLERS_PLACES.most)
        self._places: dict[Place, tuple[PeerId, float]] = {}  # who was there last, and when; the latest last

    def hears(self, host: str, now: float, port: int = 0) -> bool:
        """Return True if that address is listened to; called before it has cost anything. `port`: of UDP."""
        if self._addresses.has(origin(host), now):
            return True
        return any(self._known.has(place, now) for place in self._known_places(host, port, now))

    def knows(self, host: str, now: float, port: int = 0) -> bool:
        """Return True if a member has proven itself there in the last hour. `port`: of UDP."""
        return any(True for _ in self._known_places(host, port, now))

    def failed(self, host: str, now: float, port: int = 0) -> None:
        """Count a connection from there that has ended without a proof, or was turned away."""
        if self._addresses.spend(origin(host), now):
            return
        for place in self._known_places(host, port, now):
            if self._known.spend(place, now):
                return

    def proven_at(self, peer: PeerId, host: str, now: float, port: int = 0) -> None:
        """Record that a member has proven to be there, or was until now."""
        for place in _places_of(host, port):
            self._places.pop(place, None)
            self._make_room(peer)
            self._places[place] = peer, now

    def refusal_reason(self, peer: PeerId, now: float) -> str | None:
        """Return why a caller that has named a key, and proven nothing yet, is refused; None if it is not."""
        return None if self._members.has(peer, now) else OFTEN

    def came(self, peer: PeerId, now: float) -> bool:
        """Count a member that has proven to be there. False: it has done so too often."""
        return self._members.spend(peer, now)

    def _known_places(self, host: str, port: int, now: float) -> Iterator[Place]:
        for place in _places_of(host, port):
            known = self._places.get(place)
            if known is not None and now - known[1] < KNOWN_SECONDS:
                yield place

    def _make_room(self, peer: PeerId) -> None:
        own = [place for place, (who, _) in self._places.items() if who == peer]
        if len(own) >= CALLERS_PLACES_OF_PEER.most:
            del self._places[own[0]]
        elif len(self._places) >= CALLERS_PLACES.most:
            del self._places[next(iter(self._places))]


def _places_of(host: str, port: int) -> list[Place]:
    """Return the places, the narrowest first."""
    return [(host, port), (host, 0)] if port else [(host, 0)]
