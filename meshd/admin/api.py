"""Requests, replies and the status snapshot as frozen values: their JSON is what scripts of users read.

Fields may be added, never renamed or dropped. Times are seconds, sizes bytes, dates Unix seconds; ids are
given in full. `codec.py` turns these values to JSON and back, and refuses what does not fit.
"""

from dataclasses import dataclass
from typing import Literal

from meshd.admin.net_api import NetcheckReply, NetcheckRequest

SCHEMA = 1
PeerStateName = Literal["known", "connecting", "connected", "suspended", "lost"]
LinkKindName = Literal["tcp", "webrtc", "quic", "relay"]
PathName = Literal["loopback", "lan", "public", "mapped", "punched", "relayed"]
ModelStateName = Literal["waiting", "loading", "ready", "degraded", "failed"]
MdnsState = Literal["off", "looking", "silent", "heard"]
Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """This daemon. `role` is worker or serve."""

    id: str
    name: str
    role: str
    version: str
    pid: int
    uptime_s: float
    rss_bytes: int
    listen: tuple[str, ...] = ()  # where other nodes reach it
    home: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshView:
    """The mesh: its id and how many members this node knows, itself included."""

    id: str
    members: int
    roles: tuple[str, ...] = ()  # what this node's certificate allows


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """One link. `since` is Unix seconds; `rtt_ms` None while not measured."""

    kind: LinkKindName
    path: PathName
    remote: str
    rtt_ms: float | None
    since: float
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """Another member. `link` carries data now, `standby_links` are up beside it."""

    id: str
    name: str
    role: str
    state: PeerStateName
    link: LinkView | None
    standby_links: tuple[LinkView, ...] = ()
    why_not_direct: str | None = None
    resumes: int = 0
    version: str = ""
    native: str = ""  # pin + patches, to see builds that differ
    state_s: float | None = None  # how long it has been in this state
    last_error: str = ""
    says_banned: str = ""  # the peer's words when it holds this node for banned
    present: bool = False  # there, though not connected: in a large mesh sessions are made when needed


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelView:
    """A peer's service as a listener here. `user`: by `meshd tunnel open`, else a role did."""

    peer: str
    service: str
    listen: str
    streams: int
    sent_bytes: int
    received_bytes: int
    user: bool = False
    last_error: str = ""  # why the last connection failed, or why it does not listen
    peer_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedView:
    """A local service that the nodes `to` (ids; `to_names` in the same order) may reach; none: nobody may."""

    name: str
    target: str
    to: tuple[str, ...]
    to_names: tuple[str, ...]
    streams: int
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child process; `reason` says why it is in this state."""

    name: str
    pid: int | None
    state: str
    restarts: int
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitView:
    """What lies on one device: a count of layers and bytes of weights.

    `push`: activations come straight from the worker before; false: through the head, `why_no_push` says why;
    null: no other worker comes before.
    """

    node: str
    device: str
    layers: int
    bytes: int
    push: bool | None = None
    why_no_push: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTensor:
    """A tensor that had to come over the network, and why."""

    name: str
    bytes: int
    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelView:
    """The model a serving node loads. `bytes_per_token` counts both directions on all links."""

    name: str
    fingerprint: str
    state: ModelStateName
    reason: str
    load_seconds: float | None
    weights_local_bytes: int
    weights_network_bytes: int
    tensors_from_network: tuple[NetworkTensor, ...]
    bytes_per_token: float | None
    split: tuple[SplitView, ...]
    progress: float | None = None  # 0 to 1 while loading


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiView:
    """The OpenAI-compatible API of a serving node."""

    url: str
    ready: bool
    requests: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MdnsView:
    """Multicast DNS: `off`, `looking` (nobody heard yet), `silent` (nobody in the time it takes), `heard`.

    `networks` are the interfaces on which this node is announced, `members` those of the mesh seen there.
    """

    state: MdnsState
    networks: tuple[str, ...] = ()
    members: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWarning:
    """A condition worth a person's attention: a stable code, what it is, what to do."""

    code: str
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
    model: ModelView | None = None
    api: ApiView | None = None
    mdns: MdnsView | None = None
    warnings: tuple[HealthWarning, ...] = ()
    schema: int = SCHEMA


@dataclass(frozen=True, slots=True, kw_only=True)
class PingReply:
    """One answer of a peer, and the path it took."""

    peer: str
    name: str
    rtt_ms: float
    kind: LinkKindName
    path: PathName
    remote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteReply:
    """A new invite. `token` is a secret."""

    token: str
    id: str
    expires_at: int
    uses: int


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteView:
    """An invite of this node as `invite ls` shows it: without its secret."""

    id: str
    roles: tuple[str, ...]
    created_at: int
    expires_at: int
    uses: int
    used: int
    state: str  # valid, expired, used_up or revoked


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteList:
    """All invites that this node has made and still remembers."""

    invites: tuple[InviteView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeReply:
    """Who or what has been banned: a node's id or an invite's."""

    id: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedList:
    """All services that this node exposes."""

    exposed: tuple[ExposedView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelList:
    """The tunnels that users have opened."""

    tunnels: tuple[TunnelView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """It is done, and there is nothing to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest:
    """For Status."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRequest:
    """For PingReply; `peer` is a name, an id or the beginning of one; `timeout_s` up to 60."""

    peer: str
    timeout_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteRequest:
    """For InviteReply."""

    expires_s: int
    uses: int
    roles: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteListRequest:
    """For InviteList."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteRevokeRequest:
    """For RevokeReply; `id` or the beginning of one."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeRequest:
    """For RevokeReply; `peer` as in PingRequest."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRequest:
    """For AcceptReply: open the way for who made this reply code (identity/reply_code.py)."""

    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptReply:
    """The joiner's id, the addresses that are sent to, and for how long in seconds."""

    joiner: str
    addresses: tuple[str, ...]
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest:
    """For Done: give up the membership; the daemon then ends. A founder loses the root with `drop_root`."""

    drop_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest:
    """For Done: the daemon ends after it has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposeRequest:
    """For ExposedView: `target` is host:port; `to` are nodes' names or ids, those of before no more."""

    name: str
    target: str
    to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposeListRequest:
    """For ExposedList."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposeRemoveRequest:
    """For Done."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOpenRequest:
    """For TunnelView; `peer` as in PingRequest; `listen` is host:port, empty for any on loopback."""

    peer: str
    service: str
    listen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelListRequest:
    """For TunnelList."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelCloseRequest:
    """For TunnelList, those that were closed: at `listen` (host:port or port), or to a peer's `service`."""

    listen: str = ""
    peer: str = ""
    service: str = ""


Request = (
    StatusRequest
    | PingRequest
    | InviteRequest
    | InviteListRequest
    | InviteRevokeRequest
    | RevokeRequest
    | AcceptRequest
    | LeaveRequest
    | StopRequest
    | NetcheckRequest
    | ExposeRequest
    | ExposeListRequest
    | ExposeRemoveRequest
    | TunnelOpenRequest
    | TunnelListRequest
    | TunnelCloseRequest
)
Reply = (
    Status
    | PingReply
    | InviteReply
    | InviteList
    | RevokeReply
    | AcceptReply
    | NetcheckReply
    | ExposedView
    | ExposedList
    | TunnelView
    | TunnelList
    | Done
)
