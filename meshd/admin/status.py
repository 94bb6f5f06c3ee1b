"""The status snapshot as frozen values: the content of `meshd status --json`, which users' scripts read.

Fields may be added, never renamed or dropped. Times are seconds, sizes bytes, dates Unix seconds; ids are
given in full. What a package says of itself in such plain values stands here as it is (`ModelStatus`,
`StoreStatus`, `GatewayStatus`, `MdnsStatus`). A view is what differs from the package's own value: ids as
text with the names of the peers beside them, and no more than scripts may rely on; snapshot.py fills it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from meshd.gateway.interface import GatewayStatus
from meshd.link.transport import LinkKind
from meshd.model.status import FetchStatus, LentMemory, ModelStatus, StoreStatus
from meshd.rendezvous.interface import MdnsStatus
from meshd.tunnel.interface import LISTEN_LOCAL
from meshd.wire.bounds import As

SCHEMA = 1
PeerStateName = Literal["known", "connecting", "connected", "suspended", "lost"]
PathName = Literal["loopback", "lan", "public", "mapped", "punched", "relayed"]
Severity = Literal["info", "warning", "error"]
Time = Annotated[float, As(float, lambda value: round(value, 3), float)]  # written without what is below it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """This daemon. `role` is the verb that started it."""

    id: str
    name: str
    role: str  # worker, serve or client
    version: str
    pid: int  # process id of the daemon
    uptime_s: Time
    rss_bytes: int  # memory of that process
    listen: tuple[str, ...] = ()  # addresses at which other nodes reach it
    home: str = ""  # directory of its state
    paused: bool = False  # it lends nothing until `meshd resume`


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshView:
    """The mesh."""

    id: str
    members: int  # those that this node knows, itself included
    roles: tuple[str, ...] = ()  # what this node's certificate allows


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """One link."""

    kind: LinkKind
    path: PathName
    remote: str  # host:port of the other end
    rtt_ms: Time | None  # null until it is measured
    since: Time  # date when it came up
    sent_bytes: int
    received_bytes: int
    bytes_s: float | None = None  # what it carried a second when it was full; null until it was


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """Another member."""

    id: str
    name: str
    role: str
    state: PeerStateName  # a node that was stopped, or unseen for long, keeps its state here
    link: LinkView | None  # carries data now
    standby_links: tuple[LinkView, ...] = ()  # alive, but without data
    why_not_direct: str | None = None  # why data goes through a relay or another member
    resumes: int = 0  # how often the session continued on a new link
    version: str = ""  # of meshd there; empty until it was connected since this daemon started
    native: str = ""  # pin + hash of our sources, to recognise different builds
    native_protocol: str = ""  # what its llama.cpp processes speak
    state_s: Time | None = None  # time in this state
    last_error: str = ""
    says_banned: str = ""  # the peer's message if it considers this node banned
    grace_s: float = 0.0  # how long streams wait for a link to it
    stopped: str = ""  # its message when it was stopped; empty once it is back
    present: bool = False  # running, though not connected: beyond nine members links are made on demand
    faults: int = 0  # protocol violations and unexpected failures it caused here, in the last hour
    last_fault: str = ""  # the latest of them
    paused: bool = False  # it lends nothing for now: its user wants that, or it is fetching a model
    fetching: bool = False  # it lends nothing before its models are there


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelView:
    """A peer's service, available at a local address."""

    peer: str
    service: str
    listen: str  # local address
    streams: int
    sent_bytes: int
    received_bytes: int
    user: bool = False  # opened with `meshd tunnel`, not by a role
    last_error: str = ""  # why the last connection failed, or why it does not listen
    peer_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child process."""

    name: str
    pid: int | None
    state: str
    restarts: int  # since the daemon's start
    reason: str = ""  # why it is in this state


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A device that this node's role uses, as it was listed last: when a worker starts or is asked for
    devices, when a head loads. `meshd capacity` measures how fast devices are."""

    name: str
    kind: str  # cpu, gpu or accel
    description: str
    free_bytes: int  # of a worker: that it could lend
    total_bytes: int
    listed_s: Time  # time since then
    weight_bytes_s: float | None = None  # how fast it reads weights for a token; null until it was measured
    flops: float | None = None  # how fast it computes a prompt, in operations a second; null as above


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageView:
    """The disk of this node's cache, and the model files of this machine."""

    path: str  # the cache
    free_bytes: int | None  # on that disk; null if it cannot be found out
    cache_room_bytes: int | None  # weights from the network that may still be kept; null: the role keeps none
    models: int | None  # in all stores, counted once a minute at most; null until then
    models_bytes: int | None  # all of them together


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWarning:
    """A condition that needs attention."""

    code: str  # stable; listed in errors.md
    severity: Severity
    what: str
    hint: str  # what to do


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """All of `meshd status --json`."""

    node: NodeView
    mesh: MeshView | None
    peers: tuple[PeerView, ...] = ()
    tunnels: tuple[TunnelView, ...] = ()
    children: tuple[ChildView, ...] = ()
    model: ModelStatus | None = None
    api: GatewayStatus | None = None
    mdns: MdnsStatus | None = None
    store: StoreStatus | None = None
    warnings: tuple[HealthWarning, ...] = ()
    models: tuple[ModelStatus, ...] = ()  # of a node that serves several; `model` is the last used of them
    devices: tuple[DeviceView, ...] = ()  # of this machine, as far as they are known
    storage: StorageView | None = None
    lent: tuple[LentMemory, ...] = ()  # by a worker, to heads
    fetching: FetchStatus | None = None  # a model that this node takes before its role begins
    schema: int = SCHEMA  # version of this document's format

    @property
    def crossed_bytes(self) -> int:
        """Count the bytes between this node and others, over links and direct connections."""
        links: list[LinkView | TunnelView] = [peer.link for peer in self.peers if peer.link is not None]
        past_links = [tunnel for tunnel in self.tunnels if tunnel.listen == LISTEN_LOCAL]
        return sum(one.sent_bytes + one.received_bytes for one in links + past_links)
