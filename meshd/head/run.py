"""Run: one life of a loaded model, from asking the workers to the first thing that is lost."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import partial

from meshd.base import log
from meshd.base.errors import MeshdError, Refused, UserError
from meshd.base.tasks import Owner, first_error
from meshd.devices.interface import RoleRuntime
from meshd.gateway.interface import ComputedTime, ReadyReport
from meshd.head.better_load import Arrivals, Judgement, LateMeasuring, QuietMoments, SplitNow, compare_now
from meshd.head.explain import Explained, ask_computed, explain, near_paths
from meshd.head.failures import DeviceExclusions, ServerDied
from meshd.head.lease import Lease, WeightsReport
from meshd.head.leases import LEASE_WORD_SECONDS, Leases, PushPlan
from meshd.head.llama_server import LlamaServer, Over, ServerWatch
from meshd.head.measures import RunFacts, RunMeasures
from meshd.head.served_files import ServedModel, find_needs
from meshd.head.speculation import Speculation, never_a_model, round_estimate, uses_a_model
from meshd.head.split_ways import SplitWays
from meshd.head.survey import MachineSpeeds, OwnDevices, Surveyor, own_timed
from meshd.head.worker_choice import Roster
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.model.device_sampling import FEW_TOKENS, DeviceSampling
from meshd.model.drafts import Drafts
from meshd.model.layer_work import layer_work, operations
from meshd.model.status import AnswersAtOnce, Speeds, SplitPart, WorkerWeights
from meshd.peer.interface import PeerStatus
from meshd.plan.auto_way import AutoWay
from meshd.plan.choose_split import plan_model
from meshd.plan.machines import NodeOffer
from meshd.plan.reasons import TogetherByChoice, brief, faster_in_words
from meshd.plan.split import Plan, split_of
from meshd.plan.ways import CLEARLY
from meshd.plan.wishes import read_llama_args, shape_of
from meshd.process.interface import ChildStatus
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import NO_MEMORY, PAUSED, RPC_SERVER_CRASHED, Lost, OfferedDevice

_UNUSED_SECONDS = 3.0  # of a model, before a round is timed
_SEVERAL_ANSWERS = 3  # whose speed says something of how a model is split
LOG = log.get("serve")


class End:
    """Settle why a run ended: the first reason that is said for good, or the best one that was seen."""

    def __init__(self) -> None:
        self._known: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._seen: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._is_reported = False
        self._error: MeshdError | None = None

    @property
    def known(self) -> bool:
        """Return True if anybody has said it."""
        return self._known.done()

    def say(self, why: str) -> None:
        """Settle the reason, if nobody has before."""
        if not self._known.done():
            self._known.set_result(why)

    def fail(self, error: MeshdError) -> None:
        """Settle it with an error: the next run would end like this one, unless something changes."""
        if not self._known.done():
            self._error = error
            self.say(error.what)

    def seen(self, why: str) -> None:
        """Note that the run has ended as a request saw it; a worker may have a better reason."""
        if not self._seen.done():
            self._seen.set_result(why)

    def reported(self) -> None:
        """Note that llama-server has told why it ended: that beats what was seen, and is said in a moment."""
        self._is_reported = True

    async def word_of_a_lease(self) -> None:
        """Give a lease a moment to say it."""
        await asyncio.wait([self._known], timeout=LEASE_WORD_SECONDS)

    async def why(self) -> str:
        """Wait for the end; return the best reason. Raises what was given to `fail`."""
        await asyncio.wait([self._known, self._seen], return_when=asyncio.FIRST_COMPLETED)
        await self.word_of_a_lease()
        if self._is_reported:
            await self._known  # its moment began later, and who is to blame is found out after that
        if self._error is not None:
            raise self._error
        return self._known.result() if self._known.done() else self._seen.result()


@dataclass(frozen=True, slots=True)
class LoadedModel:
    """Describe what a load came to; `seconds` is None before there is one.

    `estimated`: nodes whose speed was estimated for the plan, until they are measured; `measuring`: seconds
    that this took then.
    """

    seconds: float | None = None
    estimated: frozenset[str] = frozenset()
    measuring: float = 0.0
    plan: Plan | None = None
    split: tuple[SplitPart, ...] = ()
    report: WeightsReport = field(default_factory=lambda: WeightsReport({}))
    predicted: Speeds | None = None
    sampling: DeviceSampling | None = None
    """Which requests take candidates from the worker that makes logits; None: it sends all logits."""
    props: Mapping[str, object] = field(default_factory=dict)
    """What llama-server says of itself and the model."""

    @property
    def why(self) -> str:
        """Word in short why it is split like this."""
        return brief(self.plan.reasons) if self.plan is not None else ""

    @property
    def answers(self) -> AnswersAtOnce | None:
        """Return how many answers there are at once."""
        return self.plan.answers if self.plan is not None else None


@dataclass(slots=True)
class RunHistory:
    """Keep what the runs of one model share: each adds what it has found out about workers and devices."""

    own_devices: OwnDevices
    roster: Roster
    moments: QuietMoments
    arrivals: Arrivals
    late_measuring: LateMeasuring
    speculation: Speculation
    surveyor: Surveyor | None
    """Asks how fast machines are; None: nobody wants to know."""
    ways: SplitWays
    exclusions: DeviceExclusions = field(default_factory=DeviceExclusions)
    late_before: set[PeerId] = field(default_factory=set)
    """Workers that were late the last time they were asked."""
    used: set[PeerId] = field(default_factory=set)
    """Workers with which the model was ready."""


class Run:
    """Load a model and serve it until the first thing is lost: one life, `run` once.

    What the next run should know is left in `blame`, `server_died` and `children`, and in `history`.
    """

    def __init__(
        self,
        runtime: RoleRuntime,
        model: ServedModel,
        history: RunHistory,
        *,
        on_progress: Callable[[str], None],
        on_loaded: Callable[[], None],
    ) -> None:
        """Start nothing yet. `on_progress` gets what is waited for; `on_loaded`: a real token has come."""
        self._runtime = runtime
        self._model = model
        self._history = history
        self._options = options = model.options
        self._on_progress = on_progress
        self._on_loaded = on_loaded
        # The work, by which devices are tried and timed.
        shape = shape_of(model.layers, options)
        self._operations = operations(model.file.headers, shape)
        self._work = layer_work(model.file.headers, shape, model.layers.count)
        # llama-server and the leases, which end this run.
        self.end = End()
        self._server = LlamaServer(
            runtime.native,
            runtime.processes,
            runtime.paths,
            model=model,
            fails=self.end.fail,
            reading=runtime.reading,
        )
        self._leases = Leases(
            runtime,
            model,
            exclusions=history.exclusions,
            late_before=history.late_before,
            make_end=self._server.mesh_end,
            on_progress=on_progress,
            on_lost=self._lease_lost,
        )
        self.blame = self._leases.blame
        self._push_plan = PushPlan(allowed=options.push, backoff=history.roster.backoff)
        self.watch = ServerWatch(runtime.processes.loop_answers(model.socket), self._leases.moved)
        # What the load comes to.
        self._predicted: Speeds | None = None
        self._estimated: frozenset[str] = frozenset()  # nodes whose speed is to be measured
        self._are_paths_unknown = False
        self.measures = RunMeasures(asyncio.get_running_loop().time, self._leases.crossed)
        self.loaded = self.replaced = False
        self.result = LoadedModel()
        self.crashed = False  # llama-server ended by itself, and no worker before it
        self.ended_itself = False  # llama-server did, and no worker is known to be the reason
        self.server_died: ServerDied | None = None
        self.why = ""
        """Why it has ended."""

    @property
    def started(self) -> bool:
        """Return True once all workers have granted their leases."""
        return self._leases.are_granted

    @property
    def children(self) -> Sequence[ChildStatus]:
        """Return the status of llama-server, once it is there."""
        return (self._server.status,) if self._server.status is not None else ()

    @property
    def is_by_choice(self) -> bool:
        """Return True if it is by tensors, as `--split auto` chose."""
        return self.is_by_tensors and self._options.split == "auto"

    @property
    def is_by_tensors(self) -> bool:
        """Return True if all its workers compute each layer together."""
        facts = self.measures.facts
        return facts is not None and facts.plan.by_tensors

    @property
    def slower_than_layers(self) -> str:
        """Say that `auto` has chosen tensors to no avail; empty: not so, or not known.

        Measured prompts do not count, as short ones take longer for each token than what was predicted. Nor
        do answers with drafts, which are in no prediction.
        """
        facts, speed = self.measures.facts, self.measures.speed
        rate, answers = speed.undrafted_tok_s, speed.undrafted_answers
        if facts is None or not self.is_by_choice or not rate or answers < _SEVERAL_ANSWERS:
            return ""
        chosen = next((why for why in facts.plan.reasons if isinstance(why, TogetherByChoice)), None)
        if chosen is None:
            return ""
        seconds = chosen.of_prompt + chosen.answer / rate
        if CLEARLY * seconds <= chosen.by_layers:
            return ""
        return (
            f"at the speed of {answers} answers, a prompt of {chosen.prompt} tokens and an answer of "
            f"{chosen.answer} take {seconds:.1f} s by tensors, but {chosen.by_layers:.1f} s were "
            "predicted by layers"
        )

    @property
    def workers(self) -> Sequence[PeerId]:
        """Return the workers that take part."""
        return self._leases.peers

    @property
    def loads(self) -> tuple[WorkerWeights, ...]:
        """Return how far the weights of each worker are; empty before llama-server is started."""
        facts, load_of = self.measures.facts, self._server.report.load_of
        if facts is None or not self.started:
            return ()
        planned = facts.plan.weights_of
        return tuple(load_of(x.name, planned(x.name), x.sent_bytes) for x in self._leases.held)

    @property
    def tunnels(self) -> Sequence[TunnelStatus]:
        """Return the status of the tunnel to each worker."""
        return self._leases.tunnels

    def replace(self, why: str) -> None:
        """End it, because another run is to begin."""
        self.replaced = True
        self.end.say(why)

    async def run(self, workers: Sequence[PeerStatus]) -> str:
        """Live once; return why it ended, a lack of descriptors or disk included. Raises MeshdError."""
        try:
            self.why = await self._live(workers)
            return self.why
        except OSError as error:  # no descriptor is free, the disk is full: that may pass
            self.why = f"the model cannot be run: {(error.strerror or str(error)).lower()}"
            return self.why
        except MeshdError as error:
            self.why = error.what
            raise
        finally:
            self._server.close()
            self._leases.release()

    async def _live(self, workers: Sequence[PeerStatus]) -> str:
        try:
            return await self._load_and_serve(workers)
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _load_and_serve(self, workers: Sequence[PeerStatus]) -> str:
        began = asyncio.get_running_loop().time()
        history = self._history
        # 1. Ask the workers, look at this machine, and plan.
        plan, offers = await self._plan(workers)
        async with Owner() as owner:
            # 2. Let workers fetch what they lack from members, if that is faster than to send it.
            members = self._runtime.from_members
            leases = self._leases.held
            needs = await find_needs(self._model, plan, leases, members, owner, self._on_progress)
            # 3. Reserve on all workers; they start their mesh-servers meanwhile.
            granted = await self._leases.reserve(plan, offers, needs, self._server.report, owner)
            # 4. Introduce workers whose layers follow one another, and prepare llama-server.
            await self._push_plan.introduce(plan, leases)
            self._server.prepare(plan, leases, owner, self._drafts(plan))
            # 5. Start it, wait for a real token, and serve; beside that, watch for reasons to end.
            owner.start(self._until_server_over(plan, granted, began), name="load")
            owner.start(self._give_up(), name="patience")
            owner.start(history.moments.watch(self, began), name="quiet moments")
            if self._options.picks_by_speed:
                owner.start(history.arrivals.watch(self, began), name="arrivals")
            if self._estimated or self._are_paths_unknown:
                owner.start(history.late_measuring.watch(self), name="late measuring")
            # 6. End with the first reason that counts.
            why = await self.end.why()
            owner.cancel()
        return why

    # Planning.

    async def _plan(self, workers: Sequence[PeerStatus]) -> tuple[Plan, list[NodeOffer]]:
        """Return a plan, and the offers that it uses; the other workers are sent home. Raises MeshdError."""
        names = self._label(workers)
        LOG.info("load_started", count=len(workers))
        async with Owner() as owner:
            looking = owner.start(self._look(names), name="own devices, and speeds")
            await self._leases.ask(workers, names, self._operations)
        (own, excluded), found = looking.result()
        offers = self._leases.offers(workers)
        model = self._model
        apart = self._history.roster.backoff.apart(names, asyncio.get_running_loop().time())
        machines = replace(found.machines(offers, own, model.plain_rpc, excluded), apart=apart)
        try:
            split = await asyncio.to_thread(
                plan_model, model.layers, self._work, machines, self._options, self._auto_way()
            )
        except UserError as error:
            if late := self._leases.late_ones():
                raise Refused(error.what, code="workers", hint=late) from None
            raise
        plan = self._history.ways.noted(split.plan)
        self._predicted = split.speeds
        if self._options.picks_by_speed:
            self._estimated = machines.to_measure
            paths = [*(offer.path for offer in offers), *machines.paths.values()]
            self._are_paths_unknown = any(path is None or path.rate is None for path in paths)
        facts = RunFacts(plan, split.machines, self._options, model.layers, self._work, at_load=split.outcome)
        self.measures.facts = facts
        self._leases.keep(plan, split.offers)
        LOG.info("plan", why=brief(plan.reasons, estimated=self._estimated))
        if plan.answers is not None and plan.answers.note:
            LOG.warning("context_shortened", why=plan.answers.note)
        return plan, list(split.offers)

    def _auto_way(self) -> AutoWay:
        """Return what decides whether `--split auto` is by tensors; it may be used in another thread."""
        model, now = self._model, asyncio.get_running_loop().time()
        uses_model = partial(
            uses_a_model, deepcopy(self._history.speculation), model.layers, model.options.draft, now
        )
        return AutoWay(uses_model, self._history.ways.failed)

    def _label(self, workers: Sequence[PeerStatus]) -> dict[PeerId, str]:
        """Find names that tell all nodes apart; this one's goes into the options."""
        options = self._options
        names = {options.node_id: options.node_name} | {str(worker.peer): worker.name for worker in workers}
        called = naming.labels(names, self._model.plain_endpoints)
        self._options = replace(options, node_name=called[options.node_id])
        return {worker.peer: called[str(worker.peer)] for worker in workers}

    async def _look(
        self, names: Mapping[PeerId, str]
    ) -> tuple[tuple[tuple[OfferedDevice, ...], Mapping[str, str]], MachineSpeeds]:
        """Look at this machine, and at the nodes of these names; nothing is measured. Raises MeshdError.

        Returns this machine's devices, why some cannot be used, and how fast all are, as far as known.
        """
        own_devices, surveyor, options = self._history.own_devices, self._history.surveyor, self._options

        async def tell(text: str) -> None:
            self._on_progress(f"{options.node_name}: {text}")

        if surveyor is None:
            return await own_devices.find(self._operations, tell), MachineSpeeds({}, {}, {})
        texts = self._work.texts
        try:
            async with Owner() as owner:
                asking = owner.start(surveyor.ask_known(names, texts), name="known speeds")
                own = await own_devices.find(self._operations, tell)
        except ExceptionGroup as group:
            raise first_error(group) from None
        timed = own_timed(self._work, options)
        speeds = surveyor.speeds_from(
            asking.result(), names, own[0], texts, options.node_name, own_timed=timed
        )
        return own, speeds

    # Serving.

    async def _until_server_over(self, plan: Plan, granted: asyncio.Task[None], began: float) -> None:
        over = await self._server.until_ready()
        if over is None:
            async with Owner() as owner:  # the first token is asked for as long as there is a server
                owner.start(self._first_token(plan, granted, began), name="first token")
                over = await self._server.until_over()
                owner.cancel()
        await self._server_lost(over, plan)

    async def _first_token(self, plan: Plan, granted: asyncio.Task[None], began: float) -> None:
        """Generate a real token: only then is the model ready. Then watch llama-server."""
        # 1. Generate it, once all workers have granted their leases.
        processes, loop = self._runtime.processes, asyncio.get_running_loop()
        ready = await processes.first_token(
            self._model.socket, lambda settings: self._sampling(plan, settings)
        )
        await asyncio.wait([granted])  # it was said before the token came, though in another stream
        if not self.started:
            return  # one has refused
        if not ready.ready:
            await self._server_lost(Over(ready.reason), plan, at_first_token=True)
            return
        # 2. Check that the file is still the same, and that sums and drafts are as the plan counts on.
        if not (self._model.file.stat_unchanged() and self._model.file.paths_unchanged()):
            self.end.say(f"the model file `{self._model.file.name}` was changed while it was loaded")
            return
        sampling = self._sampling(plan, ready.settings)
        if why := await self._try_sums() or await self._try_drafts(sampling, loop.time() - began):
            self.replace(why)
            return
        # 3. Tell everybody that the model is loaded.
        await self._announce(plan, ready, sampling, began)
        # 4. Watch llama-server.
        await self._time_round(sampling)
        if not self._model.plain_rpc:  # what crosses to those is not seen
            self._server.kill(await self.watch.until_stuck())

    async def _try_sums(self) -> str:
        """Return why to load the model again: sums of some do not go where `auto` expects them.

        These do not compute together for a while. Others may, else the next run is by layers.
        """
        if not self.is_by_choice or not self._push_plan.indirect:
            return ""
        await self.end.word_of_a_lease()  # perhaps a worker's word is still under way
        now = asyncio.get_running_loop().time()
        for source, target, why in self._push_plan.indirect:
            self._history.roster.backoff.keep_from_sums(source.peer, target.peer, now)
            LOG.warning("sums_indirect", source=source.name, target=target.name, why=why)
        named = [f"{source.name} → {target.name}: {why}" for source, target, why in self._push_plan.indirect]
        if not named:
            return ""
        why = f"sums do not go past both daemons ({'; '.join(named)})"
        self._history.ways.indirect(why)
        return why

    async def _announce(
        self, plan: Plan, ready: ReadyReport, sampling: DeviceSampling | None, began: float
    ) -> None:
        """Note that the model is loaded, log the load, and tell the workers and the owner of the run."""
        report = self._server.report
        report.network_bytes += self._model.plain_bytes(plan)
        self.loaded = True
        self.blame.loaded_at = now = asyncio.get_running_loop().time()
        self._tell_pushes()
        self._server.tell()
        for lease in self._leases.held:
            await lease.say_loaded()
        self.result = LoadedModel(
            seconds=now - began,
            estimated=self._estimated,
            plan=plan,
            split=self._push_plan.parts(split_of(plan)),
            report=report,
            predicted=self._predicted,
            sampling=sampling,
            props=ready.props,
        )
        self._on_loaded()

    def _tell_pushes(self) -> None:
        """Log the routes of pushes, once a load."""
        for source, target, why in self._push_plan.results:
            if why:
                LOG.warning("push_through_head", source=source, target=target, why=why)
            else:
                LOG.info("push_direct", source=source, target=target)

    # Losing. Whose word counts first: docs/architecture.md, "What is lost".

    def _lease_lost(self, lease: Lease, lost: Lost) -> None:
        """End the run: a worker's own word, or that of its lease's stream."""
        # 1. Note a device that cannot run this model.
        if not self.loaded and lost.code == RPC_SERVER_CRASHED:
            self._leases.device_crashed(lease, lost.text)
        # 2. Decide who is to blame: nobody for a pause or a lack of memory, as it is asked again.
        if lost.code in (PAUSED, NO_MEMORY):
            self.replaced = True
        elif not self.loaded or not self.end.known:
            self.blame.ended(lease.peer, lost.text, self._push_plan.others(lease.peer, lost.text))
        # 3. A loss may make llama-server end in any way.
        self.crashed = self.crashed and self.end.known
        self.end.say(f"worker {lease.name} is lost: {lost.text}")

    async def _server_lost(self, over: Over, plan: Plan, *, at_first_token: bool = False) -> None:
        """End the run: llama-server has ended, or answers nothing any more."""
        self._on_progress(over.why)  # nobody is to be sent to it meanwhile
        self.crashed = self.loaded and over.crashed and not over.endpoint and not self.end.known
        if over.endpoint or over.crashed:
            self.end.reported()
        # 1. A lost worker may have caused it: give the leases a moment. A worker's own word counts first.
        if not over.from_outside:
            await self.end.word_of_a_lease()
        # 2. Next comes the worker that llama-server reported, whatever it answered or ended with then. It may
        #    be wrong: a worker that is lost takes those with it that wait for its activations.
        if not self.loaded:
            over = self._server.lost or over
            if self._server.report.exceeded and not over.endpoint:
                over = Over(f"{self._server.report.exceeded}; {over.why}", over.tail)
        known = self.end.known or (not self.loaded and self._leases.device_failed)
        lease = self._leases.at(over.endpoint)
        self.ended_itself |= not (known or over.endpoint or over.from_outside)
        if not known and lease is not None:
            self.blame.ended(lease.peer, over.why, self._push_plan.others(lease.peer, over.why))
        # 3. Else it is llama-server's own failure, and counts if the model was not ready.
        elif not known and not self.loaded:
            self.server_died = ServerDied(self._options.child, split_of(plan), over.tail)
            if at_first_token:
                # Of what the last one computes llama-server makes the token; by tensors, of what all do.
                for lease in self._leases.held:
                    if plan.by_tensors or lease.name == plan.last_node:
                        self.blame.doubt(lease.peer, over.why)
        self.end.say(over.why)

    async def _give_up(self) -> None:
        self.end.say(await self._leases.until_given_up())

    # Drafts.

    def _drafts(self, plan: Plan) -> Drafts:
        """Choose what llama-server is to draft."""
        layers, draft = self._model.layers, self._model.options.draft
        estimate = round_estimate(plan, layers.weight_bytes, self.measures.round_seconds, draft)
        speculation, now = self._history.speculation, asyncio.get_running_loop().time()
        drafts = speculation.begin(
            estimate, now, most=plan.shape.most_drafted, never_model=never_a_model(plan)
        )
        if speculation.why_no_model:
            LOG.info("draft_model_unused", why=speculation.why_no_model)
        return drafts

    def _sampling(self, plan: Plan, settings: Mapping[str, object]) -> DeviceSampling | None:
        """Derive which requests sample on a worker from llama-server's own settings; None: no worker can."""
        worker = plan.output_worker
        if worker is None:
            return None
        # Of drafts that the user configures it is not known whether this release supports them.
        adds = worker.has_top_k and not read_llama_args(self._model.options.llama_args).speculation
        drafts = self._history.speculation.drafts.longest > 0
        is_direct = any(lease.is_direct for lease in self._leases.held if lease.name == worker.node)
        least = FEW_TOKENS if is_direct else 0
        vocabulary = self._model.layers.widths.vocabulary
        return DeviceSampling(settings, vocabulary, adds=adds, drafts=drafts, least=least)

    async def _try_drafts(self, sampling: DeviceSampling | None, load_seconds: float) -> str:
        """Time drafts; return why the model is to be loaded again before anybody asks, as they would lose."""
        processes = self._runtime.processes
        speculation, socket = self._history.speculation, self._model.socket
        speculation.loaded(load_seconds)
        if speculation.is_tried:
            return ""
        seconds = await processes.round_seconds(socket, sampling)
        timings = await processes.drafted_rounds(socket, sampling, speculation.drafts.model)
        return speculation.tried(seconds, timings)

    async def _time_round(self, sampling: DeviceSampling | None) -> None:
        """Time a round without drafts, for their gain, once nobody has asked for a while.

        Beside an answer it would share a batch, and a text may differ then where two tokens are as likely.
        """
        history, loop = self._history, asyncio.get_running_loop()
        loaded = loop.time()
        if not history.speculation.drafts.longest:
            return
        while True:
            unused = min(loop.time() - loaded, history.moments.idle_seconds(loop.time()))
            if unused >= _UNUSED_SECONDS:
                break
            await asyncio.sleep(_UNUSED_SECONDS - unused)
        took = await self._runtime.processes.round_seconds(self._model.socket, sampling)
        history.speculation.round_took(took or 0.0)

    # Judging.

    async def explain(self) -> Explained | None:
        """Return where the time of the model's tokens went; None while it is not loaded."""
        facts, history = self.measures.facts, self._history
        if not self.loaded or facts is None:
            return None
        return await explain(
            facts,
            self.result.split,
            self.measures.answers,
            self._server.away,
            self._runtime.mesh,
            {lease.name: lease.peer for lease in self._leases.held},
            history.surveyor,
            history.roster,
            drafts=history.speculation.drafts,
        )

    async def computed(self, spans: Sequence[tuple[float, float]]) -> Mapping[str, Sequence[ComputedTime]]:
        """Return what each worker that knows it computed in these spans; nothing while it is not loaded."""
        facts, mesh = self.measures.facts, self._runtime.mesh
        if not self.loaded or facts is None:
            return {}
        peers = {lease.name: lease.peer for lease in self._leases.held}
        found = await ask_computed(facts, mesh, peers, near_paths(mesh, peers), spans)
        return {
            name: [ComputedTime(time.busy_us / 1e6, time.results) for time in times]
            for name, times in found.items()
        }

    async def better_with(self) -> frozenset[PeerId]:
        """Return the workers of the fastest split if that is clearly faster. Raises MeshdError.

        Where `auto` has chosen tensors, that is the split which it would choose now.
        """
        found = await self._compare(self._auto_way() if self.is_by_choice else None)
        if found is None or not found.is_clearly_faster:
            return frozenset()
        return frozenset(peer for peer, name in found.names.items() if name in found.best.plan.nodes)

    async def _compare(self, auto: AutoWay | None = None) -> SplitNow | None:
        """Measure what is not measured, and compare splits; None if they cannot be. Raises MeshdError."""
        facts, surveyor = self.measures.facts, self._history.surveyor
        if facts is None or surveyor is None:
            return None
        return await compare_now(facts, surveyor, self._history.roster, auto)

    async def judge(self) -> Judgement:
        """Measure what the load estimated, and judge the split by that. Raises MeshdError."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        if (found := await self._compare()) is None:
            return Judgement()
        estimated = frozenset(self.result.estimated & found.machines.unmeasured.keys())
        lacking = "; ".join(f"`{node}`: {found.machines.unmeasured[node]}" for node in sorted(estimated))
        if not found.runs.prediction.is_measured:
            self.result = replace(self.result, estimated=estimated)
            return Judgement(lacking=lacking)
        seconds = loop.time() - began if self.result.estimated else 0.0
        self._measured(found)
        self.result = replace(
            self.result, estimated=estimated, measuring=seconds, predicted=found.runs.speeds
        )
        if not found.is_clearly_faster or self.is_by_tensors:  # which ends with a run, not for its times
            return Judgement(lacking=lacking)
        better = faster_in_words(found.best.rated, found.runs.answer_s / found.best.seconds)
        return Judgement(better, lacking)

    def _measured(self, found: SplitNow) -> None:
        """Take what was measured after the load for what the load was planned with."""
        facts, now = self.measures.facts, found.machines
        assert facts is not None
        machines = replace(
            facts.machines,
            speeds=now.speeds,
            paths=now.paths,
            unmeasured=now.unmeasured,
            to_measure=frozenset(),
        )
        self.measures.facts = replace(facts, machines=machines, at_load=found.runs)
