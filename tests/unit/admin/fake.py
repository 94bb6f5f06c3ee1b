"""A daemon's control made for tests."""

from dataclasses import dataclass, field, fields, replace
from typing import TypeVar, cast

from meshd.admin import api, plan_api, status
from meshd.admin.api import (
    AcceptReply,
    ExposedList,
    ExposedView,
    InviteList,
    InviteReply,
    InviteView,
    Joined,
    NatView,
    NetcheckReply,
    PingReply,
    PortMappingView,
    ProblemView,
    RevokeReply,
    TunnelList,
)
from meshd.admin.request import Answers, Request, requests
from meshd.admin.status import (
    ChildView,
    LinkView,
    MeshView,
    NodeView,
    PeerView,
    Status,
    TunnelView,
)
from meshd.base.errors import Refused, UserError
from meshd.gateway.interface import GatewayStatus, KeyStatus
from meshd.link.transport import LinkKind
from meshd.model.status import (
    AnswersAtOnce,
    LentMemory,
    LentState,
    ModelState,
    ModelStatus,
    NetworkTensor,
    SpeculationStatus,
    SplitPart,
    StandbyStatus,
    StoreStatus,
)
from meshd.rendezvous.interface import MdnsStatus

from tests.unit.admin.machine_views import CAPACITY, DEVICES, FITS, STORAGE

R = TypeVar("R")
LINK = LinkView(
    kind=LinkKind.TCP,
    path="lan",
    remote="192.168.1.5:17430",
    rtt_ms=1.234,
    since=1_790_000_000.0,
    sent_bytes=12_345,
    received_bytes=678,
)
PEER = PeerView(
    id="q" * 52,
    name="garage",
    role="worker",
    state="connected",
    link=LINK,
    standby_links=(LINK,),
    resumes=2,
    version="0.1.0",
    native_protocol="mesh 5",
    state_s=100.0,
)
MODEL = ModelStatus(
    name="SmolLM2",
    fingerprint="f" * 64,
    state=ModelState.READY,
    reason="",
    load_seconds=0.29,
    weights_local_bytes=96_700_000,
    weights_network_bytes=4096,
    tensors_from_network=(
        NetworkTensor(name="blk.3.ffn_up.weight", bytes=4096, node="garage", reason="hash"),
    ),
    bytes_per_token=2400.0,
    split=(SplitPart(node="garage", device="CPU", layers=15, bytes=48_000_000),),
    answers=AnswersAtOnce(slots=4, tokens=8192),
    speculation=SpeculationStatus(16, 0, 400, 300, 2.5, "drafts: up to 16 repeated ones"),
    standby=(
        StandbyStatus("barn", True, 96_000_000, 96_000_000, "for the loss of any worker"),
        StandbyStatus("loft", False, 0, 0, "it is not connected"),
    ),
    fallbacks=("model-Q2_K.gguf",),
)

NETCHECK = NetcheckReply(
    udp="works",
    tcp="works",
    nat=NatView(
        kind="symmetric, counting", mapping="address_port", filtering="address_port", ports="counting", step=2
    ),
    tcp_nat=NatView(
        kind="endpoint-independent", mapping="independent", filtering="unknown", ports="preserved", step=0
    ),
    ipv6="no",
    hairpin="unknown",
    public_v4="20.1.0.2",
    public_v6=None,
    carrier_nat=False,
    port_mapping=PortMappingView(
        state="mapped",
        language="pcp",
        gateway="192.168.1.1",
        external="20.1.0.2",
        mappings=("20.1.0.2:17430/tcp/mapped",),
        verified=True,
        why="",
    ),
    direct="any peer can reach this node directly, through the port that the router maps",
    problems=(ProblemView(code="symmetric", severity="warning", what="the NAT is hard", hint="a relay"),),
    servers=("stun.example:3478",),
    age_s=300.0,
    daemon=True,
)

TUNNEL = TunnelView(
    peer=PEER.id,
    service="web",
    listen="127.0.0.1:4001",
    streams=1,
    sent_bytes=10,
    received_bytes=20,
    user=True,
    last_error="the peer reset the stream",
    peer_name="garage",
)


PAGE_URL = "http://192.168.1.5:17430/#meshd1token"
GUEST = Joined(id=PEER.id, name="garage")
PONG = PingReply(
    peer=PEER.id, name="garage", rtt_ms=1.234, kind=LinkKind.TCP, path="lan", remote="192.168.1.5:17430"
)
INVITE = InviteView(
    id="00ff",
    roles=("use",),
    created_at=1_790_000_000,
    expires_at=1_790_000_001,
    uses=2,
    used=1,
    state="expired",
    joined=(GUEST,),
)
METRICS = (
    '# HELP meshd_node_info This node.\n# TYPE meshd_node_info gauge\nmeshd_node_info{name="desk"} 1.0\n'
)
BAN = api.BanView(id=PEER.id, kind="node", banned_at=1_790_000_000, by="f" * 52, name="garage")


def full_status(pid: int = 4242) -> Status:
    """A status in which nothing is empty."""
    return Status(
        node=NodeView(
            id="n" * 52,
            name="desk",
            role="serve",
            version="0.1.0",
            pid=pid,
            uptime_s=12.5,
            rss_bytes=50_000_000,
            listen=("192.168.1.4:17430",),
            home="/home/u/.local/state/meshd",
        ),
        mesh=MeshView(id="m" * 52, members=2, roles=("use", "work")),
        peers=(PEER,),
        tunnels=(
            TunnelView(
                peer=PEER.id,
                service="rpc",
                listen="127.0.0.1:4000",
                streams=3,
                sent_bytes=9,
                received_bytes=8,
            ),
        ),
        children=(ChildView(name="llama-server", pid=None, state="ready", restarts=0),),
        model=MODEL,
        mdns=MdnsStatus(state="heard", networks=("eth0",), members=1, why="wlan0: no multicast"),
        api=GatewayStatus(
            url="http://127.0.0.1:8090",
            ready=True,
            requests=1,
            tokens=42,
            running=1,
            waiting=2,
            keys=(KeyStatus("anna", 1, 3, 120, 42, 162),),
        ),
        store=StoreStatus(path="/home/u/.cache/meshd/tensors", bytes=7, limit=20_000_000_000, tensors=3),
        devices=DEVICES,
        storage=STORAGE,
        lent=(LentMemory(PEER.id, "SmolLM2", 96_700_000, LentState.LOADED, "garage"),),
    )


def member_model(node: str, name: str, size: int, fingerprint: str | None = None) -> api.MemberModelView:
    """A model of a member, as a daemon tells of it."""
    return api.MemberModelView(
        node=node,
        name=name,
        names=(name, f"hf:me/{name}"),
        bytes=size,
        files=1,
        quant="Q8_0",
        architecture="llama",
        fingerprint=fingerprint,
        content=None,
    )


def planned(
    why: str, *nodes: tuple[str, int], measured: bool = True, answer_s: float = 15.1
) -> plan_api.PlanView:
    """A plan over the CPUs of these nodes, with so many layers each."""
    return plan_api.PlanView(
        nodes=tuple(
            plan_api.PlannedNode(node=node, device="CPU", layers=layers, memory_bytes=3 << 30)
            for node, layers in nodes
        ),
        prompt_tok_s=123.4,
        generate_tok_s=23.4,
        streams_tok_s=61.0,
        first_token_s=0.9,
        load_s=2.5,
        load_bytes=0,
        bytes_per_token=4608,
        ctx_size=8192,
        slots=4,
        ubatch=256,
        output_on="garage CPU",
        measured=measured,
        why=why,
        answer_s=answer_s,
        prompt_tokens=512,
        answer_tokens=256,
        parts=(
            plan_api.PlanPart(
                part=f"{nodes[0][0]} CPU",
                token_s=0.04,
                prompt_s=4.1,
            ),
        ),
        speculation=plan_api.PlanSpeculation(
            free_tokens=14,
            model_tokens=0,
            free_acceptance=0.9,
            model_acceptance=0.6,
            measured=False,
            repetitive_tok_s=98.7,
            prose_tok_s=23.4,
        ),
    )


UI_URL = "http://127.0.0.1:8090/mesh/open?once=secret"
PLAN = plan_api.PlanReply(
    model="SmolLM2.gguf",
    head="desk",
    choice=0,
    plans=(
        planned("not split: it fits on `garage`, a split costs 27 %", ("garage", 30)),
        planned("according to the tensor split", ("desk", 12), ("garage", 18), measured=False, answer_s=20.7),
    ),
    left_out=(status.LeftOutView(node="attic", why="it does not answer"),),
    ways=plan_api.WaysView(layers_tok_s=9.1, tensors_tok_s=14.8, text="by layers 9.1, by tensors 14.8 tok/s"),
)


def exposed(name: str, target: str, to: tuple[str, ...]) -> ExposedView:
    """A service as a daemon shows it; every node named has id and name alike."""
    return ExposedView(
        name=name, target=target, to=to, to_names=to, streams=0, sent_bytes=1, received_bytes=2
    )


@dataclass
class FakeControl(Answers):
    """Remembers what it was asked. `stopping` is set by stop and leave."""

    state: Status = field(default_factory=full_status)
    asked: list[object] = field(default_factory=list)
    stopping: bool = False
    services: tuple[ExposedView, ...] = ()
    why_reply: plan_api.WhyReply | None = None
    open: tuple[TunnelView, ...] = ()
    models: tuple[api.MemberModelView, ...] = ()
    pulls: list[api.PullReply] = field(default_factory=list)  # what it says next
    running: tuple[api.PullReply, ...] = ()  # what a list of models has of them
    in_use: tuple[str, ...] = ()
    error: Exception | None = None  # of a status
    network: NetcheckReply = NETCHECK
    drains: list[api.DrainReply] = field(default_factory=list)  # what it says next
    lan_url: str = ""
    link_states: list[api.LinkState] = field(default_factory=list)  # what it says next

    @classmethod
    def answered(cls) -> frozenset[object]:
        """Return all requests."""
        return frozenset(requests().values())

    async def answer(self, request: Request[R]) -> R:
        """Note the request, and return the reply that fits it."""
        self.asked += _noted(request)
        self.stopping = self.stopping or isinstance(request, api.LeaveRequest | api.StopRequest)
        return cast(R, self._about_models(request) or self._about_members(request) or self._of_node(request))

    def _about_models(self, request: Request[object]) -> object:
        match request:
            case api.FilesInUseRequest():
                return api.FilesInUseReply(paths=self.in_use)
            case api.MemberModelsRequest():
                left_out = status.LeftOutView(node="attic", why="it does not answer")
                return api.MemberModelsReply(models=self.models, left_out=(left_out,), pulls=self.running)
            case api.PullRequest() | api.PullProgressRequest() | api.PullStopRequest():
                return self.pulls.pop(0)
            case plan_api.CapacityRequest():
                return CAPACITY
            case plan_api.FitsRequest():
                return FITS
            case plan_api.PlanRequest():
                return PLAN
            case plan_api.WhyRequest():
                if self.why_reply is None:
                    what = "nothing was answered since the model was loaded"
                    raise UserError(what, hint="ask it something first")
                return self.why_reply
        return None

    def _about_members(self, request: Request[object]) -> object:
        match request:
            case api.PingRequest(peer="nobody"):
                raise UserError("no node is called `nobody`", hint="`meshd peers` lists them")
            case api.PingRequest(peer="silent"):
                raise Refused("no answer within 5 s", code="timeout", hint="is it running")
            case api.PingRequest():
                return PONG
            case api.InviteRequest(uses=uses, browser=browser):
                url = PAGE_URL if browser == "phone" else ""
                return InviteReply(
                    token="meshd1token", id="00ff", expires_at=1_900_000_000, uses=uses, url=url
                )
            case api.InviteListRequest():
                return InviteList(invites=(INVITE,))
            case api.InviteRevokeRequest(id=invite):
                return RevokeReply(id=invite, removed=(GUEST,))
            case api.AcceptRequest():
                return AcceptReply(joiner=PEER.id, addresses=("20.1.0.2:17430",), seconds=60)
            case api.RevokeRequest(peer="me"):
                raise UserError("this node cannot ban itself", hint="leave instead")
            case api.RevokeRequest(peer=peer):
                return RevokeReply(id=PEER.id, name=peer)
            case api.ForgetRequest(peer=peer):
                return api.ForgetReply(id=PEER.id, name=peer)
            case api.BanListRequest():
                return api.BanList(bans=(BAN,))
            case api.UnbanRequest():
                return RevokeReply(id=PEER.id, name="garage")
        return None

    def _of_node(self, request: Request[object]) -> object:
        match request:
            case api.StatusRequest():
                if self.error is not None:
                    raise self.error
                return self.state
            case api.DrainRequest(on=on):
                return self.drains.pop(0) if on else api.DrainReply(requests=1, leases=0)
            case api.MetricsRequest():
                return api.MetricsReply(text=METRICS)
            case api.ExposeRequest(name=name, target=target, to=to):
                if "nobody" in to:
                    raise UserError("no node `nobody` is known", hint="run `meshd peers` for names and ids")
                return exposed(name, target, to)
            case api.ExposeListRequest():
                return ExposedList(exposed=self.services)
            case api.TunnelOpenRequest(service="secret"):
                raise Refused("no service `secret` is exposed to this node", code="refused")
            case api.TunnelOpenRequest(service=service, listen=listen):
                return replace(TUNNEL, service=service, listen=listen or TUNNEL.listen)
            case api.TunnelListRequest():
                return TunnelList(tunnels=self.open)
            case api.TunnelCloseRequest():
                return TunnelList(tunnels=(TUNNEL,))
            case api.NetcheckRequest():
                return self.network
            case api.UiRequest():
                return api.UiReply(url=UI_URL, id="0a1b", lan_url=self.lan_url)
            case api.UiLinkRequest():
                return api.UiLinkReply(state=self.link_states.pop(0))
        return api.Done()


def _noted(request: Request[object]) -> list[object]:
    """Return what a test is told of a request: its name, and its fields if it has any."""
    match request:
        case api.FilesInUseRequest() | api.MemberModelsRequest() | api.InviteListRequest():
            return []  # they change nothing, and other requests bring them along
        case api.BanListRequest():
            return []
        case api.DrainRequest(on=on):
            return [("drain", on)]
        case api.PingRequest(peer=peer):
            return [("ping", peer, request.seconds)]
        case api.PullRequest(name=name, rate=rate):
            return [("pull", name, rate)]
        case plan_api.FitsRequest(known=known):
            return [("fits", *((one.name, one.bytes) for one in known))]
        case plan_api.PlanRequest():
            options = request.largest_context, request.layers, request.draft_model
            who = request.workers, request.tensor_split, request.devices, request.memory
            more: list[object] = [("plan options", *options)] if any(options) else []
            more += [("plan over", *who)] if any(who) else []
            return [("plan", request.model, request.ctx_size, request.streams), *more]
    values = [getattr(request, one.name) for one in fields(request)]  # type: ignore[arg-type]
    return [(request.request_name, *values) if values else request.request_name]
