"""Whose doing it was that one life of a model came to its end."""

from collections.abc import Iterable

from meshd.base import log
from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus
from meshd.role.standing import Standings
from meshd.wire.lease import Lost

GIVEN_UP = "given_up"  # code of Lost, in the head's own words
LOG = log.get("serve")


class Blame:
    """Filled while the model lives; `tell` at the end."""

    def __init__(self) -> None:
        self.failed: dict[PeerId, str] = {}
        """Before the model was loaded."""
        self.loaded_at: float | None = None
        self._left: dict[PeerId, str] = {}
        self._given_up: dict[PeerId, str] = {}

    @property
    def anybody(self) -> bool:
        """A worker is to blame."""
        return bool(self.failed or self._left or self._given_up)

    def ended(self, peer: PeerId, lost: Lost) -> None:
        """Its lease is over, the first of this life."""
        if lost.code == GIVEN_UP:
            self.given_up(peer, lost.text)
        else:
            self._of_now()[peer] = lost.text

    def given_up(self, peer: PeerId, why: str) -> None:
        """The head does not wait for it any more."""
        self._given_up[peer] = why

    def broke(self, peer: PeerId, why: str, waited_for: PeerId | None) -> None:
        """Its connection has ended, and its lease has not.

        If it waited for a tensor of another worker, either may be at fault, and nobody can tell who.
        """
        self._of_now()[peer] = why
        if waited_for is not None:
            self._of_now()[waited_for] = why

    def _of_now(self) -> dict[PeerId, str]:
        return self.failed if self.loaded_at is None else self._left

    def tell(self, standings: Standings, workers: Iterable[PeerStatus], now: float) -> None:
        """What is remembered of it."""
        for worker in workers:
            peer = worker.peer
            if peer in self.failed:
                standings.failed(worker, self.failed[peer], now)
            if peer in self._given_up:
                standings.hung(worker, self._given_up[peer], now)
            elif peer in self._left and self.loaded_at is not None:
                standings.ended(worker, self._left[peer], now, lasted=now - self.loaded_at)
            else:
                continue
            if (why := standings.unsteady(peer, now)) is not None:
                LOG.warning("worker_unsteady", peer=peer.short, name=worker.name, why=why)
