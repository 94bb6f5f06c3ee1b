"""The status snapshot as frozen values: all that `meshd status --json` shows, which scripts of users read.

Fields may be added, never renamed or dropped. Times are seconds, sizes bytes, dates Unix seconds; ids are
given in full.
"""

from dataclasses import dataclass
from typing import Literal

from meshd.model.status import ModelStatus

SCHEMA = 1
PeerStateName = Literal["known", "connecting", "connected", "suspended", "lost"]
LinkKindName = Literal["tcp", "webrtc", "quic", "relay"]
PathName = Literal["loopback", "lan", "public", "mapped", "punched", "relayed"]
MdnsState = Literal["off", "looking", "silent", "heard"]
Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """This daemon. `role` is worker or serve."""

    id: str
    name: str
    role: str  # worker or serve
    version: str
    pid: int  # its process
    uptime_s: float
    rss_bytes: int  # memory of that process
    listen: tuple[str, ...] = ()  # where other nodes reach it
    home: str = ""  # the folder of its state


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshView:
    """The mesh: its id and how many members this node knows, itself included."""

    id: str
    members: int  # this node included
    roles: tuple[str, ...] = ()  # what this node's certificate allows


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkView:
    """One link. `since` is Unix seconds; `rtt_ms` None while not measured."""

    kind: LinkKindName
    path: PathName
    remote: str  # host:port of the other end
    rtt_ms: float | None  # null while it is not measured
    since: float  # a date
    sent_bytes: int
    received_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerView:
    """Another member. `link` carries data now, `standby_links` are up beside it."""

    id: str
    name: str
    role: str
    state: PeerStateName  # a node that was stopped, or unseen for long, keeps its state here
    link: LinkView | None  # carries data now
    standby_links: tuple[LinkView, ...] = ()  # up beside it
    why_not_direct: str | None = None  # why data goes through others
    resumes: int = 0  # how often the session went on over a new link
    version: str = ""
    native: str = ""  # pin + patches, to see builds that differ
    rpc: str = ""  # version of llama.cpp's RPC protocol
    state_s: float | None = None  # how long it has been in this state
    last_error: str = ""
    says_banned: str = ""  # the peer's words when it holds this node for banned
    grace_s: float = 0.0  # for how long streams wait for a link to it
    stopped: str = ""  # its words when it was stopped; empty once it is back
    present: bool = False  # there, though not connected: in a large mesh sessions are made when needed
    faults: int = 0  # how often it broke the protocol's rules, or made work fail here, in the last hour
    last_fault: str = ""  # what it was the last time


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelView:
    """A peer's service as a listener here. `user`: opened by the user, not by a role."""

    peer: str
    service: str
    listen: str  # where it is used on this machine
    streams: int
    sent_bytes: int
    received_bytes: int
    user: bool = False  # opened by the verb `tunnel`, not by a role
    last_error: str = ""  # why the last connection failed, or why it does not listen
    peer_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildView:
    """A child process; `reason` says why it is in this state."""

    name: str
    pid: int | None
    state: str
    restarts: int  # since the daemon's start
    reason: str = ""  # why it is in this state


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreView:
    """Weights that came over the network to this worker and are kept: bytes, most bytes, whole tensors."""

    path: str
    bytes: int  # kept now
    limit: int  # the most that are kept
    tensors: int  # whole ones


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiView:
    """The OpenAI-compatible API of a serving node."""

    url: str
    ready: bool  # a real token has been generated
    requests: int  # since the daemon's start
    tokens: int  # generated since then


@dataclass(frozen=True, slots=True, kw_only=True)
class MdnsView:
    """Multicast DNS: `off`, `looking` (nobody heard yet), `silent` (nobody in the time it takes), `heard`.

    `networks` are the interfaces on which this node is announced, `members` those of the mesh seen there.
    """

    state: MdnsState
    networks: tuple[str, ...] = ()  # interfaces on which this node is announced
    members: int = 0  # those of the mesh seen there
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthWarning:
    """A condition worth a person's attention: a stable code, what it is, what to do."""

    code: str  # stable, as in errors.md
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
    api: ApiView | None = None
    mdns: MdnsView | None = None
    store: StoreView | None = None
    warnings: tuple[HealthWarning, ...] = ()
    schema: int = SCHEMA  # of this document
