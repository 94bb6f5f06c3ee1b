"""worker, serve, demo: what reaches the daemon from the command line."""

import io
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.config.forms import HostPort
from meshd.config.tree import Config
from meshd.demo import DemoOutput
from meshd.identity.keystore import Home
from meshd.identity.naming import NAME_BLOB

from tests.tokens import token

from .shell import meshd, refused

Started = list[tuple[Config, str]]


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """The daemon is replaced by a list of what it would have been started with."""
    seen: Started = []

    def run(config: Config, role: str, out: Callable[[str], None], screen: object) -> int:
        seen.append((config, role))
        out("meshd1token")
        return 0

    monkeypatch.setattr("meshd.daemon.run.run", run)
    return seen


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_a_worker(started: Started, model: Path, home: Path) -> None:
    ran = meshd(
        *("worker", "--model", str(model), str(model), "--model", str(model), "--device", "CUDA0", "CPU"),
        *("--memory", "8G", "--name", "garage", "--listen", "127.0.0.1:0", "--links", "tcp"),
        *("--stun", "none", "--relay", "https://r", "--no-mdns", "--log-format", "json"),
        *("--log-level", "debug", "--join", token()),
    )
    assert (ran.code, ran.out, ran.err) == (0, "meshd1token\n", "")
    config, role = started[0]
    assert role == "worker"
    assert config.worker.models == (model,) * 3
    assert (config.worker.devices, config.worker.memory) == (("CUDA0", "CPU"), 8 << 30)
    assert (config.node.name, config.node.join) == ("garage", token())
    assert config.links.listen == HostPort("127.0.0.1", 0)
    assert (config.links.kinds, config.links.stun, config.links.no_mdns) == (("tcp",), (), True)
    assert config.links.relays == ("https://r",)
    assert (config.log.format, config.log.level) == ("json", "debug")
    assert config.paths.home == home and config.paths.logs == home / "logs"


def test_any_setting_is_given_by_its_key(started: Started, model: Path) -> None:
    ran = meshd(
        *("serve", "--model", str(model), "--set", "serve.output=head", "--set", "links.compress=on"),
        *("--set", "serve.slots=2", "--slots", "3", "--set", f"serve.fallback_models={model}:{model}"),
        *("--set", "serve.no_push=true", "--set", "serve.output=worker"),
    )
    assert (ran.code, ran.err) == (0, "")
    config, _ = started[0]
    assert (config.serve.output, config.links.compress) == ("worker", "on"), "the last one counts"
    assert config.serve.slots == 3, "an option of its own goes first"
    assert config.serve.fallback_models == (model, model) and config.serve.no_push


@pytest.mark.parametrize(
    ("assigned", "words"),
    [
        ("serve.output", "expected KEY=VALUE, such as links.compress=on"),
        (
            "serve.output=nowhere",
            "cannot use `--set serve.output=nowhere`: expected one of auto, head, worker",
        ),
        ("output=head", "did you mean `serve.output`?"),
        ("serve.outputt=head", "did you mean `serve.output`?"),
        ("paths.home=/x", "there is no such setting"),
        ("worker.memory=8G", "`worker.memory` is a setting of `meshd worker`, not of `meshd serve`"),
        ("serve.sample=head", "`serve.sample` is gone"),
    ],
)
def test_what_cannot_be_set_is_refused(assigned: str, words: str) -> None:
    refused(meshd("serve", "--model", "glm", "--set", assigned), 2, words)


def test_a_secret_that_is_set_is_not_shown() -> None:
    ran = meshd("worker", "--set", "node.join=")
    assert ran.code == 2 and "--set node.join=[hidden]" in ran.err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (
            ("serve", "--output-on", "head"),
            "use `--set serve.output=VALUE`, the variable MESHD_OUTPUT_ON, or",
        ),
        (("serve", "--continue-answers=9"), "`--set serve.continue_answers=VALUE`"),
        (("client", "--continue-answers", "9"), "`--set client.continue_answers=VALUE`"),
        (("worker", "--compress", "on"), "`compress` in `[links]` of the configuration file"),
        (("serve", "--model", "x", "--max-wait", "9"), "a request waits for its turn for 600 s at most"),
        (("worker", "--fetch-rate", "9MB"), "start the nodes that send the weights with `--max-upload RATE`"),
        (("demo", "--keep"), "`--keep` of `meshd demo` is gone"),
        (("native", "build", "--tools"), "`--tools` of `meshd native` is gone"),
        (("netcheck", "--cached"), "each check is a new one"),
        (("plan", "--model", "x", "--ctx", "9"), "use `--ctx-size`"),
    ],
)
def test_an_option_that_is_gone_says_what_to_do_instead(argv: tuple[str, ...], words: str) -> None:
    refused(meshd(*argv), 2, "is gone", words)


def test_a_name_that_the_home_keeps_is_the_name_of_the_next_start(started: Started, home: Path) -> None:
    Home(home).write_blob(NAME_BLOB, b"garage")
    assert meshd("worker").code == 0
    assert meshd("worker", "--name", "attic").code == 0
    assert [config.node.name for config, _ in started] == ["garage", "attic"]
    assert f'name = "garage"  # kept in {home}' in meshd("config", "show").out


def test_a_serving_node(started: Started, model: Path) -> None:
    ran = meshd(
        *("serve", "--model", str(model), "--port", "0", "--host", "::1", "--min-workers", "0"),
        *("--tensor-split", "1,2", "--ctx-size", "4096", "--device", "none", "--rpc", "10.0.0.2:50052"),
        *("--load-mode", "mmap+mlock", "--native-bin", "/opt/bin"),
        *("--", "-np", "2", "--", "--port", "9"),
    )
    assert ran.code == 0
    config, role = started[0]
    serve = config.serve
    assert (role, serve.model, serve.port, serve.host, serve.min_workers) == ("serve", model, 0, "::1", 0)
    assert (serve.tensor_split, serve.ctx_size, serve.devices) == ((1.0, 2.0), 4096, ("none",))
    assert (serve.rpc, serve.load_mode) == ((HostPort("10.0.0.2", 50052),), "mmap+mlock")
    assert serve.llama_args == ("-np", "2", "--", "--port", "9")
    assert config.paths.native_bin == Path("/opt/bin")


def test_option_beats_environment_beats_file(
    started: Started, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "c.toml"
    file.write_text(
        '[serve]\nport = 1\nmin_workers = 1\nctx_size = 1\nmodel = "m.gguf"\nllama_args = ["-np", "4"]\n'
    )
    monkeypatch.setenv("MESHD_PORT", "2")
    monkeypatch.setenv("MESHD_MIN_WORKERS", "2")
    assert meshd("serve", "--config", str(file), "--port", "3").code == 0
    serve = started[0][0].serve
    assert (serve.port, serve.min_workers, serve.ctx_size, serve.model) == (3, 2, 1, model)
    assert serve.llama_args == ("-np", "4")


def test_a_token_from_elsewhere(started: Started, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "token"
    file.write_text(f"{token(1)}\n")
    meshd("worker", "--join", f"@{file}")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token(2)}\n"))
    meshd("worker", "--join", "-")
    monkeypatch.setenv("MESHD_JOIN", token(3))
    meshd("worker")
    assert [config.node.join for config, _ in started] == [token(1), token(2), token(3)]


def test_what_cannot_be_is_said_before_anything_starts(started: Started) -> None:
    refused(meshd("serve", "--model", "/nonexistent"), 1)
    refused(meshd("serve"), 2)
    assert started == []


@pytest.mark.parametrize(("argv", "has_screen"), [(["worker"], True), (["worker", "-v"], False)])
def test_a_daemon_on_a_terminal_has_a_screen_instead_of_the_log(
    monkeypatch: pytest.MonkeyPatch, home: Path, argv: list[str], has_screen: bool
) -> None:
    screens: list[object] = []

    def run(config: Config, role: str, out: Callable[[str], None], screen: object) -> int:
        screens.append(screen)
        return 0

    monkeypatch.setattr("meshd.daemon.run.run", run)
    assert meshd(*argv).code == meshd(*argv, answer="").code == 0
    assert [screen is not None for screen in screens] == [False, has_screen]


def test_an_error_of_the_daemon_is_printed_in_one_place(monkeypatch: pytest.MonkeyPatch, model: Path) -> None:
    def run(config: Config, role: str, out: Callable[[str], None], screen: object) -> int:
        raise UserError("port 17430 is taken", hint="end process 7")

    monkeypatch.setattr("meshd.daemon.run.run", run)
    refused(meshd("worker"), 1, "port 17430 is taken", "hint: end process 7")


def test_the_demo(monkeypatch: pytest.MonkeyPatch, model: Path, tmp_path: Path) -> None:
    seen: list[tuple[Path | None, Path]] = []

    def run(out: DemoOutput, *, model: Path | None, cache: Path, round_trips: Sequence[float]) -> int:
        seen.append((model, cache))
        assert not round_trips
        assert any(thread.name == "reminder" for thread in threading.enumerate())  # no wait is silent
        return 0

    monkeypatch.setattr("meshd.demo.run", run)
    for argv in ([], ["smollm2"], [str(model)]):
        assert meshd("demo", *argv).code == 0
    cache = tmp_path / "cache"
    assert seen == [(None, cache), (None, cache), (model, cache)]


def test_a_variable_that_is_no_setting_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del home
    monkeypatch.setenv("MESHD_MEMRY", "3GB")
    monkeypatch.setenv("MESHD_NOSUCH", "1")
    ran = meshd("config", "show")
    assert ran.code == 0
    assert "meshd has no setting for the variable `MESHD_MEMRY`; did you mean `MESHD_MEMORY`?" in ran.err
    assert (
        "meshd has no setting for the variable `MESHD_NOSUCH`; `meshd config init FILE` writes all settings"
        in ran.err
    )
