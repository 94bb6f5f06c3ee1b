"""Who has called too often lately: members by their key, everybody who proves nothing by its address. Pure.

What a caller costs is paid before one knows who it is, or whether it stays: a key exchange, then signatures.
A member that comes and goes is turned away as soon as it names its key, and whoever is turned away, or proves
nothing, uses up its address: from there nothing is listened to for a moment. Only what is proven counts for a
key, and only who was reached at an address counts for it, so nobody uses up another one's.
"""

from meshd.base.doorstep import origin
from meshd.base.rates import Rates
from meshd.base.shares import CALLERS_KNOWN, CALLS, CALLS_FAILED
from meshd.identity.keys import PeerId

MOST_ADDRESSES = CALLERS_KNOWN.most
OFTEN = "this node's links have come and gone too often"


class Callers:
    """One for a node, whatever kinds of links it takes; `now` in loop seconds."""

    def __init__(self) -> None:
        self._members = Rates(CALLS)
        self._addresses = Rates(CALLS_FAILED, most=MOST_ADDRESSES)

    def hears(self, host: str, now: float) -> bool:
        """Is anything from that address listened to? Asked before it has cost anything."""
        return self._addresses.has(origin(host), now)

    def failed(self, host: str, now: float) -> None:
        """A connection from there has ended without a proof, or was turned away."""
        self._addresses.spend(origin(host), now)

    def why_not(self, peer: PeerId, now: float) -> str | None:
        """Of a caller that has named a key, and proven nothing yet."""
        return None if self._members.has(peer, now) else OFTEN

    def came(self, peer: PeerId, now: float) -> bool:
        """A member has proven that it is there. False: it has done so too often."""
        return self._members.spend(peer, now)
