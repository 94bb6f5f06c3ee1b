"""`meshd model` with a daemon whose members have models: what it lists, shows and takes from them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin.api import NO_MEMBER_HAS_IT, HolderView, PullReply
from meshd.config.tree import Config
from meshd.daemon.console_models import ModelActions

from tests.conformance.run import run
from tests.unit.admin.fake import FakeControl, member_model
from tests.unit.library.models import put, tiny

from .shell import meshd, refused

DIGITS = "0123456789abcdef" * 4


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, daemon: FakeControl) -> Path:
    """One model here, which `garage` has as well, and one that only members have."""
    folder = tmp_path / "user"
    monkeypatch.setenv("HOME", str(folder))
    for name in ("HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(folder / name))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    put(folder / ".models/own-Q8_0.gguf", tiny())
    daemon.models = (
        member_model("garage", "own-Q8_0", len(tiny())),
        member_model("garage", "far-Q8_0", 5_000_000, DIGITS),
        member_model("desk", "far-Q8_0", 5_000_000),
    )
    return folder


def test_ls_says_who_has_which() -> None:
    ran = meshd("model", "ls")
    assert ran.code == 0 and "attic did not say which models it has: it does not answer" in ran.err
    rows = {line.split()[0]: line for line in ran.out.splitlines()}
    assert rows["NAME"].endswith("NODES") and rows["own-Q8_0"].endswith(", garage")
    assert "not on this machine" in rows["mesh:far-Q8_0"] and rows["mesh:far-Q8_0"].endswith("garage, desk")


def test_ls_as_json() -> None:
    own, far = json.loads(meshd("model", "ls", "--json").out)
    assert [node["node"] for node in own["nodes"]][1:] == ["garage"] and own["source"] == "models"
    assert own["nodes"][0]["path"] and own["nodes"][1]["path"] is None
    assert (far["name"], far["source"], far["bytes"]) == ("mesh:far-Q8_0", "mesh", 5_000_000)
    assert far["fingerprint"] == DIGITS and [node["node"] for node in far["nodes"]] == ["garage", "desk"]


def test_the_page_of_the_mesh_lists_the_same(daemon: FakeControl) -> None:
    found = run(ModelActions(daemon, Config(), lambda: None).models({}))
    assert found["models"] == json.loads(meshd("model", "ls", "--json").out)
    assert found["left_out"] == [{"node": "attic", "why": "it does not answer"}]


def test_ls_says_what_members_call_it(daemon: FakeControl) -> None:
    other = "f" * 64
    daemon.models = (
        member_model("garage", "far-Q8_0", 5_000_000, DIGITS),
        member_model("desk", "newcomer", 5_000_000, DIGITS),
        member_model("garage", "its-copy", 5_000_000, DIGITS),
        member_model("desk", "Far-Q8_0", 6_000_000, other),
    )
    far = meshd("model", "ls").out.splitlines()[2]
    assert far.endswith("garage (also its-copy), desk (newcomer)"), far
    nodes = json.loads(meshd("model", "ls", "--json").out)[1]["nodes"]
    assert [node["names"] for node in nodes] == [["far-Q8_0", "its-copy"], ["newcomer"]]


def test_ls_has_the_model_that_is_served_by_its_path(daemon: FakeControl, tmp_path: Path) -> None:
    """No store knows it; one that a store knows is not listed twice."""
    before = json.loads(meshd("model", "ls", "--json").out)
    served = put(tmp_path / "elsewhere/served-Q8_0.gguf", tiny(fill=7))
    daemon.in_use = (str(served), before[0]["nodes"][0]["path"])
    listed = json.loads(meshd("model", "ls", "--json").out)
    [added] = [one for one in listed if one not in before]
    assert len(listed) == len(before) + 1
    assert (added["name"], added["source"]) == (str(served), "path")
    assert added["nodes"][0]["path"] == str(served) and added["nodes"][0]["complete"] is True
    row = next(line for line in meshd("model", "ls").out.splitlines() if line.startswith(str(served)))
    assert "Q8_0" in row and " ok " in row


def test_ls_says_how_far_pulls_are(daemon: FakeControl) -> None:
    half = replace(_fetching(2_500_000), asked="mesh:far-Q8_0", total_bytes=5_000_000, rate=1e6)
    gone = replace(half, asked="gone", name="gone-Q8_0", step="checking", done_bytes=5_000_000)
    daemon.running = (half, gone, PullReply(id=3, step="asking"))
    rows = {line.split()[0]: line for line in meshd("model", "ls").out.splitlines()}
    assert "pull: fetching 50%, 1.0 MB/s" in rows["mesh:far-Q8_0"]
    assert "5.0 MB" in rows["gone"] and "pull: checking 100%" in rows["gone"]
    own, far, last = json.loads(meshd("model", "ls", "--json").out)
    assert far["pull"] == {
        "step": "fetching",
        "done_bytes": 2_500_000,
        "bytes": 5_000_000,
        "bytes_s": 1e6,
        "error": None,
    }
    assert own["pull"] is None and far["nodes"] and last["nodes"] == []
    assert (last["name"], last["bytes"], last["quant"]) == ("gone", 5_000_000, None)


def test_ls_says_why_a_pull_in_the_background_failed(daemon: FakeControl) -> None:
    """Not of a model that is here by now."""
    half = replace(_fetching(2_500_000), step="failed", total_bytes=5_000_000, error="garage is full")
    daemon.running = (half, replace(half, name="own-Q8_0"))
    listed = meshd("model", "ls").out
    assert "pull: failed 50%: garage is full" in listed and listed.count("failed") == 1
    [_, far] = json.loads(meshd("model", "ls", "--json").out)
    assert far["pull"]["step"] == "failed" and far["pull"]["error"] == "garage is full"


@pytest.mark.parametrize("name", ["far-Q8_0", "gone-Q8_0"])
@pytest.mark.parametrize("source", ["members", "download"])
def test_a_pull_keeps_the_name_that_it_was_asked_for_by(daemon: FakeControl, name: str, source: str) -> None:
    """By a name of members, nothing that comes would be compared with the hash that the hub publishes."""
    asked = "hf:me/Far-GGUF:Q8_0"
    failed = replace(_fetching(1), step="failed", name=name, asked=asked, total_bytes=5_000_000, error="lost")
    daemon.running = (replace(failed, source=source),)
    rows = json.loads(meshd("model", "ls", "--json").out)
    assert [row["name"] for row in rows if row["pull"] is not None] == [asked]
    assert asked in meshd("model", "ls").out


def test_two_models_of_one_name_are_listed_by_their_fingerprints(daemon: FakeControl) -> None:
    daemon.models = (
        member_model("garage", "far-Q8_0", 5_000_000, DIGITS),
        member_model("desk", "far-Q8_0", 5_000_000, "f" * 64),
    )
    names = [row["name"] for row in json.loads(meshd("model", "ls", "--json").out)]
    assert names[1:] == [f"mesh:{DIGITS[:32]}", "mesh:" + "f" * 32]


@pytest.mark.parametrize(
    ("name", "pulled"),
    [("far-Q8_0", "far-Q8_0"), ("mesh:far-q8_0", "far-Q8_0"), (f"mesh:{DIGITS[:12]}", "FINGERPRINT")],
)
def test_show_of_what_members_have(name: str, pulled: str) -> None:
    ran = meshd("model", "show", name)
    assert ran.code == 0 and "size           5.0 MB (5000000 bytes)" in ran.out.splitlines()
    assert f"`meshd model pull mesh:{pulled}`" in ran.err
    body = json.loads(meshd("model", "show", name, "--json").out)
    assert body["members"][0]["node"] == "garage"


def test_digits_show_no_file_that_is_called_so(daemon: FakeControl) -> None:
    daemon.models = (
        member_model("liar", DIGITS[:16], 1_000),
        member_model("garage", "far-Q8_0", 5_000_000, DIGITS),
    )
    body = json.loads(meshd("model", "show", f"mesh:{DIGITS[:16]}", "--json").out)
    assert [row["node"] for row in body["members"]] == ["garage"]


def test_few_digits_are_refused() -> None:
    said = "at least 32 of the 64 digits of a fingerprint, not 12"
    hint = "at least 32 digits: `meshd model ls --json` shows all"
    refused(meshd("model", "verify", f"mesh:{DIGITS[:12]}"), 1, said, hint)
    refused(meshd("model", "verify", "mesh:"), 1, "hint: give the path of a GGUF file")


def test_show_of_what_is_here_and_there() -> None:
    ran = meshd("model", "show", "own-Q8_0")
    assert any(line.startswith("nodes ") and line.endswith(", garage") for line in ran.out.splitlines())
    assert json.loads(meshd("model", "show", "own-Q8_0", "--json").out)["nodes"][1:] == ["garage"]


def _fetching(done: int) -> PullReply:
    holders = (HolderView(node="garage", bytes=done), HolderView(node="desk", bytes=0, problem="it is off"))
    return PullReply(
        id=1, step="fetching", name="far-Q8_0", done_bytes=done, total_bytes=1000, rate=100.0, holders=holders
    )


def test_a_pull_is_watched_to_its_end(daemon: FakeControl, tmp_path: Path) -> None:
    path = put(tmp_path / "there/far-Q8_0.gguf", tiny())
    done = replace(_fetching(1000), step="done", paths=(str(path),))
    daemon.pulls = [PullReply(id=1, step="asking"), _fetching(250), _fetching(500), done]
    ran = meshd("model", "pull", "mesh:far-Q8_0", "--rate", "12Mbit")
    assert (ran.code, ran.out) == (0, f"{path}\n")
    for line in ("asking the members of the mesh", "desk gives no more: it is off"):
        assert ran.err.splitlines().count(line) == 1
    assert "fetching far-Q8_0 (1.0 kB): 20%" in ran.err and "50%" in ran.err
    assert daemon.asked[0] == ("pull", "mesh:far-Q8_0", 1_500_000)


def test_a_pull_as_json(daemon: FakeControl, tmp_path: Path) -> None:
    path = put(tmp_path / "there/far-Q8_0.gguf", tiny())
    daemon.pulls = [replace(_fetching(1000), step="done", paths=(str(path),))]
    body = json.loads(meshd("model", "pull", "far-Q8_0", "--json").out)
    assert body["paths"] == [str(path)]
    assert body["members"] == [{"node": "garage", "bytes": 1000}, {"node": "desk", "bytes": 0}]


@pytest.mark.parametrize("more", [(), ("--background",)])
def test_a_pull_of_what_is_here_under_another_name(
    daemon: FakeControl, models: Path, more: tuple[str, ...]
) -> None:
    """Also of a short name: nothing is moved."""
    path = models / ".models/own-Q8_0.gguf"
    for name in ("mesh:far-Q8_0", "smollm2"):
        daemon.pulls = [replace(_fetching(1000), step="done", holders=(), paths=(str(path),), was_here=True)]
        ran = meshd("model", "pull", name, *more)
        assert (ran.code, ran.out) == (0, f"{path}\n") and "`own-Q8_0` is on this machine" in ran.err
        assert path.exists()


def test_a_pull_as_json_is_as_show(daemon: FakeControl, models: Path) -> None:
    path = models / ".models/own-Q8_0.gguf"
    daemon.pulls = [replace(_fetching(1000), step="done", paths=(str(path),))]
    body = json.loads(meshd("model", "pull", "mesh:far-Q8_0", "--json").out)
    assert body.pop("resumed_bytes") == 0 and len(body.pop("members")) == 2
    assert (body["name"], body["source"], body["nodes"][1:]) == ("own-Q8_0", "models", ["garage"])
    assert body == json.loads(meshd("model", "show", str(path), "--json").out)


def test_a_bar_has_the_rate_and_the_time_that_is_left(daemon: FakeControl, tmp_path: Path) -> None:
    path = put(tmp_path / "there/far-Q8_0.gguf", tiny())
    daemon.pulls = [_fetching(500), replace(_fetching(1000), step="done", paths=(str(path),))]
    ran = meshd("model", "pull", "mesh:far-Q8_0", answer="")
    assert " 50% fetching far-Q8_0 from garage: 500 B of 1.0 kB, 100 B/s" in ran.err
    assert "5 s left" in ran.err


def test_a_pull_in_the_background_is_not_watched(daemon: FakeControl) -> None:
    daemon.pulls = [PullReply(id=1, step="asking"), _fetching(250)]
    ran = meshd("model", "pull", "mesh:far-Q8_0", "--background")
    assert (ran.code, ran.out) == (0, "") and "taking `far-Q8_0` from members in the background" in ran.err
    assert daemon.pulls == []
    daemon.pulls = [_fetching(250)]
    body = json.loads(meshd("model", "pull", "far-Q8_0", "--background", "--json").out)
    assert body == {"schema": 1, "name": "far-Q8_0", "step": "fetching", "done_bytes": 250, "bytes": 1000}
    daemon.pulls = [PullReply(id=1, step="failed", error="no member has it", hint="h", code=NO_MEMBER_HAS_IT)]
    refused(meshd("model", "pull", "mesh:none", "--background"), 1, "no member has it")


def test_a_download_in_the_background_is_the_daemons(daemon: FakeControl) -> None:
    download = replace(_fetching(250), source="download", asked="glm", name="glm", holders=())
    daemon.pulls = [PullReply(id=1, step="asking", activity="asking the hub"), download]
    ran = meshd("model", "pull", "glm", "--background")
    assert (ran.code, ran.out) == (0, "") and "downloading `glm` in the background" in ran.err
    daemon.pulls = [replace(download, note="garage gave something else")]
    assert "garage gave something else" in meshd("model", "pull", "glm", "--background").err
    daemon.running = (download,)
    row = json.loads(meshd("model", "ls", "--json").out)[-1]
    assert row["name"] == "glm" and row["pull"]["bytes"] == 1000 and row["nodes"] == []


def test_ctrl_c_ends_the_pull(daemon: FakeControl, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("time.sleep", interrupted)
    daemon.pulls = [_fetching(250), replace(_fetching(250), step="failed")]
    ran = meshd("model", "pull", "mesh:far-Q8_0")
    assert ran.code == 130 and ran.out == ""
    assert daemon.asked == [("pull", "mesh:far-Q8_0", 0), ("pull_stop", 1)]


def test_what_nobody_has(daemon: FakeControl, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # it was read before
    nobody = PullReply(id=1, step="failed", error="no member has it", code=NO_MEMBER_HAS_IT, hint="list")
    daemon.pulls = [nobody]
    refused(meshd("model", "pull", "mesh:none"), 1, "no member has it")
    daemon.pulls = [nobody]  # then the hub is asked, which is not there
    ran = meshd("model", "pull", "hf:me/None-GGUF:Q8_0")
    asked, _, after = ran.err.partition("\n")
    assert asked == "asking http://127.0.0.1:9 for the files of `me/None-GGUF`"
    refused(replace(ran, err=after), 1, "cannot download `me/None-GGUF` from http://127.0.0.1:9")


@pytest.mark.parametrize("more", [(), ("--background",)])
def test_a_mistyped_file_asks_no_member(daemon: FakeControl, more: tuple[str, ...]) -> None:
    hint = "check the path; for a model of members use `mesh:far-Q8_0`"
    refused(
        meshd("model", "pull", "far-Q8_0.gguf", *more), 1, "there is no model `far-Q8_0.gguf` on this", hint
    )
    refused(meshd("model", "pull", "qwen3.gguf", *more), 1, "check the path")
    assert daemon.asked == []


def test_what_fails_is_not_downloaded_instead(daemon: FakeControl) -> None:
    daemon.pulls = [PullReply(id=1, step="failed", error="not enough space in `/x`", hint="free some")]
    refused(meshd("model", "pull", "hf:me/None-GGUF:Q8_0"), 1, "not enough space", "free some")


@pytest.mark.parametrize("rate", ["0", "-1", "20", "1kB", "fast", "nan", "inf"])
def test_rates_that_make_no_sense(daemon: FakeControl, rate: str) -> None:
    refused(meshd("model", "pull", "mesh:x", f"--rate={rate}"), 2, "a rate such as 20Mbit, 500kbit or 2.5MB")
    assert daemon.asked == []


def test_without_a_daemon_there_are_no_members(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MESHD_HOME", str(tmp_path / "none"))
    refused(meshd("model", "pull", "mesh:far-Q8_0"), 1, "no daemon is running", "meshd worker")
    assert "NODES" not in meshd("model", "ls").out
