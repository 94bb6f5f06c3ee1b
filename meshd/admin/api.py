"""Requests to the daemon and its replies as frozen values; what `Status` holds stands in status.py.

Fields may be added, never renamed or dropped. Times are seconds, sizes bytes, dates Unix seconds; ids are
given in full. `codec.py` turns these values to JSON and back, and refuses what does not fit.
"""

from dataclasses import dataclass

from meshd.admin.net_api import NetcheckReply, NetcheckRequest
from meshd.admin.status import LinkKindName, PathName, Status, TunnelView


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
class Joined:
    """A node that joined by an invite; `name` is empty where it is not known (none runs here, or it left)."""

    id: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteView:
    """An invite of this node as `invite ls` shows it: without its secret. `joined`: the newest of `used`."""

    id: str
    roles: tuple[str, ...]
    created_at: int
    expires_at: int
    uses: int
    used: int
    state: str  # valid, expired, used_up or revoked
    joined: tuple[Joined, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteList:
    """All invites that this node has made and still remembers."""

    invites: tuple[InviteView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeReply:
    """Who or what has been banned: a node's id or an invite's, and who joined by that (`removed`)."""

    id: str
    name: str = ""
    removed: tuple[Joined, ...] = ()


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
