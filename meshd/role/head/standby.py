"""Standby workers: they hold weights ready while others compute, so that the load after a loss reads nothing.

Each has a lease without a process, for which it takes the weights that it lacks from members, this head among
them, and reads all of them. Which worker takes whose place is decided when one is lost (worker_choice.py).
"""

import asyncio
from collections.abc import Sequence

from meshd.base import log
from meshd.base.backoff import Backoff
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.model.status import StandbyStatus
from meshd.peer.interface import PeerStatus
from meshd.role.head.model_run import HeadRun
from meshd.role.head.run_input import ServedModel
from meshd.role.head.standby_lease import HeldReady, StandbyLease
from meshd.role.head.survey import Surveyor
from meshd.role.head.worker_choice import Roster
from meshd.role.interface import RoleRuntime

_LOOK_SECONDS = 1.0
_AGAIN = Backoff(first=10.0, factor=2.0, most=300.0)
LOG = log.get("serve")


class StandbyWorkers:
    """Of one head: those that the user has named, in the order in which they take the place of others."""

    def __init__(
        self, runtime: RoleRuntime, named: Sequence[str], roster: Roster, surveyor: Surveyor | None
    ) -> None:
        self._runtime = runtime
        self._named = tuple(named)
        self._roster = roster
        self._surveyor = surveyor
        self._held: dict[PeerId, HeldReady] = {}

    def statuses(self, used: Sequence[PeerId]) -> tuple[StandbyStatus, ...]:
        """Of all that are named; `used`: those on which the model runs."""
        return tuple(self._status(text, used) for text in self._named)

    def _status(self, text: str, used: Sequence[PeerId]) -> StandbyStatus:
        peers = self._runtime.mesh.peers()
        peer = next((one for one in peers if naming.meant(text, {str(one.peer): one.name})), None)
        if peer is None:
            return StandbyStatus(text, False, 0, 0, "no worker of this name is known")
        if all(peer.peer != one.peer for one in self._roster.connected()):
            return StandbyStatus(peer.name, False, 0, 0, "it is not connected")
        if (held := self._held.get(peer.peer)) is not None:
            return StandbyStatus(peer.name, held.ready, held.held, held.wanted, held.why)
        why = self._roster.exclusion_reason(peer) or "it is asked when the model is ready"
        if peer.peer in used:
            why = "it takes the place of another worker"
        return StandbyStatus(peer.name, False, 0, 0, why)

    async def beside(self, run: HeadRun, model: ServedModel, workers: Sequence[PeerStatus]) -> str:
        """One life of the model, with these beside it once it is loaded; returns why it ended.

        Raises MeshdError.
        """
        if not self._named:
            return await run.run(workers)
        try:
            async with Owner() as owner:
                owner.start(self._hold_all(run, model, owner), name="standby workers")
                why = await run.run(workers)
                owner.cancel()
            return why
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            self._held.clear()

    async def _hold_all(self, run: HeadRun, model: ServedModel, owner: Owner) -> None:
        """Each as long as it may be asked."""
        holding: dict[PeerId, asyncio.Task[None]] = {}
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            there = {peer.peer: peer for peer in self._roster.standby()} if run.loaded else {}
            for gone in holding.keys() - there.keys():
                holding.pop(gone).cancel()
                del self._held[gone]
            for peer in there.keys() - holding.keys() - set(run.workers):
                lease = StandbyLease(self._runtime, model, run, there[peer], self._surveyor)
                self._held[peer] = lease.state
                work = self._hold(lease, there[peer])
                holding[peer] = owner.start_for(peer.short, work, name="standby worker")

    async def _hold(self, lease: StandbyLease, peer: PeerStatus) -> None:
        tries = 0
        while True:
            try:
                await lease.hold()
            except (MeshdError, OSError) as error:
                lease.state.why = error.what if isinstance(error, MeshdError) else str(error)
            finally:
                lease.state.ready = False
            LOG.warning("standby_not_ready", name=peer.name, why=lease.state.why)
            await asyncio.sleep(_AGAIN.delay(tries, 0.0))
            tries += 1
