"""States of a mesh as the page is told them: empty, loading, split, with a lost worker, crowded, hostile."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshd.admin.request import Json, to_fields
from meshd.admin.status import (
    DeviceView,
    HealthWarning,
    LinkView,
    MeshView,
    NodeView,
    PathName,
    PeerStateName,
    PeerView,
    Status,
)
from meshd.gateway.interface import GatewayStatus
from meshd.link.transport import LinkKind
from meshd.model.status import (
    AnswersAtOnce,
    FetchSource,
    FetchStatus,
    ModelState,
    ModelStatus,
    Speeds,
    SplitPart,
    WorkerWeights,
)

State = Mapping[str, Json]
GIB = 1 << 30
NOW = 1_790_000_000.0
HOSTILE = "<img src=x onerror=\"document.title='taken'\">"
LONG = "a-name-without-an-end-" * 9 + "zz"  # 200 characters
KINDS: Mapping[PathName, LinkKind] = {
    "loopback": LinkKind.TCP,
    "lan": LinkKind.TCP,
    "public": LinkKind.QUIC,
    "mapped": LinkKind.QUIC,
    "punched": LinkKind.QUIC,
    "relayed": LinkKind.RELAY,
}


def link(path: PathName, rtt_ms: float | None = 1.2, *, moved: int = 0) -> LinkView:
    """A link of this kind that has moved so many bytes each way."""
    return LinkView(
        kind=KINDS[path],
        path=path,
        remote="192.168.1.7:17430",
        rtt_ms=rtt_ms,
        since=NOW - 600,
        sent_bytes=10_000 + moved,
        received_bytes=20_000 + moved // 3,
        bytes_s=117_440_512 if path == "lan" else None,
    )


def peer(
    name: str, path: PathName | None = "lan", *, rtt_ms: float | None = 1.2, moved: int = 0, number: int = 0
) -> PeerView:
    """A worker; connected if it has a path."""
    state: PeerStateName = "known" if path is None else "connected"
    return PeerView(
        id=f"{number:02}rkeohxlubhyzl7ks3mwtzos5olfgocn7dwkbeg7toseadnapn5oa"[:52],
        name=name,
        role="worker",
        state=state,
        link=None if path is None else link(path, rtt_ms, moved=moved),
        why_not_direct="both NATs map each address to another port" if path == "relayed" else None,
        version="0.1.0",
        state_s=600.0,
        native_protocol="mesh 4",
    )


def status(peers: Sequence[PeerView] = (), *, role: str = "serve", name: str = "desk") -> Status:
    """This node with these peers, its API ready, without a model."""
    return Status(
        node=NodeView(
            id="qe4xodvipulv6vvdkrtmgtd6ztfy3curwtxdpis56yhvxd6jwoka",
            name=name,
            role=role,
            version="0.1.0",
            pid=4242,
            uptime_s=600.0,
            rss_bytes=58_000_000,
            listen=("192.168.1.4:17430",),
        ),
        mesh=MeshView(
            id="5vesrrri2hbmn2xjam4jawmvmeuvsjz2lrr7snrwyfdbjlehg7iq", members=len(peers) + 1, roles=("use",)
        ),
        peers=tuple(peers),
        api=GatewayStatus(url="http://127.0.0.1:8090", ready=True, requests=12, tokens=3456),
        devices=(
            DeviceView(
                name="CUDA0",
                kind="gpu",
                description="a card",
                free_bytes=3 * GIB,
                total_bytes=8 * GIB,
                listed_s=3.0,
            ),
        ),
    )


def model(state: ModelState, reason: str = "", *, split: Sequence[SplitPart] = ()) -> ModelStatus:
    """A model in this state."""
    return ModelStatus(
        name="qwen3-14b-q4",
        fingerprint="f" * 64,
        state=state,
        reason=reason,
        load_seconds=12.4 if state is ModelState.READY else None,
        weights_local_bytes=4_100_000_000,
        weights_network_bytes=612_000_000,
        tensors_from_network=(),
        bytes_per_token=24_000.0,
        split=tuple(split),
        answers=AnswersAtOnce(4, 8192),
        predicted=Speeds(210.0, 19.5),
        measured=Speeds(200.0, 18.7) if state is ModelState.READY else None,
    )


SPLIT = (
    SplitPart("desk", "CUDA0", 18, 3_600_000_000),
    SplitPart("attic", "CUDA0", 14, 2_800_000_000),
    SplitPart("garage", "CPU", 8, 1_600_000_000, push=False, why_no_push="`garage` cannot reach `attic`"),
)
PEERS = (
    peer("attic", "lan", number=1),
    peer("garage", "punched", rtt_ms=34.2, number=2),
    peer("barn", "relayed", rtt_ms=81.0, number=3),
)


def shown(
    found: Status,
    *,
    requests: Sequence[Json] = (),
    rates: Sequence[float] = (0.0,) * 90,
    events: Sequence[Json] = (),
    can: Sequence[str] = ("invite", "capacity"),
) -> State:
    """The state that a page gets of this status."""
    return {
        "status": to_fields(found),
        "requests": list(requests),
        "history": {
            "step_s": 10,
            "until": round(NOW),
            "tok_s": list(rates),
            "requests": [int(rate > 0) for rate in rates],
        },
        "events": list(events),
        "can": list(can),
    }


def empty() -> State:
    """A head alone, without a model."""
    return shown(status())


def loading() -> State:
    """A model that two workers load, one of them over the network."""
    now = replace(
        model(ModelState.LOADING, "workers load their weights", split=SPLIT),
        progress=0.43,
        workers=(
            WorkerWeights("attic", 2_800_000_000, 2_800_000_000, 0, 0),
            WorkerWeights("garage", 1_600_000_000, 400_000_000, 1_200_000_000, 310_000_000),
        ),
    )
    api = GatewayStatus(
        url="http://127.0.0.1:8090", ready=False, requests=0, tokens=0, reason="the model loads"
    )
    return shown(replace(status(PEERS), model=now, api=api))


def fetching() -> State:
    """A node that copies its model from members first."""
    found = FetchStatus(
        name="mesh:qwen3-14b-q4",
        step="fetching",
        activity="fetching from members",
        source="members",
        done_bytes=3_200_000_000,
        total_bytes=8_000_000_000,
        bytes_s=42_000_000.0,
        sources=(
            FetchSource("attic", 2_000_000_000),
            FetchSource("barn", 1_200_000_000, "it is switched off"),
        ),
    )
    return shown(replace(status(PEERS), fetching=found))


def split(moved: int = 0) -> State:
    """A model split over three machines, with requests under way; `moved`: bytes since the first state."""
    peers = (
        peer("attic", "lan", number=1, moved=moved),
        peer("garage", "punched", rtt_ms=34.2, number=2, moved=moved // 9),
        peer("barn", "relayed", rtt_ms=81.0, number=3),
    )
    ready = model(ModelState.READY, split=SPLIT)
    return shown(
        replace(status(peers), model=ready, api=replace(_api(), running=2, waiting=1)),
        requests=[
            _request(41, "answering", 312, 18.7),
            _request(42, "prompt", 0, None),
            _request(43, "waiting", 0, None, "waits for a free slot"),
        ],
        rates=[0.0] * 30 + [6.0 + (number * 7 % 13) for number in range(60)],
        events=[
            {"at": NOW - 500, "level": "info", "text": "attic joined the mesh"},
            {"at": NOW - 400, "level": "info", "text": "garage is reached directly now, by quic"},
            {"at": NOW - 300, "level": "warning", "text": "barn is reached through others now, by relay"},
        ],
    )


def lost() -> State:
    """The same after a worker has gone."""
    gone = replace(
        peer("garage", None, number=2),
        state="lost",
        last_error="no answer for 30 s",
        state_s=30.0,
        native_protocol="mesh 4",
    )
    degraded = model(ModelState.DEGRADED, "worker `garage` is gone: the model is loaded anew without it")
    warnings = (
        HealthWarning(
            code="peer_lost",
            severity="error",
            what="`garage` (02rkeohxlu) was lost: no answer for 30 s",
            hint="start it again, or run `meshd forget garage`",
        ),
        HealthWarning(
            code="relayed",
            severity="info",
            what="`barn` is reached through a relay",
            hint="open a port: `meshd netcheck` says which",
        ),
    )
    found = replace(status((PEERS[0], gone, PEERS[2])), model=degraded, warnings=warnings)
    return shown(
        found, events=[{"at": NOW - 20, "level": "error", "text": "garage was lost: no answer for 30 s"}]
    )


def hostile() -> State:
    """Names, reasons and events as a hostile member would choose them."""
    peers = (
        replace(peer(HOSTILE, "lan", number=1), last_error=HOSTILE, version=HOSTILE),
        replace(peer(LONG, "relayed", number=2), why_not_direct=LONG),
        peer("\u202eexe.nocod\u202c", "punched", number=3),
        peer("", None, number=4),
        peer("名" * 60, "lan", number=5),
    )
    parts = [SplitPart(HOSTILE, LONG, 3, 10**15), SplitPart(LONG, HOSTILE, 0, -1)]
    found = replace(
        status(peers, name=HOSTILE),
        model=replace(model(ModelState.READY, LONG, split=parts), name=HOSTILE),
        warnings=(HealthWarning(code="x", severity="error", what=LONG, hint=HOSTILE),),
    )
    return shown(
        found,
        requests=[{**_request(1, "answering", 5, 1e9, LONG), "model": HOSTILE, "key": LONG}],
        events=[{"at": NOW, "level": "error", "text": HOSTILE}, {"at": 0, "level": "info", "text": LONG}],
    )


def crowd() -> State:
    """Thirty machines."""
    paths: Sequence[PathName | None] = ("lan", "punched", "relayed", "public", "mapped", "loopback", None)
    peers = [peer(f"machine-{at:02}", paths[at % 7], rtt_ms=at * 3.1, number=at) for at in range(1, 30)]
    parts = [SplitPart(one.name, "CUDA0", 2, 10**9) for one in peers if one.link is not None]
    return shown(replace(status(peers), model=model(ModelState.READY, split=parts)))


def lending() -> State:
    """A worker as its own user sees it."""
    return shown(replace(status(PEERS[:1], role="worker"), api=None))


def _api() -> GatewayStatus:
    return GatewayStatus(url="http://127.0.0.1:8090", ready=True, requests=12, tokens=3456)


def _request(number: int, phase: str, tokens: int, tok_s: float | None, note: str = "") -> dict[str, Json]:
    return {
        "id": number,
        "model": "qwen3-14b-q4",
        "phase": phase,
        "seconds": 17.2,
        "tokens": tokens,
        "tok_s": tok_s,
        "key": "",
        "note": note,
    }
