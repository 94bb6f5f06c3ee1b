"""Which workers a head asks: those that may and are of use, and of the others no more than it needs."""

import asyncio
from collections.abc import Sequence

from meshd.identity import naming
from meshd.identity.membership import Role
from meshd.identity.record import WORKER_ROLE
from meshd.peer.interface import Mesh, PeerState, PeerStatus
from meshd.role.head.worker_backoff import WorkerBackoff

_WORKERS_NAMED = 8  # workers in a message


class Roster:
    """`least` workers are needed to begin. `only`: names or beginnings of ids, of which others are no use."""

    def __init__(self, mesh: Mesh, *, least: int, only: Sequence[str] = ()) -> None:
        self._mesh = mesh
        self._least = least
        self._only = tuple(only)
        self.backoff = WorkerBackoff()
        self.all_needed = False
        """The model cannot be run without those that are left out while there are enough others."""

    def connected(self) -> list[PeerStatus]:
        """All that lend devices, by name."""
        peers = [peer for peer in self._mesh.peers() if peer.role == WORKER_ROLE]
        return sorted(
            (peer for peer in peers if peer.state is PeerState.CONNECTED),
            key=lambda peer: (peer.name, peer.peer),
        )

    def wanted(self) -> list[PeerStatus]:
        """Those of `connected` that the user does not exclude by naming others."""
        return [peer for peer in self.connected() if self._is_meant(peer)]

    def workers(self) -> list[PeerStatus]:
        """Those that may be asked now; of unsteady ones only what is needed, the best first."""
        able = [peer for peer in self.connected() if self._exclusion_reason(peer) is None]
        unsteady = [peer for peer in able if self._unsteady(peer) is not None]
        missing = max(0, self._least - (len(able) - len(unsteady)))
        if self.all_needed:
            missing = len(unsteady)
        best = sorted(unsteady, key=lambda peer: self.backoff.ends(peer.peer))
        spared = {peer.peer for peer in best[missing:]}
        return [peer for peer in able if peer.peer not in spared]

    def used_all_the_same(self) -> list[str]:
        """Why those that are asked now would be left out, were there enough others."""
        return [why for peer in self.workers() if (why := self._unsteady(peer)) is not None]

    def left_out(self) -> list[str]:
        """For people: who is not asked now, and why."""
        asked = {peer.peer for peer in self.workers()}
        others = [peer for peer in self.connected() if peer.peer not in asked]
        reasons = [self._exclusion_reason(peer) or self._unsteady(peer) for peer in others]
        return [*self._unknown_names(), *(why for why in reasons if why is not None)]

    def spares(self) -> bool:
        """Whether somebody is left out who could be asked all the same."""
        able = sum(self._exclusion_reason(peer) is None for peer in self.connected())
        return len(self.workers()) < able

    def next_try(self) -> float | None:
        """When the first that is left out for good reason may be tried again, in loop time."""
        return self.backoff.next_try(self.connected(), asyncio.get_running_loop().time())

    def _exclusion_reason(self, peer: PeerStatus) -> str | None:
        member = self._mesh.member(peer.peer)
        if member is None or not member.may(Role.WORK):
            return f"{peer.name} cannot lend its devices (it lacks the role `work`)"
        if peer.paused:
            return f"{peer.name} is paused (`meshd resume` there ends that)"
        if not self._is_meant(peer):
            return f"{peer.name} is not named by `--workers`"
        return self.backoff.exclusion_reason(peer, asyncio.get_running_loop().time())

    def _is_meant(self, peer: PeerStatus) -> bool:
        names = {str(peer.peer): peer.name}
        return not self._only or any(naming.meant(text, names) for text in self._only)

    def _unknown_names(self) -> list[str]:
        """Of `only`: a misspelled name would be waited for without end."""
        workers = [peer for peer in self._mesh.peers() if peer.role == WORKER_ROLE]
        names = {str(peer.peer): peer.name for peer in workers}
        unknown = [text for text in self._only if not naming.meant(text, names)]
        known = ", ".join(sorted(f"`{name}`" for name in names.values() if name)[:_WORKERS_NAMED])
        known = f"known: {known}" if known else "none is known yet"
        return [f"no worker is called `{text}` ({known})" for text in unknown]

    def _unsteady(self, peer: PeerStatus) -> str | None:
        return self.backoff.unsteady(peer.peer, asyncio.get_running_loop().time())
