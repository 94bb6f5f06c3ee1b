"""The llama-server of one life of a model: its command line, its descriptors, its reports, its end."""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from meshd.base import log
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.base.tasks import Owner
from meshd.base.wakeful_loop import children_waiting
from meshd.devices import command_lines
from meshd.devices.fd_handover import Outgoing
from meshd.devices.interface import IS_SUSPENDED, NativeBuild, Processes, Report, RolePaths
from meshd.devices.processors import head_threads, llama_threads
from meshd.head.away_times import AwayTimes
from meshd.head.lease_client import LeaseClient
from meshd.head.load_report import LoadWatch, WeightsReport
from meshd.head.mesh_end import MeshEnd, ModelHeader
from meshd.head.run_input import ServedModel
from meshd.model.drafts import Drafts
from meshd.model.status import NOT_HELD
from meshd.model.weights_index import encode_index
from meshd.plan.over_offers import with_module
from meshd.plan.split import Plan
from meshd.plan.wishes import read_llama_args
from meshd.process.interface import SHOWN_LINES, Child, ChildFailed, ChildSpec, ChildState, ChildStatus
from meshd.rpc.reading_budget import NodeReading

LOST = "lost "  # a line of the report: the connection to this endpoint is lost for good, and why
LOG = log.get("serve")
MESH_DEVICE = "MESH"  # what our module calls devices, before their number
REPORT_SECONDS = 1.0  # for the last lines of a process that has ended
SHOWN_WEIGHTS = 12  # by name in the log; status has all
_LOOK_SECONDS = 1.0  # how often is looked whether it is suspended
_FROM_OUTSIDE = (signal.SIGKILL, signal.SIGTERM)
# A process gets these for what it does itself
CRASH_SIGNALS = frozenset(
    (
        signal.SIGABRT,
        signal.SIGBUS,
        signal.SIGFPE,
        signal.SIGILL,
        signal.SIGSEGV,
        signal.SIGSYS,
        signal.SIGTRAP,
    )
)


@dataclass(frozen=True, slots=True)
class Over:
    """Why llama-server is of no use any more; its last lines if it has ended.

    `endpoint` is that of the worker it lost, if it is for that. `crashed`: it ended by itself or took too
    much memory, so one of the requests may be the reason. `from_outside`: somebody else ended it, or the
    kernel did, so no worker is the reason.
    """

    why: str
    tail: tuple[str, ...] = ()
    endpoint: str = ""
    crashed: bool = False
    from_outside: bool = False


class LlamaServer:
    """One process; `start` once, `close` at the end. What it reports is summed up in `report`."""

    def __init__(
        self,
        native: NativeBuild,
        processes: Processes,
        paths: RolePaths,
        *,
        model: ServedModel,
        fails: Callable[[MeshdError], None],
        reading: NodeReading,
    ) -> None:
        """`fails` is told why this model cannot be loaded, where that is not for the process to say."""
        self._native = native
        self._processes = processes
        self._paths = paths
        self._model = model
        self._reading = reading
        self._child: Child | None = None
        self._outgoing = Outgoing()
        self._pipe: Report | None = None
        self._header = ModelHeader(model.alias, model.index, fails) if model.file.header_of else None
        self._digests = {one.digest: one.name for one in model.index.tensors}
        self._reported = asyncio.Event()  # no line comes any more
        self._why_killed = ""
        self._is_stuck = False
        self._said = 0  # lines that it printed and reported
        self._lost: asyncio.Future[Over] = asyncio.get_running_loop().create_future()
        self.report = WeightsReport({})
        self.away = AwayTimes(asyncio.get_running_loop().time)

    @property
    def status(self) -> ChildStatus | None:
        """None before its start."""
        return self._child.status if self._child is not None else None

    @property
    def lost(self) -> Over | None:
        """It has lost a worker, as it reported."""
        return self._lost.result() if self._lost.done() else None

    def mesh_end(self) -> MeshEnd:
        """What it inherits for one worker."""
        return MeshEnd(
            self._processes.socket_pair,
            weights=self._digests,
            report=self.report,
            away=self.away,
            header=self._header,
            reading=self._reading,
        )

    def start(
        self,
        plan: Plan,
        leases: Sequence[LeaseClient],
        owner: Owner,
        drafts: Drafts = command_lines.NO_DRAFTS,
    ) -> None:
        """Begin to run it in tasks of `owner`. Raises MeshdError."""
        self._model.socket.unlink(missing_ok=True)
        try:
            pipe = self._pipe = self._processes.make_report()
        except OSError as error:
            raise MeshdError(f"llama-server cannot be started: {error.strerror}") from None
        self._outgoing.add(pipe.child_end)
        child = self._processes.make_child(
            lambda: self._spec(plan, leases, pipe, drafts), self._model.options.child
        )
        self._child = child
        owner.start(child.serve(), name="llama-server")
        owner.start(self._read_report(pipe), name="llama-server report")
        owner.start(self._end_suspended(child), name="llama-server suspended")
        owner.start(self._end_stuck_load(child, leases), name="llama-server load")

    def _spec(self, plan: Plan, leases: Sequence[LeaseClient], pipe: Report, drafts: Drafts) -> ChildSpec:
        """It loads our module, which finds a connection with each worker."""
        model, options = self._model, self._model.options
        rest = read_llama_args(options.llama_args).rest
        named = with_module(plan, MESH_DEVICE, sum(len(lease.lent) for lease in leases))
        head = command_lines.Head(
            model=str(model.file.paths[0]),
            socket=str(model.socket),
            alias=model.alias,
            endpoints=tuple(model.plain_endpoints),
            plan=command_lines.without_overridden(named.arguments, rest),
            load_mode=options.load_mode,
            llama_args=rest,
            mmproj=str(options.mmproj.absolute()) if options.mmproj is not None else "",
            drafts=drafts,
            draft_model=options.draft.path if options.draft is not None else "",
            threads=threads if (threads := head_threads()) < llama_threads() else 0,
        )
        return ChildSpec(
            name=options.child,
            argv=command_lines.llama_server(str(self._native.llama_server), head),
            log=self._paths.logs / f"{options.child}.log",
            probe=self._processes.http_ready(model.socket),
            env=self._environment(leases, pipe),
            hand_over=self._outgoing.give(),
            ready_timeout=None,
            on_line=self._see_line,
        )

    def _environment(self, leases: Sequence[LeaseClient], pipe: Report) -> Mapping[str, str]:
        options = self._model.options
        return command_lines.mesh_head_environment(
            module=str(self._native.module),
            sockets=[self._outgoing.add(lease.mesh_end.give()) for lease in leases],
            lent=[lease.lent for lease in leases],
            weights=self._outgoing.add(self._processes.hand_over(encode_index(self._model.index))),
            report=pipe.child_end,
            grace=options.grace,
            waiting=children_waiting(self._processes.waiting, computes=False),
            activations=options.activations,
        )

    async def until_ready(self) -> Over | None:
        """None when it answers that it has loaded. Raises UserError."""
        assert self._child is not None
        try:
            await self._child.ensure_ready()
        except ChildFailed as error:
            return self._ended(error.what, error.tail)
        return None

    async def until_over(self) -> Over:
        """It has ended; or it runs and has lost a worker, after which it answers nothing any more."""
        async with Owner() as owner:
            ended = owner.start(self._until_ended(), name="llama-server end")
            await asyncio.wait([ended, self._lost], return_when=asyncio.FIRST_COMPLETED)
            owner.cancel()
        if not ended.cancelled():  # our module ends it, right after it has said so
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
        crashed = status.exit_signal in CRASH_SIGNALS or bool(status.no_memory)
        over = self._ended(status.reason, status.tail, crashed=crashed)
        from_outside = status.exit_signal in _FROM_OUTSIDE and not self._why_killed
        return replace(over, from_outside=from_outside)

    async def _end_suspended(self, child: Child) -> None:
        """A suspended one keeps its connections and never answers: the next one goes on with its answers."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            pid = child.status.pid
            if pid is not None and self._processes.is_stopped(pid):
                self._why_killed = IS_SUSPENDED
                LOG.warning("llama_server_killed", pid=pid, why=IS_SUSPENDED)
                child.kill()

    async def _end_stuck_load(self, child: Child, leases: Sequence[LeaseClient]) -> None:
        """Until it is ready."""
        watch, loop = LoadWatch(), asyncio.get_running_loop()
        while (status := child.status).state is not ChildState.READY:
            if status.pid is not None and (work := self._processes.work_of(status.pid)) is not None:
                said = self._said + sum(lease.sent_bytes for lease in leases)
                if why := watch.look(loop.time(), work, said):
                    self._why_killed = why
                    LOG.warning("llama_server_killed", pid=status.pid, why=why)
                    child.kill()
                    return
            await asyncio.sleep(_LOOK_SECONDS)

    def _see_line(self, _line: str) -> None:
        self._said += 1

    async def _read_report(self, pipe: Report) -> None:
        try:
            while True:
                line = await pipe.line()
                self._said += 1
                self.report.line(line)
                if line.startswith(LOST) and not self._lost.done():
                    endpoint, _, why = line.removeprefix(LOST).partition(" ")
                    name = self.report.names.get(endpoint, endpoint)
                    self._lost.set_result(Over(f"llama-server lost worker {name}: {why}", endpoint=endpoint))
        except (EndOfStream, Closed, Broken):
            self._reported.set()

    def kill(self, why: str) -> None:
        """It makes no progress: that counts as its own end."""
        if self._child is not None and not self._why_killed:
            self._why_killed, self._is_stuck = why, True
            LOG.warning("llama_server_killed", pid=self._child.status.pid, why=why)
            self._child.kill()

    def _ended(self, reason: str, tail: tuple[str, ...], *, crashed: bool = False) -> Over:
        last = f"; last lines: {' | '.join(tail[-SHOWN_LINES:])}" if tail else ""
        why = self._why_killed or reason
        says_who = why.startswith(f"`{self._model.options.child}` ")
        crashed = self._is_stuck or (crashed and not self._why_killed)
        return Over(f"{why if says_who else f'llama-server ended: {why}'}{last}", tail, crashed=crashed)

    def tell(self) -> None:
        """Log once a load which weights crossed the network; a copy that a worker cannot use is a warning."""
        unusable = [weight for weight in self.report.from_network if weight.reason != NOT_HELD]
        for weight in unusable[:SHOWN_WEIGHTS]:
            LOG.warning("weight_from_network", tensor=weight.name, node=weight.node, why=weight.reason)
        # a worker without the file takes its weights from here, as it was asked to
        for node, weights in self.report.by_node.items():
            if weights.network_bytes:
                LOG.info("weights_from_network", node=node, bytes=weights.network_bytes)

    def close(self) -> None:
        """Close what is ours; its owner has ended the process before."""
        self._model.socket.unlink(missing_ok=True)  # llama-server leaves it there
        self._outgoing.close()
        if self._pipe is not None:
            self._pipe.close()
