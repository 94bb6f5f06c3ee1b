"""What a node is for: a worker lends devices, a head serves a model.

Roles decide and combine; they get the mesh, children and tunnels from the daemon (`RoleRuntime`) and know
only their interfaces. A *lease* is one head's use of one worker: one process there, started for it and
ended with it: mesh-server, or with `rpc` rpc-server.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from socket import socket
from typing import Protocol

from meshd.base.errors import MeshdError
from meshd.gateway.interface import ReadyReport
from meshd.identity.keys import PeerId
from meshd.model.status import ModelStatus, StoreStatus
from meshd.peer.interface import Mesh, MetadataValue, Stream
from meshd.process.interface import Child, ChildSpec, ChildStatus, ReadyProbe, RunToEnd
from meshd.tunnel.interface import Flow, Inspector, LocalWeights, SavedWeights, Target, TunnelStatus, Watching
from meshd.wire.native import NativeVersion


@dataclass(frozen=True, slots=True)
class MeshPrograms:
    """What is built of native/mesh: a worker's program, and the module that llama-server loads.

    `rpc`: the version of llama.cpp's own protocol, which that llama-server speaks to plain rpc-servers.
    """

    server: Path
    module: Path
    rpc: str


@dataclass(frozen=True, slots=True)
class NativeBuild:
    """The llama.cpp binaries in use. `patched` is False for a stock build, given by --native-bin or not.

    With `mesh` they speak the mesh protocol, and rpc-server is of no use.
    """

    rpc_server: Path
    llama_server: Path
    patched: bool
    version: NativeVersion
    mesh: MeshPrograms | None = None

    @property
    def plain_rpc(self) -> str:
        """The version of llama.cpp's own protocol, for an rpc-server without meshd."""
        return self.version.rpc if self.mesh is None else self.mesh.rpc

    @property
    def device_program(self) -> Path:
        """What lists the devices of this machine."""
        return self.rpc_server if self.mesh is None else self.mesh.server

    @property
    def tries_devices(self) -> bool:
        """Whether that program tells which card a device is, and tries it: a stock one does neither."""
        return self.patched or self.mesh is not None

    @property
    def can_push(self) -> bool:
        """Whether results can go straight from a worker to another one."""
        return self.patched or self.mesh is not None


class Tunnel(Protocol):
    """A forward: a local listener whose connections become streams to a peer (tunnel/forward.py)."""

    @property
    def endpoint(self) -> str: ...
    @property
    def status(self) -> TunnelStatus: ...
    async def serve(self) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class TunnelClient:
    """The program that a tunnel is for: a patched one shows `secret` first, a stock one can show nothing."""

    secret: bytes = field(default=b"", repr=False)
    owner_pid: Callable[[], int | None] | None = None
    """Without a secret, the client must be this process, where the system can tell."""
    saved: SavedWeights | None = None
    """Of a stock llama-server: weights that stay here where the worker has them."""
    joined: socket | None = None
    """It has the other end of this, in place of a place to connect to. The tunnel's own."""


@dataclass(frozen=True, slots=True)
class TunnelRequest:
    """Asks for a forward to `service` of `peer`."""

    peer: PeerId
    service: str
    metadata: Mapping[str, MetadataValue]
    client: TunnelClient
    on_broken: Callable[[MeshdError], None]
    compressed: int = 0
    """The version of compressed streams that the peer takes, 0 for none; its path decides on its use."""
    always: bool = False
    """They are used on any path: the head for which this is done wants that."""
    watch: Watching | None = None
    greeting: bytes = b""
    """Said to each client before the peer can."""
    endpoint: str = ""
    """What a joined client calls it."""


class ConnectThrough(Protocol):
    """Connects a peer's stream to a local place, `secret` first, past `inspector` (tunnel/expose.py).

    With `weights` that is a stock rpc-server, which is given tensors from them. `flow` is told who waits.
    """

    async def __call__(
        self,
        stream: Stream,
        target: Target,
        *,
        secret: bytes,
        inspector: Inspector,
        flow: Flow | None,
        weights: LocalWeights | None,
        on_broken: Callable[[MeshdError], None],
    ) -> None: ...


class Join(Protocol):
    """Connects a peer's stream to one end of a socketpair, which it then owns (tunnel/joined.py)."""

    async def __call__(
        self,
        stream: Stream,
        end: socket,
        *,
        inspector: Inspector,
        on_broken: Callable[[MeshdError], None],
        flow: Flow | None = None,
        asks: bool = False,
        pause: Callable[[float], float] = ...,
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


class Orders(Protocol):
    """A pipe on which a child is told lines while it runs (process/handover.py)."""

    @property
    def child_end(self) -> int:
        """For ChildSpec.hand_over."""
        ...

    def say(self, line: str) -> None:
        """Never waits. Raises Broken, Closed."""
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


class LineProbe(Protocol):
    """A ReadyProbe that is passed when a line of output was seen (process/ready.py); one for each start."""

    def see(self, line: str) -> None: ...
    async def __call__(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Processes:
    """Children: how they are started, what they are given at their start, how they are watched."""

    make_child: Callable[[Callable[[], ChildSpec], str], Child]
    run_to_end: RunToEnd
    http_ready: Callable[[Path], ReadyProbe]
    """Passed when a GET of /health on this unix socket gives 200."""
    line_ready: Callable[[str], LineProbe]
    """Passed when a line matches this pattern."""
    port_open: Callable[[int], ReadyProbe]
    """Passed when a connection to this loopback port is taken."""
    first_token: Callable[[Path], Awaitable[ReadyReport]]
    """Asks the llama-server at this unix socket for one token, which proves that the model computes."""
    hand_over: Callable[[bytes], int]
    """A descriptor from which a child reads these bytes. The caller owns it."""
    make_report: Callable[[], Report]
    make_orders: Callable[[], Orders]
    make_descriptors: Callable[[], DescriptorSocket]
    socket_pair: Callable[[], tuple[socket, int]]
    """Our end of a stream and a child's. The caller owns both."""
    unix_listener: Callable[[], tuple[int, Path]]
    """A new unix socket that listens: its descriptor and its path. The caller owns both."""
    free_port: Callable[[], int]
    """One that nobody had on loopback a moment ago, for a program that takes no descriptor."""
    is_stopped: Callable[[int], bool]
    """The process is suspended by a signal, so that it never answers and is not seen to end."""
    usage: Callable[[int], tuple[float, int] | None]
    """CPU seconds of a process, and the bytes it has read; None where the system does not tell."""


@dataclass(frozen=True, slots=True)
class Tunnels:
    """Connections between a child here and a child of another node, over streams of the mesh."""

    open: Callable[[TunnelRequest], Tunnel]
    """Raises MeshdError."""
    connect_through: ConnectThrough
    join: Join
    random: Callable[[int], bytes]
    """For the secret of a tunnel and the id of a lease."""
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


@dataclass(frozen=True, slots=True)
class RoleRuntime:
    """What the daemon lends a role, in parts by who uses them together.

    Code that starts a child uses `native`, `processes` and `paths`; code that connects it to another node
    uses `mesh` and `tunnels`. Only the two cycles, the run of a model and the rpc-server of a lease do both
    and take the whole; everything else takes the parts that it uses.
    """

    mesh: Mesh
    native: NativeBuild
    processes: Processes
    tunnels: Tunnels
    paths: RolePaths


@dataclass(frozen=True, slots=True)
class RoleStatus:
    """A role as status shows it."""

    children: Sequence[ChildStatus]
    tunnels: Sequence[TunnelStatus]
    model: ModelStatus | None
    notes: tuple[str, ...] = ()
    """What somebody should know of the model files, a line each."""
    unfit: tuple[str, ...] = ()
    """Devices that failed their trial, a line each."""
    refused: tuple[tuple[str, str], ...] = ()
    """The last messages that broke the rules of RPC: what happened, and what to do."""
    store: StoreStatus | None = None
    """What a worker keeps of weights that came over the network."""


class RunningRole(Protocol):
    """Runs until cancelled."""

    @property
    def status(self) -> RoleStatus: ...
    async def serve(self) -> None: ...
