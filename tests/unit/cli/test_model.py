"""`meshd model`: what it prints, asks and refuses; and `--model` of the roles, before a daemon starts."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin.plan_api import FitsReply, FitsRequest
from meshd.base.errors import UserError
from meshd.base.units import in_bytes
from meshd.cli import find_models as finding
from meshd.cli.output import Output
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config, NodeConfig, Paths, WorkerConfig
from meshd.library.interface import TransferProgress

from tests.unit.admin import machine_views
from tests.unit.admin.fake import FakeControl
from tests.unit.library.models import cached, in_ollama, pulled, put, tiny, tiny_shards
from tests.unit.store.header_files import with_holes

from .shell import Terminal, meshd, refused


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a model in each of three stores."""
    folder = tmp_path / "user"
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("HF_HUB_CACHE", str(folder / "hub"))
    monkeypatch.setenv("OLLAMA_MODELS", str(folder / "ollama"))
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    cached(folder / "hub", "me/Tiny-GGUF", {"t-Q8_0.gguf": tiny()})
    in_ollama(folder / "ollama", "registry.ollama.ai/library/other/1b", tiny("glm4moelite", fill=2))
    put(folder / ".models/cut-Q4_0.gguf", tiny(fill=3)[:-10])
    return folder


def test_ls_has_a_row_for_each_model() -> None:
    ran = meshd("model", "ls")
    rows = [line.split("  ") for line in ran.out.splitlines()]
    cells = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert (ran.code, ran.err) == (0, "")
    assert cells[0] == ["NAME", "SIZE", "QUANT", "ARCHITECTURE", "SOURCE", "STATE"]
    assert cells[1][0] == "hf:me/Tiny-GGUF:Q8_0" and cells[1][3:] == ["llama", "huggingface", "ok"]
    assert cells[2][0] == "ollama:other:1b" and cells[2][3:] == [
        "glm4moelite",
        "ollama",
        "unknown architecture",
    ]
    assert cells[3][0] == "cut-Q4_0" and cells[3][-1] == "short by 10 bytes"


def test_ls_as_json(models: Path) -> None:
    first, _, cut = json.loads(meshd("model", "ls", "--json").out)
    assert (first["name"], first["bytes"], first["fingerprint"]) == (
        "hf:me/Tiny-GGUF:Q8_0",
        len(tiny()),
        None,
    )
    [node] = first["nodes"]
    assert node["path"].endswith("t-Q8_0.gguf") and node["complete"] is True and node["node"]
    assert (cut["source"], cut["nodes"][0]["complete"]) == ("models", False)
    assert meshd("model", "verify", "hf:me/Tiny-GGUF").code == 0
    fingerprint = json.loads(meshd("model", "verify", "hf:me/Tiny-GGUF", "--json").out)["fingerprint"]
    assert len(fingerprint) == 64


FITS = """\
NAME           SIZE      HERE                  IN THE MESH    MODEL
qwen3-4b       16.1 kB   yes                   yes            hf:unsloth/Qwen3-4B-Instruct-2507-GGUF:Q4_K_M
glm            ~18.3 GB  slow: partly on a CPU  yes            hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M
llama-3.3-70b  ~42.5 GB  no                    slow: on a CPU  hf:unsloth/Llama-3.3-70B-Instruct-GGUF:Q4_K_M
"""


def test_fits_are_the_daemons_and_sizes_of_what_is_here_are_real(models: Path, daemon: FakeControl) -> None:
    cached(models / "hub", "unsloth/Qwen3-4B-Instruct-2507-GGUF", {"Qwen3-4B-Q4_K_M.gguf": tiny()})
    ran = meshd("model", "ls", "--fits")
    assert (ran.code, ran.out.split()) == (0, FITS.replace("16.1 kB", in_bytes(len(tiny()))).split())
    assert "are estimates" in ran.err and "attic is not counted: it does not answer" in ran.err
    assert ("fits", ("qwen3-4b", len(tiny()))) in daemon.asked
    here, glm, _ = json.loads(meshd("model", "ls", "--fits", "--json").out)
    assert here == {
        "name": "qwen3-4b",
        "model": "hf:unsloth/Qwen3-4B-Instruct-2507-GGUF:Q4_K_M",
        "bytes": len(tiny()),
        "estimated": False,
        "here": "gpu",
        "mesh": "gpu",
    }
    assert (glm["bytes"], glm["estimated"], glm["here"]) == (18_312_339_776, True, "partly_cpu")


def test_without_a_node_only_this_machine_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async def alone(_config: Config, request: FitsRequest) -> FitsReply:
        assert request.known == ()
        return machine_views.FITS

    monkeypatch.setattr("meshd.daemon.planning.fits_alone", alone)
    ran = meshd("model", "ls", "--fits")
    assert ran.out.count("not known") == 3 and "no node runs here" in ran.err
    assert json.loads(meshd("model", "ls", "--fits", "--json").out)[0]["mesh"] is None


def test_a_machine_without_models(models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HOME", "HF_HUB_CACHE", "OLLAMA_MODELS"):
        monkeypatch.setenv(name, str(tmp_path / "empty"))
    ran = meshd("model", "ls")
    assert (ran.code, ran.out) == (0, "") and "meshd model pull" in ran.err
    assert json.loads(meshd("model", "ls", "--json").out) == []


def test_show() -> None:
    ran = meshd("model", "show", "t-Q8_0")
    for line in ("architecture   llama", "layers         4", "context        4096", "chat template  yes"):
        assert line in ran.out.splitlines(), ran.out
    body = json.loads(meshd("model", "show", "ollama:other:1b", "--json").out)
    assert (body["architecture"], body["supported"], body["quant"]) == ("glm4moelite", False, "Q4_K_M")
    assert "does not know it" in meshd("model", "show", "ollama:other:1b").out


def test_show_of_a_model_that_cannot_be_used(models: Path) -> None:
    ran = meshd("model", "show", "cut-Q4_0")
    lines = ran.out.splitlines()
    assert (ran.code, lines[0]) == (
        1,
        "problem        short by 10 bytes",
    ) and "download the file again" in ran.err
    assert not [
        line for line in lines[1:] if line.startswith(("problem", "parameters", "tensors", "fingerprint"))
    ]
    ran = meshd("model", "show", "cut-Q4_0", "--json")
    assert (ran.code, json.loads(ran.out)["problem"]) == (1, "short by 10 bytes")
    text = put(models / ".models/text-Q4_0.gguf", b"hello, world, this is no model")
    for argv in ((), ("--json",)):
        refused(meshd("model", "show", str(text), *argv), 1, "not a GGUF file: it begins with `hell`")


@pytest.mark.parametrize("action", ["show", "verify", "pull", "rm"])
def test_a_name_that_nothing_has(action: str) -> None:
    refused(meshd("model", action, "t-Q8_1"), 1, "near: ", "`hf:me/Tiny-GGUF:Q8_0`", "meshd model ls")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ((), "needs one of ls | pull | show | verify | rm"),
        (("ls", "x"), "unrecognized arguments: x"),
        (("pull",), "`meshd model pull` needs NAME"),
        (("frobnicate",), "`meshd model` has no `frobnicate`"),
        (("rm", "--force", "x"), "unrecognized arguments: --force"),
    ],
)
def test_command_lines_that_do_not_parse(argv: tuple[str, ...], words: str) -> None:
    refused(meshd("model", *argv), 2, words)


def test_verify_tells_what_is_wrong(models: Path) -> None:
    ran = meshd("model", "verify", "t-Q8_0")
    assert ran.code == 0 and "is complete; its bytes have the published hash" in ran.out
    refused(meshd("model", "verify", "cut-Q4_0"), 1, "short by 10 bytes")


def test_pull_of_what_is_there(models: Path) -> None:
    ran = meshd("model", "pull", "hf:me/Tiny-GGUF:Q8_0")
    assert ran.out.strip().endswith("t-Q8_0.gguf") and "is on this machine" in ran.err
    assert json.loads(meshd("model", "pull", "t-Q8_0", "--json").out)["name"] == "hf:me/Tiny-GGUF:Q8_0"


def test_rm_asks_first(models: Path) -> None:
    refused(meshd("model", "rm", "t-Q8_0"), 1, "no terminal to ask on", "--yes")
    ran = meshd("model", "rm", "t-Q8_0", answer="n\n")
    assert ran.code == 0 and "Remove `hf:me/Tiny-GGUF:Q8_0`" in ran.err and "nothing was removed" in ran.err
    assert meshd("model", "show", "t-Q8_0").code == 0
    assert "are free again" in meshd("model", "rm", "t-Q8_0", answer="y\n").out
    assert meshd("model", "show", "t-Q8_0").code == 1


def test_rm_without_asking() -> None:
    body = json.loads(meshd("model", "rm", "hf:me/Tiny-GGUF", "--yes", "--json").out)
    assert body["removed"] == ["hf:me/Tiny-GGUF:Q8_0"] and body["bytes"] == len(tiny())


def test_rm_leaves_what_the_running_node_uses(daemon: FakeControl, tmp_path: Path) -> None:
    """Also by another path to the same file."""
    path = Path(json.loads(meshd("model", "show", "t-Q8_0", "--json").out)["paths"][0])
    other = tmp_path / "other.gguf"
    other.symlink_to(path)
    for used in (path, other):
        daemon.in_use = (str(tmp_path / "unrelated.gguf"), str(used))
        refused(meshd("model", "rm", "t-Q8_0", "--yes"), 1, "the node that runs here uses it", "meshd stop")
        refused(meshd("model", "rm", "hf:me/Tiny-GGUF", "--yes"), 1, "the node that runs here uses it")
    assert path.exists()
    daemon.in_use = (str(tmp_path / "unrelated.gguf"),)
    assert meshd("model", "rm", "t-Q8_0", "--yes").code == 0 and not path.exists()


@pytest.mark.parametrize(("name", "hint"), [("ollama:other:1b", "ollama rm other:1b"), ("cut-Q4_0", "rm /")])
def test_rm_leaves_what_others_put_there(name: str, hint: str) -> None:
    refused(meshd("model", "rm", name, "--yes"), 1, "meshd does not remove it", hint)


Started = Callable[..., list[Config]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Config]:
    """Configurations with which a daemon would have started."""
    configs: list[Config] = []

    def import_daemon() -> Callable[[Config, str, object, object], int]:
        def run(config: Config, role: str, out: object, screen: object) -> int:
            configs.append(config)
            return 0

        return run

    monkeypatch.setattr("meshd.cli.roles.import_daemon", import_daemon)
    monkeypatch.setattr("meshd.daemon.native.find_native", lambda paths, head: None)
    return configs


def test_a_role_starts_with_the_file(models: Path, started: list[Config]) -> None:
    ran = meshd("serve", "--model", "t-q8_0")
    assert (ran.code, ran.out) == (0, "") and "`t-q8_0`: using `hf:me/Tiny-GGUF:Q8_0`" in ran.err
    assert meshd("worker", "--model", "hf:me/Tiny-GGUF", str(models / ".models")).code == 0
    serve, worker = started
    assert isinstance(serve.serve.model, Path) and serve.serve.model.name == "t-Q8_0.gguf"
    assert worker.worker.models == (serve.serve.model, models / ".models/cut-Q4_0.gguf")


def test_a_role_does_not_start_without_its_model(started: list[Config]) -> None:
    refused(meshd("serve", "--model", "nope"), 1, "there is no model `nope`")
    refused(meshd("serve", "--model", "hf:nope"), 2, "expected a path, hf:ORG/REPO[:QUANT]")
    refused(meshd("worker", "--model", "nope"), 1, "there is no model `nope`")
    assert started == []


def test_a_role_starts_with_a_name_that_is_to_be_fetched(started: list[Config]) -> None:
    ran = meshd("serve", "--model", "hf:me/Nope")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "`hf:me/Nope` is not on this machine: downloading it from Hugging Face\n"
    assert started[0].serve.model == "hf:me/Nope"


def test_other_faults_come_before_a_download(started: list[Config]) -> None:
    refused(meshd("serve", "--model", "hf:me/Nope", "--host", "0.0.0.0"), 1, "would answer anyone")


def test_a_missing_build_is_told_before_a_download() -> None:
    refused(meshd("serve", "--model", "hf:me/Nope"), 1, "llama.cpp is not built yet", "meshd native build")


def test_config_show_has_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_MODEL", "hf:me/Tiny-GGUF:Q8_0")
    shown = json.loads(meshd("config", "show", "--json").out)["settings"]
    assert shown["serve.model"]["value"] == "hf:me/Tiny-GGUF:Q8_0"
    assert shown["worker.models"]["value"] == ["hf:me/Tiny-GGUF:Q8_0"]


def _progress(out: Output) -> None:
    report = finding.reporter(out)
    for done in range(101):
        report(TransferProgress("downloading m.gguf", done * 10**7, 10**9, 2e6))


def test_progress_is_a_bar_for_people_and_lines_for_others() -> None:
    plain, terminal = Terminal(), Terminal()
    terminal_out = Output(Terminal(), terminal, {})
    _progress(terminal_out)
    assert "\r" in terminal.getvalue() and "2.0 MB/s" in terminal.getvalue() and "left" in terminal.getvalue()
    plain.isatty = lambda: False  # type: ignore[method-assign]
    _progress(Output(plain, plain, {}))
    lines = plain.getvalue().splitlines()
    assert len(lines) == 11 and lines[-1] == "downloading m.gguf (1.0 GB): 100%"


def test_nothing_to_find() -> None:
    config = Config(serve=ServeConfig(model=Path("/m.gguf")), worker=WorkerConfig(), paths=Paths())
    out = Output(Terminal(), Terminal(), {}, width=1000)
    assert finding.find_served_model(config, out) == config
    assert finding.find_worker_models(config, out) == config


def test_the_models_of_all_tables_are_found(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    put(folder / "small.gguf", tiny())
    given: tuple[Path | str, ...] = (folder / "small.gguf", folder, "hf:me/Tiny-GGUF:Q8_0")
    models = tuple(ModelConfig(name=f"m{n}", serve=ServeConfig(model=one)) for n, one in enumerate(given))
    found = finding.find_served_model(Config(models=models), Output(Terminal(), Terminal(), {}, width=1000))
    paths = [model.serve.model for model in found.models]
    assert paths[:2] == [folder / "small.gguf"] * 2
    assert isinstance(paths[2], Path) and paths[2].name == "t-Q8_0.gguf"
    assert found.serve.model is None


class Node:
    """One that is about to start with a model's name; `told` is what its verb says."""

    def __init__(self, cache: Path, *, joins: bool = True) -> None:
        paths = Paths(cache=cache) if joins else Paths(cache=cache, home=Path("/nowhere"))
        self.config = Config(node=NodeConfig(join="mesh1token" if joins else ""), paths=paths)
        self._told = Terminal()
        self._out = Output(Terminal(), self._told, {}, width=1000)

    @property
    def told(self) -> str:
        return self._told.getvalue()

    def serve(self, name: str, *, header_only: bool = False) -> ServeConfig:
        config = replace(self.config, serve=ServeConfig(model=name, header_only=header_only))
        return finding.find_served_model(config, self._out).serve

    def lent(self, name: str) -> tuple[Path | str, ...]:
        config = replace(self.config, worker=WorkerConfig(models=(name,)))
        return finding.find_worker_models(config, self._out).worker.models


@pytest.fixture(autouse=True)
def _built(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.function is not test_a_missing_build_is_told_before_a_download:
        monkeypatch.setattr("meshd.daemon.native.find_native", lambda *_, **__: None)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """One that joins a mesh."""
    return Node(tmp_path / "cache")


@pytest.mark.parametrize(
    ("name", "known", "said"),
    [
        ("mesh:far-Q8_0", "", "for 30 s at most\n"),
        ("far-Q8_0", " (near: `hf:me/Tiny-GGUF:Q8_0`)", "for 10 s at most\n"),
        ("ollama:far", " (near: `ollama:other:1b`)", "for 10 s at most\n"),
        ("glm", " (~18.3 GB)", "for 10 s at most, then Hugging Face\n"),
        ("qwen3-4x", " (near: `qwen3-4b`, `qwen3`, `qwen3-8b`)", "for 10 s at most\n"),
        ("hf:me/Far-GGUF", "", "for 10 s at most, then Hugging Face\n"),
    ],
)
def test_a_model_that_is_not_here_is_left_to_the_daemon_and_said_at_once(
    node: Node, name: str, known: str, said: str
) -> None:
    """A short name has a size; a mistyped one, which may be a member's model, has names that are near."""
    assert node.serve(name).model == name and node.lent(name) == (name,)
    size, near = ("", known) if "near" in known else (known, "")
    line = f"`{name}`{size} is not on this machine{near}: asking the members of the mesh, {said}"
    assert node.told == line * 2


@pytest.mark.parametrize("name", ["t-Q8_0", "hf:me/Tiny-GGUF", "mesh:mine-Q8_0"])
def test_a_model_that_is_here_is_used(node: Node, name: str) -> None:
    pulled(node.config.paths.cache / "models/mesh-0/mine-Q8_0.gguf", tiny(), "mine-Q8_0")
    assert isinstance(node.serve(name).model, Path) and isinstance(node.lent(name)[0], Path)
    assert "asking" not in node.told


def test_a_head_needs_all_of_a_model_and_a_worker_what_there_is(node: Node, models: Path) -> None:
    parts = list(tiny_shards(3, "parts-Q8_0").items())
    here = [put(models / ".models" / name, data) for name, data in parts[:2]]
    assert node.lent("parts-Q8_0") == (here[0],) and "asking" not in node.told
    assert node.serve("parts-Q8_0").model == "parts-Q8_0" and "asking the members" in node.told


def test_a_name_of_several_models_here_is_not_asked_of_members(node: Node, models: Path) -> None:
    put(models / ".models/t-Q8_0.gguf", tiny(fill=9))
    with pytest.raises(UserError, match="`t-Q8_0` fits several models"):
        node.serve("t-Q8_0")
    assert node.told == ""


@pytest.mark.parametrize("header_only", [False, True])
def test_a_mistyped_file_asks_no_member(node: Node, *, header_only: bool) -> None:
    with pytest.raises(UserError, match=r"there is no model `far-Q8_0\.gguf` on this machine") as caught:
        node.serve("far-Q8_0.gguf", header_only=header_only)
    assert caught.value.hint == "check the path; for a model of members use `mesh:far-Q8_0`"
    with pytest.raises(UserError, match="there is no model"):
        node.lent("far-Q8_0.gguf")
    assert node.told == ""


def test_without_a_mesh_nobody_is_waited_for(tmp_path: Path) -> None:
    alone = Node(tmp_path / "cache", joins=False)
    with pytest.raises(UserError, match="there is no model `t-Q8_1` on this machine; near: "):
        alone.serve("t-Q8_1")
    for header_only in (False, True):
        with pytest.raises(UserError, match="this node is in no mesh yet") as caught:
            alone.serve("mesh:t-Q8_1", header_only=header_only)
        assert "--join" in caught.value.hint
    assert alone.told == ""
    assert alone.serve("hf:me/Far-GGUF").model == "hf:me/Far-GGUF"
    assert alone.told == "`hf:me/Far-GGUF` is not on this machine: downloading it from Hugging Face\n"


def test_a_header_that_is_here_or_all_of_the_model(node: Node, tmp_path: Path) -> None:
    """Who says which model it is, is told each time."""
    assert node.serve("mesh:tiny-Q4_0", header_only=True).model == "mesh:tiny-Q4_0"
    header = with_holes(node.config.paths.cache / "models/header-0", tiny())
    for count in (1, 2):
        serve = node.serve("mesh:tiny-Q4_0", header_only=True)
        assert serve == ServeConfig(model=header, header_only=True, devices=("none",))
        said = "only the header of `tiny-Q4_0` is here; fingerprint (as reported by desk)"
        assert node.told.count(said) == count
    assert node.serve("mesh:tiny-Q4_0").model == "mesh:tiny-Q4_0", "the header is no model"
    here = pulled(tmp_path / "cache/models/mesh-0/tiny-Q4_0.gguf", tiny(), "mesh:tiny-Q4_0")
    assert node.serve("mesh:tiny-Q4_0", header_only=True) == ServeConfig(model=here)
    assert "all of `mesh:tiny-Q4_0` is on this machine" in node.told


def test_a_workers_list_of_models_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MESHD_MODEL", "hf:me/Tiny-GGUF:Q8_0:/m/other.gguf:glm")
    assert meshd("model", "ls").code == 0
