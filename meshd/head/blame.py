"""Whose doing it was that one life of a model came to its end."""

from collections.abc import Collection, Iterable
from itertools import combinations

from meshd.base import log
from meshd.head.worker_backoff import WorkerBackoff
from meshd.identity.keys import PeerId
from meshd.peer.interface import PeerStatus

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

    def ended(self, peer: PeerId, why: str, others: Collection[PeerId] = ()) -> None:
        """Its lease is over, the first of this life, or its connection is. `others`: may have made it end.

        A mesh-server ends when a push fails, or when it cannot compute with a value that it has: any of them
        may be at fault, and nobody can tell who. They push to each other no more: what goes through the head
        is looked at there, so the next time it is certain.
        """
        if not others:
            self._of_now()[peer] = why
            return
        for one in (peer, *others):
            self.doubt(one, why)
        self._pairs += combinations((peer, *others), 2)

    def doubt(self, peer: PeerId, why: str) -> None:
        """It may have been this one."""
        self._in_doubt[peer] = why

    def given_up(self, peer: PeerId, why: str) -> None:
        """The head does not wait for it any more."""
        self._given_up[peer] = why

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
