"""One life of the model on a head: leases, tunnels, llama-server, from the asking to the first thing lost."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from meshd.base import amounts, log
from meshd.base.errors import MeshdError, Refused, UserError
from meshd.base.tasks import Owner, first_error
from meshd.identity import naming
from meshd.identity.keys import PeerId
from meshd.model.layers import ModelLayers
from meshd.model.operations import operations
from meshd.model.plan import Plan
from meshd.model.status import WorkerWeights
from meshd.model.weights_index import WeightsIndex
from meshd.peer.interface import PeerStatus
from meshd.process.interface import ChildStatus
from meshd.role.head.ask_workers import Asking, acquire_for, not_ready
from meshd.role.head.blame import Blame
from meshd.role.head.device_exclusions import Trial, Unable
from meshd.role.head.lease_client import Lender, why_unfit
from meshd.role.head.llama_args import read_extra
from meshd.role.head.llama_server import LlamaServer, Over
from meshd.role.head.own_devices import own_devices
from meshd.role.head.push_plan import Pushing
from meshd.role.head.reservations import Reserving
from meshd.role.head.run_end import End, LoadedModel, ServerDied
from meshd.role.head.shared_memory import plan_over
from meshd.role.head.split_plan import (
    HeadOptions,
    Lent,
    PlainRpc,
    reservations,
    split_of,
    way_to,
    why_idle,
    without_idle,
)
from meshd.role.head.token_cost import TokenCost, crossed
from meshd.role.head.unreachable import give_up
from meshd.role.interface import Kit
from meshd.role.native.device_trial import Fitness
from meshd.rpc.head_timeouts import Company
from meshd.store.interface import WeightsFile
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import RPC_SERVER_CRASHED, Lost

LOG = log.get("serve")


class HeadRun:
    """Run once. `told` gets what it is waiting for, `on_loaded` is called when a real token came.

    What the next life should know is left in `blame`, `server_died`, `started`, and in `unable`, `fitness`
    and `slow` (ask_workers.py), which all lives share.
    """

    def __init__(
        self,
        *,
        kit: Kit,
        file: WeightsFile,
        index: WeightsIndex,
        layers: ModelLayers,
        options: HeadOptions,
        plain: Sequence[PlainRpc],
        unable: Unable,
        fitness: Fitness,
        slow: set[PeerId],
        apart: Callable[[PeerId, PeerId], bool],
        socket: Path,
        alias: str,
        told: Callable[[str], None],
        on_loaded: Callable[[LoadedModel], None],
    ) -> None:
        self._kit = kit
        self._file = file
        self._index = index
        self._layers = layers
        self._options = options
        self._plain = plain
        self._socket = socket
        self._alias = alias
        self._told = told
        self._on_loaded = on_loaded
        self._lenders: list[Lender] = []
        self._pushing = Pushing(allowed=options.push, apart=apart)
        self._trial = Trial(unable)
        self._fitness = fitness
        self._slow = slow
        shape = read_extra(options.extra).shape(layers, tokens=options.ctx_size)
        self._operations = operations(file.headers, shape)
        self._server = LlamaServer(
            kit,
            file=file,
            index=index,
            options=options,
            socket=socket,
            alias=alias,
            pushing=self._pushing,
        )
        largest = max((tensor.size for tensor in index.tensors), default=0)
        self._company = Company(asyncio.get_running_loop().time, largest=largest)
        self.end = End()
        self._weights_of: Callable[[str], int] = lambda _node: 0  # as planned
        self.token_cost = TokenCost(lambda: crossed(kit.mesh, self.workers))
        self.started = False
        self.loaded = False
        self.blame = Blame()
        self.server_died: ServerDied | None = None

    @property
    def children(self) -> Sequence[ChildStatus]:
        """llama-server, once it is there."""
        return (self._server.status,) if self._server.status is not None else ()

    @property
    def workers(self) -> Sequence[PeerId]:
        """Those that take part."""
        return [lender.peer for lender in self._lenders]

    @property
    def loads(self) -> tuple[WorkerWeights, ...]:
        """How far the weights of each worker are; empty before llama-server is started."""
        lenders, report = self._lenders if self.started else (), self._server.report
        return tuple(report.load_of(x.name, self._weights_of(x.name), x.sent_bytes) for x in lenders)

    @property
    def tunnels(self) -> Sequence[TunnelStatus]:
        """One for each worker."""
        return [lender.tunnel.status for lender in self._lenders if lender.tunnel is not None]

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
            plan, lent = await self._plan(workers)
            LOG.info("plan", why=plan.why)
            async with Owner() as owner:
                self._weights_of = plan.weights_of
                reserving = self._reserving()
                granted = await reserving.begin(lent, reservations(plan, lent), self._server.report, owner)
                if self._kit.native.patched:
                    await self._pushing.introduce(plan, self._lenders)
                self._server.start(plan, self._lenders, self._plain, owner)
                owner.start(self._run_server(plan, granted, began), name="load")
                owner.start(give_up(self, self._kit.mesh, self._options.grace), name="patience")
                why = await self.end.why()
                owner.cancel()
            return why
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            self._server.close()
            for lender in self._lenders:
                lender.release()

    # Asking and planning.

    async def _plan(self, workers: Sequence[PeerStatus]) -> tuple[Plan, list[Lent]]:
        """A plan, and the offers that it uses; the other workers are sent home. Raises MeshdError."""
        refusals: list[MeshdError] = []
        async with Owner() as owner:
            listed = own_devices(self._kit, self._options, self._fitness, self._operations, self._tell_own)
            mine = owner.start(listed, name="own devices")
            lent = await self._ask(workers, refusals)
        own, unable = mine.result()
        try:
            planned, lent = plan_over(
                self._layers, lent=lent, plain=self._plain, own=own, options=self._options, own_unable=unable
            )
        except UserError as error:
            if late := not_ready(refusals):
                raise Refused(error.what, code="workers", hint=late) from None
            raise
        plan, used = without_idle(planned, lent)
        reasons = [error.what for error in refusals]
        for lender in list(self._lenders):
            if all(item.node != lender.name for item in used):
                reasons.append(why_idle(planned, lender.name))
                LOG.warning("worker_left_out", peer=lender.peer.short, name=lender.name, why=reasons[-1])
                lender.release()
                self._lenders.remove(lender)
        least = self._options.min_workers
        if len(used) < least:
            raise Refused(
                f"{len(used)} of {least} workers can take part",
                code="workers",
                hint="; ".join(reasons) or "start another worker, or lower `--min-workers`",
            )
        return plan, used

    async def _ask(self, workers: Sequence[PeerStatus], refusals: list[MeshdError]) -> list[Lent]:
        """The offers of those that take part. Raises MeshdError when too few remain."""
        LOG.info("load_started", count=len(workers))
        self._told(f"asking {amounts.in_number(len(workers), 'worker')}" if workers else "planning")
        options = self._options
        names = {options.node_id: options.node_name} | {str(one.peer): one.name for one in workers}
        called = naming.labels(names, [server.endpoint for server in self._plain])
        self._options = replace(options, node_name=called[options.node_id])
        saved = self._server.saved()
        for worker in workers:
            if (unfit := why_unfit(self._kit.native.version, worker)) is not None:
                refusals.append(unfit)
                continue
            lender = Lender(
                self._kit,
                peer=worker.peer,
                name=called[str(worker.peer)],
                owner_pid=self._server_pid,
                saved=saved,
                patience=self._company.patience(worker.peer),
                told=self._told,
            )
            self._lenders.append(lender)
        asking = Asking(
            self._lenders, enough=self._options.min_workers, slow=self._slow, blamed=self.blame.failed
        )
        acquire = acquire_for(
            self._alias, self._index, self._kit.native.version, self._options.incarnation, self._operations
        )
        self._lenders = await asking.ask(acquire, refusals)
        if len(self._lenders) < self._options.min_workers and refusals:
            raise refusals[0]
        ways = {status.peer: way_to(status.paths) for status in self._kit.mesh.peers()}
        native = {worker.peer: worker.native for worker in workers}
        lent = []
        for lender in self._lenders:
            assert lender.offer is not None
            unable = self._trial.offered(lender.peer, native[lender.peer], lender.offer)
            lent.append(Lent(lender.name, lender.offer, ways.get(lender.peer), unable))
        return lent

    def _server_pid(self) -> int | None:
        status = self._server.status
        return status.pid if status is not None else None

    async def _tell_own(self, text: str) -> None:
        self._told(f"{self._options.node_name}: {text}")

    def _reserving(self) -> Reserving:
        return Reserving(
            self._kit.mesh,
            self._lenders,
            trial=self._trial,
            blame=self.blame,
            told=self._told,
            granted=self._all_granted,
            ended=self._lease_ended,
        )

    def _all_granted(self) -> None:
        self.started = True
        self._told("loading the model")

    def _lease_ended(self, lender: Lender, lost: Lost) -> None:
        if not self.loaded and lost.code == RPC_SERVER_CRASHED:
            self._trial.crashed(lender.peer, lost.text)
        if not self.loaded or not self.end.known:
            self.blame.ended(lender.peer, lost)
        self.end.say(f"worker {lender.name} is lost: {lost.text}")

    def _learn_unsupported(self) -> str:
        """What devices cannot compute, as llama-server reported: they are left out from now on."""
        told = []
        for endpoint, number, operation in self._server.report.unsupported:
            lender = self._lender_at(endpoint)
            # an rpc-server of the LAN has no name here, and nothing to be left out of
            device = (
                f"{lender.name} {self._trial.lacks(lender.peer, number, operation)}" if lender else endpoint
            )
            told.append(f"{device} cannot compute {operation}")
        return "; ".join(told)

    # llama-server.

    async def _run_server(self, plan: Plan, granted: asyncio.Task[None], began: float) -> None:
        over = await self._server.until_ready()
        if over is None:
            async with Owner() as owner:  # the first token is asked for as long as there is a server
                owner.start(self._load(plan, granted, began), name="first token")
                over = await self._server.until_over()
                owner.cancel()
        await self._server_lost(over, plan)

    async def _server_lost(self, over: Over, plan: Plan) -> None:
        """That may be a worker's doing: its own word is waited for, and comes first.

        Next comes what llama-server reported of a worker, whatever it answered or ended with then. It may be
        wrong, for a worker that is lost takes those with it that wait for its activations.
        """
        self._told(over.why)  # nobody is to be sent to it meanwhile
        if over.endpoint:
            self.end.reported(over.why)
        await self.end.word_of_a_lease()
        if not self.loaded:
            over = self._server.lost or over
            if unsupported := self._learn_unsupported():
                over = Over(unsupported, over.tail)
        known = self.end.known or (not self.loaded and self._trial.failed)
        lender = self._lender_at(over.endpoint)
        if not known and lender is not None:
            others = self._pushing.others(lender.peer, lender.patience.waited_for)
            self.blame.broke(lender.peer, over.why, others)
        elif not known and not self.loaded:
            self.server_died = ServerDied(split_of(plan), over.tail)
        self.end.say(over.why)

    def _lender_at(self, endpoint: str) -> Lender | None:
        return next((lender for lender in self._lenders if endpoint and lender.endpoint == endpoint), None)

    async def _load(self, plan: Plan, granted: asyncio.Task[None], began: float) -> None:
        report = self._server.report
        ready = await self._kit.one_token(self._socket)
        await asyncio.wait([granted])  # it was said before the token came, though in another stream
        if not self.started:
            return  # one has refused
        if not ready.ready:
            await self._server_lost(Over(ready.reason), plan)
            return
        if not (self._file.stat_unchanged() and self._file.paths_unchanged()):
            self.end.say(f"the model file `{self._file.name}` was changed while it was loaded")
            return
        if not self._kit.native.patched:  # it reports nothing itself; the tunnels do
            plain = {server.endpoint for server in self._plain}
            report.network_bytes += sum(s.weights for s in plan.shares if s.device.node in plain)
        now = asyncio.get_running_loop().time()
        self.loaded = True
        self.blame.loaded_at = now
        self._pushing.tell()
        self._server.tell()
        for lender in self._lenders:
            await lender.say_loaded()
        self._on_loaded(
            LoadedModel(
                seconds=now - began,
                why=plan.why,
                split=self._pushing.parts(split_of(plan)),
                report=report,
            )
        )
