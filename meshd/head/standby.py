"""Standby workers: they hold weights ready while others compute, so that the load after a loss reads nothing.

Each has a lease without a process, for which it takes the weights that it lacks from members, this head among
them, and reads all of them. Which worker takes whose place is decided when one is lost (worker_choice.py).
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from meshd.base import log
from meshd.base.backoff import Backoff
from meshd.base.byte_format import in_bytes
from meshd.base.errors import MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.devices.interface import RoleRuntime
from meshd.head.ask_workers import acquire_for
from meshd.head.away_times import AwayTimes
from meshd.head.explain import RunFacts
from meshd.head.lease_client import LeaseClient, why_unfit
from meshd.head.load_report import WeightsReport
from meshd.head.mesh_end import MeshEnd
from meshd.head.missing_weights import lacking, needs_of
from meshd.head.model_run import HeadRun
from meshd.head.run_input import ServedModel
from meshd.head.standby_part import PartChoice, StandbyPart
from meshd.head.survey import Surveyor, path_to
from meshd.head.worker_choice import Roster
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.model.operations import operations
from meshd.model.status import StandbyStatus
from meshd.peer.interface import PeerStatus
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.over_offers import SLACK_BYTES
from meshd.plan.wishes import shape_of
from meshd.wire.lease import Acquire, WorkerOffer
from meshd.wire.needs import CONTENT_BYTES

LOG = log.get("serve")


_LOOK_SECONDS = 1.0
_AGAIN = Backoff(first=10.0, factor=2.0, most=300.0)


@dataclass(slots=True)
class HeldReady:
    """What a standby worker holds of what it was asked for, in bytes; `why` as in StandbyStatus."""

    ready: bool = False
    held: int = 0
    wanted: int = 0
    why: str = "it is asked"


class StandbyLease:
    """Of one worker beside one life of the model, which is loaded; what becomes of it is told in `state`."""

    def __init__(
        self,
        runtime: RoleRuntime,
        model: ServedModel,
        run: HeadRun,
        peer: PeerStatus,
        surveyor: Surveyor | None,
    ) -> None:
        facts = run.measures.facts
        assert facts is not None
        self._runtime = runtime
        self._model = model
        self._run = run
        self._facts: RunFacts = facts
        self._peer = peer
        self._surveyor = surveyor
        self._content = b""
        self._may_hold_all = True
        self._names = self._labels()
        self._name = self._names[peer.peer]
        self.state = HeldReady()

    async def hold(self) -> None:
        """Ask, and hold the lease until it is lost or of no use. Raises MeshdError."""
        if (unfit := why_unfit(self._runtime.native.version, self._peer)) is not None:
            raise unfit
        machines = await self._machines()
        while True:
            lease = self._lease()
            try:
                offer = await lease.ask(self._acquire())
                mine = NodeOffer(self._name, offer, path_to(self._peer.paths))
                part = await self._part(mine, machines)
                if self._content or not lacking(self._model.index, part.numbers, offer.lacks):
                    return await self._hold_part(lease, offer, part)
            finally:
                lease.release()
            # an offer stands for a minute, which may not be enough
            file, members = self._model.file, self._runtime.from_members
            self._content = file.header_of or await members.content_of(file, self._progress)

    async def _part(self, mine: NodeOffer, machines: Machines) -> StandbyPart:
        choice = PartChoice(self._facts, self._model.index, mine, machines, whole=self._may_hold_all)
        for lost in choice.losses:
            await asyncio.to_thread(choice.add, lost)  # answers are under way, and this compares splits
        return choice.part

    async def _hold_part(self, lease: LeaseClient, offer: WorkerOffer, part: StandbyPart) -> None:
        state = self.state
        state.held, state.wanted, state.why = 0, part.size, part.why
        if not part.numbers:
            return
        needs = needs_of(self._model.index, part.numbers, self._content or bytes(CONTENT_BYTES))
        found = await lease.fetch(_reserved(offer, part.size), needs, hold=True)
        state.held, state.ready = found.held, found.held >= part.size
        missing = in_bytes(part.size - found.held)
        state.why = part.why if state.ready else f"it lacks {missing}: {found.text}"
        self._may_hold_all = state.ready  # what it keeps on its disk may have a smaller limit
        LOG.info("standby_held", name=self._name, bytes=found.held, why=state.why)
        if state.ready:
            lost = await lease.until_lost()
            state.ready, state.why = False, lost.text

    def _progress(self, text: str) -> None:
        self.state.why = text.removeprefix(f"{self._name}: ")

    def _labels(self) -> Mapping[PeerId, str]:
        """As plans have them: no two nodes are called the same."""
        nodes = {self._peer.peer, *self._run.workers}
        names = {str(one.peer): one.name for one in self._runtime.mesh.peers() if one.peer in nodes}
        options = self._facts.options
        called = naming.labels({options.node_id: options.node_name} | names, self._model.plain_endpoints)
        return {peer: called[str(peer)] for peer in nodes if str(peer) in called}

    def _lease(self) -> LeaseClient:
        # there will be no connection with our llama-server, so this end is never opened
        report, away = WeightsReport({}), AwayTimes(asyncio.get_running_loop().time)
        end = MeshEnd(self._runtime.processes.socket_pair, weights={}, report=report, away=away)
        return LeaseClient(
            self._runtime.mesh,
            self._runtime.tunnels,
            peer=self._peer.peer,
            name=self._name,
            on_progress=self._progress,
            mesh_end=end,
        )

    def _acquire(self) -> Acquire:
        model, version = self._model, self._runtime.native.version
        tried = operations(model.file.headers, shape_of(model.layers, model.options))
        return acquire_for(model.alias, model.index, version, model.options.incarnation, tried)

    async def _machines(self) -> Machines:
        """Those of the plan in use, and how fast this worker is: it is measured now, not at the next load."""
        facts = self._facts
        if self._surveyor is None or not facts.options.picks_by_speed:
            return facts.machines
        me, own = facts.options.node_name, facts.machines.own
        found = await self._surveyor.speeds_of(
            self._names, own, facts.work.texts, me, self._progress, recent=True
        )
        speeds, paths = facts.machines.speeds, facts.machines.paths
        return replace(facts.machines, speeds={**speeds, **found.speeds}, paths={**paths, **found.paths})


def _reserved(offer: WorkerOffer, size: int) -> tuple[int, ...]:
    """Of the memory of its devices, in their order: what the weights take, and some more."""
    counts, left = [], size + SLACK_BYTES
    for device in offer.devices:
        counts.append(min(left, device.free_bytes))
        left -= counts[-1]
    return tuple(counts)


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
