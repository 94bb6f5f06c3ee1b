"""Requests to the daemon and their replies as frozen values; the content of `Status` is in status.py.

Fields may be added, never renamed or dropped. Times are seconds, sizes bytes, dates Unix seconds; ids are
given in full. `request.py` turns these values to JSON and back, and refuses what does not fit.
"""

import math
from dataclasses import dataclass
from typing import Literal

from meshd.admin.request import Request
from meshd.admin.status import LeftOutView, PathName, Status, TunnelView
from meshd.base.units import in_number, in_time
from meshd.link.transport import LinkKind

MAX_PING_SECONDS = 60.0
NO_MEMBER_HAS_IT = "nobody"  # code of a pull that found no member with the model
Severity = Literal["info", "warning", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PingReply:
    """One answer of a peer, and the path it took."""

    peer: str
    name: str
    rtt_ms: float
    kind: LinkKind
    path: PathName
    remote: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteReply:
    """A new invite. `token` is a secret.

    `url`: the page for a browser in the node's network, with the invite; empty if it is not for a browser, or
    if the node offers no page there.
    """

    token: str
    id: str
    expires_at: int
    uses: int
    url: str = ""

    def validity(self, now: float) -> str:
        """Return for people how often it can be used, and for how long."""
        # Rounded up: a new invite for a day is shown as one for 24 h, not for 23 h 59 min.
        left = max(0.0, self.expires_at - now)
        step = 10 if left > 60 else 1
        for_how_long = in_time(math.ceil(left / step) * step)
        return (
            f"invite {self.id}: valid for {in_number(self.uses, 'node')} and {for_how_long}; keep it secret"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A node that joined with an invite; `name` is empty if unknown (no daemon, or the node left)."""

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
    browser: str = ""  # its name, if the invite is for one


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteList:
    """All invites of this node that it still remembers."""

    invites: tuple[InviteView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeReply:
    """The banned id, of a node or an invite, and the nodes that joined with it (`removed`)."""

    id: str
    name: str = ""
    removed: tuple[Joined, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetReply:
    """The node that this one has forgotten."""

    id: str
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BanView:
    """A ban in force: of a node (its id) or an invite. `banned_at`: Unix seconds by its issuer's clock.

    `name`: what the node was called when this one banned it; empty where that is not known.
    """

    id: str
    kind: str  # node or invite
    banned_at: int
    by: str  # id of the issuer
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BanList:
    """All bans in force, the oldest first."""

    bans: tuple[BanView, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposedView:
    """A local service for the nodes `to` (ids; `to_names` in the same order); empty: no node may use it."""

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
class AcceptReply:
    """The joiner's id, the addresses that are sent to, and for how long in seconds."""

    joiner: str
    addresses: tuple[str, ...]
    seconds: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """Success, without further data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusRequest(Request[Status], name="status"):
    """A snapshot, taken now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PingRequest(Request[PingReply], name="ping"):
    """One round trip to `peer` (a name, an id or the beginning of one), at most `timeout_s` seconds."""

    peer: str
    timeout_s: float = 5.0

    @property
    def seconds(self) -> float:
        """The value of `timeout_s` within its bounds."""
        return min(max(self.timeout_s, 0.01), MAX_PING_SECONDS)


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteRequest(Request[InviteReply], name="invite"):
    """Create an invite; it is on disk before the reply. `browser`: the name of one that it is for."""

    expires_s: int
    uses: int
    roles: tuple[str, ...]
    browser: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteListRequest(Request[InviteList], name="invite_list"):
    """The invites of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InviteRevokeRequest(Request[RevokeReply], name="invite_revoke"):
    """Ban an invite, by its `id` or the beginning of one, and the nodes that joined with it."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RevokeRequest(Request[RevokeReply], name="revoke"):
    """Ban a node, `peer` as in PingRequest; its sessions close."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRequest(Request[ForgetReply], name="forget"):
    """Drop a node that is away, `peer` as in PingRequest, from what this node knows."""

    peer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptRequest(Request[AcceptReply], name="accept"):
    """Send to the addresses of a reply code for a while, so that the joining node can connect."""

    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveRequest(Request[Done], name="leave"):
    """Leave the mesh; the daemon then ends. `drop_root`: the founder agrees to lose the root key."""

    drop_root: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BanListRequest(Request[BanList], name="ban_list"):
    """The bans in force."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UnbanRequest(Request[RevokeReply], name="unban"):
    """Lift all bans of a node or an invite: `id`, or its unique beginning. The founder alone can."""

    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseRequest(Request[Done], name="pause"):
    """Lend nothing, kept over a restart. `drain`: what is lent is not taken back, its users give it back."""

    drain: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumeRequest(Request[Done], name="resume"):
    """Lend again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReply:
    """The requests that still run here, and the models that still have a lease."""

    requests: int
    leases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRequest(Request[DrainReply], name="drain"):
    """Before a restart: grant no lease and begin no request until the daemon ends; False: do so again."""

    on: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequest(Request[Done], name="stop"):
    """The daemon ends after it has answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposeRequest(Request[ExposedView], name="expose"):
    """Let exactly the nodes `to` (names or ids) reach `target` (host:port) as `name`; none: as before."""

    name: str
    target: str
    to: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposeListRequest(Request[ExposedList], name="expose_list"):
    """The services of this node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExposeRemoveRequest(Request[Done], name="expose_remove"):
    """End a service, and the connections to it."""

    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelOpenRequest(Request[TunnelView], name="tunnel_open"):
    """Listen for a peer's service; `peer` as in PingRequest; `listen` is host:port, empty: any on loopback.

    Refused if the peer is connected and denies access.
    """

    peer: str
    service: str
    listen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelListRequest(Request[TunnelList], name="tunnel_list"):
    """The tunnels that users have opened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TunnelCloseRequest(Request[TunnelList], name="tunnel_close"):
    """End the tunnel at `listen` (host:port or port), or all to a peer's `service`; the reply lists them."""

    listen: str = ""
    peer: str = ""
    service: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberModelView:
    """A model that a member has. `fingerprint` is null until that member has hashed it, `content` until it
    has read its pieces."""

    node: str
    name: str
    names: tuple[str, ...]
    bytes: int
    files: int
    quant: str | None
    architecture: str | None
    fingerprint: str | None
    content: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesInUseReply:
    """Paths of model files, of those with shards the first one's."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesInUseRequest(Request[FilesInUseReply], name="files_in_use"):
    """A request for the model files that this node serves or lends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """A member that a model comes from. `problem`: why it gives no more; empty while it does."""

    node: str
    bytes: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReply:
    """The progress of a pull. `step`: asking, looking, fetching, checking, done or failed; `before_bytes`:
    those present when it began; `rate` in bytes a second, 0 if unknown. `paths` and `fingerprint` when it is
    done; `was_here`: they are of a model that this machine had under another name or elsewhere. `error`,
    `hint` and `code` when it has failed. `asked`: the name that it was asked for by; `source`: `members`, or
    `download` once no member has it; `note`: what the user should know of it besides.
    """

    id: int
    step: str
    name: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    before_bytes: int = 0
    rate: float = 0.0
    activity: str = ""
    holders: tuple[HolderView, ...] = ()
    paths: tuple[str, ...] = ()
    fingerprint: str | None = None
    was_here: bool = False
    source: str = "members"
    asked: str = ""
    note: str = ""
    error: str = ""
    hint: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberModelsReply:
    """The models of all connected members; `left_out` did not reply. `pulls`: those that run on this node,
    and those in the background that failed and were not restarted.
    """

    models: tuple[MemberModelView, ...]
    left_out: tuple[LeftOutView, ...] = ()
    pulls: tuple[PullReply, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberModelsRequest(Request[MemberModelsReply], name="member_models"):
    """A request for the models of members, asked now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest(Request[PullReply], name="pull"):
    """Take the model `name` from members, at most `rate` bytes a second (0: no limit).

    `header_only`: of it only what a head without layers needs; `for_plan`: only the headers of its files,
    which the requester removes. `download`: the whole model, as `meshd model pull` does: where no member
    gives it, from where it is published, with no limit of the rate, and compared with the published hash. It
    runs for as long as somebody asks how far it is, every few seconds; with `background` it runs to its end.
    """

    name: str
    rate: int = 0
    header_only: bool = False
    for_plan: bool = False
    background: bool = False
    download: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgressRequest(Request[PullReply], name="pull_progress"):
    """A request for the progress of the pull with this `id`."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStopRequest(Request[PullReply], name="pull_stop"):
    """Stop a pull; what was fetched stays."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NatView:
    """`kind` in words; the others as in RFC 5780, or `unknown`. `step` belongs to `counting` ports."""

    kind: str
    mapping: str
    filtering: str
    ports: str
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PortMappingView:
    """`state`: off, asking, no_gateway, silent, refused, behind_nat, mapped, or offered (no daemon asks)."""

    state: str
    language: str | None  # pcp, nat-pmp or upnp
    gateway: str | None
    external: str | None
    mappings: tuple[str, ...]
    verified: bool | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProblemView:
    """One problem: a stable code, a description, a hint."""

    code: str
    severity: Severity
    what: str
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NetcheckReply:
    """One check. `udp`, `tcp`, `ipv6`, `hairpin`: lower-case words of wire/netfacts.py. `age_s`: seconds ago.

    `direct` says in one sentence whether peers could be direct.
    """

    udp: str
    tcp: str
    nat: NatView
    tcp_nat: NatView
    ipv6: str
    hairpin: str
    public_v4: str | None
    public_v6: str | None
    carrier_nat: bool
    port_mapping: PortMappingView
    direct: str
    problems: tuple[ProblemView, ...]
    servers: tuple[str, ...]
    age_s: float
    daemon: bool  # False: checked by the command itself, no daemon runs


@dataclass(frozen=True, slots=True, kw_only=True)
class NetcheckRequest(Request[NetcheckReply], name="netcheck"):
    """Check now what network this node is in, which takes some seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsReply:
    """All metrics of a node, in Prometheus's text format."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsRequest(Request[MetricsReply], name="metrics"):
    """A request for the metrics of this node, with the use of each API key."""


LinkState = Literal["waiting", "opened", "ended"]


@dataclass(frozen=True, slots=True, kw_only=True)
class UiReply:
    """A link that opens the page of the mesh once, within a minute. `url` has a secret, `id` is its name.

    `lan_url`: the same link for other devices, which need an API key as well; empty if none can reach it.
    """

    url: str
    id: str
    lan_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class UiRequest(Request[UiReply], name="ui"):
    """Make a link to the page of the mesh; a node without an API opens a port for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UiLinkReply:
    """The state of a link; `ended`: nobody opened it in time, or the page has ended."""

    state: LinkState


@dataclass(frozen=True, slots=True, kw_only=True)
class UiLinkRequest(Request[UiLinkReply], name="ui_link"):
    """A request for the state of a link, by its `id`."""

    id: str
