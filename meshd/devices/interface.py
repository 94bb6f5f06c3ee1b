"""What a node is for: a worker lends devices, a head serves a model.

Roles decide and combine; they get the mesh, children and tunnels from the daemon (`RoleRuntime`) and know
only their interfaces. A *lease* is one head's use of one worker: one process there, a mesh-server, started
for it and ended with it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Protocol

from meshd.base.errors import MeshdError
from meshd.base.process_work import ProcessWork
from meshd.gateway.interface import AnswerTimings, FindSampling, ReadyReport
from meshd.identity.keys import PeerId
from meshd.model.device_sampling import DeviceSampling
from meshd.model.status import FetchStatus, LentMemory, ModelStatus, StoreStatus
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.process.interface import Child, ChildSpec, ChildStatus, ReadyProbe, RunToEnd
from meshd.rpc.reading_budget import NodeReading
from meshd.store.interface import LeaseCache, WeightsFile
from meshd.tunnel.interface import Flow, Inspector, TunnelStatus
from meshd.wire.lease import OfferedDevice
from meshd.wire.native import NativeVersion
from meshd.wire.needs import Needs

IS_SUSPENDED = "it is suspended (SIGSTOP), and does not answer"  # of a child, why it is killed


@dataclass(frozen=True, slots=True)
class NativeBuild:
    """The programs in use: a head's llama-server and the module that it loads, a worker's mesh-server.

    `plain_rpc`: the version of llama.cpp's own protocol, which that llama-server speaks to rpc-servers
    without meshd.
    """

    llama_server: Path
    mesh_server: Path
    module: Path
    version: NativeVersion
    plain_rpc: str


class Tunnel(Protocol):
    """From a child to a service of a peer (tunnel/joined.py)."""

    @property
    def endpoint(self) -> str: ...
    @property
    def status(self) -> TunnelStatus: ...
    async def serve(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TunnelRequest:
    """Asks for a tunnel from a child to `service` of `peer`."""

    peer: PeerId
    service: str
    metadata: Mapping[str, MetadataValue]
    end: socket
    """The child has the other end of this one, which the tunnel owns."""
    endpoint: str
    """What the child calls it."""
    inspector: Inspector | None
    on_broken: Callable[[MeshdError], None]
    compressed: int = 0
    """The version of compressed streams that the peer takes, 0 for none; its path decides on its use."""
    always: bool = False
    """They are used on any path: the head for which this is done wants that."""
    flow: Flow | None = None
    """Told who waits."""
    asks: bool = False
    """The peer asks, or sends what nobody here asked it for (base.wakeful_loop.Conversation)."""


class Join(Protocol):
    """Connects a peer's stream to one end of a socketpair, which it then owns (tunnel/joined.py)."""

    async def __call__(
        self,
        stream: Stream,
        end: socket,
        *,
        inspector: Inspector | None,
        on_broken: Callable[[MeshdError], None],
        flow: Flow | None = None,
        asks: bool = False,
    ) -> None: ...


class Report(Protocol):
    """A pipe on which a child reports lines (process/handover.py)."""

    @property
    def child_end(self) -> int:
        """For ChildSpec.hand_over."""
        ...

    async def line(self) -> str:
        """The next line. Raises EndOfStream, Broken, Closed."""
        ...

    def close(self) -> None: ...


class DescriptorSocket(Protocol):
    """A socket on which a child is sent descriptors while it runs (process/handover.py)."""

    @property
    def child_end(self) -> int:
        """For ChildSpec.hand_over."""
        ...

    def send(self, kind: int, number: int, descriptor: int = -1) -> None:
        """Never waits; `descriptor` stays the caller's. Raises Broken, Closed."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Processes:
    """Children: how they are started, what they are given at their start, how they are watched."""

    make_child: Callable[[Callable[[], ChildSpec], str], Child]
    run_to_end: RunToEnd
    http_ready: Callable[[Path], ReadyProbe]
    """Passed when a GET of /health on this unix socket gives 200."""
    loop_answers: Callable[[Path], ReadyProbe]
    """Passed when the loop of the llama-server at this unix socket has answered in time, whatever it said."""
    first_token: Callable[[Path, FindSampling], Awaitable[ReadyReport]]
    """Asks the llama-server at this unix socket for one token, which proves that the model computes, in the
    way in which requests are made by its own settings.
    """
    round_seconds: Callable[[Path, DeviceSampling | None], Awaitable[float | None]]
    """Of one token of the llama-server at this unix socket, without drafts and without its prompt."""
    drafted_rounds: Callable[[Path, DeviceSampling | None, int], Awaitable[AnswerTimings | None]]
    """Of some tokens, with drafts of this length."""
    hand_over: Callable[[bytes], int]
    """A descriptor from which a child reads these bytes. The caller owns it."""
    make_report: Callable[[], Report]
    make_descriptors: Callable[[], DescriptorSocket]
    socket_pair: Callable[[], tuple[socket, int]]
    """Our end of a stream and a child's. The caller owns both."""
    is_stopped: Callable[[int], bool]
    """The process is suspended by a signal, so that it never answers and is not seen to end."""
    work_of: Callable[[int], ProcessWork | None]
    """What the process has done so far, where the system tells."""
    waiting: str = "auto"
    """How threads of native programs wait for a message that is expected soon: the setting."""


@dataclass(frozen=True, slots=True)
class Tunnels:
    """Connections between a child here and a child of another node, over streams of the mesh."""

    open: Callable[[TunnelRequest], Tunnel]
    join: Join
    random: Callable[[int], bytes]
    """For the id of a lease."""
    compressed: int = 0
    """The version of compressed streams that this node takes, 0 for none."""
    always_compressed: bool = False
    """Its user wants that on any path."""


@dataclass(frozen=True, slots=True)
class RolePaths:
    """Where a role keeps files. The daemon has made the folders."""

    logs: Path
    sockets: Path
    """Private (0700) and short enough for sun_path."""
    trial_cache: Path | None = None
    """The file of the trials that devices passed."""
    speed_cache: Path | None = None
    """The file of how long devices took for layers."""
    cpu_cache: Path | None = None
    """The file of the CPU as it was listed last."""


class WeightsFromMembers(Protocol):
    """Weights that members give each other (library/members/)."""

    async def given_content(
        self, file: WeightsFile, on_progress: Callable[[str], None], *, by_us: bool
    ) -> bytes:
        """The content id of our file, if another member gives it, or, with `by_us`, if we do; else nothing.

        Raises MeshdError.
        """
        ...

    async def content_of(self, file: WeightsFile, on_progress: Callable[[str], None]) -> bytes:
        """The content id of our file, whoever else has it. Reads it once. Raises MeshdError."""
        ...

    async def fetch(
        self, needs: Needs, keep: LeaseCache, on_progress: Callable[[str], None]
    ) -> "FromMembers":
        """Take the pieces with these tensors from all members that have that file."""
        ...


@dataclass(frozen=True, slots=True)
class FromMembers:
    """What came: bytes by the names of members; `why` it is not all, empty if it is."""

    given: Mapping[str, int]
    why: str = ""


@dataclass(frozen=True, slots=True)
class RoleRuntime:
    """What the daemon lends a role, in parts by who uses them together.

    Code that starts a child uses `native`, `processes` and `paths`; code that connects it to another node
    uses `mesh` and `tunnels`. Only the two cycles, the run of a model and the server of a lease do both
    and take the whole; everything else takes the parts that it uses.
    """

    mesh: Mesh
    native: NativeBuild
    processes: Processes
    tunnels: Tunnels
    paths: RolePaths
    from_members: WeightsFromMembers
    reading: NodeReading = field(default_factory=NodeReading)
    """For all connections with native programs: they take the same loop."""


@dataclass(frozen=True, slots=True)
class ListedDevices:
    """Those that a role uses, with the memory that was free `at` this loop time; empty: never listed."""

    devices: tuple[OfferedDevice, ...] = ()
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """A role as status shows it."""

    children: Sequence[ChildStatus]
    tunnels: Sequence[TunnelStatus]
    model: ModelStatus | None
    """Of several the one that was used last, of those that are loaded."""
    notes: tuple[str, ...] = ()
    """What somebody should know of the model files, a line each."""
    unfit: tuple[str, ...] = ()
    """Devices that failed their trial, a line each."""
    unknown: tuple[str, ...] = ()
    """Workers that the user has named and nobody knows, a line each."""
    refused: tuple[tuple[str, str], ...] = ()
    """The last messages that broke the rules: what happened, and what to do."""
    store: StoreStatus | None = None
    """What a worker keeps of weights that came over the network."""
    models: tuple[ModelStatus, ...] = ()
    """Of a head that serves several."""
    is_computing: bool = False
    """A model is loaded that answers wait for."""
    lent: tuple[LentMemory, ...] = ()
    """Of a worker: to whom."""
    listed: ListedDevices = ListedDevices()
    fetching: FetchStatus | None = None
    """A model that it was given by name, and begins without."""


class RunningRole(Protocol):
    """Runs until cancelled."""

    @property
    def status(self) -> RoleStatus: ...
    async def serve(self) -> None: ...
