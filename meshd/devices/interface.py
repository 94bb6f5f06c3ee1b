"""The roles of a node: a worker lends devices, a head serves a model.

Roles decide and combine; they get the mesh, children and tunnels from the daemon (`RoleRuntime`) and know
only their interfaces. A *lease* is one head's use of one worker: one process there, a mesh-server, started
for the lease and ended with it.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Protocol

from meshd.base.errors import MeshdError
from meshd.base.processes import ProcessWork
from meshd.gateway.interface import AnswerTimings, FindSampling, ReadyReport
from meshd.identity.keys import PeerId
from meshd.model.device_sampling import DeviceSampling
from meshd.model.status import FetchStatus, LentMemory, ModelStatus, StoreStatus
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.process.interface import Child, ChildSpec, ChildStatus, ReadyProbe, RunToEnd
from meshd.rpc.frames import NodeReading
from meshd.store.interface import LeaseCache, WeightsFile
from meshd.tunnel.interface import Flow, Inspector, TunnelStatus
from meshd.wire.lease import Needs, OfferedDevice
from meshd.wire.versions import NativeVersion

IS_SUSPENDED = "it is suspended (SIGSTOP), and does not answer"  # why a child is killed


@dataclass(frozen=True, slots=True)
class NativeBuild:
    """The programs in use: a head's llama-server and the module that it loads, a worker's mesh-server.

    `plain_rpc`: the version of llama.cpp's own protocol, which that llama-server speaks to rpc-servers
    without meshd. `slower`: the names of devices that are the same card as a faster one. `seals`: its
    mesh-server has what sealing takes (`--seals`); False before anybody has asked it.
    """

    llama_server: Path
    mesh_server: Path
    module: Path
    version: NativeVersion
    plain_rpc: str
    slower: tuple[str, ...] = ()
    seals: bool = False

    @property
    def backends(self) -> tuple[str, ...]:
        """List what it computes on: the backend linked into its programs, and modules beside them."""
        modules = (
            path.stem.removeprefix("libggml-") for path in self.mesh_server.parent.glob("libggml-*.so")
        )
        return tuple(dict.fromkeys((self.version.backend, *sorted(modules))))


class Tunnel(Protocol):
    """A connection from a child to a service of a peer (tunnel/joined.py)."""

    @property
    def endpoint(self) -> str: ...
    @property
    def status(self) -> TunnelStatus: ...
    async def serve(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TunnelRequest:
    """A request for a tunnel from a child to `service` of `peer`."""

    peer: PeerId
    service: str
    metadata: Mapping[str, MetadataValue]
    end: socket
    """The tunnel's end of the socket pair, which the tunnel owns; the child has the other end."""
    endpoint: str
    """The child's name for the connection."""
    inspector: Inspector | None
    on_broken: Callable[[MeshdError], None]
    compressed: int = 0
    """The version of compressed streams that the peer accepts, 0 for none; the path decides whether it is
    used.
    """
    always: bool = False
    """Compress on any path, because the head of the lease asks for it."""
    flow: Flow | None = None
    """An observer that is told which side waits."""
    asks: bool = False
    """The peer asks, or sends unasked-for data (base.wakeful_loop.Conversation)."""
    local: bool = False
    """Offer a direct connection if the peer is on this machine (base/local_way.py)."""


class Join(Protocol):
    """Connect a peer's stream to one end of a socket pair, and take over that end (tunnel/joined.py)."""

    async def __call__(
        self,
        stream: Stream,
        end: socket,
        *,
        inspector: Inspector | None,
        on_broken: Callable[[MeshdError], None],
        flow: Flow | None = None,
        asks: bool = False,
        direct: socket | None = None,
    ) -> None: ...


class Report(Protocol):
    """A pipe on which a child reports lines (process/handover.py)."""

    @property
    def child_end(self) -> int:
        """The child's end, for ChildSpec.hand_over."""
        ...

    async def line(self) -> str:
        """Return the next line. Raises EndOfStream, Broken, Closed."""
        ...

    def close(self) -> None: ...


class DescriptorSocket(Protocol):
    """A socket over which a running child is sent descriptors (process/handover.py)."""

    @property
    def child_end(self) -> int:
        """The child's end, for ChildSpec.hand_over."""
        ...

    def send(self, kind: int, number: int, descriptor: int = -1, *, more: bytes = b"") -> None:
        """Send without waiting, `more` behind it; the caller keeps `descriptor`. Raises Broken, Closed."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Processes:
    """The ways to start children, to hand them data and to watch them."""

    make_child: Callable[[Callable[[], ChildSpec], str], Child]
    run_to_end: RunToEnd
    http_ready: Callable[[Path], ReadyProbe]
    """A probe that passes when a GET of /health on this Unix socket returns 200."""
    loop_answers: Callable[[Path], ReadyProbe]
    """A probe that passes when the loop of the llama-server at this Unix socket answers in time, with
    anything.
    """
    first_token: Callable[[Path, FindSampling], Awaitable[ReadyReport]]
    """Ask the llama-server at this Unix socket for one token, sampled as its own settings sample requests.

    The token proves that the model computes.
    """
    round_seconds: Callable[[Path, DeviceSampling | None], Awaitable[float | None]]
    """Measure the seconds of one token of the llama-server at this Unix socket, without drafts and prompt."""
    drafted_rounds: Callable[[Path, DeviceSampling | None, int], Awaitable[AnswerTimings | None]]
    """Measure some tokens with drafts of this length."""
    hand_over: Callable[[bytes], int]
    """Return a descriptor from which a child reads these bytes. The caller owns the descriptor."""
    make_report: Callable[[], Report]
    make_descriptors: Callable[[], DescriptorSocket]
    socket_pair: Callable[[], tuple[socket, int]]
    """Return our end of a stream and the child's. The caller owns both."""
    is_stopped: Callable[[int], bool]
    """Say whether the process is suspended by a signal, so that it never answers and does not end."""
    work_of: Callable[[int], ProcessWork | None]
    """Return how much the process has computed so far, if the system reports it."""
    waiting: str = "auto"
    """The setting for how threads of native programs wait for a message that is expected soon."""


class AwaitedConnection(Protocol):
    """A plain connection of another node that may come within some seconds (link/tcp/plain_visit.py)."""

    async def taken(self) -> socket:
        """Wait for it; it is the caller's from here on. Raises Broken if it does not come."""
        ...

    def close(self) -> None:
        """Stop waiting, and close what has come and was not taken. Idempotent."""
        ...


class PlainConnections(Protocol):
    """Plain TCP connections between the mesh ports of two nodes (daemon/plain_connections.py).

    Whatever crosses them is sealed by the programs that get them.
    """

    def is_direct(self, peer: PeerId) -> bool:
        """Say whether data cross to the peer by TCP now, over a network, without a relay or compression."""
        ...

    def reaches(self, peer: PeerId) -> bool:
        """Say whether this node can connect, because it has dialled the peer's mesh port itself."""
        ...

    async def connect(self, peer: PeerId, tag: bytes) -> socket:
        """Connect to the peer, which awaits the tag. Raises Broken."""
        ...

    def expect(self, peer: PeerId, tag: bytes) -> AwaitedConnection:
        """Await a connection of the peer with this tag for some seconds. Raises Refused if too many are."""
        ...


@dataclass(frozen=True, slots=True)
class Tunnels:
    """Connections between a child here and a child of another node, over streams of the mesh."""

    open: Callable[[TunnelRequest], Tunnel]
    join: Join
    random: Callable[[int], bytes]
    """Return random bytes for the id of a lease."""
    compressed: int = 0
    """The version of compressed streams that this node accepts, 0 for none."""
    always_compressed: bool = False
    """Compress on any path, because the user asks for it."""
    local: bool = False
    """Connect directly to nodes on this machine (base/local_way.py)."""
    plain: PlainConnections | None = None
    """Connections for mesh-servers that seal; None if the user wants all traffic on the links."""


@dataclass(frozen=True, slots=True)
class RolePaths:
    """The places of a role's files. The daemon has created the folders."""

    logs: Path
    sockets: Path
    """Private (0700) and short enough for sun_path."""
    trial_cache: Path | None = None
    """The file of trials that devices passed."""
    speed_cache: Path | None = None
    """The file of times that devices took for layers."""
    cpu_cache: Path | None = None
    """The file of the last listed CPU."""


class WeightsFromMembers(Protocol):
    """Weights that members give each other (library/members/)."""

    async def given_content(
        self, file: WeightsFile, on_progress: Callable[[str], None], *, by_us: bool
    ) -> bytes:
        """Return the content id of our file if another member gives it, or, with `by_us`, if we do; else b"".

        Raises MeshdError.
        """
        ...

    async def content_of(self, file: WeightsFile, on_progress: Callable[[str], None]) -> bytes:
        """Return the content id of our file, reading the file once. Raises MeshdError."""
        ...

    async def fetch(
        self, needs: Needs, keep: LeaseCache, on_progress: Callable[[str], None]
    ) -> "FromMembers":
        """Fetch the pieces with these tensors from all members that have the file."""
        ...


@dataclass(frozen=True, slots=True)
class FromMembers:
    """The fetched bytes, by member name; `why` says why some are missing, and is empty if none are."""

    given: Mapping[str, int]
    why: str = ""


@dataclass(frozen=True, slots=True)
class RoleRuntime:
    """The parts of the daemon that a role uses, grouped by their users.

    Code that starts a child uses `native`, `processes` and `paths`; code that connects the child to another
    node uses `mesh` and `tunnels`. Only the two cycles, the run of a model and the server of a lease do both
    and take the whole; all other code takes the parts that it uses.
    """

    mesh: Mesh
    native: NativeBuild
    processes: Processes
    tunnels: Tunnels
    paths: RolePaths
    from_members: WeightsFromMembers
    reading: NodeReading = field(default_factory=NodeReading)
    """The reading budget of all connections with native programs, as they share one loop."""


@dataclass(frozen=True, slots=True)
class ListedDevices:
    """The devices that a role uses, with their free memory `at` this loop time; empty: never listed."""

    devices: tuple[OfferedDevice, ...] = ()
    at: float = 0.0


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """The status of a role."""

    children: Sequence[ChildStatus]
    tunnels: Sequence[TunnelStatus]
    model: ModelStatus | None
    """The model that was used last, among the loaded models."""
    notes: tuple[str, ...] = ()
    """Notes on the model files, one line each."""
    unfit: tuple[str, ...] = ()
    """Devices that failed their trial, one line each."""
    unknown: tuple[str, ...] = ()
    """Workers that the user has named but no member is called, one line each."""
    refused: tuple[tuple[str, str], ...] = ()
    """The last violations of the rules: what happened, and what to do about it."""
    store: StoreStatus | None = None
    """The store of weights that a worker received over the network."""
    models: tuple[ModelStatus, ...] = ()
    """The models of a head that serves several."""
    is_computing: bool = False
    """A model is loaded whose answers somebody may await."""
    lent: tuple[LentMemory, ...] = ()
    """The memory that a worker lends, by head."""
    listed: ListedDevices = ListedDevices()
    fetching: FetchStatus | None = None
    """A model that was given by name; the role starts before it is there."""


class RunningRole(Protocol):
    """A role that runs until it is cancelled."""

    @property
    def status(self) -> RoleStatus: ...
    async def serve(self) -> None: ...
