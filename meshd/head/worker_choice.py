"""Choice of the workers that a head asks: those that are of use, and of the others no more than it needs.

Standby workers are asked when others that the model ran on are not, as many as those: they are lost, paused
or left out.
"""

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from meshd.head.failures import WorkerBackoff
from meshd.head.split_ways import SplitWays
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.identity.membership import Role
from meshd.identity.naming import WORKER_ROLE
from meshd.peer.interface import Mesh, PeerState, PeerStatus
from meshd.plan.wishes import HeadOptions, named_by

_WORKERS_NAMED = 8  # workers in a message
FOR_LOSSES = "it only takes the place of a lost worker (`--standby`)"


@dataclass(frozen=True, slots=True)
class WorkerCandidate:
    """Describe a connected worker, as a plan sees it.

    `excluded`: why it may not be asked at all; `spared`: why it is asked only where the model cannot be run
    without it. Both empty: it would be asked now.
    """

    peer: PeerStatus
    excluded: str = ""
    spared: str = ""


class Roster:
    """Choose among the workers of the mesh for a head with these options.

    `options.workers`, and `standby` for losses, are names or beginnings of ids.
    """

    def __init__(self, mesh: Mesh, options: HeadOptions, standby: Sequence[str] | None = None) -> None:
        """Choose nobody yet. `standby`: of the options if None."""
        self._mesh = mesh
        self._least = options.least_workers
        self._demanded_by = options.workers_demanded_by
        self._only = options.workers
        self._named_by = named_by(options)
        self._standby = options.standby if standby is None else tuple(standby)
        self._ran_on: frozenset[PeerId] = frozenset()  # but for standby workers
        self.backoff = WorkerBackoff()
        self.all_needed = False
        """The model cannot be run without those that are left out while there are enough others."""

    def connected(self) -> list[PeerStatus]:
        """Return all that lend devices, by name."""
        peers = [peer for peer in self._mesh.peers() if peer.role == WORKER_ROLE]
        return sorted(
            (peer for peer in peers if peer.state is PeerState.CONNECTED),
            key=lambda peer: (peer.name, peer.peer),
        )

    def wanted(self) -> list[PeerStatus]:
        """Return those of `connected` that the user does not exclude, by naming others or for losses."""
        return [peer for peer in self.connected() if self._is_meant(peer) and not self.is_standby(peer)]

    def standby(self) -> list[PeerStatus]:
        """Return those for losses that could be asked, as the user has put them."""
        able = [peer for peer in self._able() if self.is_standby(peer)]
        return sorted(able, key=lambda peer: [not _is_named(peer, text) for text in self._standby])

    def is_standby(self, peer: PeerStatus) -> bool:
        """Return True if it only takes the place of others."""
        return _is_any_named(peer, self._standby)

    def ran_on(self, workers: Collection[PeerId]) -> None:
        """Note that the model is ready on these: standby workers are for the loss of one of them."""
        standby = {peer.peer for peer in self._mesh.peers() if self.is_standby(peer)}
        regular = frozenset(workers) - standby
        # with a standby worker it is the place of another one that is taken: that one is still missed
        self._ran_on = self._ran_on | regular if standby.intersection(workers) else regular

    def why_too_few(self) -> str:
        """Say how many of the needed workers can be asked now, and why the others cannot."""
        ready = f"{len(self.workers())} of {self._least} ready"
        count = f"waiting for workers: {ready}, as demanded by {self._demanded_by}"
        return "; ".join([count, *self.left_out(), *self._absent()])

    def _absent(self) -> list[str]:
        """Say who would do, and is not connected."""
        workers = [peer for peer in self._mesh.peers() if peer.role == WORKER_ROLE]
        away = [peer for peer in workers if peer.state is not PeerState.CONNECTED]
        meant = {peer.name for peer in away if not self._only or _is_any_named(peer, self._only)}
        by = f", named by `{self._named_by}`," if self._only else ""
        return [f"{name}{by} is not connected" for name in sorted(meant)[:_WORKERS_NAMED]]

    def why_waiting(self, why: str) -> str:
        """Say whom the model waits for, and `why` it cannot be loaded without them."""
        missed = self._ran_on.difference(peer.peer for peer in self._able())
        names = ", ".join(sorted(peer.name for peer in self._mesh.peers() if peer.peer in missed))
        waits = f"waiting for {names} to come back" if names else "waiting for workers or memory"
        if not names and not self.connected():
            waits = "waiting for a worker (run `meshd worker --join INVITE` on another machine)"
        return "; ".join([f"{waits}: {why}", *self.left_out()])

    def workers(self) -> list[PeerStatus]:
        """Return those that may be asked now; of unsteady ones only what is needed, the best first."""
        able = [peer for peer in self._able() if not self.is_standby(peer)]
        missed = self._ran_on.difference(peer.peer for peer in able if self._unsteady(peer) is None)
        able += self.standby()[: None if self.all_needed else len(missed)]
        unsteady = [peer for peer in able if self._unsteady(peer) is not None]
        missing = max(0, self._least - (len(able) - len(unsteady)))
        if self.all_needed:
            missing = len(unsteady)
        best = sorted(unsteady, key=lambda peer: self.backoff.ends(peer.peer))
        spared = {peer.peer for peer in best[missing:]}
        return [peer for peer in able if peer.peer not in spared]

    def candidates(self) -> list[WorkerCandidate]:
        """Return all that are connected, by name."""
        asked = {peer.peer for peer in self.workers()}

        def seen(peer: PeerStatus) -> WorkerCandidate:
            if (why := self.exclusion_reason(peer)) is not None:
                return WorkerCandidate(peer, excluded=why)
            if peer.peer in asked:
                return WorkerCandidate(peer)
            unsteady = None if self.is_standby(peer) else self._unsteady(peer)
            return WorkerCandidate(peer, spared=unsteady or FOR_LOSSES)

        return [seen(peer) for peer in self.connected()]

    def naming(self, options: HeadOptions) -> "Roster":
        """Return a roster that uses the workers of these options instead, and knows as much of them.

        One that they name is for more than losses then, and one that they do not name is no loss.
        """
        named = [peer for peer in self._mesh.peers() if _is_any_named(peer, options.workers)]
        standby = [text for text in self._standby if not any(_is_named(peer, text) for peer in named)]
        found = Roster(self._mesh, options, standby)
        found.backoff, found._ran_on = self.backoff, self._ran_on
        if options.workers:
            found._ran_on = self._ran_on.intersection(peer.peer for peer in named)
        return found

    def used_all_the_same(self) -> list[str]:
        """Say why those that are asked now would be left out, were there enough others."""
        return [why for peer in self.workers() if (why := self._unsteady(peer)) is not None]

    def left_out(self) -> list[str]:
        """Say who is not asked now, and why; first of all, that this node is banned."""
        peers = (peer for peer in self._mesh.peers() if peer.says_banned)
        banned = [f"this node is banned, according to `{peer.name}`: {peer.says_banned}" for peer in peers]
        asked = {peer.peer for peer in self.workers()}
        others = [peer for peer in self.connected() if peer.peer not in asked]
        others = [peer for peer in others if not self.is_standby(peer)]  # status shows them
        reasons = [self.exclusion_reason(peer) or self._unsteady(peer) for peer in others]
        return [*banned[:1], *self.unknown_names(), *(why for why in reasons if why is not None)]

    def spares(self) -> bool:
        """Return True if somebody is left out who could be asked all the same."""
        return len(self.workers()) < len(self._able())

    async def until_changed(self, seconds: float) -> None:
        """Wait for a change of workers, or some seconds: free memory comes back without a word to anybody."""
        before = {peer.peer for peer in self.workers()}
        seen = -1
        try:
            async with asyncio.timeout(seconds):
                while {peer.peer for peer in self.workers()} == before:
                    seen = await self._mesh.changed(seen)
        except TimeoutError:
            return

    async def until_all_are_there(self, seconds: float, *, least: int = 0) -> None:
        """Wait until all known workers are connected, at least so many, or for so many seconds.

        Not for those whose process has ended, nor when standby workers have the places of lost ones.
        """
        seen = -1
        if any(map(self.is_standby, self.workers())):
            return
        try:
            async with asyncio.timeout(seconds):
                while len(self.workers()) < least or any(
                    peer.role == WORKER_ROLE and peer.state is not PeerState.CONNECTED and not peer.gone
                    for peer in self._mesh.peers()
                ):
                    seen = await self._mesh.changed(seen)
        except TimeoutError:
            return

    def next_try(self) -> float | None:
        """Return when the first that is left out for good reason may be tried again, in loop time."""
        return self.backoff.next_try(self.connected(), asyncio.get_running_loop().time())

    def _able(self) -> list[PeerStatus]:
        return [peer for peer in self.connected() if self.exclusion_reason(peer) is None]

    def exclusion_reason(self, peer: PeerStatus) -> str | None:
        """Return why it may not be asked at all; None if it may."""
        if not self._may_lend(peer):
            return f"{peer.name} cannot lend its devices (it lacks the role `work`)"
        if peer.fetching:
            return f"{peer.name} is fetching a model"
        if peer.paused:
            return f"{peer.name} is paused (`meshd resume` there ends that)"
        if not self._is_meant(peer):
            if _is_any_named(peer, self._only):
                fits = f"`{self._named_by}` fits several nodes"
                return f"{fits}: for this {peer.name} give its id, `{peer.peer.short}`"
            return f"{peer.name} is not named by `{self._named_by}`"
        return self.backoff.exclusion_reason(peer, asyncio.get_running_loop().time())

    def _is_meant(self, peer: PeerStatus) -> bool:
        if not self._only or self.is_standby(peer):
            return True
        fitting = (self._fitting(text) for text in self._only if _is_named(peer, text))
        return any(all(other.peer == peer.peer for other in found) for found in fitting)

    def _fitting(self, text: str) -> list[PeerStatus]:
        """Return the connected workers that it may mean; as for `meshd ping`, none of several.

        A member that may not lend does not count: it may call itself what it likes.
        """
        return [peer for peer in self.connected() if _is_named(peer, text) and self._may_lend(peer)]

    def _may_lend(self, peer: PeerStatus) -> bool:
        member = self._mesh.member(peer.peer)
        return member is not None and member.may(Role.WORK)

    def unknown_names(self) -> list[str]:
        """Say which names are unknown: one would be waited for without end, or hold nothing ready."""
        workers = [peer for peer in self._mesh.peers() if peer.role == WORKER_ROLE]
        names = {str(peer.peer): peer.name for peer in workers}
        unknown = [text for text in (*self._only, *self._standby) if not naming.meant(text, names)]
        known = ", ".join(sorted(f"`{name}`" for name in names.values() if name)[:_WORKERS_NAMED])
        known = f"known: {known}" if known else "none is known yet"
        return [f"no worker is called `{text}` ({known})" for text in unknown]

    def _unsteady(self, peer: PeerStatus) -> str | None:
        return self.backoff.unsteady(peer.peer, asyncio.get_running_loop().time())


@dataclass(frozen=True, slots=True)
class ServedAs:
    """Tell how a model is served: what the user decided, whom the head asks, and how its runs were split."""

    options: HeadOptions
    roster: Roster
    ways: SplitWays = field(default_factory=SplitWays)


def _is_named(peer: PeerStatus, text: str) -> bool:
    return bool(naming.meant(text, {str(peer.peer): peer.name}))


def _is_any_named(peer: PeerStatus, texts: Sequence[str]) -> bool:
    return any(_is_named(peer, text) for text in texts)
