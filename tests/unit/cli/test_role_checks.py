"""Test what must hold before a daemon starts."""

import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.base.errors import UsageError, UserError
from meshd.cli.roles import check_serve, check_worker, read_join
from meshd.config.forms import HostPort
from meshd.config.serve_settings import ServeConfig
from meshd.config.tree import Config, NodeConfig, Paths, WorkerConfig
from meshd.model.layer_range import LayerRange

from tests.tokens import token


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    return path


def test_defaults_make_a_worker() -> None:
    check_worker(Config())


def test_a_model_makes_a_serving_node(model: Path) -> None:
    check_serve(Config(serve=ServeConfig(model=model)))
    check_serve(Config(serve=ServeConfig(model=model, mmproj=model)))
    with pytest.raises(UserError, match="mmproj file"):
        check_serve(Config(serve=ServeConfig(model=model, mmproj=model.with_name("gone.gguf"))))


def test_serve_without_a_model_does_not_parse() -> None:
    with pytest.raises(UsageError, match="needs a model"):
        check_serve(Config())


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tensor_split": (0.0, 0.0)}, "no device a share"),
        ({"devices": ("none", "CUDA0")}, "combined with other devices"),
        ({"host": "0.0.0.0"}, "would answer anyone"),
        ({"host": "gpu.lan"}, "would answer anyone"),
        ({"api_key_file": Path("/nonexistent/keys")}, "cannot read API key file"),
        ({"model": Path("/nonexistent/m.gguf")}, "cannot read model file"),
        ({"model": Path("/nonexistent/smollm2")}, "cannot read model file"),
        ({"draft_model": Path("/nonexistent/d.gguf")}, "cannot read model file"),
        ({"draft_model": "hf:a/b", "speculate": "off"}, "cannot be combined with `--speculate off`"),
        ({"fallback_models": (Path("/nonexistent/f.gguf"),)}, "cannot read model file"),
        ({"standby": ("barn",), "layers": (LayerRange("desk", 0, 9),)}, "combined with `--layers`"),
        ({"standby": ("barn",), "workers": ("attic", "barn")}, "`barn` is named by `--standby` and by"),
    ],
)
def test_what_a_serving_node_may_not_be_told(model: Path, change: dict[str, object], words: str) -> None:
    make: Callable[..., ServeConfig] = ServeConfig
    serve = make(**{"model": model, **change})
    with pytest.raises(UserError, match=words) as caught:
        check_serve(Config(serve=serve))
    assert caught.value.hint


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"model": "hf:me/T-GGUF"}, "takes a model of members, not `hf:me/T-GGUF`"),
        ({"model": "glm"}, "takes a model of members, not `glm`"),
        ({"devices": ("CPU",)}, "`--device CPU`"),
        ({"devices": ("CUDA0", "CUDA1")}, "`--device CUDA0,CUDA1`"),
        ({"load_mode": "auto"}, "`--load-mode auto`"),
        ({"load_mode": "mmap+mlock"}, r"`--load-mode mmap\+mlock`"),
        ({"rpc": (HostPort("10.0.0.2", 50052),)}, "`--rpc`"),
        ({"layers": (LayerRange("desk", 0, 3), LayerRange("me", 4, 5))}, "`--layers me=4-5`"),
        ({"llama_args": ("-ub", "64", "-ot", "x=CPU")}, "`-- -ot`"),
        ({"llama_args": ("--n_cpu_moe", "3")}, "`-- --n_cpu_moe`"),
        ({"llama_args": ("--no-mmap",)}, "`-- --no-mmap`"),
    ],
)
def test_what_reads_layers_is_no_option_of_a_head_with_the_header_only(
    change: dict[str, object], words: str
) -> None:
    make: Callable[..., ServeConfig] = ServeConfig
    given = {"model": "mesh:T-Q8_0", "header_only": True, "devices": ("none",), "load_mode": "mmap"}
    node = NodeConfig(name="me")
    check_serve(Config(node=node, serve=make(**given)))
    with pytest.raises(UserError, match=words) as caught:
        check_serve(Config(node=node, serve=make(**{**given, **change})))
    assert "omit" in caught.value.hint


def test_a_repository_without_its_scheme_is_recognised(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot read model file") as caught:
        check_serve(Config(serve=ServeConfig(model=tmp_path / "unsloth/GLM-4.7-Flash-GGUF")))
    assert caught.value.hint == "for a repository of Hugging Face: `hf:unsloth/GLM-4.7-Flash-GGUF`"
    with pytest.raises(UserError) as caught:
        check_serve(Config(serve=ServeConfig(model=tmp_path / "gone.gguf")))
    assert caught.value.hint == "check the path and its permissions"


def test_a_folder_or_a_name_is_looked_up_later(tmp_path: Path) -> None:
    for given in (tmp_path, "hf:a/b", "glm"):
        check_serve(Config(serve=ServeConfig(model=given)))
        check_worker(Config(worker=WorkerConfig(models=(given,))))


def test_how_a_file_is_mapped_can_be_chosen(model: Path) -> None:
    for load_mode in ("auto", "mmap", "mmap+mlock"):
        check_serve(Config(serve=ServeConfig(model=model, load_mode=load_mode)))


def test_what_else_a_head_takes(model: Path, tmp_path: Path) -> None:
    rpc = (HostPort("10.0.0.2", 50052),)
    check_serve(Config(serve=ServeConfig(model=model, rpc=rpc, activations="f16")))
    config = Config(serve=ServeConfig(model=model), paths=Paths(native_bin=tmp_path))
    for check in (check_serve, check_worker):
        check(config)


def test_keys_open_the_api_to_others(model: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("k\n")
    check_serve(Config(serve=ServeConfig(model=model, host="0.0.0.0", api_key_file=keys)))


def test_a_worker_needs_a_device_and_its_files() -> None:
    with pytest.raises(UserError, match="nothing to lend"):
        check_worker(Config(worker=WorkerConfig(devices=("none",))))
    with pytest.raises(UserError, match="cannot read model file"):
        check_worker(Config(worker=WorkerConfig(models=(Path("/nonexistent/m.gguf"),))))


def joined(join: str) -> str:
    return read_join(Config(node=NodeConfig(name="a", join=join))).node.join


def test_a_token_is_read_from_a_file_or_standard_input(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "token"
    one, other = token(1), token(2)
    file.write_text(f"{one}\n")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"  {other}\n\n"))
    assert joined(f"@{file}") == one
    assert joined("-") == other
    assert joined(f" {one} ") == one
    assert joined("") == ""


@pytest.mark.parametrize("word", ["INVITE", "TOKEN", "token"])
def test_the_word_of_the_examples_is_no_token(word: str) -> None:
    with pytest.raises(UserError, match=f"in place of `{word}`"):
        joined(word)


def test_a_file_without_its_sign_is_recognized(tmp_path: Path) -> None:
    file = tmp_path / "token.txt"
    file.write_text(token())
    with pytest.raises(UserError, match="is a file, not an invite") as caught:
        joined(str(file))
    assert caught.value.hint == f"did you mean `--join @{file}`?"


@pytest.mark.parametrize("text", ["meshd1abc", "nonsense", "n" * 5000, "~nobody-of-this-name/x"])
def test_the_form_of_a_token_is_checked_before_anything_starts(text: str) -> None:
    with pytest.raises(UserError, match="cannot read the invite"):
        joined(text)


def test_a_pipe_is_neither_a_token_nor_a_model(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for read in (lambda: joined(f"@{pipe}"), lambda: check_serve(Config(serve=ServeConfig(model=pipe)))):
        with pytest.raises(UserError, match="it is a pipe, not a regular file"):
            read()


def test_a_token_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = tmp_path / "empty"
    empty.write_text("\n")
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xff")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    for join, words, hint in (
        (f"@{tmp_path / 'none'}", "cannot read the invite from .*: No such file", "check the path"),
        (f"@{binary}", "not text", "put only that text"),
        (f"@{empty}", "is empty", "run `meshd invite`"),
        ("-", "is empty", "run `meshd invite`"),
    ):
        with pytest.raises(UserError, match=words) as caught:
            joined(join)
        assert hint in caught.value.hint


def test_an_invite_that_was_left_for_a_service_counts_where_no_other_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(join: str = "") -> str:
        return read_join(Config(node=NodeConfig(name="a", join=join), paths=Paths(home=home))).node.join

    home, credentials = tmp_path / "home", tmp_path / "credentials"
    home.mkdir()
    credentials.mkdir()
    assert found() == ""
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(credentials))
    assert found() == ""
    (credentials / "meshd.join").write_text(token(1) + "\n")
    assert found() == token(1)
    (home / "join").write_text(token(2))
    assert found() == token(2)
    assert found(token(3)) == token(3)
