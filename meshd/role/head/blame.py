"""Whose doing it was that one life of a model came to its end."""

from collections.abc import Collection, Iterable

from meshd.base import log
from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus
from meshd.role.head.worker_backoff import WorkerBackoff
from meshd.wire.lease import Lost

LOG = log.get("serve")


class Blame:
    """Filled while the model lives; `tell` at the end."""

    def __init__(self) -> None:
        self.failed: dict[PeerId, str] = {}
        """Before the model was loaded."""
        self.loaded_at: float | None = None
        self._left: dict[PeerId, str] = {}
        self._given_up: dict[PeerId, str] = {}
        self._in_doubt: dict[PeerId, str] = {}
        self._pairs: list[tuple[PeerId, PeerId]] = []

    @property
    def anybody(self) -> bool:
        """A worker is to blame."""
        return bool(self.failed or self._left or self._given_up or self._in_doubt)

    def ended(self, peer: PeerId, lost: Lost) -> None:
        """Its lease is over, the first of this life."""
        self._of_now()[peer] = lost.text

    def given_up(self, peer: PeerId, why: str) -> None:
        """The head does not wait for it any more."""
        self._given_up[peer] = why

    def broke(self, peer: PeerId, why: str, others: Collection[PeerId]) -> None:
        """Its connection has ended, and its lease has not. `others`: push to it, or take from it.

        A mesh-server ends its connection with the head when a push fails, so any of them may be at fault, and
        nobody can tell who. They push to each other no more: the next time it is certain.
        """
        if not others:
            self._of_now()[peer] = why
        for one in (peer, *others) if others else ():
            self._in_doubt[one] = why
        self._pairs += [(peer, other) for other in others]

    def _of_now(self) -> dict[PeerId, str]:
        return self.failed if self.loaded_at is None else self._left

    def tell(self, backoff: WorkerBackoff, workers: Iterable[PeerStatus], now: float) -> None:
        """What is remembered of it."""
        for one, other in self._pairs:
            backoff.part(one, other)
        lasted = now - self.loaded_at if self.loaded_at is not None else 0.0
        for worker in workers:
            peer = worker.peer
            if peer in self.failed:
                backoff.failed(worker, self.failed[peer], now)
            if peer in self._given_up:
                backoff.hung(worker, self._given_up[peer], now)
            elif peer in self._left:
                backoff.ended(worker, self._left[peer], now, lasted=lasted)
            elif peer in self._in_doubt:
                backoff.ended(worker, self._in_doubt[peer], now, lasted=lasted, in_doubt=True)
            else:
                continue
            if (why := backoff.unsteady(peer, now)) is not None:
                LOG.warning("worker_unsteady", peer=peer.short, name=worker.name, why=why)
