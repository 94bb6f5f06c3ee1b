"""The lease of a standby worker: without a process, for the weights that it holds ready."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshd.base import log
from meshd.base.byte_format import in_bytes
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.model.operations import operations
from meshd.peer.interface import PeerStatus
from meshd.role.head.ask_workers import acquire_for
from meshd.role.head.away_times import AwayTimes
from meshd.role.head.explain import RunFacts
from meshd.role.head.lease_client import LeaseClient, why_unfit
from meshd.role.head.load_report import WeightsReport
from meshd.role.head.mesh_end import MeshEnd
from meshd.role.head.missing_weights import lacking, needs_of
from meshd.role.head.model_run import HeadRun
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.run_input import ServedModel
from meshd.role.head.split_plan import SLACK_BYTES, NodeOffer, path_to, shape_of
from meshd.role.head.standby_part import PartChoice, StandbyPart
from meshd.role.head.survey import Surveyor
from meshd.role.interface import RoleRuntime
from meshd.wire.lease import Acquire, WorkerOffer
from meshd.wire.needs import CONTENT_BYTES

LOG = log.get("serve")


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
