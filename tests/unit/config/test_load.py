"""Precedence, origins, and errors that name file, key, value and the nearest valid key."""

import dataclasses
import json
import os
import typing
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from meshd.base.errors import UsageError, UserError
from meshd.config.forms import HostPort
from meshd.config.load import keep_name, load, with_kept_name
from meshd.config.setting import Setting
from meshd.config.tree import SETTINGS, Config, find_cache, find_home, host_name
from meshd.daemon.roles import ROLES
from meshd.identity.keystore import Home
from meshd.identity.naming import NAME_BLOB
from meshd.model.layer_range import LayerRange


def write(folder: Path, text: str) -> Path:
    path = folder / "meshd.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_an_option_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = write(tmp_path, "[serve]\nport = 3\n")
    environ = {"MESHD_PORT": "2"}
    steps = [
        (load(environ={}), 8090, "default"),
        (load(environ={}, file=file), 3, f"file {file}"),
        (load(environ=environ, file=file), 2, "environment MESHD_PORT"),
        (load(environ=environ, file=file, options={"serve.port": "1"}), 1, "option --port"),
    ]
    for loaded, port, origin in steps:
        assert (loaded.config.serve.port, loaded.origin("serve.port")) == (port, origin)


@pytest.mark.parametrize("key", [key for key in SETTINGS if key.variable], ids=lambda key: key.name)
def test_every_key_with_a_variable_is_read_from_it(key: Setting) -> None:
    text = EXAMPLES[key.name][0]
    loaded = load(environ={key.variable: text})
    assert loaded.origin(key.name) == f"environment {key.variable}"
    assert getattr(getattr(loaded.config, key.section), key.field) == EXAMPLES[key.name][1]


@pytest.mark.parametrize("key", [key for key in SETTINGS if key.option], ids=lambda key: key.name)
def test_every_option_is_read(key: Setting) -> None:
    text, value = EXAMPLES[key.name]
    raw: object = True if key.is_switch else text.split(key.form.separator) if key.form.separator else text
    loaded = load(environ={}, options={key.name: raw})
    assert loaded.origin(key.name) == f"option {key.option}"
    assert getattr(getattr(loaded.config, key.section), key.field) == value


EXAMPLES: dict[str, tuple[str, object]] = {
    "node.name": ("garage", "garage"),
    "node.join": ("meshd1abc", "meshd1abc"),
    "node.give_models": ("off", "off"),
    "node.waiting": ("poll", "poll"),
    "node.sandbox": ("off", "off"),
    "node.metrics": ("127.0.0.1:9464", HostPort("127.0.0.1", 9464)),
    "log.format": ("json", "json"),
    "log.level": ("debug", "debug"),
    "links.listen": ("127.0.0.1:0", HostPort("127.0.0.1", 0)),
    "links.kinds": ("tcp,relay", ("tcp", "relay")),
    "links.stun": ("stun.example.org:3478", ("stun.example.org:3478",)),
    "links.relays": ("https://r/1,https://r/2", ("https://r/1", "https://r/2")),
    "links.max_upload": ("20Mbit", 2_500_000),
    "links.grace": ("30", 30),
    "links.no_mdns": ("true", True),
    "links.no_portmap": ("true", True),
    "links.no_relaying": ("true", True),
    "links.no_local": ("true", True),
    "links.compress": ("on", "on"),
    "serve.output": ("head", "head"),
    "worker.models": ("/m/a.gguf:/m/b.gguf", (Path("/m/a.gguf"), Path("/m/b.gguf"))),
    "worker.devices": ("CUDA0,CUDA1", ("CUDA0", "CUDA1")),
    "worker.memory": ("8G", 8 << 30),
    "worker.threads": ("8", 8),
    "worker.keep_weights": ("0", 0),
    "serve.model": ("/m/a.gguf", Path("/m/a.gguf")),
    "serve.header_only": ("true", True),
    "serve.mmproj": ("/m/p.gguf", Path("/m/p.gguf")),
    "serve.host": ("0.0.0.0", "0.0.0.0"),
    "serve.port": ("0", 0),
    "serve.min_workers": ("0", 0),
    "serve.tensor_split": ("1,2", (1.0, 2.0)),
    "serve.layers": ("a=0-9,b=10", (LayerRange("a", 0, 9), LayerRange("b", 10, 10))),
    "serve.ctx_size": ("max", 0),
    "serve.slots": ("2", 2),
    "serve.devices": ("none", ("none",)),
    "serve.rpc": ("10.0.0.2:50052", (HostPort("10.0.0.2", 50052),)),
    "serve.load_mode": ("auto", "auto"),
    "serve.split": ("always", "always"),
    "serve.workers": ("garage,attic", ("garage", "attic")),
    "serve.fallback_models": ("/m/a.gguf:/m/b.gguf", (Path("/m/a.gguf"), Path("/m/b.gguf"))),
    "serve.standby": ("barn,loft", ("barn", "loft")),
    "serve.no_push": ("true", True),
    "serve.activations": ("f16", "f16"),
    "serve.api_key_file": ("/k", Path("/k")),
    "serve.allowed_hosts": ("box.lan,box", ("box.lan", "box")),
    "serve.continue_answers": ("20", 20),
    "serve.allowed_origins": ("https://a.example", ("https://a.example",)),
    "serve.no_members": ("true", True),
    "client.port": ("0", 0),
    "client.heads": ("desk,attic", ("desk", "attic")),
    "client.allowed_origins": ("https://a.example", ("https://a.example",)),
    "client.continue_answers": ("20", 20),
    "serve.speculate": ("off", "off"),
    "serve.draft_model": ("/m/d.gguf", Path("/m/d.gguf")),
    "serve.llama_args": ("", ("-np", "2")),
    "paths.home": ("/h", Path("/h")),
    "paths.cache": ("/c", Path("/c")),
    "paths.native_bin": ("/b", Path("/b")),
}


def test_the_list_of_keys_and_the_tree_agree() -> None:
    in_tree = {
        f"{section.name}.{field.name}"
        for section in dataclasses.fields(Config)
        if section.name != "models"
        for field in dataclasses.fields(typing.get_type_hints(Config)[section.name])
    }
    assert in_tree == {key.name for key in SETTINGS} == set(EXAMPLES)


def test_names_of_options_and_variables_are_unique_in_a_role() -> None:
    for role in ROLES:
        options = [key.option for key in SETTINGS if key.option and key.is_for(role)]
        assert len(options) == len(set(options))


def test_a_repeated_option_may_hold_several_values_each() -> None:
    given = {"worker.devices": ["CUDA0,CUDA1", "CPU"], "worker.models": ["/a:b.gguf", "/c,d.gguf"]}
    worker = load(environ={}, options=given).config.worker
    assert worker.devices == ("CUDA0", "CUDA1", "CPU")
    assert worker.models == (Path("/a:b.gguf"), Path("/c,d.gguf"))


def test_relative_paths_in_a_file_are_relative_to_it(tmp_path: Path) -> None:
    file = write(tmp_path, '[serve]\nmodel = "models/a.gguf"\n[worker]\nmodels = ["./b.gguf", "/c.gguf"]\n')
    config = load(environ={}, file=file).config
    assert config.serve.model == tmp_path / "models/a.gguf"
    assert config.worker.models == (tmp_path / "b.gguf", Path("/c.gguf"))


def test_relative_paths_of_an_option_are_relative_to_the_working_folder() -> None:
    config = load(environ={}, options={"serve.model": "./a.gguf"}).config
    assert config.serve.model == Path.cwd() / "a.gguf"


@pytest.mark.parametrize("name", ["hf:a/b:Q4_K_M", "ollama:x:1b", "glm", "a.gguf"])
def test_a_models_name_stays_as_it_was_given(tmp_path: Path, name: str) -> None:
    file = write(tmp_path, f'[serve]\nmodel = "{name}"\n[worker]\nmodels = ["{name}", "./x.gguf"]\n')
    config = load(environ={}, file=file).config
    assert (config.serve.model, config.worker.models) == (name, (name, tmp_path / "x.gguf"))


def test_a_word_that_is_a_file_beside_is_that_file(tmp_path: Path) -> None:
    for word in ("glm", "a.gguf"):
        (tmp_path / word).touch()
    file = write(tmp_path, '[serve]\nmodel = "glm"\n[worker]\nmodels = ["a.gguf"]\n')
    config = load(environ={}, file=file).config
    assert (config.serve.model, config.worker.models) == (tmp_path / "glm", (tmp_path / "a.gguf",))


def test_a_variable_with_several_models_knows_colons_in_names() -> None:
    config = load(environ={"MESHD_MODEL": "hf:a/b:Q8_0:/c.gguf:glm"}, role="worker").config
    assert config.worker.models == ("hf:a/b:Q8_0", Path("/c.gguf"), "glm")


@pytest.mark.parametrize("name", ["hf:x", "ollama:../x", "x" * 600])
def test_what_can_be_no_model_is_told_at_once(name: str) -> None:
    with pytest.raises(UsageError, match=r"expected a path, hf:ORG/REPO"):
        load(environ={}, options={"serve.model": name})


def test_the_file_may_be_named_by_the_environment(tmp_path: Path) -> None:
    file = write(tmp_path, "[serve]\nport = 3\n")
    assert load(environ={"MESHD_CONFIG": str(file)}).config.serve.port == 3


def test_an_empty_variable_is_none() -> None:
    assert load(environ={"MESHD_PORT": "", "MESHD_HOME": ""}).origin("serve.port") == "default"


def test_variables_of_the_other_role_are_left_alone() -> None:
    environ = {"MESHD_MEMORY": "rubbish"}
    assert load(environ=environ, role="serve").config.worker.memory is None
    with pytest.raises(UserError):
        load(environ=environ, role="worker")


def test_a_bad_option_is_a_usage_error_that_names_it() -> None:
    with pytest.raises(UsageError, match="`--port x`: expected a whole number from 0 to 65535") as caught:
        load(environ={}, options={"serve.port": "x"})
    assert caught.value.exit_code == 2


def test_a_bad_variable_names_it() -> None:
    with pytest.raises(UserError, match="`MESHD_PORT=x`: expected a whole number") as caught:
        load(environ={"MESHD_PORT": "x"})
    assert caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serve]\nport = 'x'", ("serve.port = x", "expected a whole number from 0 to 65535")),
        ("[serve]\nport = true", ("serve.port = true", "expected")),
        ("[links]\nkinds = ['tcp', 'udp']", ("links.kinds = tcp udp", "tcp, webrtc, quic, relay")),
        ("[worker]\nmemory = '8X'", ("worker.memory = 8X", "8G, 512M or 1GiB")),
        ("serve = 3", ("serve = 3", "expected a section")),
        ("[serve]\nport = 2000-01-01", ("serve.port", "expected")),
    ],
)
def test_a_bad_value_in_a_file_names_file_key_value_and_form(
    tmp_path: Path, text: str, words: tuple[str, ...]
) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UserError) as caught:
        load(environ={}, file=file)
    for word in (str(file), *words):
        assert word in caught.value.what
    assert caught.value.hint and caught.value.exit_code == 1


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("[serve]\nprot = 1", "serve.port"),
        ("[worker]\nport = 1", "serve.port"),
        ("[srve]\nport = 1", "serve"),
        ("port = 1", "serve.port"),
    ],
)
def test_an_unknown_key_names_the_nearest(tmp_path: Path, text: str, near: str) -> None:
    with pytest.raises(UserError, match="unknown key") as caught:
        load(environ={}, file=write(tmp_path, text))
    assert f"`{near}`" in caught.value.hint


def test_home_cannot_be_moved_by_a_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"`paths.home` cannot be set") as caught:
        load(environ={}, file=write(tmp_path, "[paths]\nhome = '/x'"))
    assert "MESHD_HOME" in caught.value.hint


@pytest.mark.parametrize("data", [b"[serve", b"\xff\xfe", b"a = " + b"[" * 5000])
def test_what_is_no_toml(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(data)
    with pytest.raises(UserError, match="is not valid TOML"):
        load(environ={}, file=file)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(UserError, match="cannot read configuration"):
            load(environ={}, file=path)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(UserError, match="it is a pipe, not a regular file"):
        load(environ={}, file=pipe)


@pytest.mark.parametrize("part", ["a", '"a b"', "'a'", "a-b_2 ", "\ta"])
@pytest.mark.parametrize("form", ["{} = 1", "[{}]", "[serve]\nmodel = {{ {} = 1 }}", "[[ {} ]]"])
def test_a_key_of_very_many_parts_is_refused_before_it_is_parsed(
    tmp_path: Path, part: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python's parser takes minutes for 50,000 parts."""
    monkeypatch.setattr("tomllib.loads", lambda _text: pytest.fail("it was parsed"))
    with pytest.raises(UserError, match="has more than 64 parts"):
        load(environ={}, file=write(tmp_path, form.format(".".join([part] * 50_000))))


def test_dots_elsewhere_are_no_parts_of_a_key(tmp_path: Path) -> None:
    text = f"# {'.' * 200}\n# {'1.5, ' * 100}\n[serve]\nhost = '127.0.0.1' # {'. ' * 99}\n"
    assert load(environ={}, file=write(tmp_path, text)).config.serve.host == "127.0.0.1"


def test_a_huge_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.toml"
    file.write_bytes(b"#" * (1 << 21))
    with pytest.raises(UserError, match="is larger than"):
        load(environ={}, file=file)


@given(data=st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_file_loads_or_is_a_user_error(tmp_path: Path, data: bytes) -> None:
    file = tmp_path / "any.toml"
    file.write_bytes(data)
    try:
        load(environ={}, file=file)
    except UserError as error:
        assert error.hint


def test_a_token_is_neither_in_errors_nor_in_the_repr() -> None:
    with pytest.raises(UsageError) as caught:
        load(environ={}, options={"node.join": "secret\0token"})
    assert "secret" not in caught.value.what
    assert "sesame" not in repr(load(environ={"MESHD_JOIN": "sesame"}).config)


@pytest.mark.parametrize(
    ("environ", "home", "cache"),
    [
        ({"MESHD_HOME": "/a", "MESHD_CACHE": "/b"}, "/a", "/b"),
        ({"XDG_STATE_HOME": "/s", "XDG_CACHE_HOME": "/c"}, "/s/meshd", "/c/meshd"),
        ({"XDG_STATE_HOME": "s", "XDG_CACHE_HOME": "c"}, "~/.local/state/meshd", "~/.cache/meshd"),
        ({}, "~/.local/state/meshd", "~/.cache/meshd"),
    ],
)
def test_folders_of_linux(
    environ: dict[str, str], home: str, cache: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    assert find_home(environ) == Path(home).expanduser()
    assert find_cache(environ) == Path(cache).expanduser()


def test_folders_of_macos(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    assert find_home({}) == Path.home() / "Library/Application Support/meshd"
    assert find_cache({}) == Path.home() / "Library/Caches/meshd"


def test_a_relative_home_becomes_absolute() -> None:
    assert find_home({"MESHD_HOME": "x/y"}) == Path.cwd() / "x/y"
    assert find_cache({"MESHD_CACHE": "x"}).is_absolute()


def test_arguments_of_llama_server_name_files_from_where_the_user_is(tmp_path: Path) -> None:
    """It runs in another directory."""
    (tmp_path / "adapter.gguf").touch()
    (tmp_path / "below").mkdir()
    (tmp_path / "below" / "grammar").touch()
    (tmp_path / "chatml").touch()
    file = tmp_path / "meshd.toml"
    words = ["--lora", "adapter.gguf", "--grammar-file", "below/grammar", "--chat-template", "chatml"]
    words += ["--temp", "0.8", "--mmproj", "gone.gguf", "--path", "x" * 300 + "/y"]
    file.write_text(f"[serve]\nllama_args = {json.dumps(words)}\n")
    args = load(file=file, environ={}).config.serve.llama_args
    assert args[1] == str(tmp_path / "adapter.gguf")
    assert args[3] == str(tmp_path / "below" / "grammar")
    assert args[4:] == tuple(words[4:])


def started(home: Home, *, option: str = "", file: Path | None = None) -> tuple[str, str]:
    """A start of a daemon: its name, and where that came from."""
    options = {"node.name": option} if option else {}
    loaded = with_kept_name(load(options=options, environ={"MESHD_HOME": str(home.path)}, file=file))
    keep_name(home, loaded.config.node.name)
    assert {one.setting.name: one.value for one in loaded.values}["node.name"] == loaded.config.node.name
    return loaded.config.node.name, loaded.origin("node.name")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path / "home")


def test_a_name_that_was_given_is_there_at_the_next_start(home: Home) -> None:
    assert started(home, option="garage") == ("garage", "option --name")
    assert started(home) == ("garage", f"kept in {home.path}")
    assert started(home, option="attic") == ("attic", "option --name")
    assert started(home)[0] == "attic"


def test_what_is_given_wins_over_what_is_kept(home: Home, tmp_path: Path) -> None:
    file = tmp_path / "meshd.toml"
    file.write_text('[node]\nname = "cellar"\n')
    started(home, option="garage")
    assert started(home, file=file) == ("cellar", f"file {file}")


def test_the_name_of_the_host_is_kept_only_in_place_of_another(home: Home) -> None:
    assert started(home) == (host_name(), "default")
    assert home.read_blob(NAME_BLOB) is None  # another name of the host is the node's as well
    started(home, option="garage")
    started(home, option=host_name())
    assert started(home)[0] == host_name()


@pytest.mark.parametrize("blob", [b"", b"\xff", b"two words", b"aaaaaaaaaaaa"])
def test_a_note_that_is_no_name_is_no_note(home: Home, blob: bytes) -> None:
    home.write_blob(NAME_BLOB, blob)
    assert started(home) == (host_name(), "default")
