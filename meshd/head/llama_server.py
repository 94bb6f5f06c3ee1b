"""The llama-server of one run: its command line, its descriptors, its reports, its end; whether it hangs.

A load may take an hour, and wait for a disk or for workers meanwhile. But when llama-server computes for
minutes and neither reads, writes nor prints anything, it is in an endless loop (`LoadWatch`). A chat template
can do that: llama-server renders it once before it answers.

Later it may compute for ever as well: its loop answers nothing, and no byte moves (`ServerWatch`). It has one
loop for all answers. An ambiguous grammar, say, keeps it at one token while the ways through the grammar
multiply: all answers wait, also when the client that asked has left, and `/health` is 200 all the time, as
its HTTP threads answer that. `/slots` is answered by the loop, or beside it while the model computes a batch
(server_queue::yield_to_queue of the pin). So a prompt that takes an hour answers within milliseconds. What
does not answer is between two batches, where nothing takes seconds but the network: then bytes move to or
from a worker. Processor time would tell nothing, as all of these use it.
"""

import asyncio
import contextlib
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base import log
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError
from meshd.base.processes import Outgoing, ProcessWork
from meshd.base.tasks import Owner
from meshd.base.wakeful_loop import children_waiting
from meshd.devices import command_lines
from meshd.devices.devices import head_threads, llama_threads
from meshd.devices.interface import IS_SUSPENDED, NativeBuild, Processes, Report, RolePaths
from meshd.head.lease import Lease, MeshEnd, ModelHeader, WeightsReport
from meshd.head.measures import AwayTimes
from meshd.head.served_files import ServedModel
from meshd.model.drafts import Drafts
from meshd.model.status import NOT_HELD
from meshd.model.weights_index import encode_index
from meshd.plan.over_offers import with_module
from meshd.plan.split import Plan
from meshd.plan.wishes import read_llama_args
from meshd.process.interface import (
    SHOWN_LINES,
    Child,
    ChildFailed,
    ChildSpec,
    ChildState,
    ChildStatus,
    Network,
    ReadyProbe,
    Sandbox,
)
from meshd.rpc.frames import NodeReading

LOST = "lost "  # a line of the report: the connection to this endpoint is lost for good, and why
LOG = log.get("serve")
MESH_DEVICE = "MESH"  # what our module calls devices, before their number
REPORT_SECONDS = 1.0  # for the last lines of a process that has ended
SHOWN_WEIGHTS = 12  # by name in the log; status has all
LOAD_STILL_SECONDS = 300.0  # reserving buffers and warming up a projector take seconds
_SLOT_OPTIONS = {"-sps", "--slot-prompt-similarity", "-cram", "--cache-ram", "--no-slots"}
_BUSY_SHARE = 0.05  # of one processor, which others may need as well: one that waits uses almost none

STUCK = (
    f"it has computed for {LOAD_STILL_SECONDS:.0f} s without reading or printing anything: the chat "
    "template of the model probably never ends (replace it: `-- --chat-template chatml`)"
)
STUCK_SECONDS = 20.0  # without an answer, of the last WINDOW_SECONDS: each token may end one such time
WINDOW_SECONDS = 60.0
_PAUSE_SECONDS = 1.0
_BEAT_SECONDS = 0.1  # between two looks at whether this process runs
_PROMPT_SECONDS = 0.5  # of an answer: less than that nobody waits for
_LOOK_SECONDS = 1.0  # how often is looked whether it is suspended
_DOWNLOADS = ("-hf", "--hf", "-mu")  # begin options of llama-server that get something from the Internet
_SLOTS = "--slot-save-path"
# Options that name a file or folder to write.
_WRITTEN = (_SLOTS, "--log-file", "-lcd", "--lookup-cache-dynamic")
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
    """Tell why llama-server is of no use any more; its last lines if it has ended.

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
    """Run one process: `start` once, `close` at the end. What it reports is summed up in `report`."""

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
        """Start nothing yet. `fails` is told why this model cannot be loaded, if the process does not."""
        self._native = native
        self._processes = processes
        self._paths = paths
        self._model = model
        self._reading = reading
        self._child: Child | None = None
        self._outgoing = Outgoing()
        self._pipe: Report | None = None
        self._header = ModelHeader(model.alias, model.index, fails) if model.file.header_of else None
        self._digests = {tensor.digest: tensor.name for tensor in model.index.tensors}
        self._reported = asyncio.Event()  # no line comes any more
        self._why_killed = ""
        self._is_stuck = False
        self._printed_lines = 0  # lines that it printed and reported
        self._lost: asyncio.Future[Over] = asyncio.get_running_loop().create_future()
        self.report = WeightsReport({})
        self.away = AwayTimes(asyncio.get_running_loop().time)

    @property
    def status(self) -> ChildStatus | None:
        """Return its status; None before its start."""
        return self._child.status if self._child is not None else None

    @property
    def lost(self) -> Over | None:
        """Return the loss of a worker that it has reported."""
        return self._lost.result() if self._lost.done() else None

    def mesh_end(self) -> MeshEnd:
        """Make what it inherits for one worker."""
        return MeshEnd(
            self._processes.socket_pair,
            weights=self._digests,
            report=self.report,
            away=self.away,
            header=self._header,
            reading=self._reading,
        )

    def prepare(
        self,
        plan: Plan,
        leases: Sequence[Lease],
        owner: Owner,
        drafts: Drafts = command_lines.NO_DRAFTS,
    ) -> None:
        """Make what its process inherits, and the tasks of `owner` that keep it. Raises MeshdError.

        The process begins when `until_ready` asks for it.
        """
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

    def _spec(self, plan: Plan, leases: Sequence[Lease], pipe: Report, drafts: Drafts) -> ChildSpec:
        """Describe the process: it loads our module, which finds a connection with each worker."""
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
            sandbox=self._sandbox(rest),
        )

    def _sandbox(self, llama_args: Sequence[str]) -> Sandbox | None:
        """Return what it may use; None where the user's options make it download something."""
        model, options = self._model, self._model.options
        beside = (options.mmproj, options.draft and options.draft.path)
        files = [*model.file.paths, *(Path(path).absolute() for path in beside if path)]
        found = named_files(llama_args)
        if found is None:
            return None
        read, keep = found
        return Sandbox(
            read=tuple(path.resolve() for path in (*files, *read)),
            keep=tuple(keep),
            listen=model.socket.parent,
            network=Network.ANY if model.plain_endpoints else Network.UNIX,
        )

    def _environment(self, leases: Sequence[Lease], pipe: Report) -> Mapping[str, str]:
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
        """Start it, and wait until it has loaded; return its end if that comes first. Raises UserError."""
        assert self._child is not None
        try:
            await self._child.ensure_ready()
        except ChildFailed as error:
            return self._ended(error.what, error.tail)
        return None

    async def until_over(self) -> Over:
        """Wait until it has ended, or has lost a worker, after which it answers nothing any more."""
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
        """Kill it when it is suspended: it would never answer, and the next one goes on with its answers."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            pid = child.status.pid
            if pid is not None and self._processes.is_stopped(pid):
                self._why_killed = IS_SUSPENDED
                LOG.warning("llama_server_killed", pid=pid, why=IS_SUSPENDED)
                child.kill()

    async def _end_stuck_load(self, child: Child, leases: Sequence[Lease]) -> None:
        """Watch it until it is ready, and kill it if it hangs."""
        watch, loop = LoadWatch(), asyncio.get_running_loop()
        while (status := child.status).state is not ChildState.READY:
            if status.pid is not None and (work := self._processes.work_of(status.pid)) is not None:
                progress = self._printed_lines + sum(lease.sent_bytes for lease in leases)
                if why := watch.look(loop.time(), work, progress):
                    self._why_killed = why
                    LOG.warning("llama_server_killed", pid=status.pid, why=why)
                    child.kill()
                    return
            await asyncio.sleep(_LOOK_SECONDS)

    def _see_line(self, _line: str) -> None:
        self._printed_lines += 1

    async def _read_report(self, pipe: Report) -> None:
        try:
            while True:
                line = await pipe.line()
                self._printed_lines += 1
                self.report.line(line)
                if line.startswith(LOST) and not self._lost.done():
                    endpoint, _, why = line.removeprefix(LOST).partition(" ")
                    name = self.report.names.get(endpoint, endpoint)
                    self._lost.set_result(Over(f"llama-server lost worker {name}: {why}", endpoint=endpoint))
        except (EndOfStream, Closed, Broken):
            self._reported.set()

    def kill(self, why: str) -> None:
        """Kill it as it makes no progress: that counts as its own end."""
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


def has_own_slots(llama_args: Sequence[str]) -> bool:
    """Return True if the user decides how llama-server chooses slots, or it does not tell of them."""
    words = (word.partition("=")[0].replace("_", "-") for word in llama_args)
    return not _SLOT_OPTIONS.isdisjoint(words)


def named_files(llama_args: Sequence[str]) -> tuple[list[Path], list[Path]] | None:
    """Return files that the user's options for llama-server name: to read, and to write.

    Adapters, templates, grammars; saved slots, logs. None if an option makes it download something.
    """
    if any(word.startswith(_DOWNLOADS) or word.endswith("-url") for word in llama_args):
        return None
    read: list[Path] = []
    keep: list[Path] = []
    for option, word in zip(("", *llama_args), llama_args, strict=False):
        if option in _WRITTEN:
            keep.append(_written(Path(word), is_folder=option == _SLOTS))
        elif word.startswith("/"):
            # A comma separates files, a colon a file and its scale. The home is no file of a model.
            parts = [Path(part.partition(":")[0]) for part in word.split(",")]
            read += [part for part in parts if not Path.home().is_relative_to(part)]
    return read, keep


def _written(path: Path, *, is_folder: bool) -> Path:
    """Return what llama-server may write; a file is made first, as it cannot make one."""
    if not is_folder:
        with contextlib.suppress(OSError):
            path.touch(mode=0o600)
    return path


class LoadWatch:
    """Watch one llama-server until it is ready; times in seconds of one clock."""

    def __init__(self) -> None:
        self._signs: tuple[int, int] | None = None
        self._since = 0.0
        self._computed = 0.0  # processor seconds at that time

    def look(self, now: float, work: ProcessWork, progress: int) -> str:
        """Return why it is stuck, empty if not. `progress` counts what it printed and sent."""
        signs = (work.moved_bytes, progress)
        if signs != self._signs:
            self._signs, self._since, self._computed = signs, now, work.processor_seconds
            return ""
        still = now - self._since
        is_busy = work.processor_seconds - self._computed >= _BUSY_SHARE * still
        return STUCK if still >= LOAD_STILL_SECONDS and is_busy else ""


class SilentTimes:
    """Sum up how long questions went unanswered lately. Pure; `now` in seconds of one clock."""

    def __init__(self) -> None:
        self._times: deque[tuple[float, float]] = deque()  # end, seconds

    def add(self, seconds: float, now: float) -> None:
        """Add a question that waited so long for its answer, or until it was given up."""
        if seconds > _PROMPT_SECONDS:
            self._times.append((now, seconds))

    def seconds(self, now: float) -> float:
        """Return the sum of the last WINDOW_SECONDS."""
        while self._times and self._times[0][0] <= now - WINDOW_SECONDS:
            self._times.popleft()
        return sum(seconds for _, seconds in self._times)


class ServerWatch:
    """Ask one llama-server while requests are under way, and until it has answered afterwards."""

    def __init__(self, ask: ReadyProbe, moved: Callable[[], int | None]) -> None:
        """Ask nothing yet. `moved`: bytes to and from all workers; None while one of them is out of reach."""
        self._ask = ask
        self._moved = moved
        self._wanted = asyncio.Event()
        self._active = 0

    def requested(self, active: int) -> None:
        """Note how many requests are under way now."""
        self._active = active
        if active:
            self._wanted.set()

    async def until_stuck(self) -> str:
        """Return why it is held for stuck, when it is."""
        now, silent = asyncio.get_running_loop().time, SilentTimes()
        while silent.seconds(now()) < STUCK_SECONDS:
            await self._wanted.wait()
            before = self._moved()
            answered, seconds = await self._asked()
            if before is not None and self._moved() == before:
                silent.add(seconds, now())
            if answered and not self._active:
                self._wanted.clear()
            await asyncio.sleep(_PAUSE_SECONDS)
        return f"it made no progress for {STUCK_SECONDS:.0f} of {WINDOW_SECONDS:.0f} s, so meshd ended it"

    async def _asked(self) -> tuple[bool, float]:
        """Return whether it answered, and for how many seconds this loop, which runs meanwhile, waited.

        A beat that comes late is this process standing still: that says nothing of llama-server.
        """
        now, waited = asyncio.get_running_loop().time, 0.0
        async with Owner() as owner:
            question = owner.start(self._answer(), name="question to llama-server")
            while not question.done():
                began = now()
                await asyncio.wait([question], timeout=_BEAT_SECONDS)
                waited += min(now() - began, _BEAT_SECONDS)
        return question.result(), waited

    async def _answer(self) -> bool:
        return await self._ask()
