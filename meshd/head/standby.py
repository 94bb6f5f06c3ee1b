"""Standby workers: they hold weights ready while others compute, so that the load after a loss reads nothing.

Each has a lease without a process, for which it takes the weights that it lacks from members, this head among
them, and reads all of them. Which worker takes whose place is decided when one is lost (worker_choice.py).
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshd.base import log
from meshd.base.backoff import Backoff
from meshd.base.errors import MeshdError, Refused, UserError
from meshd.base.tasks import Owner, first_error
from meshd.base.units import in_bytes
from meshd.devices.interface import RoleRuntime
from meshd.head.lease import Lease, MeshEnd, WeightsReport, why_unfit
from meshd.head.leases import acquire_for
from meshd.head.measures import AwayTimes, RunFacts
from meshd.head.run import Run
from meshd.head.served_files import ServedModel, lacking, needs_of
from meshd.head.survey import Surveyor, path_to
from meshd.head.worker_choice import Roster
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.model.layer_work import operations
from meshd.model.status import StandbyStatus
from meshd.model.weights_index import WeightsIndex
from meshd.peer.interface import PeerStatus
from meshd.plan.auto_way import AutoWay
from meshd.plan.choose_split import plan_model
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.over_offers import SLACK_BYTES
from meshd.plan.split import placed_tensors
from meshd.plan.wishes import shape_of
from meshd.wire.lease import CONTENT_BYTES, Acquire, WorkerOffer
from meshd.wire.limits import MAX_ASKED_TENSORS

LOG = log.get("serve")
FOR_ANY = "for the loss of any worker"
_LOOK_SECONDS = 1.0
_AGAIN = Backoff(first=10.0, factor=2.0, most=300.0)


@dataclass(slots=True)
class HeldReady:
    """Tell what a standby worker holds of what it was asked for, in bytes; `why` as in StandbyStatus."""

    ready: bool = False
    held: int = 0
    wanted: int = 0
    why: str = "it is asked"


@dataclass(frozen=True, slots=True)
class StandbyPart:
    """Name the weights that a worker holds: `numbers` of tensors in the index; `why`: for which losses."""

    numbers: tuple[int, ...]
    size: int
    why: str


class StandbyLease:
    """Hold one worker ready beside a loaded run; what becomes of it is told in `state`."""

    def __init__(
        self,
        runtime: RoleRuntime,
        model: ServedModel,
        run: Run,
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
                # in a thread: it compares splits, and answers are under way
                part = await asyncio.to_thread(
                    part_of, self._facts, self._model.index, mine, machines, whole=self._may_hold_all
                )
                if self._content or not lacking(self._model.index, part.numbers, offer.lacks):
                    return await self._hold_part(lease, offer, part)
            finally:
                lease.release()
            # an offer stands for a minute, which may not be enough
            file, members = self._model.file, self._runtime.from_members
            self._content = file.header_of or await members.content_of(file, self._progress)

    async def _hold_part(self, lease: Lease, offer: WorkerOffer, part: StandbyPart) -> None:
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
        """Name the nodes as plans do: no two are called the same."""
        nodes = {self._peer.peer, *self._run.workers}
        names = {str(peer.peer): peer.name for peer in self._runtime.mesh.peers() if peer.peer in nodes}
        options = self._facts.options
        called = naming.labels({options.node_id: options.node_name} | names, self._model.plain_endpoints)
        return {peer: called[str(peer)] for peer in nodes if str(peer) in called}

    def _lease(self) -> Lease:
        # there will be no connection with our llama-server, so this end is never opened
        report, away = WeightsReport({}), AwayTimes(asyncio.get_running_loop().time)
        end = MeshEnd(self._runtime.processes.socket_pair, weights={}, report=report, away=away)
        return Lease(
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
        return acquire_for(model, version, tried)

    async def _machines(self) -> Machines:
        """Return the plan's machines, and how fast this worker is: it is measured now, not at a load."""
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
    """Reserve on its devices, in their order, what the weights take, and some more."""
    counts, left = [], size + SLACK_BYTES
    for device in offer.devices:
        counts.append(min(left, device.free_bytes))
        left -= counts[-1]
    return tuple(counts)


class StandbyWorkers:
    """Hold the workers ready that the user has named, in the order in which they take the place of others."""

    def __init__(
        self, runtime: RoleRuntime, named: Sequence[str], roster: Roster, surveyor: Surveyor | None
    ) -> None:
        self._runtime = runtime
        self._named = tuple(named)
        self._roster = roster
        self._surveyor = surveyor
        self._held: dict[PeerId, HeldReady] = {}

    def statuses(self, used: Sequence[PeerId]) -> tuple[StandbyStatus, ...]:
        """Return the status of all that are named; `used`: those on which the model runs."""
        return tuple(self._status(text, used) for text in self._named)

    def _status(self, text: str, used: Sequence[PeerId]) -> StandbyStatus:
        peers = self._runtime.mesh.peers()
        peer = next(
            (candidate for candidate in peers if naming.meant(text, {str(candidate.peer): candidate.name})),
            None,
        )
        if peer is None:
            return StandbyStatus(text, False, 0, 0, "no worker of this name is known")
        if all(peer.peer != connected.peer for connected in self._roster.connected()):
            return StandbyStatus(peer.name, False, 0, 0, "it is not connected")
        if (held := self._held.get(peer.peer)) is not None:
            return StandbyStatus(peer.name, held.ready, held.held, held.wanted, held.why)
        why = self._roster.exclusion_reason(peer) or "it is asked when the model is ready"
        if peer.peer in used:
            why = "it takes the place of another worker"
        return StandbyStatus(peer.name, False, 0, 0, why)

    async def beside(self, run: Run, model: ServedModel, workers: Sequence[PeerStatus]) -> str:
        """Run the model, with these beside it once it is loaded; return why the run ended.

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

    async def _hold_all(self, run: Run, model: ServedModel, owner: Owner) -> None:
        """Hold each as long as it may be asked."""
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


def part_of(
    facts: RunFacts,
    index: WeightsIndex,
    standby: NodeOffer,
    machines: Machines,
    *,
    whole: bool = True,
) -> StandbyPart:
    """Choose which weights a standby worker holds: what the plan after each loss would give it. Pure.

    Each is a plan, and takes up to some tenths of a second. Where the whole model fits into what it lends it
    holds that, and no plan has to be foreseen. `machines`: `facts.machines`, with what is known of the speed
    of this worker. `whole`: it may hold all.
    """

    def once(numbers: Iterable[int]) -> set[int]:
        """Take one tensor of each content: a worker holds it once."""
        return set({index.tensors[number].digest: number for number in numbers}.values())

    def size(numbers: Iterable[int]) -> int:
        return sum(index.tensors[number].size for number in numbers)

    # All of the model, if there is room.
    if len(index.tensors) > MAX_ASKED_TENSORS:
        return StandbyPart((), 0, f"the model has more than {MAX_ASKED_TENSORS} tensors")
    room = sum(device.free_bytes for device in standby.devices) - SLACK_BYTES
    every = once(range(len(index.tensors)))
    if whole and size(every) <= room:
        return StandbyPart(tuple(sorted(every)), size(every), FOR_ANY)
    # Else what it needs without each worker in turn, as long as there is room.
    names = [tensor.name for tensor in index.tensors]
    chosen: set[int] = set()
    held: list[str] = []
    not_held: list[str] = []
    auto = AutoWay() if facts.plan.by_tensors else None  # if it was chosen, it will be again
    for lost in sorted(facts.plan.workers):
        offers = [*(offer for offer in machines.offers if offer.node != lost), standby]
        there = replace(machines, offers=tuple(sorted(offers, key=lambda offer: offer.node)))
        try:
            split = plan_model(facts.layers, facts.work, there, facts.options, auto)
        except (UserError, Refused):
            continue  # nothing fits then
        given = placed_tensors(split.plan, facts.layers, names).get(standby.node)
        if not given:
            continue  # that plan does without this one
        part = once([*chosen, *given])
        if size(part) > room:
            not_held.append(lost)
            continue
        held.append(lost)
        chosen = part
    return StandbyPart(tuple(sorted(chosen)), size(chosen), _sentence(held, not_held))


def _sentence(held: Sequence[str], not_held: Sequence[str]) -> str:
    if not held:
        return (
            f"it has no room for what it would need after the loss of {', '.join(not_held) or 'any worker'}"
        )
    lacks = f"; for that of {', '.join(not_held)} it lacks room" if not_held else ""
    return f"for the loss of {', '.join(held)}{lacks}"
