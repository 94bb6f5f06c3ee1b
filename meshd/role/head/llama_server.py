"""The llama-server of one life of a model: its command line, its descriptors, its reports, its end."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from meshd.base import log
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.base.tasks import Owner
from meshd.base.wakeful_loop import children_may_poll
from meshd.model.split_values import Plan
from meshd.model.weights_index import encode_index
from meshd.process.interface import SHOWN_LINES, Child, ChildFailed, ChildSpec, ChildStatus
from meshd.role.head.lease_client import LeaseClient
from meshd.role.head.llama_args import read_llama_args
from meshd.role.head.load_report import WeightsReport
from meshd.role.head.mesh_end import MeshEnd
from meshd.role.head.push_plan import PushPlan
from meshd.role.head.run_input import ServedModel
from meshd.role.head.split_plan import renamed
from meshd.role.head.stock_weights import OpenNamedWeights
from meshd.role.interface import MeshPrograms, NativeBuild, Processes, Report, RolePaths, TunnelClient
from meshd.role.native import command_lines
from meshd.role.native.fd_handover import Outgoing
from meshd.rpc.protocol import SECRET_BYTES
from meshd.tunnel.interface import SavedWeights

LOST = "lost "  # a line of the report: the connection to this endpoint is lost for good, and why
LOG = log.get("serve")
MESH_DEVICE = "MESH"  # what our module calls devices, before their number
REPORT_SECONDS = 1.0  # for the last lines of a process that has ended
SHOWN_WEIGHTS = 12  # by name in the log; status has all


@dataclass(frozen=True, slots=True)
class Over:
    """Why llama-server is of no use any more; its last lines if it has ended.

    `endpoint` is that of the worker it lost, if it is for that.
    """

    why: str
    tail: tuple[str, ...] = ()
    endpoint: str = ""


class LlamaServer:
    """One process; `start` once, `close` at the end. What it reports is summed up in `report`."""

    def __init__(
        self,
        native: NativeBuild,
        processes: Processes,
        paths: RolePaths,
        *,
        model: ServedModel,
        push_plan: PushPlan,
    ) -> None:
        self._native = native
        self._processes = processes
        self._paths = paths
        self._model = model
        self._push_plan = push_plan
        self._child: Child | None = None
        self._outgoing = Outgoing()
        self._pipe: Report | None = None
        self._weights: OpenNamedWeights | None = None
        self._digests: dict[bytes, str] = {}  # names of tensors, once a mesh_end was made
        self._reported = asyncio.Event()  # no line comes any more
        self._lost: asyncio.Future[Over] = asyncio.get_running_loop().create_future()
        self.report = WeightsReport({})

    @property
    def status(self) -> ChildStatus | None:
        """None before its start."""
        return self._child.status if self._child is not None else None

    @property
    def lost(self) -> Over | None:
        """It has lost a worker, as it reported."""
        return self._lost.result() if self._lost.done() else None

    def client(self, random: Callable[[int], bytes]) -> TunnelClient:
        """It as one tunnel to a worker knows it. Raises MeshdError."""
        if self._native.patched:
            return TunnelClient(secret=random(SECRET_BYTES))
        if self._native.mesh is not None:
            return TunnelClient()
        return TunnelClient(owner_pid=self._pid, saved=self._saved())

    def _pid(self) -> int | None:
        return self.status.pid if self.status is not None else None

    def _saved(self) -> SavedWeights:
        """What the tunnels of a stock program compare with, until `close`."""
        if self._weights is None:
            try:
                self._weights = OpenNamedWeights(self._model.index, self._model.file)
            except OSError as error:
                raise MeshdError(f"the model file cannot be opened: {error.strerror}") from None
        return SavedWeights(self._weights, self.report.placed)

    def mesh_end(self) -> MeshEnd | None:
        """What one that loads our module inherits for one worker; None for any other."""
        if self._native.mesh is None:
            return None
        self._digests = self._digests or {one.digest: one.name for one in self._model.index.tensors}
        return MeshEnd(self._processes.socket_pair, weights=self._digests, report=self.report)

    def start(self, plan: Plan, leases: Sequence[LeaseClient], owner: Owner) -> None:
        """Begin to run it in tasks of `owner`. Raises MeshdError."""
        self._model.socket.unlink(missing_ok=True)
        try:
            pipe = self._pipe = self._processes.make_report()
        except OSError as error:
            raise MeshdError(f"llama-server cannot be started: {error.strerror}") from None
        self._outgoing.add(pipe.child_end)
        child = self._processes.make_child(lambda: self._spec(plan, leases, pipe), "llama-server")
        self._child = child
        owner.start(child.serve(), name="llama-server")
        owner.start(self._read_report(pipe), name="llama-server report")

    def _spec(self, plan: Plan, leases: Sequence[LeaseClient], pipe: Report) -> ChildSpec:
        if self._native.mesh is not None:
            return self._mesh_spec(self._native.mesh, plan, leases, pipe)
        model, options = self._model, self._model.options
        tunnels = [(lease.tunnel.endpoint, lease.client.secret) for lease in leases if lease.tunnel]
        secrets = {endpoint: secret for endpoint, secret in tunnels if secret}
        weights = secrets_end = peers = -1
        if self._native.patched:
            weights = self._outgoing.add(self._processes.hand_over(encode_index(model.index)))
            secrets_end = self._outgoing.add(self._processes.hand_over(command_lines.secrets_text(secrets)))
            if routes := self._push_plan.text():
                peers = self._outgoing.add(self._processes.hand_over(routes))
        endpoints = [endpoint for endpoint, _ in tunnels]
        endpoints += model.plain_endpoints
        environment = command_lines.head_environment(
            weights=weights,
            secrets=secrets_end,
            peers=peers,
            report=pipe.child_end,
            sockets=str(self._paths.sockets),
            activations=options.activations,
        )
        return self._child_spec(plan, endpoints, environment, redact=[one.hex() for one in secrets.values()])

    def _mesh_spec(
        self, mesh: MeshPrograms, plan: Plan, leases: Sequence[LeaseClient], pipe: Report
    ) -> ChildSpec:
        """It loads our module, which finds a connection with each worker."""
        ends = [self._outgoing.add(lease.mesh_end.give()) for lease in leases if lease.mesh_end is not None]
        environment = command_lines.mesh_head_environment(
            module=str(mesh.module),
            sockets=ends,
            lent=[lease.lent for lease in leases],
            weights=self._outgoing.add(self._processes.hand_over(encode_index(self._model.index))),
            report=pipe.child_end,
            grace=self._model.options.grace,
            looks_out=children_may_poll(),
            activations=self._model.options.activations,
        )
        plain = self._model.plain_endpoints
        count = sum(len(lease.lent) for lease in leases)
        return self._child_spec(renamed(plan, MESH_DEVICE, count), plain, environment)

    def _child_spec(
        self,
        plan: Plan,
        endpoints: Sequence[str],
        environment: Mapping[str, str],
        redact: Sequence[str] = (),
    ) -> ChildSpec:
        model, options = self._model, self._model.options
        rest = read_llama_args(options.llama_args).rest
        head = command_lines.Head(
            model=str(model.file.paths[0]),
            socket=str(model.socket),
            alias=model.alias,
            endpoints=tuple(endpoints),
            plan=command_lines.without_overridden(plan.arguments, rest),
            load_mode=options.load_mode,
            llama_args=rest,
        )
        return ChildSpec(
            name="llama-server",
            argv=command_lines.llama_server(str(self._native.llama_server), head),
            log=self._paths.logs / "llama-server.log",
            probe=self._processes.http_ready(model.socket),
            env=environment,
            hand_over=self._outgoing.give(),
            ready_timeout=None,
            redact=tuple(redact),
        )

    async def until_ready(self) -> Over | None:
        """None when it answers that it has loaded. Raises UserError."""
        assert self._child is not None
        try:
            await self._child.ensure_ready()
        except ChildFailed as error:
            return _ended(error.what, error.tail)
        return None

    async def until_over(self) -> Over:
        """It has ended; or it runs and has lost a worker, after which it answers nothing any more."""
        async with Owner() as owner:
            ended = owner.start(self._until_ended(), name="llama-server end")
            await asyncio.wait([ended, self._lost], return_when=asyncio.FIRST_COMPLETED)
            owner.cancel()
        if not ended.cancelled():  # one that loads our module ends itself, right after it has said so
            await self._read_to_the_end()
        return self._lost.result() if self._lost.done() else ended.result()

    async def _read_to_the_end(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REPORT_SECONDS):
                await self._reported.wait()

    async def _until_ended(self) -> Over:
        assert self._child is not None
        status = self._child.status
        while status.is_up:
            status = await self._child.wait_changed(status)
        return _ended(status.reason, status.tail)

    async def _read_report(self, pipe: Report) -> None:
        try:
            while True:
                line = await pipe.line()
                self.report.line(line)
                self._push_plan.line(line)
                if line.startswith(LOST) and not self._lost.done():
                    endpoint, _, why = line.removeprefix(LOST).partition(" ")
                    name = self.report.names.get(endpoint, endpoint)
                    self._lost.set_result(Over(f"llama-server lost worker {name}: {why}", endpoint=endpoint))
        except (EndOfStream, Closed, Broken):
            self._reported.set()

    def tell(self) -> None:
        """Into the log, once a load: weights that crossed, and who gets hidden states in f32 all the same."""
        for weight in self.report.from_network[:SHOWN_WEIGHTS]:
            LOG.warning("weight_from_network", tensor=weight.name, node=weight.node, why=weight.reason)
        if len(self.report.from_network) > SHOWN_WEIGHTS:
            LOG.warning("weights_from_network", count=len(self.report.from_network))
        if self._model.options.activations == "f32" or self._native.mesh is not None:
            return
        if not self._native.patched:
            LOG.warning("activations_f32", why="llama-server has no patches")
        for node in self.report.unrounded:
            LOG.warning("activations_f32", node=node, why="its rpc-server does not support it")

    def close(self) -> None:
        """Close what is ours; its owner has ended the process before."""
        self._model.socket.unlink(missing_ok=True)  # llama-server leaves it there
        self._outgoing.close()
        if self._pipe is not None:
            self._pipe.close()
        if self._weights is not None:
            self._weights.close()


def _ended(reason: str, tail: tuple[str, ...]) -> Over:
    last = f"; last lines: {' | '.join(tail[-SHOWN_LINES:])}" if tail else ""
    return Over(f"llama-server ended: {reason}{last}", tail)
