"""A node that exists only as answers: it serves the built page of the mesh, a state, and canned results.

The answers are values of the control socket's own types, so they have the form of a real node's.
"""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field

from aiohttp import web
from meshd.admin.api import (
    AcceptReply,
    BanList,
    BanView,
    Done,
    ExposedList,
    ExposedView,
    ForgetReply,
    HolderView,
    InviteList,
    InviteReply,
    InviteView,
    Joined,
    MemberModelsReply,
    NatView,
    NetcheckReply,
    PingReply,
    PortMappingView,
    ProblemView,
    PullReply,
    RevokeReply,
    TunnelList,
)
from meshd.admin.plan_api import (
    AdviceView,
    AnswerTime,
    FitsReply,
    PlannedNode,
    PlanPart,
    PlanReply,
    PlanView,
    ShortModelFit,
    WaysView,
    WhyReply,
)
from meshd.admin.request import Json, to_fields
from meshd.admin.status import LeftOutView, LinkView, MeshView, NodeView, PeerView, Status, TunnelView
from meshd.gateway.interface import GatewayStatus
from meshd.gateway.pages import Page
from meshd.link.transport import LinkKind
from meshd.model.status import AnswersAtOnce, ModelState, ModelStatus, Speeds, SplitPart
from meshd.model.time_account import PartKind, PartSource, TimeAccount, TimePart

NOW = time.time()
GARAGE, ATTIC = "rpbcgn66vn" + "a" * 42, "k2hq7xw4me" + "b" * 42
TOKEN = "meshd1" + "qzry9x8gf2tvdw0s3jn54khce6mua7l" * 8
PAGE_URL = f"http://192.168.1.5:17430/#{TOKEN}"
HOSTILE = "<img src=x onerror=\"document.title='taken'\">'; rm -rf ~ #"


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer that is an error."""

    message: str
    hint: str = ""
    code: str = "user"
    status: int = 400


def own_node(*, paused: bool = False) -> NodeView:
    """Return the node whose page it is."""
    return NodeView(
        id="d" * 52,
        name="desk",
        role="serve",
        version="0.1.0",
        pid=7,
        uptime_s=99.0,
        rss_bytes=9,
        paused=paused,
    )


def link(path: str = "lan") -> LinkView:
    """Return a link by TCP."""
    assert path in ("lan", "relayed")
    return LinkView(
        kind=LinkKind.TCP if path == "lan" else LinkKind.RELAY,
        path="lan" if path == "lan" else "relayed",
        remote="192.168.1.7:17430",
        rtt_ms=0.91,
        since=NOW - 500,
        sent_bytes=12_000,
        received_bytes=34_000,
    )


TUNNEL = TunnelView(
    peer=GARAGE,
    service="ssh",
    listen="127.0.0.1:2222",
    streams=1,
    sent_bytes=4_000,
    received_bytes=9_000,
    user=True,
    peer_name="garage",
)


def peers(name: str = "garage") -> tuple[PeerView, ...]:
    """Return two peers: one is connected, one is away."""
    return (
        PeerView(
            id=GARAGE,
            name=name,
            role="worker",
            state="connected",
            link=link("relayed"),
            why_not_direct="both NATs are symmetric",
            version="0.1.0",
            state_s=754.0,
        ),
        PeerView(
            id=ATTIC,
            name="attic",
            role="worker",
            state="lost",
            link=None,
            state_s=90_000.0,
            last_error="no route to host",
        ),
    )


def model(name: str = "Qwen3-4B-Q4_K_M", state: ModelState = ModelState.READY) -> ModelStatus:
    """Return a model that is split over two nodes."""
    return ModelStatus(
        name=name,
        fingerprint="ab" * 32,
        state=state,
        reason="" if state is ModelState.READY else "unloaded: it was not used for 600 s",
        load_seconds=24.1,
        weights_local_bytes=9,
        weights_network_bytes=0,
        tensors_from_network=(),
        bytes_per_token=20_000.0,
        split=(
            SplitPart(node="desk", device="CUDA0", layers=18, bytes=1_200_000_000),
            SplitPart(node="garage", device="CPU", layers=18, bytes=1_200_000_000),
        ),
        answers=AnswersAtOnce(slots=4, tokens=8192),
        predicted=Speeds(prompt_tok_s=512.0, generate_tok_s=21.5),
        measured=Speeds(prompt_tok_s=498.2, generate_tok_s=None),
        split_why="both together are 1.8 times as fast as desk alone",
    )


def status(
    *,
    members: tuple[PeerView, ...] = (),
    served: tuple[ModelStatus, ...] = (),
    paused: bool = False,
    has_api: bool = True,
) -> Status:
    """Return a status of the node `desk`."""
    return Status(
        node=own_node(paused=paused),
        mesh=MeshView(id="m" * 52, members=1 + len(members), roles=("use", "work", "invite")),
        tunnels=(TUNNEL,) if members else (),
        peers=members,
        model=served[0] if served else None,
        models=served if len(served) > 1 else (),
        api=GatewayStatus(url="http://127.0.0.1:8090/v1", ready=True, requests=3, tokens=99)
        if has_api
        else None,
    )


EXPOSED = ExposedView(
    name="ssh",
    target="127.0.0.1:22",
    to=(GARAGE,),
    to_names=("garage",),
    streams=2,
    sent_bytes=5_000,
    received_bytes=7_000,
)
CAN = (
    *("tunnel_open", "tunnel_close", "expose", "expose_list", "expose_remove"),
    *("accept", "ban_list", "capacity", "drain", "fits", "forget", "invite", "invite_list", "invite_revoke"),
    *("load", "logs", "member_models", "model_remove", "models", "netcheck", "pause", "ping", "plan", "pull"),
    *("pull_progress", "pull_stop", "resume", "revoke", "unban", "unload", "why"),
)


def state(shown: Status, *, events: bool = True) -> Mapping[str, object]:
    """Return the state of a page."""
    told = [
        {"at": NOW - 4000, "level": "info", "text": "garage connected: same network, tcp, 0.9 ms"},
        {"at": NOW - 600, "level": "warning", "text": "attic is lost: no route to host"},
        {"at": NOW - 20, "level": "info", "text": "Qwen3-4B-Q4_K_M loaded in 24.1 s"},
    ]
    return {
        "status": to_fields(shown),
        "requests": [],
        "history": {"step_s": 10, "until": round(NOW), "tok_s": [0.0] * 90, "requests": [0] * 90},
        "events": told if events else [],
        "can": list(CAN),
    }


def _listed(name: str, source: str, problem: str | None = None) -> Mapping[str, Json]:
    here = source != "mesh"
    node: Mapping[str, Json] = {
        "node": "desk" if here else "garage",
        "names": [name.removeprefix("mesh:")],
        "path": f"/models/{name}" if here else None,
        "complete": True,
    }
    return {
        "name": name,
        "bytes": 2_497_000_000,
        "fingerprint": "ab" * 32,
        "source": source,
        "quant": "Q4_K_M",
        "architecture": "qwen3",
        "problem": problem,
        "pull": None,
        "nodes": [node],
    }


def _plan(split: tuple[tuple[str, str, int], ...], rate: float, *, why: str) -> PlanView:
    return PlanView(
        nodes=tuple(
            PlannedNode(node=node, device=device, layers=layers, memory_bytes=2_400_000_000)
            for node, device, layers in split
        ),
        prompt_tok_s=480.0,
        generate_tok_s=rate,
        streams_tok_s=rate * 2,
        first_token_s=0.4,
        load_s=24.0,
        load_bytes=None,
        bytes_per_token=20_480,
        ctx_size=8192,
        slots=4,
        ubatch=512,
        output_on="desk",
        measured=rate > 10,
        why=why,
        answer_s=12.3,
        prompt_tokens=1024,
        answer_tokens=256,
        parts=(PlanPart(part="desk CUDA0", token_s=0.02, prompt_s=1.0),),
    )


_NAT = NatView(kind="symmetric, random", mapping="symmetric", filtering="unknown", ports="random", step=0)
PULL = PullReply(
    id=5,
    step="fetching",
    name="GLM-4.7-Flash-Q4_K_M",
    done_bytes=3_000_000_000,
    total_bytes=18_000_000_000,
    rate=90_000_000.0,
    holders=(HolderView(node="garage", bytes=3_000_000_000),),
    asked="mesh:GLM-4.7-Flash-Q4_K_M",
)
_TOKEN = TimeAccount(
    seconds=0.05,
    tokens=64,
    parts=(
        TimePart(PartKind.COMPUTING, "desk CUDA0", 0.02, PartSource.MEASURED),
        TimePart(PartKind.COMPUTING, "garage CPU", 0.021, PartSource.MEASURED),
        TimePart(PartKind.WAY, "desk to garage", 0.006, PartSource.PATH),
    ),
    unexplained=0.003,
)
_LOG = (
    "2026-11-27T13:00:01.000000Z [info     ] started                        node=desk",
    "2026-11-27T13:00:02.000000Z [warning  ] peer_lost                      name=attic why='no route'",
    "Traceback of nobody",
    "2026-11-27T13:00:03.000000Z [error    ] child_failed                   name=llama-server",
)


def results() -> dict[str, object]:
    """Return the answers of a node to each action."""
    return {**_of_members(), **_of_models(), **_of_the_network(), **_of_plans()}


def _of_members() -> dict[str, object]:
    """Return the answers about members, invites and bans."""
    return {
        "accept": AcceptReply(joiner=ATTIC, addresses=("203.0.113.5:4000",), seconds=120),
        "ban_list": BanList(
            bans=(BanView(id="e" * 52, kind="node", banned_at=round(NOW - 7000), by="d" * 52, name="shed"),)
        ),
        "drain": Done(),
        "expose": EXPOSED,
        "expose_list": ExposedList(exposed=(EXPOSED,)),
        "expose_remove": Done(),
        "forget": ForgetReply(id=ATTIC, name="attic"),
        "invite": InviteReply(
            token=TOKEN, id="d7300f57d2c2ba28", expires_at=round(time.time()) + 3600, uses=2, url=PAGE_URL
        ),
        "invite_list": InviteList(
            invites=(
                InviteView(
                    id="d7300f57d2c2ba28",
                    roles=("use", "work"),
                    created_at=round(NOW - 60),
                    expires_at=round(NOW + 86_000),
                    uses=10,
                    used=1,
                    state="valid",
                    joined=(Joined(id=GARAGE, name="garage"),),
                ),
            )
        ),
        "invite_revoke": RevokeReply(id="d7300f57d2c2ba28", removed=(Joined(id=GARAGE, name="garage"),)),
        "pause": Done(),
        "resume": Done(),
        "revoke": RevokeReply(id=GARAGE, name="garage"),
        "tunnel_close": TunnelList(tunnels=(TUNNEL,)),
        "tunnel_open": TUNNEL,
        "unban": RevokeReply(id="e" * 52, name="shed"),
    }


def _of_models() -> dict[str, object]:
    """Return the answers about models and logs."""
    pulled = {"step": "failed", "error": "", "done_bytes": 4_000_000_000}
    return {
        "fits": FitsReply(
            models=(
                ShortModelFit(name="qwen3-4b", here="gpu", mesh="gpu"),
                ShortModelFit(name="glm", here="no", mesh="partly_cpu"),
                ShortModelFit(name="gpt-oss-120b", here="no", mesh="no"),
            ),
            workers=("garage",),
            left_out=(LeftOutView(node="attic", why="it is away"),),
        ),
        "load": Done(),
        "logs": {"lines": list(_LOG), "logs": ["meshd", "llama-server"]},
        "member_models": MemberModelsReply(models=()),
        "model_remove": {"removed": ["Qwen3-4B-Q4_K_M"], "bytes": 2_497_000_000},
        "models": {
            "models": [
                _listed("Qwen3-4B-Q4_K_M", "hugging face"),
                _listed("mesh:GLM-4.7-Flash-Q4_K_M", "mesh"),
                _listed("half", "meshd", "the download or copy is not complete"),
            ]
        },
        "pull": PULL,
        "pull_progress": PULL,
        "pull_stop": {**to_fields(PULL), **pulled, "error": "the copy was stopped"},
        "unload": Done(),
    }


def _of_the_network() -> dict[str, object]:
    """Return the answers about the network."""
    return {
        "netcheck": NetcheckReply(
            udp="passes",
            tcp="only_443",
            nat=_NAT,
            tcp_nat=_NAT,
            ipv6="no",
            hairpin="no",
            public_v4="203.0.113.9",
            public_v6=None,
            carrier_nat=False,
            port_mapping=PortMappingView(
                state="mapped",
                language="pcp",
                gateway="192.168.1.1",
                external="203.0.113.9:17430",
                mappings=("203.0.113.9:17430",),
                verified=True,
                why="",
            ),
            direct="peers can be direct if they have a public address",
            problems=(
                ProblemView(
                    code="nat_symmetric",
                    severity="warning",
                    what="this NAT takes a new port for each destination",
                    hint="let the router map a port, or use a relay",
                ),
                ProblemView(
                    code="nat_symmetric",
                    severity="warning",
                    what="that NAT does so as well",
                    hint="let the router map a port, or use a relay",
                ),
            ),
            servers=("stun.example:3478",),
            age_s=0.0,
            daemon=True,
        ),
        "ping": PingReply(
            peer=GARAGE,
            name="garage",
            rtt_ms=39.7,
            kind=LinkKind.RELAY,
            path="relayed",
            remote="192.168.1.7:17430",
        ),
    }


def _of_plans() -> dict[str, object]:
    """Return the answers about plans."""
    return {
        "plan": PlanReply(
            model="Qwen3-4B-Q4_K_M",
            head="desk",
            choice=1,
            plans=(
                _plan((("desk", "CUDA0", 36),), 9.5, why=""),
                _plan(
                    (("desk", "CUDA0", 18), ("garage", "CPU", 18)),
                    21.5,
                    why="both together are 1.8 times as fast as desk alone",
                ),
            ),
            left_out=(LeftOutView(node="attic", why="it is away"),),
            ways=WaysView(
                layers_tok_s=21.5,
                tensors_tok_s=14.2,
                text="by layers 21.5, by tensors over `desk` and `garage` 14.2 tok/s: "
                "`--split tensor` would be slower",
            ),
        ),
        "why": WhyReply(
            model="Qwen3-4B-Q4_K_M",
            split="desk CUDA0 18 layers, garage CPU 18 layers",
            requests=0,
            answers=(
                AnswerTime(
                    running=False,
                    alone=True,
                    ended_s_ago=4.0,
                    queue_s=0.0,
                    prompt_tokens=30,
                    prompt_s=0.5,
                    generated_tokens=64,
                    generated_s=3.2,
                ),
            ),
            token=_TOKEN,
            prompt=None,
            advice=AdviceView(
                change="connect garage by cable",
                gain=0.1,
                why="its path takes 12% of a token",
                generate_tok_s=20.0,
                generate_tok_s_then=22.4,
                measured=True,
            ),
            ways=WaysView(layers_tok_s=20.0, tensors_tok_s=None, text="not by tensors: `garage` is far away"),
        ),
    }


@dataclass
class FakeNode:
    """Hold what a node shows and answers, and the requests that came."""

    state: Mapping[str, object]
    results: dict[str, object] = field(default_factory=results)
    asked: list[tuple[str, object]] = field(default_factory=list)
    headers: list[Mapping[str, str]] = field(default_factory=list)
    slow: frozenset[str] = frozenset()  # actions that are answered after `let_go`
    url: str = ""
    _let_go: asyncio.Event = field(default_factory=asyncio.Event)
    _ended: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None

    def let_go(self) -> None:
        """Have the slow actions answered, from another thread."""
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._let_go.set)

    def fields_of(self, name: str) -> list[object]:
        """Return the fields of each action of that name."""
        return [fields for asked, fields in self.asked if asked == name]


class _Site:
    def __init__(self, page: Page, node: FakeNode) -> None:
        self.page = page
        self.node = node

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/mesh/state":
            return await self._stream(request)
        if request.path.startswith("/mesh/do/") and request.method == "POST":
            return await self._do(request)
        if (file := self.page.get(request.path)) is not None:
            return await file.response(request.headers, {})
        return web.Response(status=404)

    async def _stream(self, request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(b"event: state\ndata: " + json.dumps(self.node.state).encode() + b"\n\n")
        await self.node._ended.wait()
        return response

    async def _do(self, request: web.BaseRequest) -> web.StreamResponse:
        name = request.path.removeprefix("/mesh/do/")
        self.node.asked.append((name, await request.json()))
        self.node.headers.append(dict(request.headers))
        found = self.node.results.get(name, Refusal(f"this node cannot do `{name}`"))
        if name in self.node.slow:  # it answers with what was there when it was asked
            await self.node._let_go.wait()
        if isinstance(found, Refusal):
            error = {"message": found.message, "hint": found.hint, "code": found.code}
            return web.json_response({"error": error}, status=found.status)
        return web.json_response({"result": found if isinstance(found, Mapping) else to_fields(found)})


@contextlib.asynccontextmanager
async def serving(page: Page, node: FakeNode) -> AsyncIterator[FakeNode]:
    """Serve the page, with its real policy, as this node."""
    runner = web.ServerRunner(web.Server(_Site(page, node).handle), shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        node.url = f"http://{host}:{port}"
        node._loop = asyncio.get_running_loop()
        yield node
    finally:
        node._ended.set()
        await runner.cleanup()
