"""One life of the model on a head: leases, tunnels, llama-server, from the asking to the first thing lost."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from meshd.base import log
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.base.tasks import Owner, first_error
from meshd.model.layers import ModelLayers
from meshd.model.plan import Plan
from meshd.model.weights_index import WeightsIndex, encode_index
from meshd.peer.interface import PeerStatus
from meshd.process.interface import Child, ChildSpec, ChildState, ChildStatus
from meshd.role import command
from meshd.role.devices import list_devices, pick
from meshd.role.interface import Kit, Report, SplitPart
from meshd.role.lender import Lender
from meshd.role.outgoing import Outgoing
from meshd.role.plan import HeadOptions, Lent, PlainRpc, make_plan, reservations, split_of
from meshd.role.weights_report import WeightsReport
from meshd.store.interface import WeightsFile
from meshd.tunnel.interface import TunnelStatus
from meshd.wire.lease import Acquire, Device

# Generated at the end of a load, to measure what a token costs on the wire. The second token of an answer
# still carries the graph of its shape, so two answers are compared that differ by later tokens only.
SHORT_TOKENS, SAMPLE_TOKENS = 2, 4
SHOWN_WEIGHTS = 12  # by name in the log; status has all
LOG = log.get("serve")


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a load came to; `seconds` None before the first."""

    seconds: float | None = None
    why: str = ""
    split: tuple[SplitPart, ...] = ()
    bytes_per_token: float | None = None
    report: WeightsReport = field(default_factory=lambda: WeightsReport({}))


class HeadRun:
    """Run once. `told` gets what it is waiting for, `on_loaded` is called when a real token came."""

    def __init__(
        self,
        *,
        kit: Kit,
        file: WeightsFile,
        index: WeightsIndex,
        layers: ModelLayers,
        options: HeadOptions,
        plain: Sequence[PlainRpc],
        socket: Path,
        alias: str,
        told: Callable[[str], None],
        on_loaded: Callable[[Loaded], None],
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
        self._child: Child | None = None
        self._outgoing = Outgoing()
        self._report_pipe: Report | None = None
        self._report = WeightsReport({})
        self._lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def children(self) -> Sequence[ChildStatus]:
        """llama-server, once it is there."""
        return (self._child.status,) if self._child is not None else ()

    @property
    def tunnels(self) -> Sequence[TunnelStatus]:
        """One for each worker."""
        return [lender.tunnel.status for lender in self._lenders if lender.tunnel is not None]

    async def run(self, workers: Sequence[PeerStatus]) -> str:
        """From asking the workers to the first loss; returns why it ended. Raises MeshdError."""
        began = asyncio.get_running_loop().time()
        try:
            lent = await self._ask(workers)
            plan = make_plan(
                self._layers,
                lent=lent,
                plain=self._plain,
                own=await self._own_devices(),
                options=self._options,
            )
            LOG.info("plan", why=plan.why)
            async with Owner() as owner:
                await self._reserve(plan, lent, owner)
                self._start(plan, owner)
                owner.start(self._load(plan, began), name="load")
                why = await self._lost
                owner.cancel()
            return why
        except ExceptionGroup as group:
            raise first_error(group) from None
        finally:
            self._socket.unlink(missing_ok=True)  # llama-server leaves it there
            self._outgoing.close()
            if self._report_pipe is not None:
                self._report_pipe.close()
            for lender in self._lenders:
                lender.release()

    def lose(self, why: str) -> None:
        """End this life; the first reason stays."""
        if not self._lost.done():
            self._lost.set_result(why)

    # Asking and planning.

    async def _ask(self, workers: Sequence[PeerStatus]) -> list[Lent]:
        """Ask all at once; who says no is left out as long as enough remain."""
        version = self._kit.native.version
        acquire = Acquire(
            incarnation=self._options.incarnation,
            model=self._alias[:100],
            fingerprint=self._index.fingerprint,
            native_pin=version.pin,
            native_patches=version.patches,
        )
        self._told(f"asking {len(workers)} workers" if workers else "planning")
        refusals: list[MeshdError] = []
        async with Owner() as owner:
            for worker in workers:
                lender = Lender(
                    self._kit,
                    peer=worker.peer,
                    name=self._label(worker, workers),
                    owner_pid=lambda: self._child.status.pid if self._child is not None else None,
                    told=self._told,
                )
                self._lenders.append(lender)
                owner.start(self._ask_one(lender, acquire, refusals), name=f"ask {worker.name}")
        self._lenders = [lender for lender in self._lenders if lender.offer is not None]
        if len(self._lenders) < self._options.min_workers and refusals:
            raise refusals[0]
        return [Lent(lender.name, lender.offer) for lender in self._lenders if lender.offer is not None]

    def _label(self, worker: PeerStatus, workers: Sequence[PeerStatus]) -> str:
        """Its name, with the id where two nodes of this split have the same one."""
        names = [other.name for other in workers] + [self._options.node_name]
        return worker.name if names.count(worker.name) == 1 else f"{worker.name}-{worker.peer.short[:4]}"

    async def _ask_one(self, lender: Lender, acquire: Acquire, refusals: list[MeshdError]) -> None:
        try:
            await lender.ask(acquire)
        except MeshdError as error:
            LOG.warning("worker_left_out", peer=lender.peer.short, name=lender.name, why=error.what)
            lender.release()
            refusals.append(error)

    async def _own_devices(self) -> tuple[Device, ...]:
        listed = await list_devices(
            self._kit.native.rpc_server, run_to_end=self._kit.run_to_end, log=self._kit.logs / "devices.log"
        )
        cpu = tuple(device for device in listed if device.name == "CPU")
        asked = self._options.devices
        if asked and set(asked) <= {"none", "CPU"}:
            return cpu
        gpus = pick(listed, [name for name in asked if name != "CPU"])
        return (*cpu, *(device for device in gpus if device.kind == "gpu"))

    async def _reserve(self, plan: Plan, lent: Sequence[Lent], owner: Owner) -> None:
        for lender, wanted in zip(self._lenders, reservations(plan, lent), strict=True):
            self._told(f"{lender.name}: starting its rpc-server")
            tunnel = await lender.reserve(wanted)
            self._report.names[tunnel.endpoint] = lender.name
            owner.start(tunnel.serve(), name=f"tunnel {lender.name}")
            owner.start(self._watch_lease(lender), name=f"lease {lender.name}")

    async def _watch_lease(self, lender: Lender) -> None:
        self.lose(f"worker {lender.name} is lost: {await lender.until_lost()}")

    # llama-server.

    def _start(self, plan: Plan, owner: Owner) -> None:
        self._socket.unlink(missing_ok=True)
        try:
            report = self._kit.make_report()
        except OSError as error:
            raise MeshdError(f"llama-server cannot be started: {error.strerror}") from None
        self._report_pipe = report
        self._outgoing.add(report.child_end)
        child = self._kit.make_child(lambda: self._spec(plan, report), "llama-server")
        self._child = child
        self._told("loading the model")
        owner.start(child.serve(), name="llama-server")
        owner.start(self._watch_child(child), name="llama-server end")
        owner.start(self._read_report(report), name="llama-server report")

    def _spec(self, plan: Plan, report: Report) -> ChildSpec:
        options = self._options
        endpoints = [lender.tunnel.endpoint for lender in self._lenders if lender.tunnel is not None]
        secrets = {
            lender.tunnel.endpoint: lender.secret
            for lender in self._lenders
            if lender.tunnel is not None and lender.secret
        }
        weights = secrets_end = -1
        if self._kit.native.patched:
            weights = self._outgoing.add(self._kit.hand_over(encode_index(self._index)))
            secrets_end = self._outgoing.add(self._kit.hand_over(command.secrets_text(secrets)))
        head = command.Head(
            model=str(self._file.paths[0]),
            socket=str(self._socket),
            alias=self._alias,
            endpoints=(*endpoints, *(server.endpoint for server in self._plain)),
            plan=command.without_overridden(plan.arguments, options.extra),
            load_mode=options.load_mode,
            extra=options.extra,
        )
        return ChildSpec(
            name="llama-server",
            argv=command.llama_server(str(self._kit.native.llama_server), head),
            log=self._kit.logs / "llama-server.log",
            env=command.head_environment(weights=weights, secrets=secrets_end, report=report.child_end),
            hand_over=self._outgoing.give(),
            ready_timeout=None,
            redact=tuple(secret.hex() for secret in secrets.values()),
        )

    async def _watch_child(self, child: Child) -> None:
        await child.ensure_ready()
        status = child.status
        while status.state in (ChildState.READY, ChildState.STARTING):
            status = await child.wait_changed(status)
        last = f"; last lines: {' | '.join(status.tail[-3:])}" if status.tail else ""
        self.lose(f"llama-server ended: {status.reason}{last}")

    async def _read_report(self, report: Report) -> None:
        try:
            while True:
                self._report.line(await report.line())
        except (EndOfStream, Closed, Broken):
            return

    async def _load(self, plan: Plan, began: float) -> None:
        ready = await self._kit.one_token(self._socket)
        if not ready.ready:
            self.lose(ready.reason)
            return
        if not (self._file.stat_unchanged() and self._file.paths_unchanged()):
            self.lose(f"the model file `{self._file.name}` was changed while it was loaded")
            return
        if not self._kit.native.patched:  # it reports nothing, and sends every weight
            self._report.network_bytes = sum(s.weights for s in plan.shares if not s.device.is_head)
        per_token = await self._measure_token()
        now = asyncio.get_running_loop().time()
        for weight in self._report.from_network[:SHOWN_WEIGHTS]:
            LOG.warning("weight_from_network", tensor=weight.name, node=weight.node, why=weight.reason)
        if len(self._report.from_network) > SHOWN_WEIGHTS:
            LOG.warning("weights_from_network", count=len(self._report.from_network))
        self._on_loaded(
            Loaded(
                seconds=now - began,
                why=plan.why,
                split=split_of(plan),
                bytes_per_token=per_token,
                report=self._report,
            )
        )

    async def _measure_token(self) -> float | None:
        """Bytes on the links for one generated token, both directions."""
        if not self._lenders:
            return 0.0
        costs = []
        for tokens in (SHORT_TOKENS, SHORT_TOKENS + SAMPLE_TOKENS):
            before = self._link_bytes()
            if await self._kit.complete(self._socket, tokens) != tokens:
                return None
            costs.append(self._link_bytes() - before)
        return (costs[1] - costs[0]) / SAMPLE_TOKENS

    def _link_bytes(self) -> int:
        workers = {lender.peer for lender in self._lenders}
        return sum(
            path.sent_bytes + path.received_bytes
            for peer in self._kit.mesh.peers()
            if peer.peer in workers
            for path in peer.paths
        )
