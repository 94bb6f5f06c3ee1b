"""The mesh-server of one lease (docs/native-backend.md): started for it, watched, and ended with it.

A mesh-server has one connection with its head and ends with that connection. It watches itself and reports
what it does (PROGRESS), so this daemon need not model its work: it ends a server that falls silent.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from socket import socket

from meshd.base import log
from meshd.base.errors import Broken, Closed, EndOfStream, MeshdError, Refused
from meshd.base.processes import Outgoing
from meshd.base.wakeful_loop import children_waiting
from meshd.devices import command_lines
from meshd.devices.command_lines import count_of, totals_of
from meshd.devices.interface import IS_SUSPENDED, RoleRuntime
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.process.interface import ChildSpec, Sandbox
from meshd.rpc.frames import LINE_SECONDS, ReadingBudget
from meshd.rpc.mesh_keeping import MeshKeeping
from meshd.rpc.mesh_lease_view import MeshLeaseView
from meshd.rpc.mesh_protocol import HUNG_SECONDS
from meshd.store.interface import LeaseCache
from meshd.wire.lease import HEAD_ENDED, NO_MEMORY, RPC_SERVER_CRASHED, RPC_SERVER_ENDED
from meshd.worker.known_files import Weights
from meshd.worker.leases import Lease
from meshd.worker.push_neighbours import PushNeighbours
from meshd.worker.turn_times import TurnTimes

LOOK_SECONDS = 1.0
PROGRESS_SECONDS = 2.0
# Nobody else sends these signals: the process crashed.
CRASHES = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE})
_SLACK_BYTES = 64 << 20  # tolerance: a driver may count differently from one process to another
# of a thread, which is glibc's default; of the program, its sockets and what passes through them
_STACK_BYTES, _PROGRAM_BYTES = 8 << 20, 256 << 20
CHILD_NAME = "mesh-server"  # in status and logs
LOG = log.get("worker")
OnBroken = Callable[[MeshdError], None]


class ChildSilence:
    """Detect a mesh-server that reports no progress although it must: it hangs or is suspended.

    The head cannot tell a hung server from a silent path, for which it waits as long as `--grace` says.
    Implements tunnel.interface.Flow.
    Silence is counted in looks, not measured by a clock, so a daemon that was suspended itself accuses no
    server.
    """

    def __init__(self) -> None:
        self._answered = 0  # bytes at the last look
        self._peer_waits = False
        self._silent = 0.0  # seconds

    def peer_waits(self, waits: bool) -> None:
        """Note whether the peer currently fails to take what the server sends."""
        self._peer_waits = waits

    def target_waits(self, waits: bool) -> None:
        """Ignore that the server takes nothing now: it may compute for long."""

    def look(self, answered: int) -> str:
        """Return why the server is given up, or an empty string. Call this every LOOK_SECONDS.

        `answered` is the number of bytes that the server has sent so far. Before the server's first message,
        WELCOME, silence does not count: the head does the waiting.
        """
        changed, self._answered = answered != self._answered, answered
        if changed or not answered or self._peer_waits:
            self._silent = 0.0
            return ""
        self._silent += LOOK_SECONDS
        return (
            f"it hangs: it has said nothing for {self._silent:.0f} s" if self._silent > HUNG_SECONDS else ""
        )


@dataclass(frozen=True, slots=True)
class AgreedLease:
    """A lease that was granted, and the weights known at that moment.

    `fetch`: the head says which weights it needs (missing_weights.py); those of a standby are kept in memory.
    `is_kept`: the free memory comes from an earlier listing, so there may be less of it now.
    """

    lease: Lease
    weights: Weights | None
    fetch: bool = False
    is_kept: bool = False

    @property
    def lease_cache(self) -> LeaseCache | None:
        """The cache for weights that come over the network; None without a content store."""
        return None if self.weights is None else self.weights.lease_cache

    def shortage(self, device: str, free: int) -> str:
        """Return an error text if `free` bytes are less than was reserved by an earlier listing, else ""."""
        wanted = self.lease.memory.get(device, 0)
        if not self.is_kept or free + _SLACK_BYTES >= wanted:
            return ""
        return f"device {device} has {free >> 20} MiB left, {wanted >> 20} MiB were requested"


def most_memory(lent: int, threads: int) -> int:
    """Return what a mesh-server that lends `lent` bytes of a CPU may map, in bytes.

    The buffers of its head; a work buffer of graphs and kept graphs, with the limits of graphs.cpp
    (docs/native-backend.md has them); its threads' stacks, and the program itself.
    """
    work = max(lent, (64 << 20) + (threads << 20))
    graphs = max(lent // 16, 48 << 20)
    return lent + work + graphs + threads * _STACK_BYTES + _PROGRAM_BYTES


class MeshServer:
    """The mesh-server of one lease.

    Run `child` and `read_report` in tasks of the lease, then call `close`.
    """

    def __init__(
        self,
        runtime: RoleRuntime,
        agreed: AgreedLease,
        *,
        messages: MessageStream,
        threads: int,
        outgoing: Outgoing,
        log_path: Path,
        seals: bool = False,
    ) -> None:
        """Create its sockets. `messages` lead to the head; `outgoing` holds the descriptors; `seals`: it can.

        Raises OSError.
        """
        # What was agreed, and what runs it.
        self.agreed = agreed
        self.lease = agreed.lease
        self._processes = runtime.processes
        self._program = str(runtime.native.mesh_server)
        self._threads = threads
        self._join = runtime.tunnels.join
        self._reading = runtime.reading
        self._outgoing = outgoing
        self._log_path = log_path
        # What is seen of it.
        self._silence = ChildSilence()
        self._view: MeshLeaseView | None = None  # while there is a connection
        self.turns = TurnTimes(asyncio.get_running_loop().time)
        self._why_failed = ""  # as the server says it
        self._shortage = ""  # of memory, when the server started
        self.is_loaded = False
        # Its descriptors: a report, a connection with the head, and later ones.
        self._end: socket | None = None
        self._report = runtime.processes.make_report()
        outgoing.add(self._report.child_end)
        try:
            self._end, self._child_end = runtime.processes.socket_pair()
            outgoing.add(self._child_end)
            self._descriptors = runtime.processes.make_descriptors()
        except OSError:
            self._close_ends()
            raise
        outgoing.add(self._descriptors.child_end)
        # The process, and the workers that it exchanges activations with.
        self.neighbours = PushNeighbours(
            runtime.mesh,
            runtime.tunnels,
            messages,
            self._descriptors,
            runtime.processes.socket_pair,
            self.turns,
            runtime.reading,
            seals=seals,
        )
        self.child = runtime.processes.make_child(self.spec, CHILD_NAME)
        if (lease_cache := agreed.lease_cache) is not None:
            lease_cache.allow(sum(agreed.lease.memory.values()))

    # The process.

    def spec(self) -> ChildSpec:
        """Return how to start the process. Raises OSError."""
        return ChildSpec(
            name=CHILD_NAME,
            argv=command_lines.mesh_server(
                self._program,
                devices=list(self.lease.memory),
                threads=self._threads,
                memory=list(self.lease.memory.values()),
                head=self._child_end,
                weights=self._hand_over_weights(),
                neighbours=self._descriptors.child_end,
                report=self._report.child_end,
            ),
            log=self._log_path,
            env=command_lines.mesh_server_environment(
                children_waiting(self._processes.waiting, computes="CPU" in self.lease.memory)
            ),
            hand_over=self._outgoing.give(),
            sandbox=Sandbox(  # the weights come as descriptors
                memory=most_memory(sum(self.lease.memory.values()), self._threads)
            ),
        )

    def _hand_over_weights(self) -> int:
        """Return a descriptor of the index, or -1 without weights. Raises OSError."""
        weights = self.agreed.weights
        return -1 if weights is None else weights.hand_over(self._processes.hand_over, self._outgoing)

    async def until_ready(self, on_progress: Callable[[str], Awaitable[None]]) -> None:
        """Wait until the process is ready, and report progress. Raises MeshdError when it cannot start."""
        while True:
            try:
                async with asyncio.timeout(PROGRESS_SECONDS):
                    return await self.child.ensure_ready()
            except TimeoutError:
                await on_progress(f"starting the {CHILD_NAME}")

    async def until_ended(self) -> str:
        """Wait for the end of the server and return its reason.

        A server that hangs or is suspended is killed.
        """
        status = self.child.status
        while status.is_up:
            try:
                async with asyncio.timeout(LOOK_SECONDS):
                    status = await self.child.wait_changed(status)
            except TimeoutError:
                if status.pid is not None and (why := self._why_useless(status.pid)):
                    LOG.warning("mesh_server_killed", peer=self.lease.peer.short, pid=status.pid, why=why)
                    self.child.kill()
                    return why
        if self._shortage:
            return self._shortage
        return f"{status.reason}: {self._why_failed}" if self._why_failed else status.reason

    def _why_useless(self, pid: int) -> str:
        if self._processes.is_stopped(pid):
            return IS_SUSPENDED
        return self._silence.look(self._view.answered) if self._view is not None else ""

    def code_of_end(self) -> str:
        """Return the code of Lost for the end that `until_ended` has seen.

        The server exits with 0 when its head has ended, and with 1 after a failure.
        """
        if self._shortage:
            return NO_MEMORY
        if self.child.status.exit_code == 0:
            return HEAD_ENDED
        return RPC_SERVER_CRASHED if self.child.status.exit_signal in CRASHES else RPC_SERVER_ENDED

    def close(self) -> None:
        """Close the sockets. Call this after the child has ended."""
        self.neighbours.close()
        self._descriptors.close()
        self._close_ends()

    def _close_ends(self) -> None:
        self._report.close()
        if self._end is not None:
            self._end.close()

    # Streams.

    async def serve_head(self, stream: Stream, direct: socket | None, on_broken: OnBroken) -> None:
        """Connect the only stream of the head; the server ends with that stream. Raises Refused, Broken.

        `direct`: a connection with a head on this machine, which carries the bytes of the stream. It is ours
        from here on.
        """
        if self._end is None:
            if direct is not None:
                direct.close()
            raise Refused("this lease has its connection already", code="busy")
        end, self._end = self._end, None
        lease_cache = self.agreed.lease_cache
        view = MeshLeaseView(
            keeping=MeshKeeping(lease_cache) if lease_cache is not None else None,
            seen=self.turns.with_head,
            reading=self._reading,
        )
        self._view = view
        try:
            await self._join(
                stream,
                end,
                inspector=view,
                flow=self._silence,
                on_broken=on_broken,
                asks=True,
                direct=direct,
            )
        finally:
            self._view = None  # the server has nobody to report to, and ends

    # Memory and load, as reported by the server and its head.

    @property
    def held(self) -> Mapping[str, int]:
        """The bytes of the server's buffers, by device.

        Empty without a head: the server is about to free them.
        """
        if self._view is None or not self.child.status.is_up:
            return {}
        held = self._view.memory_held()  # counts devices in the order of its command line
        return {name: held.get(number, 0) for number, name in enumerate(self.lease.memory)}

    def model_loaded(self) -> None:
        """Note that the head has sent all of its weights and has received a first token."""
        self.is_loaded = True
        if (lease_cache := self.agreed.lease_cache) is not None:
            lease_cache.done()

    async def read_report(self) -> None:
        """Read the server's report.

        Neighbours can make it long, so reading has a budget of the loop's time.
        """
        now, budget = asyncio.get_running_loop().time, ReadingBudget(self._reading)
        while True:
            try:
                line = await self._report.line()
            except (EndOfStream, Closed, Broken):
                return
            budget.spend(LINE_SECONDS)
            if seconds := budget.pause(now()):
                await asyncio.sleep(seconds)
            match line.split(" "):
                case ["came" | "pushed" as what, *texts] if (totals := totals_of(texts)) is not None:
                    self.neighbours.note_local(what, *totals)
                case ["free", device, size] if (count := count_of(size)) is not None:
                    if shortage := self.agreed.shortage(device, count):
                        LOG.warning("memory_taken", peer=self.lease.peer.short, why=shortage)
                        self._shortage = shortage
                        self.child.kill()
                case ["loaded", _count, size] if (count := count_of(size)) is not None:
                    LOG.info("weights_loaded", peer=self.lease.peer.short, bytes=count)
                case ["failed", *why]:
                    self._why_failed = " ".join(why)  # the server reports this just before it ends
