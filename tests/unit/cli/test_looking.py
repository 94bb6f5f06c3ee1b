"""status, peers, ping, logs: against a daemon that answers."""

import io
import json
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from meshd.admin.status import DrainView, Status
from meshd.cli.logs import Followed
from meshd.cli.output import Output
from meshd.cli.status import show, summary
from meshd.model.status import (
    NOT_HELD,
    DrainStatus,
    FetchSource,
    FetchStatus,
    LentMemory,
    LentState,
    ModelState,
    Speeds,
    StoreStatus,
    WorkerWeights,
)

from tests.gguf_bytes import gguf, language_model
from tests.unit.admin.fake import LINK, METRICS, MODEL, PEER, FakeControl, full_status
from tests.unit.admin.why_replies import why_reply

from .shell import Terminal, meshd, refused


def test_status_for_a_script_is_the_whole_document(daemon: FakeControl) -> None:
    ran = meshd("status", "--json")
    assert (ran.code, ran.err) == (0, "")
    body = json.loads(ran.out)
    assert body["schema"] == 1 and body["node"]["name"] == "desk"
    assert body["peers"][0]["link"]["rtt_ms"] == 1.234
    assert body["model"]["tensors_from_network"][0]["name"] == "blk.3.ffn_up.weight"


def test_metrics_are_printed_as_they_come(daemon: FakeControl) -> None:
    ran = meshd("metrics")
    assert (ran.code, ran.out, ran.err) == (0, METRICS, "")


def test_status_for_a_person_shows_every_part(daemon: FakeControl) -> None:
    ran = meshd("status")
    assert (ran.code, ran.err) == (0, "")
    for word in (
        "desk",
        "serve",
        "process 4242",
        "2 members",
        "garage",
        "tcp lan 192.168.1.5:17430",
        "1.23 ms",
        "SmolLM2",
        "ready",
        "workers' weights: 96.7 MB from their files",
        "4 requests at once, 8192 tokens each",
        "drafts: up to 16 repeated ones, 75% of 400 accepted, 2.50 times as fast as without",
        "standby barn: 96.0 MB of weights held ready: for the loss of any worker",
        "standby loft: not ready: it is not connected",
        "fallback: model-Q2_K.gguf",
        "4.1 kB over the network",
        "blk.3.ffn_up.weight",
        "http://127.0.0.1:8090",
        "42 tokens",
        "127.0.0.1:4000",
        "llama-server",
        "1 spare link",
    ):
        assert word in ran.out, word


def test_weights_that_were_fetched_for_the_load_are_told_from_those_that_were_there(
    daemon: FakeControl,
) -> None:
    assert daemon.state.model is not None
    fetched = replace(daemon.state.model, weights_network_bytes=0, weights_fetched_bytes=99_900_000)
    daemon.state = replace(daemon.state, model=fetched)
    words = "workers' weights: 96.7 MB from their files after fetching 99.9 MB, 0 B sent with the load"
    assert words in meshd("status").out
    assert json.loads(meshd("status", "--json").out)["model"]["weights_fetched_bytes"] == 99_900_000


def test_weights_that_no_worker_had_are_in_the_sum_alone(daemon: FakeControl) -> None:
    assert daemon.state.model is not None
    [tensor] = daemon.state.model.tensors_from_network
    missing = replace(tensor, name="blk.4.ffn_up.weight", reason=NOT_HELD)
    daemon.state = replace(
        daemon.state, model=replace(daemon.state.model, tensors_from_network=(tensor, missing))
    )
    shown = meshd("status").out
    assert "blk.3.ffn_up.weight" in shown and "blk.4.ffn_up.weight" not in shown


def test_drafts_that_change_nothing_are_not_praised(daemon: FakeControl) -> None:
    assert daemon.state.model is not None and daemon.state.model.speculation is not None
    same = replace(daemon.state.model.speculation, gain=1.001)
    daemon.state = replace(daemon.state, model=replace(daemon.state.model, speculation=same))
    said = meshd("status").out
    assert "75% of 400 accepted" in said and "times as fast" not in said


def test_status_says_what_is_known_of_this_machine(daemon: FakeControl) -> None:
    out = meshd("status").out
    assert (
        "device  CPU: 12.0 GiB of 16.0 GiB free 4 min ago, weights 14.5 GB/s, prompts 722 GFLOP/s\n"
        "        CUDA0: 300 MiB of 24.0 GiB free 4 min ago\n"
        "disk    310.2 GB free; room for 19.9 GB of weights; 3 models, 10.1 GB\n"
    ) in out
    full = full_status()
    assert full.storage is not None
    nothing = replace(full.storage, free_bytes=None, cache_room_bytes=None, models=None, models_bytes=None)
    daemon.state = replace(full, devices=(), storage=nothing)
    out = meshd("status").out
    assert "disk " not in out and "device " not in out
    daemon.state = replace(full, storage=replace(nothing, free_bytes=0, models=1, models_bytes=1000))
    assert "disk    0 B free; 1 model, 1.0 kB\n" in meshd("status").out


def test_status_says_how_activations_come_from_the_worker_before(daemon: FakeControl) -> None:
    full = full_status()
    assert full.model is not None
    part = full.model.split[0]
    split = (
        part,
        replace(part, node="attic", push=True),
        replace(part, node="cellar", push=False, why_no_push="switched off"),
    )
    daemon.state = replace(full, model=replace(full.model, split=split))
    rows = [line.split(maxsplit=5) for line in meshd("status").out.splitlines() if " CPU " in line]
    assert [(row[0], row[-1].strip()) for row in rows] == [
        ("garage", "-"),
        ("attic", "direct"),
        ("cellar", "through the head: switched off"),
    ]


def test_status_says_how_much_of_each_layer_a_worker_has(daemon: FakeControl) -> None:
    full = full_status()
    assert full.model is not None
    part = full.model.split[0]
    split = (replace(part, layers=20), replace(part, node="attic", layers=10))
    daemon.state = replace(full, model=replace(full.model, split=split, by_tensors=True))
    out = meshd("status").out
    assert "OF EACH LAYER" in out and "LAYERS" not in out
    rows = [line.split() for line in out.splitlines() if " CPU " in line]
    assert [(row[0], row[2]) for row in rows] == [("garage", "67%"), ("attic", "33%")]


def loading() -> Status:
    """A model that is being loaded over one worker."""
    half = WorkerWeights(node="garage", total_bytes=100, local_bytes=40, missing_bytes=60, sent_bytes=10)
    model = replace(MODEL, state=ModelState.LOADING, progress=0.5, workers=(half,))
    return replace(full_status(), model=model)


def test_how_far_workers_are_is_a_bar_on_a_terminal_and_a_percentage_elsewhere() -> None:
    for kind, bars in ((Terminal, 1), (io.StringIO, 0)):
        out = kind()
        show(loading(), Output(out, io.StringIO(), {"NO_COLOR": "1"}, width=100))
        assert "loading 50%" in out.getvalue()
        assert out.getvalue().count("[############............]  50% garage") == bars
    out = Terminal()
    show(full_status(), Output(out, io.StringIO(), {}, width=100))
    assert "50% garage" not in out.getvalue()


def test_a_tunnel_to_a_node_of_this_ones_name_shows_which(daemon: FakeControl) -> None:
    assert "garage (" not in meshd("status").out
    daemon.state = replace(full_status(), node=replace(full_status().node, name=PEER.name))
    assert f"garage ({PEER.id[:10]})  rpc" in meshd("status").out


def test_what_a_worker_keeps_is_shown(daemon: FakeControl) -> None:
    daemon.state = replace(
        full_status(), store=StoreStatus(path="/c/t", bytes=1_000_000, limit=2_000_000, tensors=3)
    )
    assert "cache   1.0 MB of 2.0 MB: 3 tensors downloaded" in meshd("status").out
    assert json.loads(meshd("status", "--json").out)["store"]["tensors"] == 3
    daemon.state = replace(full_status(), store=StoreStatus(path="/c/t", bytes=0, limit=0, tensors=0))
    assert "cache " not in meshd("status").out


def test_status_of_a_bare_daemon(daemon: FakeControl) -> None:
    daemon.state = Status(node=full_status().node, mesh=None)
    ran = meshd("status")
    assert ran.code == 0 and "no other nodes known yet" in ran.out and "mesh    none" in ran.out


def test_warnings_come_with_their_hints(daemon: FakeControl) -> None:
    from meshd.admin.health import examine

    daemon.state = examine(replace(full_status(), mesh=None))
    ran = meshd("status")
    assert (
        "[not_in_mesh]" in ran.out and "hint: run `meshd invite` on the node that founded the mesh" in ran.out
    )


def test_watch_prints_a_line_when_something_has_changed(
    daemon: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            daemon.state = replace(daemon.state, peers=(replace(PEER, state="suspended", link=None),))
        if looks == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr("meshd.cli.status.time.sleep", look)
    ran = meshd("status", "--watch")
    assert (ran.code, ran.err) == (130, "")
    assert ran.out.splitlines() == [
        "desk serve, peers garage=connected, model ready",
        "desk serve, peers garage=suspended, model ready",
    ]
    assert daemon.asked == ["status"] * 4


def test_watch_for_a_script_is_a_document_a_line(
    daemon: FakeControl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.cli.status.time.sleep", interrupt)
    ran = meshd("status", "--watch", "--json")
    assert ran.code == 130 and json.loads(ran.out) == json.loads(meshd("status", "--json").out)


def interrupt(seconds: float) -> None:
    """As Ctrl-C would while a verb waits."""
    raise KeyboardInterrupt


def test_peers(daemon: FakeControl) -> None:
    ran = meshd("peers")
    assert ran.code == 0 and ran.out.splitlines()[0].startswith("PEER") and "garage" in ran.out
    body = json.loads(meshd("peers", "--json").out)
    assert (body["schema"], body["peers"][0]["name"]) == (1, "garage")


def test_the_rate_of_a_link_that_was_full(daemon: FakeControl) -> None:
    def row() -> dict[str, str]:
        lines = meshd("peers").out.splitlines()
        names, values = (re.split(r"  +", line.strip()) for line in lines[:2])
        return dict(zip(names, values, strict=False))

    assert row()["RATE"] == "-"
    daemon.state = replace(daemon.state, peers=(replace(PEER, link=replace(LINK, bytes_s=12_500_000.0)),))
    assert row()["RATE"] == "12.5 MB/s"
    assert json.loads(meshd("peers", "--json").out)["peers"][0]["link"]["bytes_s"] == 12_500_000


@pytest.mark.parametrize(
    "words",
    [
        ("status",),
        ("peers",),
        ("plan", "--model", "m.gguf"),
        ("capacity",),
        ("why",),
        ("doctor",),
        ("netcheck",),
        ("invite",),
        ("model", "show", "m.gguf"),
        ("expose", "ls"),
        ("tunnel", "ls"),
        ("config", "show"),
    ],
)
def test_each_document_says_its_schema(
    daemon: FakeControl, words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("m.gguf").write_bytes(gguf(*language_model()))
    daemon.why_reply = why_reply()
    assert json.loads(meshd(*words, "--json").out)["schema"] == 1


def test_a_worker_s_child_is_a_mesh_server_to_people_and_has_its_old_name_in_scripts(
    daemon: FakeControl,
) -> None:
    child = replace(daemon.state.children[0], name="mesh-server")
    daemon.state = replace(daemon.state, children=(child,))
    shown = meshd("status").out
    assert "mesh-server" in shown and "rpc-server" not in shown
    assert [one["name"] for one in json.loads(meshd("status", "--json").out)["children"]] == ["rpc-server"]


def test_a_peer_that_was_stopped_is_away(daemon: FakeControl) -> None:
    gone = replace(PEER, state="connecting", link=None, standby_links=(), why_not_direct=None, state_s=5.0)
    daemon.state = replace(
        daemon.state, peers=(replace(gone, last_error="refused", stopped="the node was stopped"),)
    )
    said = meshd("peers").out
    assert "away 5 s" in said and "the node was stopped" in said and "refused" not in said


@pytest.mark.parametrize(
    ("lent", "said"),
    [
        (("SmolLM2", 100 << 20, LentState.LOADED), "lends   100 MiB to garage for SmolLM2, loaded"),
        (
            ("SmolLM2", 96_600_000, LentState.STANDBY),
            "lends   nothing yet to garage: standby for SmolLM2, 96.6 MB for it",
        ),
        (None, "lends   nothing now: it waits for a head (`meshd serve` on another machine)"),
    ],
)
def test_a_worker_says_whom_it_serves(
    daemon: FakeControl, lent: tuple[str, int, LentState] | None, said: str
) -> None:
    node = replace(daemon.state.node, role="worker")
    memory = () if lent is None else (LentMemory(PEER.id, *lent),)
    daemon.state = replace(daemon.state, node=node, lent=memory)
    assert said in meshd("status").out.splitlines()


@pytest.mark.parametrize(
    ("draining", "said"),
    [
        (None, "paused: it lends nothing until `meshd resume`"),
        (
            DrainView(models=1, requests=0),
            "draining: 1 model still uses this node until the running answers end",
        ),
        (DrainView(models=0, requests=2), "draining: 2 requests still under way"),
    ],
)
def test_a_node_that_drains_says_what_it_waits_for(
    daemon: FakeControl, draining: DrainView | None, said: str
) -> None:
    daemon.state = replace(daemon.state, node=replace(daemon.state.node, paused=True, draining=draining))
    lines = [line.strip() for line in meshd("status").out.splitlines()]
    assert [line for line in lines if line.startswith(("paused", "draining"))] == [said]
    assert (draining is not None) == ("draining" in summary(daemon.state))


def test_a_head_says_which_worker_it_lets_go(daemon: FakeControl) -> None:
    draining = DrainStatus(("garage", "attic"), 1)
    said = "draining: 1 answer still runs, then the model is loaded again without garage and attic"
    peers = (replace(PEER, paused=True, draining=True),)
    daemon.state = replace(daemon.state, model=replace(MODEL, draining=draining), peers=peers)
    out = meshd("status").out
    assert said in out and "draining" in summary(daemon.state)
    assert "connected, draining" in meshd("peers").out
    body = json.loads(meshd("status", "--json").out)
    assert body["model"]["draining"] == {"workers": ["garage", "attic"], "answers": 1}
    assert body["peers"][0]["draining"] is True and body["node"]["draining"] is None


def test_a_model_without_workers_has_no_weights_of_theirs(daemon: FakeControl) -> None:
    alone = replace(
        MODEL,
        weights_local_bytes=0,
        weights_network_bytes=0,
        tensors_from_network=(),
        measuring_seconds=20.9,
        bytes_per_token=None,
    )
    daemon.state = replace(daemon.state, model=alone)
    said = meshd("status").out
    assert "workers' weights" not in said
    assert "        loaded in 0.29 s, devices measured in 21 s after that, once\n" in said
    assert "split by estimates" not in said
    daemon.state = replace(daemon.state, model=replace(alone, estimated=("desk", "attic")))
    assert (
        "        split by estimates: desk, attic will be measured once nobody asks for a while\n"
        in meshd("status").out
    )


def test_a_prediction_says_that_it_is_of_the_load(daemon: FakeControl) -> None:
    assert daemon.state.model is not None
    measured, predicted = Speeds(None, 20.6), Speeds(118.7, 15.2)
    daemon.state = replace(
        daemon.state, model=replace(daemon.state.model, measured=measured, predicted=predicted)
    )
    speeds = "generation: 20.6 tokens/s (15.2 predicted at load), prompts: 118.7 tokens/s predicted at load"
    assert f"        {speeds}\n" in meshd("status").out


@pytest.mark.parametrize(
    ("state", "reason", "shown"),
    [
        ("waiting", "waiting for workers: 0 of 1 ready", "waiting"),
        ("loading", "loading the model; garage: 1 of 2 MB", "loading 40%"),
        ("ready", "", "ready"),
    ],
)
def test_the_reason_for_a_state_is_shown_below_it_as_it_is(
    daemon: FakeControl, state: ModelState, reason: str, shown: str
) -> None:
    assert daemon.state.model is not None
    changed = replace(daemon.state.model, state=ModelState(state), reason=reason, progress=0.4)
    daemon.state = replace(daemon.state, model=changed)
    lines = iter(meshd("status").out.splitlines())
    assert next(line for line in lines if line.startswith("model ")).endswith(f")  {shown}")
    assert (next(lines) == f"        {reason}") is bool(reason)


def test_a_peer_that_was_off_when_this_node_started_is_away(daemon: FakeControl) -> None:
    refuses = "`192.0.2.2:17433` refused the connection"
    peer = replace(PEER, link=None, standby_links=(), state="connecting", last_error=refuses)
    peer = replace(peer, native_protocol="")
    daemon.state = replace(daemon.state, peers=(replace(peer, state_s=60.0),))
    said = meshd("peers").out
    assert "away" in said and "not connected since this node started" in said and "refused" not in said
    daemon.state = replace(daemon.state, peers=(replace(peer, state_s=1.0),))  # it may answer yet
    assert "connecting" in meshd("peers").out


def test_ping_names_the_way(daemon: FakeControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshd.cli.status._PAUSE_SECONDS", 0)
    ran = meshd("ping", "garage", "--count", "2")
    line = f"pong from garage ({PEER.id[:10]}) via tcp lan 192.168.1.5:17430 in 1.23 ms\n"
    assert (ran.code, ran.out, ran.err) == (0, line * 2, "")


def test_ping_for_a_script(daemon: FakeControl) -> None:
    body = json.loads(meshd("ping", "garage", "--count", "1", "--json").out)
    assert (body["sent"], body["received"], body["name"], body["peer"]) == (1, 1, "garage", PEER.id)
    assert body["replies"] == [
        {"seq": 0, "rtt_ms": 1.234, "kind": "tcp", "path": "lan", "remote": "192.168.1.5:17430"}
    ]
    assert body["rtt_avg_ms"] == body["rtt_min_ms"] == body["rtt_max_ms"] == 1.234


def test_ping_without_an_answer_fails(daemon: FakeControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshd.cli.status._PAUSE_SECONDS", 0)
    ran = meshd("ping", "silent", "--count", "2")
    assert (ran.code, ran.out) == (1, "")
    assert ran.err.count("no answer: no answer within 5 s") == 2
    assert "error: `silent` did not answer\n\nhint: is it running" in ran.err
    body = json.loads(meshd("ping", "silent", "--count", "1", "--json").out)
    assert (body["received"], body["rtt_avg_ms"]) == (0, None)


def test_ping_of_nobody_is_not_tried_again(daemon: FakeControl) -> None:
    refused(meshd("ping", "nobody"), 1, "no node is called `nobody`")
    assert len(daemon.asked) == 1


@pytest.fixture
def logs(home: Path) -> Path:
    folder = home / "logs"
    folder.mkdir(parents=True)
    (folder / "meshd.log.1").write_text("old 1\nold 2\n")
    (folder / "meshd.log").write_text("new 1\nnew \x1b[2J2\n")
    (folder / "mesh-server-1.log").write_text("child\n")
    return folder


def test_logs_of_all(logs: Path) -> None:
    ran = meshd("logs")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "mesh-server-1| child",
        "meshd| old 1",
        "meshd| old 2",
        "meshd| new 1",
        "meshd| new �[2J2",
    ]


@pytest.fixture
def timed_logs(home: Path) -> Path:
    """Logs as text, as JSON and of a child, whose second line is the end of a longer one."""
    folder = home / "logs"
    folder.mkdir(parents=True)
    stamp = "2026-11-25T10:00:0"
    (folder / "meshd.log").write_text(
        f"{stamp}1.000000Z [info] one\n"
        f'{{"event": "two", "level": "info", "timestamp": "{stamp}3Z"}}\n'
        f"{stamp}5.000000Z [info] three\n"
    )
    (folder / "llama-server.log").write_text(f"{stamp}2.500000Z a\n  b\n{stamp}4.000000Z c\n")
    return folder


def test_logs_are_merged_by_time(timed_logs: Path) -> None:
    stamp = "2026-11-25T10:00:0"
    assert meshd("logs").out.splitlines() == [
        f"meshd| {stamp}1.000000Z [info] one",
        f"llama-server| {stamp}2.500000Z a",
        "llama-server|   b",
        f'meshd| {{"event": "two", "level": "info", "timestamp": "{stamp}3Z"}}',
        f"llama-server| {stamp}4.000000Z c",
        f"meshd| {stamp}5.000000Z [info] three",
    ]


def test_logs_for_a_script(timed_logs: Path) -> None:
    lines = [json.loads(line) for line in meshd("logs", "--json").out.splitlines()]
    assert [(line["log"], line["time"][17:]) for line in lines] == [
        ("meshd", "01.000000Z"),
        ("llama-server", "02.500000Z"),
        ("llama-server", "02.500000Z"),
        ("meshd", "03.000000Z"),
        ("llama-server", "04.000000Z"),
        ("meshd", "05.000000Z"),
    ]
    assert lines[2]["text"] == "  b"


def test_logs_since_a_time_ago(timed_logs: Path) -> None:
    now = datetime.now(UTC)
    times = [now - timedelta(seconds=back) for back in (4000, 3000, 30)]
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%S.%fZ") for time in times]
    (timed_logs / "meshd.log").write_text("\n".join(["no time", *(f"{stamp} x" for stamp in stamps), ""]))
    (timed_logs / "llama-server.log").unlink()
    assert meshd("logs", "--since", "1h").out.splitlines() == [f"{stamp} x" for stamp in stamps[1:]]
    assert meshd("logs", "--since", "1h", "--lines", "1").out.splitlines() == [f"{stamps[2]} x"]
    refused(meshd("logs", "--since", "yesterday"), 2, "expected a duration such as 24h")


def test_logs_of_one(logs: Path) -> None:
    for name in ("mesh-server", "rpc-server"):  # the second as in `status --json`
        assert meshd("logs", name).out == "child\n"
    assert meshd("logs", "meshd", "--lines", "3").out == "old 2\nnew 1\nnew �[2J2\n"
    assert meshd("logs", "meshd", "--lines", "0").out == ""
    refused(
        meshd("logs", "llama-server"), 1, "no log named `llama-server`", "choose one of: mesh-server-1, meshd"
    )


def test_following_sees_growth_rotation_and_truncation(logs: Path) -> None:
    path = logs / "meshd.log"
    log = Followed(path)
    log.tail(10)
    assert list(log.new()) == []
    with path.open("a") as stream:
        stream.write("one\nhal")
    assert list(log.new()) == ["one"]
    with path.open("a") as stream:
        stream.write("f\n")
    assert list(log.new()) == ["half"]
    path.rename(logs / "meshd.log.1")
    assert list(log.new()) == []
    path.write_text("fresh\n")
    assert list(log.new()) == ["fresh"]
    path.write_text("")
    assert list(log.new()) == []
    path.write_text("cut\n")
    assert list(log.new()) == ["cut"]


def test_logs_follow_until_interrupted(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = 0

    def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 1:
            (logs / "llama-server.log").write_text("a child that came later\n")
        if looks == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr("meshd.cli.logs.time.sleep", look)
    ran = meshd("logs", "-f", "--lines", "0")
    assert (ran.code, ran.out, ran.err) == (130, "llama-server| a child that came later\n", "")


def several() -> Status:
    """A gateway with three models."""
    small = replace(MODEL, name="small", aliases=("tiny",), group="g", running=2, waiting=1)
    big = replace(small, name="big", aliases=(), group="", state=ModelState.UNLOADED, running=0, waiting=0)
    big = replace(big, reason="it made room for small")
    failed = replace(big, name="broken", state=ModelState.FAILED, reason="no memory")
    return replace(full_status(), model=small, models=(small, big, failed))


FETCHING = FetchStatus(
    name="mesh:far",
    step="fetching",
    activity="fetching far from garage",
    source="members",
    done_bytes=10**9,
    total_bytes=4 * 10**9,
    bytes_s=1e8,
    sources=(FetchSource("garage", 10**9), FetchSource("attic", 0, "it does not answer")),
)


@pytest.mark.parametrize("role", ["serve", "worker"])
def test_a_model_that_is_fetched(daemon: FakeControl, role: str) -> None:
    node = replace(full_status().node, role=role)
    daemon.state = replace(full_status(), node=node, model=None, fetching=FETCHING, lent=())
    shown = meshd("status").out
    assert "model   mesh:far  fetching 25%: fetching far from garage: 1.0 GB of 4.0 GB, 100.0 MB/s" in shown
    assert "30 s left" in shown and "attic gives no more: it does not answer" in shown
    assert ("lends   nothing yet: it fetches its model first" in shown) == (role == "worker")
    body = json.loads(meshd("status", "--json").out)["fetching"]
    assert (body["done_bytes"], body["total_bytes"], body["bytes_s"]) == (10**9, 4 * 10**9, 1e8)
    assert body["sources"][0] == {"node": "garage", "bytes": 10**9, "problem": ""}
    assert "fetching mesh:far 25%" in summary(daemon.state)


def test_several_models_are_listed_with_their_states(daemon: FakeControl) -> None:
    daemon.state = several()
    lines = [line.split() for line in meshd("status").out.splitlines()]
    assert ["small", "tiny", "g", "ready", "2", "running,", "1", "waiting"] in lines
    why = ["it", "made", "room", "for", "small"]
    assert ["big", "-", "-", "unloaded", "0", "running,", "0", "waiting", *why] in lines
    assert ["broken", "-", "-", "failed", "0", "running,", "0", "waiting", "no", "memory"] in lines
    names = [model["name"] for model in json.loads(meshd("status", "--json").out)["models"]]
    assert names == ["small", "big", "broken"]


def test_one_line_has_the_states_of_several_models() -> None:
    assert "models small=ready big=unloaded broken=failed" in summary(several())
    assert "model ready" in summary(full_status())
