"""Tables of models: what each says of its model, and what is refused."""

import re
from dataclasses import fields, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from meshd.base.errors import UsageError, UserError
from meshd.cli.roles import check_serve
from meshd.config.load import MAX_MODELS, MODEL_SETTINGS, load, read_model_tables
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config

from tests.reference.settings import MODELS_HEAD
from tests.unit.config.test_load import EXAMPLES
from tests.unit.config.test_settings import EXAMPLE

TWO = """
[serve]
ctx_size = 4096
llama_args = ["-fa", "on"]
[models.small]
model = "small.gguf"
aliases = ["tiny", "gpt-4o-mini"]
ttl = 600
group = "g"
preload = true
[models."big.one"]
model = "hf:org/big:Q4_K_M"
ctx_size = 512
slots = 1
llama_args = []
devices = ["none"]
"""


OF_THE_API = {
    *("host", "port", "api_key_file", "no_members", "allowed_hosts", "allowed_origins"),
    "continue_answers",
}


def read(folder: Path, text: str) -> Config:
    file = folder / "meshd.toml"
    file.write_text(text, encoding="utf-8")
    return load(environ={}, file=file).config


def table(folder: Path, text: str, name: str = "a") -> ModelConfig:
    (made,) = read(folder, f"[models.{name}]\n{text}\n").models
    return made


def test_each_table_is_a_model_with_settings_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "small.gguf").touch()
    small, big = read(tmp_path, TWO).models
    assert (small.name, small.aliases, small.ttl) == ("small", ("tiny", "gpt-4o-mini"), 600)
    assert (small.group, small.preload) == ("g", True)
    assert small.serve.model == tmp_path / "small.gguf"
    assert (small.serve.ctx_size, small.serve.slots, small.serve.llama_args) == (4096, 4, ("-fa", "on"))
    assert (big.name, big.serve.model, big.serve.devices) == ("big.one", "hf:org/big:Q4_K_M", ("none",))
    assert (big.serve.ctx_size, big.serve.slots, big.serve.llama_args) == (512, 1, ())
    assert (big.aliases, big.ttl, big.group, big.preload) == ((), 0, "", False)


@pytest.mark.parametrize(
    "field", [one.name for one in fields(ServeConfig) if one.name not in OF_THE_API | {"model", "rpc"}]
)
def test_a_setting_of_serve_is_changed_for_one_model_alone(field: str) -> None:
    text, value = EXAMPLES[f"serve.{field}"]
    raw: object = list(value) if isinstance(value, tuple) and not text else text
    if text and isinstance(value, tuple | bool):
        raw = re.split("[,:]", text) if isinstance(value, tuple) else value  # paths have `:`
    given: dict[str, object] = {"speculate": "auto", field: raw}
    (changed, plain), _ = read_model_tables({"a": given, "b": {}}, Path("/c/meshd.toml"), ServeConfig())
    expected = replace(ServeConfig(), **{field: value})  # type: ignore[arg-type]
    assert (changed.serve, plain.serve) == (expected, ServeConfig())
    assert getattr(plain.serve, field) != value
    (inherits,), _ = read_model_tables({"a": {}}, Path("/c/meshd.toml"), expected)
    assert inherits.serve == expected


def test_a_model_without_drafts_needs_no_draft_model(tmp_path: Path) -> None:
    text = '[serve]\ndraft_model = "glm"\n[models.a]\nspeculate = "off"\n[models.b]\n'
    off, on = read(tmp_path, text).models
    assert (off.serve.draft_model, on.serve.draft_model) == (None, "glm")


def test_config_show_has_what_they_say(tmp_path: Path) -> None:
    file = tmp_path / "meshd.toml"
    file.write_text(TWO, encoding="utf-8")
    shown = {one.setting.name: one.value for one in load(environ={}, file=file).values}
    assert shown["models.small.ttl"] == 600
    assert shown['models."big.one".slots'] == 1
    assert "models.small.slots" not in shown


def test_without_tables_there_are_no_models(tmp_path: Path) -> None:
    assert read(tmp_path, "[serve]\nport = 1\n").models == ()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("models = 3", "`models = 3`"),
        ("[models]\na = 3", "`models.a = 3`"),
        ("[models.a]\nttl = -1", "models.a.ttl = -1"),
        ("[models.a]\nttl = true", "models.a.ttl = true"),
        ("[models.a]\ngroup = 'a b'", "models.a.group = a b"),
        ("[models.a]\nctx = 3", "unknown key `models.a.ctx`"),
        ("[models.a]\nport = 3", "unknown key `models.a.port`"),
        ("[models.'a b']\nttl = 3", "`[models.a b]`"),
        ("[models.'']\nttl = 3", "`[models.]`"),
        ("[models.a]\naliases = ['b']\n[models.b]\n", "two models"),
        ("[models.a]\naliases = ['x']\n[models.b]\naliases = ['x']\n", "two models"),
        ("".join(f"[models.m{number}]\n" for number in range(MAX_MODELS + 1)), f"at most {MAX_MODELS}"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, text)
    assert why in caught.value.what and caught.value.hint


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("ctx_sise = 3", "use `models.a.ctx_size`, the nearest key"),
        ("host = 'x'", "`host` belongs in `[serve]`: it is not set for each model"),
        ("port = 3", "`port` belongs in `[serve]`: it is not set for each model"),
        ("name = 'x'", "`name` belongs in `[node]`: it is not set for each model"),
        ("frobnicate = 3", "run `meshd config show` to list all keys"),
        ("ttl = '5m'", "see `models.NAME.ttl` in docs/config.md"),
    ],
)
def test_a_near_miss_is_told(tmp_path: Path, line: str, hint: str) -> None:
    with pytest.raises(UserError) as caught:
        read(tmp_path, f"[models.a]\n{line}")
    assert caught.value.hint == hint


_TOML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_FIELDS = st.sampled_from([key.field for key in MODEL_SETTINGS])


@settings(deadline=None)
@given(_TOML | st.dictionaries(st.sampled_from("abc"), st.dictionaries(_FIELDS, _TOML, max_size=3)))
def test_whatever_stands_there_is_read_or_refused(tables: object) -> None:
    try:
        models, _ = read_model_tables(tables, Path("/c/meshd.toml"), ServeConfig())
    except UserError as error:
        assert "/c/meshd.toml" in error.what and error.hint
    else:
        assert isinstance(tables, dict) and [one.name for one in models] == list(tables)


def test_the_example_shows_every_key_of_a_table(tmp_path: Path) -> None:
    _, _, rest = EXAMPLE.read_text(encoding="utf-8").partition(MODELS_HEAD)
    lines = [line.removeprefix("#") for line in rest.splitlines() if line[:1] == "#" and line[:2] != "# "]
    assert [line.split(" = ")[0] for line in lines] == [key.field for key in MODEL_SETTINGS]
    made = table(tmp_path, "\n".join(lines))
    assert (made.ttl, made.preload, made.serve.slots) == (600, True, 4)


# What holds of them before a node starts.


def refused(config: Config) -> UserError:
    with pytest.raises(UserError) as caught:
        check_serve(config)
    return caught.value


def model(name: str, *, group: str = "", preload: bool = False, **serve: object) -> ModelConfig:
    made = ServeConfig(**{"model": "glm", **serve})  # type: ignore[arg-type]
    return ModelConfig(name=name, group=group, preload=preload, serve=made)


def test_models_may_be_served_without_an_option() -> None:
    check_serve(Config(models=(model("a"), model("b"))))


def test_a_node_needs_a_model_of_either_kind() -> None:
    assert isinstance(refused(Config()), UsageError)


def test_but_not_of_both() -> None:
    error = refused(Config(serve=ServeConfig(model="glm"), models=(model("a"),)))
    assert "cannot be combined" in error.what and "`glm`" in error.hint


def test_each_names_its_model() -> None:
    assert "`[models.a]` names no model" in refused(Config(models=(model("a", model=None),))).what


def test_each_is_checked_as_a_single_one() -> None:
    models = (model("a"), model("b", model=Path("/nowhere/x.gguf")))
    assert "`[models.b]`: cannot read model file `/nowhere/x.gguf`" in refused(Config(models=models)).what
    both = model("a", draft_model="qwen3", speculate="off")
    assert "`--draft-model` cannot be combined" in refused(Config(models=(both,))).what
    assert "no device a share" in refused(Config(models=(model("a", tensor_split=(0.0,)),))).what


def test_plain_servers_have_one_head() -> None:
    serve = ServeConfig(rpc=load(environ={}, options={"serve.rpc": "10.0.0.2:1"}).config.serve.rpc)
    models = (ModelConfig(name="a", serve=ServeConfig(model="glm", rpc=serve.rpc)),)
    assert "rpc-servers" in refused(Config(serve=serve, models=models)).what


@pytest.mark.parametrize(
    ("groups", "fine"), [(("g", "g"), True), (("g", "h"), False), (("", ""), False), (("g", ""), False)]
)
def test_only_models_of_one_group_are_loaded_at_the_start(groups: tuple[str, str], fine: bool) -> None:
    config = Config(models=tuple(model(f"m{n}", group=one, preload=True) for n, one in enumerate(groups)))
    if fine:
        check_serve(config)
    else:
        assert "`m0` and `m1` cannot both be loaded" in refused(config).what
