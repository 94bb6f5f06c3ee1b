"""Model: served for as long as it is wished for. It waits for workers, loads, serves, and loads again.

One task owns the cycle *wait, ask, plan, reserve, load, serve*. Whatever ends a run (run.py), a lost worker
or llama-server's own end, leads back to its beginning, with the reason in the status: here is decided whether
it loads again at once, waits, or loads a smaller file. Loads that nobody needs but that gain something are
decided in better_load.py. The gateway asks for `readiness` and never talks to the mesh.
"""

import asyncio
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from socket import socket

from meshd.base import log
from meshd.base.backoff import Backoff
from meshd.base.errors import MeshdError, Refused, UserError
from meshd.base.fault_boundary import Fault, contained
from meshd.base.sockets import connect_unix
from meshd.base.tasks import Owner, first_error
from meshd.base.units import without_numbers
from meshd.devices.device_list import AHEAD_SECONDS
from meshd.devices.device_speeds import DeviceSpeeds
from meshd.devices.interface import RoleRuntime, RoleStatus
from meshd.gateway.interface import AnswerTimings, ComputedTime, Readiness
from meshd.head.better_load import Arrivals, LateMeasuring, QuietMoments
from meshd.head.explain import Explained
from meshd.head.failures import DeviceExclusions, ServerFailures
from meshd.head.lease import with_loads
from meshd.head.leases import as_reached
from meshd.head.llama_server import has_own_slots
from meshd.head.run import LoadedModel, Run, RunHistory
from meshd.head.served_files import ServedFiles, ServedModel
from meshd.head.speculation import Drafting, Speculation
from meshd.head.standby import StandbyWorkers
from meshd.head.survey import OwnDevices, Surveyor, ask_plain
from meshd.head.worker_choice import Roster, ServedAs
from meshd.identity.keys import PeerId
from meshd.model.device_sampling import DeviceSampling
from meshd.model.served_facts import ServedFacts, with_properties
from meshd.model.status import DrainStatus, ModelState, ModelStatus
from meshd.peer.interface import PeerStatus
from meshd.plan.reasons import in_words
from meshd.plan.split import NoSplit, NotEnoughMemory
from meshd.plan.wishes import HeadOptions, may_draft, read_llama_args
from meshd.process.interface import ChildStatus
from meshd.store.interface import HashProgress, WeightsFile
from meshd.tunnel.interface import TunnelStatus

MORE_WORKERS_SECONDS = 3.0  # for others that are known, once enough are there
TRY_AGAIN_SECONDS = 20.0
_AFTER_LOSS_SECONDS = 0.01
_RETRY = Backoff(first=0.3, factor=2.0, most=15.0)
LOG = log.get("serve")


def is_news(state: ModelState, reason: str, before: Readiness) -> bool:
    """Return True if a change of state is worth a line in the log: not if only a number has changed.

    Progress is for status, which shows the latest.
    """
    return state is not before.state or without_numbers(reason) != without_numbers(before.reason)


class Model:
    """Keep a model loaded while `serve` runs. Implements Role, and Upstream of gateway.interface."""

    def __init__(
        self,
        runtime: RoleRuntime,
        file: WeightsFile,
        options: HeadOptions,
        speeds: DeviceSpeeds | None = None,
        smaller: Sequence[WeightsFile] = (),
    ) -> None:
        """Load nothing yet. Raises UserError.

        `speeds`: of this node's devices; without them nothing is measured, and no speed predicted.
        `smaller`: files for when the model's own fits no more.
        """
        # What is wished, and what clients see of it.
        self._runtime = runtime
        self._files = ServedFiles(file, smaller)
        self._options = options
        read_llama_args(options.llama_args)  # what cannot be given is an error at the start
        self._readiness = Readiness(ModelState.WAITING, "starting")
        self._run: Run | None = None
        self._slots = max(1, options.slots)  # until a plan says how many fit
        self._why_lost = ""  # the model that was ready last
        self._failures = 0
        # What all runs share.
        self._roster = Roster(runtime.mesh, options)
        self.serving = ServedAs(options, self._roster)
        own = OwnDevices(runtime.native, runtime.processes.run_to_end, runtime.paths, options)
        surveyor = (
            Surveyor(runtime, options, speeds, serves=lambda: self._run is not None)
            if speeds is not None
            else None
        )
        speculation = Speculation(may_draft(self._files.layers, options))
        ways = self.serving.ways
        moments = QuietMoments(runtime.mesh.peers, self._wanted, self._why_otherwise)
        arrivals = Arrivals(self._roster.workers, moments.idle_seconds)
        late = LateMeasuring(moments)
        self._history = RunHistory(own, self._roster, moments, arrivals, late, speculation, surveyor, ways)
        self._standby = StandbyWorkers(runtime, options.standby, self._roster, surveyor)
        # What the last runs came to.
        self._server_failures = ServerFailures()
        self._is_replaced = self._was_lost = False  # the last run
        self._crashes = 0  # of earlier runs
        self._active = 0  # requests under way

    # Upstream.

    async def connect(self) -> socket:
        """Connect to llama-server. Raises OSError."""
        return await connect_unix(self.socket_path)

    def is_refusal(self, status: int) -> bool:
        """Return False: what llama-server says is the answer."""
        return False

    @property
    def socket_path(self) -> Path:
        """Return llama-server's socket: it never changes for one daemon, though the process may."""
        return self._runtime.paths.sockets / self._options.socket

    @property
    def readiness(self) -> Readiness:
        """Return the state now. While the weights of workers are loaded it says how far they are."""
        now, run = self._readiness, self._run
        if run is None:
            return now
        if now.state is ModelState.LOADING and not run.loaded and run.loads:
            now = with_loads(now, run.loads)
        return as_reached(now, self._runtime.mesh, run.workers)

    @property
    def model_name(self) -> str:
        """Return the name that clients use."""
        return self._options.name or self._files.own.name.removesuffix(".gguf")

    @property
    def facts(self) -> ServedFacts:
        """Return the facts about the model that clients see."""
        facts, props = self._files.facts(self._options.llama_args), self._loaded.props
        return with_properties(facts, props) if props else facts

    @property
    def failures(self) -> int:
        """Count the runs that have ended since the model was ready last."""
        return self._failures

    @property
    def slots(self) -> int:
        """Return how many answers are generated at a time."""
        return self._slots

    @property
    def may_name_slots(self) -> bool:
        """Return True if each slot has its own cache, and the user lets meshd choose slots."""
        answers = self._loaded.answers
        is_several = answers is not None and answers.slots > 1 and not answers.shared
        return is_several and not has_own_slots(self._options.llama_args)

    async def upstream_broke(self, why: str) -> str:
        """Note that a request met a loss; return the best reason that is known a moment later.

        The run would notice its end as well, but no request may fail in between. Then the cycle loads the
        model again, and the request goes on in the gateway (`Answer._prepare_retry`).
        """
        if (run := self._run) is None or not run.loaded:  # the cycle has noticed
            return self._why_lost or why
        if self._readiness.state is ModelState.READY:
            LOG.warning("upstream_broke", why=why)
            self._tell(ModelState.LOADING, why)
        run.end.seen(why)
        return await run.end.why()

    @property
    def crashes(self) -> int:
        """Count the llama-servers that crashed by themselves."""
        return self._crashes + (self._run is not None and self._run.crashed)

    @property
    def device_sampling(self) -> DeviceSampling | None:
        """Return the rule for requests that sample on a worker; None if there is none."""
        return self._loaded.sampling

    @property
    def holds_turns(self) -> str:
        """Return why no more answers may begin. Whatever comes after that run is waited for as any load."""
        return self._history.moments.holds_turns if self._readiness.state is ModelState.READY else ""

    def queued(self, waiting: int) -> None:
        """Note how many requests wait for their turn."""
        self._history.moments.queued(waiting)

    def requested(self, active: int) -> None:
        """Note how many requests are under way."""
        self._history.moments.requests(active, asyncio.get_running_loop().time())
        self._active = active
        if self._run is not None:
            self._run.measures.answers.requested(active)
            self._run.watch.requested(active)

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        """Note the progress of a stream."""
        if self._run is not None:
            self._run.measures.generated(total, grown, alone=alone)

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        """Note the end of an answer."""
        if self._run is not None:
            self._run.measures.answered(timings, alone=alone, seconds=seconds)
            if alone:
                self._history.speculation.answered(timings, asyncio.get_running_loop().time())

    async def computed(self, spans: Sequence[tuple[float, float]]) -> Mapping[str, Sequence[ComputedTime]]:
        """Ask each worker what it computed in these spans; those that do not know are left out."""
        return await self._run.computed(spans) if self._run is not None else {}

    # Role.

    @property
    def held(self) -> Mapping[tuple[str, str], int]:
        """Return the memory that the model takes now, by node and device."""
        facts = self._run.measures.facts if self._run is not None else None
        return facts.held if facts is not None else {}

    def drafting(self, file: Path) -> Drafting | None:
        """Return how the model with this file is drafted for; None where that is another one."""
        if file.resolve() not in [path.resolve() for path in self._files.current.paths]:
            return None
        return Drafting(self._history.speculation, self._options.draft)

    async def explain(self) -> Explained | None:
        """Return where the time of the model's tokens went; None while it is not loaded."""
        return await self._run.explain() if self._run is not None else None

    @property
    def status(self) -> RoleStatus:
        """Return the status of this role."""
        children: Sequence[ChildStatus] = ()
        tunnels: Sequence[TunnelStatus] = ()
        if self._run is not None:
            children = [self._server_failures.as_one(child) for child in self._run.children]
            tunnels = self._run.tunnels
        elif self._readiness.state is ModelState.FAILED:
            failed = self._server_failures.failed_child
            children = [failed] if failed is not None else []
        return RoleStatus(
            children=children,
            tunnels=tunnels,
            model=self.model_status,
            unfit=self._history.own_devices.notes,
            unknown=tuple(self._roster.unknown_names()),
            is_computing=self._run is not None and self._run.loaded,
            listed=self._history.own_devices.listed,
        )

    @property
    def model_status(self) -> ModelStatus:
        """Return the model's status, as members are told of it as well."""
        loaded, readiness = self._loaded, self.readiness
        return ModelStatus(
            name=self.model_name,
            fingerprint=self._files.index.fingerprint if self._files.index is not None else "",
            state=readiness.state,
            reason=readiness.reason,
            load_seconds=None if loaded.seconds is None else round(loaded.seconds, 3),
            measuring_seconds=round(loaded.measuring, 3),
            estimated=tuple(sorted(loaded.estimated)),
            weights_local_bytes=loaded.report.local_bytes,
            weights_network_bytes=loaded.report.network_bytes,
            weights_fetched_bytes=loaded.report.fetched_bytes,
            tensors_from_network=loaded.report.from_network,
            bytes_per_token=self._bytes_per_token(),
            split=loaded.split,
            by_tensors=loaded.plan is not None and loaded.plan.by_tensors,
            split_why=in_words(loaded.plan.reasons) if loaded.plan is not None else "",
            answers=loaded.answers,
            predicted=loaded.predicted,
            measured=self._run.measures.speed.speeds if self._run is not None else None,
            speculation=self._history.speculation.status() if loaded.seconds is not None else None,
            standby=self._standby.statuses(self._run.workers if self._run is not None else ()),
            fallbacks=self._files.smaller,
            fallback=self._files.current.name if self._files.note else "",
            progress=readiness.progress,
            too_few_workers=readiness.too_few,
            workers=self._run.loads if self._run is not None else (),
            draining=self._draining(),
        )

    def _draining(self) -> DrainStatus | None:
        run = self._run
        return self._history.moments.draining(run.workers) if run is not None and run.loaded else None

    @property
    def _loaded(self) -> LoadedModel:
        return self._run.result if self._run is not None else LoadedModel()

    def _bytes_per_token(self) -> float | None:
        run = self._run
        if run is not None and run.loaded and not run.workers:
            return 0.0
        return run.measures.token_cost.bytes_per_token if run is not None else None

    # The cycle.

    async def serve(self) -> None:
        """Run the model again and again, until cancelled. Raises UserError for an unusable file."""
        self._tell(ModelState.LOADING, "looking at the model file")
        self._files.begin()
        try:
            async with Owner() as owner:
                self._list_ahead(owner)
                await self._know_file()
                owner.start(self._files.know_smaller(), name="smaller models")
                while True:
                    failures = self._server_failures
                    restarts = failures.restarts
                    why = await self._cycle()
                    failures.why_restarted = why if failures.restarts > restarts else ""
                    await self._pause_after(why, owner)
        except ExceptionGroup as group:
            raise first_error(group) from None

    async def _cycle(self) -> str:
        """Wait, and run once; return why that ended."""
        # 1. Wait for workers.
        workers = await self._wait_for_workers()
        # 2. Look at the file, and at rpc-servers without meshd.
        try:
            await self._know_file()
            plain_rpc = await ask_plain(
                [str(endpoint) for endpoint in self._options.rpc], protocol=self._runtime.native.plain_rpc
            )
        except MeshdError as error:
            return await self._failed(error)
        assert self._files.index is not None
        model = ServedModel(
            file=self._files.current,
            index=self._files.index,
            layers=self._files.layers,
            options=self._options,
            plain_rpc=plain_rpc,
            alias=self.model_name,
            socket=self.socket_path,
        )
        # 3. Ask, plan, reserve, load and serve (run.py), with standby workers beside it.
        run = self._run = Run(
            self._runtime,
            model,
            self._history,
            on_progress=lambda text: self._tell(ModelState.LOADING, text),
            on_loaded=self._on_loaded,
        )
        try:
            work = self._standby.beside(run, model, workers)
            why = await contained(work, source="workers", name="model")
        except Fault as error:  # of what a worker said, most likely: another run may do without it
            run.why = run.why or error.what
            return f"the model cannot be run: {error.what}"
        except MeshdError as error:
            self._end_run(run, workers)
            return error.with_hint if run.blame.anybody else await self._failed(error)
        except asyncio.CancelledError:
            run.replaced = True  # it is unloaded
            raise
        finally:
            # 4. Remember whom to blame, and what the next run should know.
            self._end_run(run, workers)
        if run.loaded:
            self._why_lost = why
            self._files.lost()
        # 5. Try again, or wait for a change if llama-server ends each time before it is ready.
        if run.server_died is not None and self._server_failures.is_no_chance(spares=self._roster.spares()):
            await self._server_failed(why)
        return why

    def _end_run(self, run: Run, workers: Sequence[PeerStatus]) -> None:
        """Remember what the next run should know, once; what the split was is over."""
        if self._run is not run:
            return
        self._run = None
        self._crashes += run.crashed
        self._is_replaced = run.replaced
        self._was_lost = run.loaded and not run.replaced
        self._history.late_measuring.forget()
        failures = self._server_failures
        was_started = bool(run.children)
        failures.restarts += was_started and not run.replaced and not self._was_stopped(run)
        now = asyncio.get_running_loop().time()
        backoff = self._roster.backoff
        for worker in run.blame.tell(backoff, workers, run.workers, now):
            if (unsteady := backoff.unsteady(worker.peer, now)) is not None:
                LOG.warning("worker_unsteady", peer=worker.peer.short, name=worker.name, why=unsteady)
        is_tried = was_started and not run.replaced and not self._was_stopped(run)
        if is_tried and run.is_by_choice and run.ended_itself:
            lasted = now - run.blame.loaded_at if run.blame.loaded_at is not None else 0.0
            self._history.ways.ended(run.why, lasted=lasted, answered=run.measures.has_answered)
        if slower := run.slower_than_layers:
            self._history.ways.slower(slower)
        if run.loaded:
            failures.was_ready()
        elif run.server_died is not None:
            failures.died(run.server_died)

    def _was_stopped(self, run: Run) -> bool:
        """Return True if a worker of it has said goodbye, or left the mesh: it was meant to go."""
        return not {p.peer for p in self._runtime.mesh.peers() if not p.stopped}.issuperset(run.workers)

    async def _pause_after(self, why: str, owner: Owner) -> None:
        """Say why the last run ended, and wait before the next one: hardly, if answers are to go on."""
        self._failures += 1
        self._tell(ModelState.LOADING, why)
        if not self._is_replaced:
            LOG.warning("model_lost", model=self.model_name, why=why)
        pause = _RETRY.delay(self._failures - 1, 0.0)
        if self._failures == 1 and self._was_lost:
            pause = _AFTER_LOSS_SECONDS
        if pause < AHEAD_SECONDS:
            self._list_ahead(owner)
        await asyncio.sleep(pause)

    def _list_ahead(self, owner: Owner) -> None:
        owner.start_for(self.model_name, self._history.own_devices.ahead(), name="own devices")

    async def _know_file(self) -> None:
        """Know the file by content; that costs nothing while it is as it was. Raises UserError."""
        if await self._files.know(self._hash_progress):
            self._history.exclusions = DeviceExclusions()  # another model

    def _hash_progress(self, progress: HashProgress) -> None:
        done = progress.done / max(1, progress.total)
        self._tell(ModelState.LOADING, progress.text, progress=done)

    def rests(self, state: ModelState, why: str) -> None:
        """Note what its owner says, who has ended `serve`, or saw it fail."""
        self._failures = 0
        self._tell(state, why)

    def _tell(
        self,
        state: ModelState,
        reason: str,
        *,
        progress: float | None = None,
        no_room: bool = False,
        too_few: bool = False,
    ) -> None:
        if is_news(state, reason, self._readiness):
            LOG.info("model_state", model=self.model_name, state=state.value, why=reason)
        note = self._files.note
        self._readiness = Readiness(
            state, reason, progress=progress, no_room=no_room, too_few=too_few, note=note
        )

    def _wanted(self) -> list[PeerStatus]:
        """Return workers to load the model again for: those that help or were used before, or all.

        By tensors few of the workers are of use that had layers before: there they have to help.
        """
        all_of_them = not self._options.picks_by_speed
        helpful: Set[PeerId] = self._history.arrivals.helpful
        if self._run is None or not self._run.is_by_choice:
            helpful |= self._history.used
        wanted = [worker for worker in self._roster.workers() if all_of_them or worker.peer in helpful]
        return [worker for worker in wanted if not self._roster.is_standby(worker)]

    def _why_otherwise(self, now: float) -> str:
        """Return why the model is to be loaded again with the same workers; empty if it is not."""
        slower = self._run.slower_than_layers if self._run is not None else ""
        return self._history.speculation.better(now) or self._history.late_measuring.better or slower

    def _on_loaded(self) -> None:
        assert self._run is not None
        loaded, workers = self._run.result, self._run.workers
        self._slots = loaded.answers.slots if loaded.answers is not None else 1
        self._failures = 0
        self._run.watch.requested(self._active)
        self._roster.backoff.worked(workers)
        self._roster.ran_on(workers)
        self._history.ways.loaded(by_tensors=self._run.is_by_tensors)
        self._history.used.update(workers)
        self._history.arrivals.loaded(workers, asyncio.get_running_loop().time())
        self._roster.all_needed = False
        self._history.exclusions.worked(workers)
        self._files.loaded()
        notes = [note for note in (self._files.note, loaded.why) if note]
        self._tell(ModelState.READY, "; ".join([*notes, *self._roster.left_out()]))

    @property
    def _lacks_any_worker(self) -> bool:
        """Return True if the model was to run on this node alone only because nobody else is there."""
        return self._options.min_workers is None and not self._roster.workers()

    async def _server_failed(self, why: str) -> None:
        """Say that llama-server always ends before it is ready, and wait until something may have changed."""
        what, hint = self._server_failures.what_to_say(why, self._options.llama_args)
        self._tell(ModelState.FAILED, f"{what} ({hint})")
        LOG.error("model_failed", why=what, hint=hint)
        await self._roster.until_changed(self._server_failures.delay)

    async def _failed(self, error: MeshdError) -> str:
        """Wait for another state of the mesh, if the next try would fail like this one; return why."""
        why = error.with_hint
        if isinstance(error, UserError | Refused) and self._roster.spares():
            self._roster.all_needed = True  # it may be one of them that is lacking
        elif isinstance(error, NotEnoughMemory) and self._files.does_not_fit(error.what):
            LOG.warning("smaller_model", file=self._files.current.name, why=error.what)
            return self._files.note
        elif isinstance(error, UserError):
            no_room = isinstance(error, NotEnoughMemory)
            if isinstance(error, NoSplit) and (self._files.was_loaded or self._lacks_any_worker):
                self._tell(ModelState.WAITING, self._roster.why_waiting(why), no_room=no_room)
            else:
                self._tell(ModelState.FAILED, why, no_room=no_room)
                LOG.error("model_failed", why=error.what, hint=error.hint)
            await self._roster.until_changed(TRY_AGAIN_SECONDS)
        elif isinstance(error, Refused):
            self._tell(ModelState.WAITING, why)
            await self._roster.until_changed(TRY_AGAIN_SECONDS)
        return why

    # Waiting.

    async def _wait_for_workers(self) -> list[PeerStatus]:
        least, hoped_for = self._options.least_workers, self._options.hoped_for_workers
        seen, all_there = -1, self._options.min_workers == 0
        while not (enough := len(self._roster.workers()) >= least) or not all_there:
            if enough:  # perhaps no more when that is over: one was lost, or another one has its name
                await self._roster.until_all_are_there(MORE_WORKERS_SECONDS, least=hoped_for)
                all_there = True
                continue
            self._tell(ModelState.WAITING, self._roster.why_too_few(), too_few=True)
            try:
                async with asyncio.timeout_at(self._roster.next_try()):
                    seen = await self._runtime.mesh.changed(seen)
            except TimeoutError:
                LOG.info("worker_tried_again")
        for why in self._roster.used_all_the_same():
            LOG.warning("worker_used_all_the_same", why=f"there are too few other workers: {why}")
        return self._roster.workers()
