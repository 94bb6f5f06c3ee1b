"""One life of the model on a head: leases, tunnels, llama-server, from the asking to the first thing lost."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from meshd.base import log
from meshd.base.errors import MeshdError, Refused, UserError
from meshd.base.tasks import Owner, first_error
from meshd.devices.interface import RoleRuntime
from meshd.head.arrivals import SplitNow
from meshd.head.ask_workers import Asking, acquire_for, asked, fitting, not_ready
from meshd.head.blame import Blame
from meshd.head.device_exclusions import DevicesInUse
from meshd.head.explain import RunFacts
from meshd.head.lease_client import LeaseClient
from meshd.head.llama_server import LlamaServer, Over
from meshd.head.missing_weights import find_needs
from meshd.head.push_plan import PushPlan
from meshd.head.quiet_moments import replace_life
from meshd.head.reservations import Reserving
from meshd.head.run_drafts import RunDrafts
from meshd.head.run_end import End, LoadedModel, ServerDied
from meshd.head.run_input import Looked, RunHistory, ServedModel
from meshd.head.run_measures import RunMeasures
from meshd.head.server_watch import ServerWatch
from meshd.head.survey import path_to
from meshd.head.unreachable import give_up
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.model.layer_work import layer_work
from meshd.model.operations import operations
from meshd.model.status import Speeds, WorkerWeights
from meshd.peer.interface import PeerState, PeerStatus
from meshd.plan.choice import plan_model
from meshd.plan.machines import NodeOffer
from meshd.plan.over_offers import reservations
from meshd.plan.reasons import Reported
from meshd.plan.split import Plan, split_of
from meshd.plan.wishes import shape_of
from meshd.plan.words import brief, why_idle
from meshd.process.interface import ChildStatus
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import NO_MEMORY, PAUSED, RPC_SERVER_CRASHED, Lost

LOG = log.get("serve")


class HeadRun:
    """Run once. `on_progress` gets what it is waiting for, `on_loaded` is called when a real token came.

    What the next run should know is left in `blame`, `server_died` and `started`, and in `history`.
    """

    def __init__(
        self,
        runtime: RoleRuntime,
        model: ServedModel,
        history: RunHistory,
        *,
        on_progress: Callable[[str], None],
        on_loaded: Callable[[LoadedModel], None],
    ) -> None:
        self._runtime = runtime
        self._model = model
        self._history = history
        self._options = options = model.options
        self._on_progress = on_progress
        self._on_loaded = on_loaded
        self._leases: list[LeaseClient] = []
        self._push_plan = PushPlan(allowed=options.push, are_apart=history.backoff.are_apart)
        self._devices_in_use = DevicesInUse(history.exclusions)
        shape = shape_of(model.layers, options)
        self._operations = operations(model.file.headers, shape)
        self._work = layer_work(model.file.headers, shape, model.layers.count)
        native, processes, paths = runtime.native, runtime.processes, runtime.paths
        self.end = End()
        self._server = LlamaServer(
            native, processes, paths, model=model, fails=self.end.fail, reading=runtime.reading
        )
        self.watch = ServerWatch(processes.loop_answers(model.socket), self._moved)
        self._drafts = RunDrafts(model, history)
        self._weights_of: Callable[[str], int] = lambda _node: 0  # as planned
        self._predicted: Speeds | None = None
        self.estimated: frozenset[str] = frozenset()
        """Nodes whose speed was estimated for the plan, and is to be measured."""
        self._are_paths_unknown = False
        self.measures = RunMeasures(
            runtime.mesh, lambda: {x.name: x.peer for x in self._leases}, self._server.away
        )
        self.started = self.loaded = self.replaced = False
        self.crashed = False  # llama-server ended by itself, and no worker before it
        self.blame = Blame()
        self.server_died: ServerDied | None = None

    @property
    def children(self) -> Sequence[ChildStatus]:
        """llama-server, once it is there."""
        return (self._server.status,) if self._server.status is not None else ()

    @property
    def workers(self) -> Sequence[PeerId]:
        """Those that take part."""
        return [lease.peer for lease in self._leases]

    @property
    def loads(self) -> tuple[WorkerWeights, ...]:
        """How far the weights of each worker are; empty before llama-server is started."""
        leases, load_of = self._leases if self.started else (), self._server.report.load_of
        return tuple(load_of(x.name, self._weights_of(x.name), x.sent_bytes) for x in leases)

    @property
    def tunnels(self) -> Sequence[TunnelStatus]:
        """One for each worker."""
        return [lease.tunnel.status for lease in self._leases if lease.tunnel is not None]

    async def run(self, workers: Sequence[PeerStatus]) -> str:
        """One life; returns why it ended, a lack of descriptors or disk included. Raises MeshdError."""
        try:
            return await self._live(workers)
        except OSError as error:  # no descriptor is free, the disk is full: that may pass
            return f"the model cannot be run: {(error.strerror or str(error)).lower()}"

    async def _live(self, workers: Sequence[PeerStatus]) -> str:
        """From asking the workers to the first loss; returns why it ended. Raises MeshdError."""
        began = asyncio.get_running_loop().time()
        try:
            plan, offers = await self._plan(workers)
            LOG.info("plan", why=brief(plan.reasons, estimated=self.estimated))
            if plan.answers is not None and plan.answers.note:
                LOG.warning("context_shortened", why=plan.answers.note)
            async with Owner() as owner:
                self._weights_of = plan.weights_of
                reserving = self._reserving()
                needs = await find_needs(
                    self._model, plan, self._leases, self._runtime.from_members, owner, self._on_progress
                )
                granted = await reserving.begin(
                    offers, reservations(plan, offers), needs, self._server.report, owner
                )
                await self._push_plan.introduce(plan, self._leases)
                self._server.start(plan, self._leases, owner, self._drafts.begin(plan, self.measures))
                owner.start(self._run_server(plan, granted, began), name="load")
                owner.start(give_up(self, self._runtime.mesh, self._options.grace), name="patience")
                owner.start(self._history.moments.watch(self), name="quiet moments")
                if self._options.picks_by_speed:
                    owner.start(self._history.arrivals.watch(self), name="arrivals")
                if self.estimated or self._are_paths_unknown:
                    owner.start(self._history.late_measuring.watch(self), name="late measuring")
                why = await self.end.why()
                owner.cancel()
            return why
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            self._server.close()
            for lease in self._leases:
                lease.release()

    def measured(self, found: SplitNow) -> Speeds:
        """Take what was measured after the load for what the load was planned with; return the prediction."""
        facts, now = self.measures.facts, found.machines
        assert facts is not None
        machines = replace(
            facts.machines,
            speeds=now.speeds,
            paths=now.paths,
            unmeasured=now.unmeasured,
            to_measure=frozenset(),
        )
        self.measures.planned(replace(facts, machines=machines, at_load=found.runs))
        return found.runs.speeds

    # Asking and planning.

    async def _plan(self, workers: Sequence[PeerStatus]) -> tuple[Plan, list[NodeOffer]]:
        """A plan, and the offers that it uses; the other workers are sent home. Raises MeshdError."""
        refusals: list[MeshdError] = []
        names = self._label(workers)
        async with Owner() as owner:
            looking = owner.start(self._look(names), name="own devices, and speeds")
            await self._ask(workers, names, refusals)
        (own, excluded), found = looking.result()
        offers = self._offers(workers)
        model = self._model
        machines = found.machines(offers, own, model.plain_rpc, excluded)
        try:
            split = await asyncio.to_thread(plan_model, model.layers, self._work, machines, self._options)
        except UserError as error:
            if late := not_ready(refusals):
                raise Refused(error.what, code="workers", hint=late) from None
            raise
        self._predicted = split.speeds
        if self._options.picks_by_speed:
            self.estimated = machines.to_measure
            paths = [*(offer.path for offer in offers), *machines.paths.values()]
            self._are_paths_unknown = any(path is None or path.rate is None for path in paths)
        facts = RunFacts(
            split.plan, split.machines, self._options, model.layers, self._work, at_load=split.outcome
        )
        self.measures.planned(facts)
        reasons = [error.what for error in refusals] + self._release_idle(split.plan, split.offers)
        if len(split.offers) < (least := self._options.least_workers):
            raise Refused(
                f"{len(split.offers)} of {least} workers can take part",
                code="workers",
                hint="; ".join(reasons) or "start another worker, or lower `--min-workers`",
            )
        return split.plan, list(split.offers)

    async def _look(self, names: Mapping[PeerId, str]) -> Looked:
        return await self._history.look(names, self._operations, self._work, self._options, self._on_progress)

    def _label(self, workers: Sequence[PeerStatus]) -> dict[PeerId, str]:
        """Names that tell all nodes apart; this one's goes into the options."""
        options = self._options
        names = {options.node_id: options.node_name} | {str(one.peer): one.name for one in workers}
        called = naming.labels(names, self._model.plain_endpoints)
        self._options = replace(options, node_name=called[options.node_id])
        return {worker.peer: called[str(worker.peer)] for worker in workers}

    def _release_idle(self, planned: Plan, used: Sequence[NodeOffer]) -> list[str]:
        """Send the workers home that the plan does not use; returns why, each. The others in its order."""
        reasons, order = [], [item.node for item in used]
        for lease in self._leases:
            if lease.name not in order:
                reasons.append(why_idle(planned.left_out, lease.name))
                LOG.warning("worker_left_out", peer=lease.peer.short, name=lease.name, why=reasons[-1])
                lease.release()
        self._leases = [lease for name in order for lease in self._leases if lease.name == name]
        return reasons

    async def _ask(
        self, workers: Sequence[PeerStatus], names: Mapping[PeerId, str], refusals: list[MeshdError]
    ) -> None:
        """Keep the leases of those that offer something. Raises MeshdError when too few remain."""
        LOG.info("load_started", count=len(workers))
        self._on_progress(asked(names.values()) if workers else "planning")
        self._make_leases(workers, names, refusals)
        asking = Asking(
            self._leases,
            min_offers=self._options.least_workers,
            late_before=self._history.late_before,
            blamed=self.blame.failed,
        )
        version, incarnation = self._runtime.native.version, self._options.incarnation
        acquire = acquire_for(self._model.alias, self._model.index, version, incarnation, self._operations)
        self._leases = await asking.ask(acquire, refusals)
        if len(self._leases) < self._options.least_workers and refusals:
            raise refusals[0]

    def _make_leases(
        self, workers: Sequence[PeerStatus], names: Mapping[PeerId, str], refusals: list[MeshdError]
    ) -> None:
        """One for each that runs a llama.cpp which fits ours."""
        for worker in fitting(workers, self._runtime.native.version, refusals):
            lease = LeaseClient(
                self._runtime.mesh,
                self._runtime.tunnels,
                peer=worker.peer,
                name=names[worker.peer],
                on_progress=self._on_progress,
                mesh_end=self._server.mesh_end(),
            )
            self._leases.append(lease)

    def _offers(self, workers: Sequence[PeerStatus]) -> list[NodeOffer]:
        paths = {status.peer: path_to(status.paths) for status in self._runtime.mesh.peers()}
        versions = {worker.peer: worker.native for worker in workers}
        offers = []
        for lease in self._leases:
            assert lease.offer is not None
            unable = self._devices_in_use.offered(lease.peer, versions[lease.peer], lease.offer)
            excluded = {name: Reported(why) for name, why in unable.items()}
            offers.append(NodeOffer(lease.name, lease.offer, paths.get(lease.peer), excluded))
        return offers

    def _reserving(self) -> Reserving:
        return Reserving(
            self._leases,
            devices_in_use=self._devices_in_use,
            blame=self.blame,
            on_progress=self._on_progress,
            granted=self._all_granted,
            ended=self._lease_ended,
        )

    def _all_granted(self) -> None:
        self.started = True
        self._on_progress("loading the model")

    def _lease_ended(self, lease: LeaseClient, lost: Lost) -> None:
        if not self.loaded and lost.code == RPC_SERVER_CRASHED:
            self._devices_in_use.crashed(lease.peer, lost.text)
        if lost.code in (PAUSED, NO_MEMORY):  # neither is a fault of the worker: it is asked again
            self.replaced = True
        elif not self.loaded or not self.end.known:
            self.blame.ended(lease.peer, lost.text, self._push_plan.others(lease.peer, lost.text))
        self.crashed = self.crashed and self.end.known  # a loss may make llama-server end in any way
        self.end.say(f"worker {lease.name} is lost: {lost.text}")

    # llama-server.

    async def _run_server(self, plan: Plan, granted: asyncio.Task[None], began: float) -> None:
        over = await self._server.until_ready()
        if over is None:
            async with Owner() as owner:  # the first token is asked for as long as there is a server
                owner.start(self._load(plan, granted, began), name="first token")
                over = await self._server.until_over()
                owner.cancel()
        await self._server_lost(over, plan)

    async def _server_lost(self, over: Over, plan: Plan, *, at_first_token: bool = False) -> None:
        """That may be a worker's doing: its own word is waited for, and comes first.

        Next comes what llama-server reported of a worker, whatever it answered or ended with then. It may be
        wrong, for a worker that is lost takes those with it that wait for its activations.
        """
        self._on_progress(over.why)  # nobody is to be sent to it meanwhile
        self.crashed = self.loaded and over.crashed and not over.endpoint and not self.end.known
        if over.endpoint or over.crashed:
            self.end.reported(over.why)
        if not over.from_outside:
            await self.end.word_of_a_lease()
        if not self.loaded:
            over = self._server.lost or over
            if self._server.report.exceeded and not over.endpoint:
                over = Over(f"{self._server.report.exceeded}; {over.why}", over.tail)
        known = self.end.known or (not self.loaded and self._devices_in_use.failed)
        lease = self._lease_at(over.endpoint)
        if not known and lease is not None:
            self.blame.ended(lease.peer, over.why, self._push_plan.others(lease.peer, over.why))
        elif not known and not self.loaded:
            self.server_died = ServerDied(self._options.child, split_of(plan), over.tail)
            if at_first_token:
                for lease in self._leases:  # of what the last one computes llama-server makes the token
                    if lease.name == plan.last_node:
                        self.blame.doubt(lease.peer, over.why)
        self.end.say(over.why)

    def _lease_at(self, endpoint: str) -> LeaseClient | None:
        return next((lease for lease in self._leases if endpoint and lease.endpoint == endpoint), None)

    async def _load(self, plan: Plan, granted: asyncio.Task[None], began: float) -> None:
        report, processes, loop = self._server.report, self._runtime.processes, asyncio.get_running_loop()
        ready = await processes.first_token(self._model.socket, partial(self._drafts.sampling, plan))
        await asyncio.wait([granted])  # it was said before the token came, though in another stream
        if not self.started:
            return  # one has refused
        if not ready.ready:
            await self._server_lost(Over(ready.reason), plan, at_first_token=True)
            return
        if not (self._model.file.stat_unchanged() and self._model.file.paths_unchanged()):
            self.end.say(f"the model file `{self._model.file.name}` was changed while it was loaded")
            return
        sampling = self._drafts.sampling(plan, ready.settings)
        if why := await self._drafts.try_model(processes, sampling, loop.time() - began):
            replace_life(self, why)
            return
        report.network_bytes += self._model.plain_bytes(plan)
        self.loaded = True
        self.blame.loaded_at = now = loop.time()
        self._push_plan.tell()
        self._server.tell()
        for lease in self._leases:
            await lease.say_loaded()
        self._on_loaded(
            LoadedModel(
                seconds=now - began,
                estimated=self.estimated,
                plan=plan,
                split=self._push_plan.parts(split_of(plan)),
                report=report,
                predicted=self._predicted,
                sampling=sampling,
                props=ready.props,
            )
        )
        await self._drafts.time_round(processes, sampling)
        if not self._model.plain_rpc:  # what crosses to those is not seen
            self._server.kill(await self.watch.until_stuck())

    def _moved(self) -> int | None:
        """Bytes to and from all workers; None while one is out of reach."""
        used = set(self.workers)
        if any(
            one.peer in used and one.state is not PeerState.CONNECTED for one in self._runtime.mesh.peers()
        ):
            return None
        return sum(one.sent_bytes + one.received_bytes for one in self.tunnels)
