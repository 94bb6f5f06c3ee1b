"""The status snapshot as frozen values: the content of `meshd status --json`, which users' scripts read.

Fields may be added, never renamed or dropped. Times are seconds, sizes bytes, dates Unix seconds; ids are
given in full. What a package says of itself in such plain values stands here as it is (`ModelStatus`,
`StoreStatus`, `GatewayStatus`, `MdnsStatus`). A view is what differs from the package's own value: ids as
text with the names of the peers beside them, and no more than scripts may rely on; snapshot.py fills it.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from meshd.base.units import in_number
from meshd.gateway.interface import GatewayStatus
from meshd.link.transport import LinkKind
from meshd.model.status import FetchStatus, LentMemory, ModelStatus, StoreStatus
from meshd.rendezvous.interface import MdnsStatus
from meshd.wire.limits import As

SCHEMA = 1
PeerStateName = Literal["known", "connecting", "connected", "suspended", "lost"]
PathName = Literal["loopback", "lan", "public", "mapped", "punched", "relayed"]
Severity = Literal["info", "warning", "error"]
Time = Annotated[float, As(float, lambda value: round(value, 3), float)]  # written without what is below it


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainView:
    """The models and requests that still use a node which starts nothing new."""

    models: int  # models that use its memory until their running answers end
    requests: int  # running requests to its API, before a restart

    @property
    def text(self) -> str:
        """Say what is waited for, for people."""
        if not self.models:
            return f"draining: {in_number(self.requests, 'request')} still under way"
        use = f"{in_number(self.models, 'model')} still {'use' if self.models > 1 else 'uses'} this node"
        return f"draining: {use} until the running answers end"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """This daemon. `role` is the verb that started it."""

    id: str
    name: str
    role: str  # worker, serve or client
    version: str
    pid: int
    uptime_s: Time
    rss_bytes: int  # memory of this process
    listen: tuple[str, ...] = ()  # its addresses
    home: str = ""  # state directory
    paused: bool = False  # it lends nothing until `meshd resume`
    draining: DrainView | None = None  # while something still uses it


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshView:
    """The mesh."""

    id: str
    members: int  # known nodes, this one included
    roles: tuple[str, ...] = ()  # of this node's certificate


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """One link."""

    kind: LinkKind
    path: PathName
    remote: str  # host:port of the other end
    rtt_ms: Time | None
    since: Time  # date when it came up
    sent_bytes: int
    received_bytes: int
    bytes_s: float | None = None  # rate when it was full


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """Another member."""

    id: str
    name: str
    role: str
    state: PeerStateName
    link: LinkView | None  # the link that carries data
    standby_links: tuple[LinkView, ...] = ()
    why_not_direct: str | None = None  # why data goes through a relay or another member
    resumes: int = 0  # how often the session continued on a new link
    version: str = ""  # of meshd; empty: unknown
    native: str = ""  # llama.cpp's commit + hash of meshd's native sources
    native_protocol: str = ""
    state_s: Time | None = None  # time in this state
    last_error: str = ""
    says_banned: str = ""  # its message if it considers this node banned
    says_in_use: str = ""  # the same if this node's identity is in use elsewhere
    grace_s: float = 0.0  # how long streams wait for a link to it
    stopped: str = ""  # its message when it was stopped
    present: bool = False  # running, even if not connected (meshes of more than nine)
    faults: int = 0  # protocol violations and failures it caused here in the last hour
    last_fault: str = ""
    paused: bool = False  # it lends nothing: its user paused it, or it is fetching a model
    fetching: bool = False
    draining: bool = False  # paused, and a model of this node uses it until the running answers have ended
    upgrade: str = ""  # what to run, if there is no common protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelView:
    """A peer's service, available at a local address."""

    peer: str
    service: str
    listen: str  # local address, or between native programs `socketpair`, `local`, or `sealed` (encrypted)
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
    restarts: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceView:
    """A device that this node uses, as it was last listed."""

    name: str
    kind: str  # cpu, gpu or accel
    description: str
    free_bytes: int  # on a worker: lendable
    total_bytes: int
    listed_s: Time  # time since it was listed
    weight_bytes_s: float | None = None  # speed of reading weights for a token
    flops: float | None = None  # speed of computing a prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageView:
    """The disk of this node's cache, and the model files of this machine."""

    path: str  # the cache
    free_bytes: int | None  # on that disk
    cache_room_bytes: int | None  # for downloaded weights; null: this node keeps none
    models: int | None  # in all stores
    models_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A model that a node has. `fingerprint`: of its content; null until that node has hashed it."""

    name: str
    bytes: int
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCapacity:
    """The disk of a node's cache. Null: it does not tell.

    `cache_room_bytes`: it would keep so many more bytes of weights that come over the network; null also
    where its role keeps none. `models`: the largest ones; `more_models` are not listed. `why_not`: why it
    reports nothing.
    """

    node: str
    free_bytes: int | None
    cache_room_bytes: int | None
    models: tuple[StoredFile, ...] = ()
    more_models: int = 0
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutView:
    """A node that takes no part, or was not measured, and why."""

    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWarning:
    """A condition that needs attention."""

    code: str  # listed in errors.md
    severity: Severity
    what: str
    hint: str


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
    models: tuple[ModelStatus, ...] = ()  # if several; `model` is the last used one
    devices: tuple[DeviceView, ...] = ()
    storage: StorageView | None = None
    lent: tuple[LentMemory, ...] = ()
    fetching: FetchStatus | None = None
    schema: int = SCHEMA  # version of this format
