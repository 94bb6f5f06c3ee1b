"""plan, capacity and why: requests to the daemon and what is shown of the replies."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin import api, plan_api, status

from tests.gguf_bytes import gguf, language_model
from tests.hub_server import Hub, taken_for_hub
from tests.unit.admin import fake
from tests.unit.admin.fake import FakeControl
from tests.unit.admin.why_replies import busy_reply, why_reply

from .shell import meshd, refused


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of the size of a header."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf(*language_model()))
    return path


def test_a_plan_of_one_answer_at_a_time(
    daemon: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [best, other] = fake.PLAN.plans
    monkeypatch.setattr(fake, "PLAN", replace(fake.PLAN, plans=(replace(best, slots=1), other)))
    assert (
        "\nserved by `desk`: context 8192 tokens, one request at a time, prompts"
        in meshd("plan", "--model", str(file)).out
    )


def test_without_a_node_another_command_answers(file: Path) -> None:
    ran = meshd("plan", "--model", str(file))
    refused(ran, 1, "no daemon is running", "hint: start one", "`meshd model ls --fits` estimates without")


def test_a_plan_for_a_person(daemon: FakeControl, file: Path) -> None:
    ran = meshd("plan", "--model", str(file))
    assert ran.code == 0
    for word in (
        "SmolLM2.gguf: not split: it fits on `garage`, a split costs 27 %",
        "context 8192 tokens for each of 4 requests at once",
        "output on garage CPU",
        "\nby layers 9.1, by tensors 14.8 tok/s\n",
        "garage:30",
        "desk:12 garage:18",
        "REQUEST",
        "15.1 s",
        "20.7 s",
        "REQUEST: time for a prompt of 512 tokens and 256 generated ones; splits are compared by it",
        "AT ONCE: 4 requests together",
        "23.4 tok/s",
        "61.0 tok/s",
        "123 tok/s",
        "2.5 s",
        "4.6 kB",
    ):
        assert word in ran.out, word
    assert "some speeds are estimated" in ran.err and "attic: left out: it does not answer" in ran.err
    assert daemon.asked == [("plan", str(file), 0, 0)]


def test_a_plan_by_tensors_shows_how_much_of_each_layer_a_worker_has(
    daemon: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = fake.planned("each layer on both", ("desk", 20), ("garage", 20))
    together = replace(together, by_tensors=True, output_on="all workers")
    monkeypatch.setattr(fake, "PLAN", replace(fake.PLAN, plans=(together, *fake.PLAN.plans)))
    ran = meshd("plan", "--model", str(file))
    assert "output on all workers" in ran.out
    nodes, splits = (table.splitlines() for table in ran.out.split("\n\n")[1:3])
    assert "OF EACH LAYER" in nodes[0] and "LAYERS" not in nodes[0]
    assert [line.split()[2] for line in nodes[1:]] == ["50%", "50%"]
    assert splits[1].startswith("each layer: desk 50%, garage 50% ")
    assert splits[2].startswith("garage:30 ") and splits[3].startswith("desk:12 garage:18 ")
    body = json.loads(meshd("plan", "--model", str(file), "--json").out)
    assert [plan["by_tensors"] for plan in body["plans"]] == [True, False, False]


@pytest.mark.parametrize(
    ("crossing", "said"),
    [
        (0, "LOAD: from the nodes' own files, which they have"),
        (3_000_000_000, "LOAD: with weights that nodes lack, up to 3.0 GB, as this node sends them"),
        (None, "LOAD: from the nodes' own files, as it is not known whether they have the model"),
    ],
)
def test_from_where_a_load_is(
    daemon: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch, crossing: int | None, said: str
) -> None:
    [best, other] = fake.PLAN.plans
    plans = (best, replace(other, load_bytes=crossing))
    monkeypatch.setattr(fake, "PLAN", replace(fake.PLAN, plans=plans))
    assert said in meshd("plan", "--model", str(file)).out.splitlines()


def test_drafts_of_a_plan(daemon: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = meshd("plan", "--model", str(file), "--draft-model", str(file)).out
    assert (
        "with drafts: 98.7 tok/s where text repeats itself, 23.4 tok/s for prose "
        "(up to 14 repeated tokens a round, 90% accepted, assumed)"
    ) in out
    assert daemon.asked == [("plan", str(file), 0, 0), ("plan options", False, (), str(file))]
    [best, other], drafts = fake.PLAN.plans, fake.PLAN.plans[0].speculation
    assert drafts is not None
    for changed, line in (
        ({"why": "off: it is recurrent"}, "without drafts: off: it is recurrent"),
        (
            {"model_tokens": 5, "measured": True},
            "90% accepted; up to 5 tokens of the draft model a round, 60% accepted, measured)",
        ),
    ):
        known = replace(best, speculation=replace(drafts, **changed))
        monkeypatch.setattr(fake, "PLAN", replace(fake.PLAN, plans=(known, other)))
        assert line in meshd("plan", "--model", str(file)).out


def test_a_plan_for_a_script(daemon: FakeControl, file: Path) -> None:
    ran = meshd("plan", "--model", str(file), "--ctx-size", "4096", "--streams", "8", "--json")
    assert ran.code == 0
    body = json.loads(ran.out)
    assert body["choice"] == 0 and body["plans"][0]["nodes"] == [
        {"node": "garage", "device": "CPU", "layers": 30, "memory_bytes": 3 << 30}
    ]
    for name in ("prompt_tok_s", "generate_tok_s", "streams_tok_s", "load_s", "bytes_per_token", "answer_s"):
        assert body["plans"][0][name] > 0
    assert (body["plans"][0]["prompt_tokens"], body["plans"][0]["answer_tokens"]) == (512, 256)
    assert body["plans"][0]["speculation"] == {
        "free_tokens": 14,
        "model_tokens": 0,
        "free_acceptance": 0.9,
        "model_acceptance": 0.6,
        "measured": False,
        "repetitive_tok_s": 98.7,
        "prose_tok_s": 23.4,
        "why": "",
        "why_no_model": "",
    }
    assert (body["ways"]["layers_tok_s"], body["ways"]["tensors_tok_s"]) == (9.1, 14.8)
    for name in ("ctx_size", "slots", "ubatch", "why"):
        assert body["plans"][0][name]
    assert daemon.asked == [("plan", str(file), 4096, 8)]


def test_a_model_is_found_from_where_the_command_runs(
    daemon: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    assert meshd("plan", "--model", "m.gguf").code == 0
    assert daemon.asked == [("plan", str(file), 0, 0)]


def test_of_a_model_of_the_hub_only_the_header_comes(
    daemon: FakeControl, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("HOME", "HF_HUB_CACHE"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    monkeypatch.setenv("MESHD_CACHE", str(tmp_path / "cache"))
    left_behind = tmp_path / "cache/.headers/tmp0"
    left_behind.mkdir(parents=True)
    os.utime(left_behind, (1, 1))
    hub = Hub({"me/Tiny-GGUF": {"t-Q8_0.gguf": gguf(*language_model())}})
    with taken_for_hub(hub, tmp_path / "token", monkeypatch):
        ran = meshd("plan", "--model", "hf:me/Tiny-GGUF:Q8_0")
    assert ran.code == 0
    [asked] = daemon.asked
    assert isinstance(asked, tuple) and asked[0] == "plan"
    path = str(asked[1])
    assert Path(path).name == "t-Q8_0.header" and not Path(path).exists(), "it is removed afterwards"
    assert "`hf:me/Tiny-GGUF:Q8_0` is not on this machine: planned from its header" in ran.err
    assert not left_behind.exists(), "it was of a plan that was killed"
    assert not list((tmp_path / "user").rglob("*Tiny*")), "the cache of the hub has nothing of it"


def test_of_a_model_of_members_only_the_header_comes(daemon: FakeControl, tmp_path: Path) -> None:
    place = tmp_path / "plan-1"
    place.mkdir()
    (place / "far.header").write_bytes(b"GGUF")
    done = api.PullReply(id=7, step="done", name="far", paths=(str(place / "far.header"),))
    daemon.pulls = [replace(done, step="asking"), done]
    ran = meshd("plan", "--model", "mesh:far")
    assert ran.code == 0 and "planned from its header, which members have" in ran.err
    assert daemon.asked == [
        ("pull", "mesh:far", 0),
        ("pull_progress", 7),
        ("plan", str(place / "far.header"), 0, 0),
    ]
    assert not place.exists(), "it is removed afterwards"


def test_a_model_that_nobody_has(daemon: FakeControl, tmp_path: Path) -> None:
    ran = meshd("plan", "--model", "hf:nobody/nothing:Q4_0")
    asked, _, after = ran.err.partition("\n")
    assert asked.startswith("asking ") and asked.endswith(" for the files of `nobody/nothing`")
    refused(replace(ran, err=after), 1, "cannot download `nobody/nothing`")
    refused(meshd("plan", "--model", "./none.gguf"), 1, "none.gguf")
    refused(meshd("plan", "--model", "ollama:none"), 1, "`ollama pull none`")
    hint = "check the path; for a model of members use `mesh:none`"
    refused(meshd("plan", "--model", "none.gguf"), 1, "there is no model `none.gguf`", hint)
    refused(meshd("plan", "--model", "qwen3.gguf"), 1, "check the path")
    assert daemon.asked == []
    code = api.NO_MEMBER_HAS_IT
    failed = api.PullReply(id=7, step="failed", error="no member has it", hint="ask", code=code)
    daemon.pulls = [failed, failed]
    refused(meshd("plan", "--model", "mesh:far"), 1, "no member has it")
    refused(meshd("plan", "--model", "far"), 1, "there is no model `far` on this machine", "no member has it")


@pytest.mark.parametrize("option", ["--ctx-size", "--streams"])
@pytest.mark.parametrize("number", ["-1", "99999999999"])
def test_numbers_that_make_no_sense(daemon: FakeControl, option: str, number: str) -> None:
    refused(meshd("plan", "--model", "/m.gguf", f"{option}={number}"), 2, option, "takes a number")
    assert daemon.asked == []


def test_the_longest_context_and_fixed_layers_are_asked_for(daemon: FakeControl, file: Path) -> None:
    given = ("--ctx-size", "max", "--layers", "desk=0-9,garage=10-28", "--layers", "attic=29")
    assert meshd("plan", "--model", str(file), *given).code == 0
    assert daemon.asked == [
        ("plan", str(file), 0, 0),
        ("plan options", True, ("desk=0-9", "garage=10-28", "attic=29"), ""),
    ]


@pytest.mark.parametrize("layers", ["garage", "garage=", "garage=9-3", "garage=0-99999", "=0-3"])
def test_layers_that_make_no_sense(daemon: FakeControl, layers: str) -> None:
    refused(meshd("plan", "--model", "/m.gguf", "--layers", layers), 2, "NODE=FIRST-LAST")
    assert daemon.asked == []


def test_who_is_to_compute_is_asked_for(daemon: FakeControl, file: Path) -> None:
    given = ("--workers", "garage,attic", "--tensor-split", "2,1.5", "--device", "none")
    memory = ("--memory", "garage=8G,attic=512M", "--memory", "1GiB")
    assert meshd("plan", "--model", str(file), *given, *memory).code == 0
    assert daemon.asked[1] == (
        "plan over",
        ("garage", "attic"),
        (2.0, 1.5),
        ("none",),
        (
            plan_api.MemoryLimit(node="garage", bytes=8 << 30),
            plan_api.MemoryLimit(node="attic", bytes=512 << 20),
            plan_api.MemoryLimit(node="", bytes=1 << 30),
        ),
    )


@pytest.mark.parametrize(
    "given",
    [
        ("--tensor-split", "1,x"),
        ("--tensor-split", "1,-1"),
        ("--tensor-split", "0,0"),
        ("--tensor-split", "1", "--layers", "garage=0-29"),
        ("--device", "none,CPU"),
        ("--workers", "a b"),
        ("--memory", "garage"),
        ("--memory", "=8G"),
        ("--memory", "garage=0"),
    ],
)
def test_who_is_to_compute_must_make_sense(daemon: FakeControl, given: tuple[str, ...]) -> None:
    refused(meshd("plan", "--model", "/m.gguf", *given), 2, given[0])
    assert daemon.asked == []


def test_why_a_node_is_left_out_is_told_once(
    daemon: FakeControl, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = status.LeftOutView(node="attic", why="attic is paused")
    monkeypatch.setattr(fake, "PLAN", replace(fake.PLAN, left_out=(left,)))
    said = meshd("plan", "--model", str(file)).err
    assert "left out: attic is paused" in said and "attic: left out" not in said


def test_capacity_for_a_person(daemon: FakeControl) -> None:
    ran = meshd("capacity")
    assert ran.code == 0
    for word in ("desk", "8.0 GiB", "13.7 GB/s", "200 GFLOP/s", "garage", "CUDA0", "0.85 ms"):
        assert word in ran.out, word
    assert "attic: left out: it does not answer" in ran.err
    assert "garage: no speed: it computes for somebody" in ran.err
    assert "attic did not say what it stores: it does not answer" in ran.err
    rows = [line.split() for line in ran.out.splitlines()]
    for row in (
        ["NODE", "DISK", "FREE", "CACHE", "ROOM", "MODELS"],
        ["desk", "310.2", "GB", "-", "6"],
        ["garage", "0", "B", "12.0", "GB", "0"],
        ["elder", "unknown", "-", "0"],
        ["desk", "big-Q4_0", "9.9", "GB", "ab" * 8],
        ["desk", "small-Q8_0", "145.0", "MB", "-"],
        ["desk", "and", "4", "more"],
    ):
        assert row in rows, row


def test_capacity_for_a_script(daemon: FakeControl) -> None:
    body = json.loads(meshd("capacity", "--json").out)
    assert body["devices"][0] == {
        "node": "desk",
        "device": "CPU",
        "free_bytes": 8 << 30,
        "total_bytes": 16 << 30,
        "weight_bytes_s": 13.7e9,
        "flops": 2e11,
    }
    assert body["devices"][1]["weight_bytes_s"] is None
    assert body["paths"] == [{"from": "desk", "to": "garage", "rtt_ms": 0.85, "bytes_s": None}]
    assert body["left_out"] == [{"node": "attic", "why": "it does not answer"}]
    assert body["unmeasured"] == [{"node": "garage", "why": "it computes for somebody"}]
    desk, garage, elder, attic = body["storage"]
    assert desk == {
        "node": "desk",
        "free_bytes": 310_200_000_000,
        "cache_room_bytes": None,
        "models": [
            {"name": "big-Q4_0", "bytes": 9_900_000_000, "fingerprint": "ab" * 32},
            {"name": "small-Q8_0", "bytes": 145_000_000, "fingerprint": None},
        ],
        "more_models": 4,
        "why_not": "",
    }
    assert garage["free_bytes"] == 0 and garage["models"] == [] and elder["free_bytes"] is None
    assert attic["why_not"] == "it does not answer"


def test_capacity_measures_again_when_asked_to(daemon: FakeControl) -> None:
    assert meshd("capacity").code == meshd("capacity", "--again", "--json").code == 0
    assert daemon.asked == [("capacity", False), ("capacity", True)]


def test_without_a_daemon(home: Path) -> None:
    refused(meshd("capacity"), 1, "no daemon is running")


def test_the_parts_of_a_token_for_a_person(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply()
    ran = meshd("why")
    assert ran.code == 0
    for word in (
        "SmolLM2: attic CPU: 10 → garage CPU: 20",
        "3 s ago",
        "100 tokens, 0.50 s",
        "20 tokens, 16.7 tok/s",
        "garage → desk",
        "40.0 ms",
        "67%",
        "not explained",
        "9.0 ms",
        "mean of 19 tokens",
        "\nspeed: 16.7 tok/s measured, 19.2 tok/s predicted now, as by `meshd plan`, ",
        ", 21.4 tok/s predicted at load\n",
        "\nsince the load: `desk ↔ garage` takes 12.1 ms of a token (4.1 ms then)\n",
        "\nnot by tensors: there is no cable\n",
        "change: drop `garage` (predicted 19.2 → 33.1 tok/s; ",
        "; as it runs, a request takes 1.72 times as long)",
    ):
        assert word in ran.out, word


def test_a_part_that_rounds_to_nothing_has_no_sign(daemon: FakeControl) -> None:
    reply = why_reply()
    assert reply.token is not None
    daemon.why_reply = replace(reply, token=replace(reply.token, unexplained=-0.00001))
    rows = [line.split() for line in meshd("why").out.splitlines() if line.startswith("not explained")]
    assert rows == [["not", "explained", "0.0", "ms", "0%"]]


def test_rounds_of_several_tokens(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply(rounds=7)
    assert "mean of 19 tokens in 7 rounds" in meshd("why").out
    assert json.loads(meshd("why", "--json").out)["token"]["rounds"] == 7


def test_a_round_of_several_answers(daemon: FakeControl) -> None:
    daemon.why_reply = busy_reply()
    ran = meshd("why")
    for word in (
        "3 s ago, among others",
        "A ROUND ",
        "garage → desk",
        "mean of 100 rounds, 3.8 tokens each",
        "A ROUND: llama-server computes one for all running requests, or for a step of a prompt; ",
    ):
        assert word in ran.out, word
    assert "A TOKEN" not in ran.out and "cannot be divided by rounds" not in ran.err
    body = json.loads(meshd("why", "--json").out)
    assert (body["token"], body["round"]["tokens"], body["round"]["rounds"]) == (None, 380, 100)


def test_why_nothing_can_be_divided(daemon: FakeControl) -> None:
    daemon.why_reply = busy_reply("no answer was streamed, so nobody saw when tokens came")
    assert "it cannot be divided by rounds: no answer was streamed" in meshd("why").err


def test_where_nothing_would_gain_it_says_so(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply(change="")
    assert "change: nothing: predicted for a prompt" in meshd("why").out


def test_for_a_script(daemon: FakeControl) -> None:
    daemon.why_reply = why_reply()
    body = json.loads(meshd("why", "--json").out)
    assert body["token"]["parts"][1] == {
        "kind": "computing",
        "where": "garage CPU",
        "seconds": 0.01,
        "source": "measured",
    }
    assert (body["token"]["seconds"], body["token"]["unexplained"], body["prompt"]) == (0.06, 0.009, None)
    assert body["advice"]["change"] == "drop `garage`" and body["answers"][0]["generated_tokens"] == 20


def test_before_there_was_an_answer(daemon: FakeControl) -> None:
    refused(meshd("why", "--json"), 1, "nothing was answered", "ask it something first")


def test_why_says_what_is_not_measured_by_tensors(daemon: FakeControl) -> None:
    reply = busy_reply("by tensors it is not measured")
    daemon.why_reply = replace(reply, by_tensors=True)
    ran = meshd("why")
    assert ran.code == 0 and "by tensors it is not measured" in ran.err
    assert "ran alone" not in ran.err and "divided" not in ran.err
    assert daemon.why_reply.ways is not None and daemon.why_reply.ways.text in ran.out
    assert json.loads(meshd("why", "--json").out)["by_tensors"] is True
