"""The list of settings, and the files in configs/ that show it."""

import re
import tomllib
from pathlib import Path

from meshd.config.load import load
from meshd.config.tree import SETTINGS, Config

CONFIGS = Path(__file__).parents[3] / "configs"
EXAMPLE = CONFIGS / "meshd.example.toml"


def test_the_example_loads_and_changes_nothing() -> None:
    loaded = load(environ={}, file=EXAMPLE)
    assert loaded.config == load(environ={}).config


def uncommented() -> str:
    return re.sub(r"^# (\w+ = )", r"\1", EXAMPLE.read_text(encoding="utf-8"), flags=re.MULTILINE)


def test_the_example_has_every_key(tmp_path: Path) -> None:
    file = tmp_path / "all.toml"
    file.write_text(uncommented(), encoding="utf-8")
    origins = {s.setting.name: s.origin for s in load(environ={}, file=file).values}
    lacking = [key.name for key in SETTINGS if key.in_file and origins[key.name] == "default"]
    assert lacking == []


def test_the_example_tells_default_option_and_variable_of_every_key() -> None:
    text = EXAMPLE.read_text(encoding="utf-8")
    for key in SETTINGS:
        for word in (key.field, key.option, key.variable):
            assert word in text, f"{key.name}: `{word}`"


def test_the_example_is_toml_by_itself() -> None:
    assert set(tomllib.loads(EXAMPLE.read_text(encoding="utf-8"))) == {key.section for key in SETTINGS}


def test_every_key_has_help_and_an_expected_form() -> None:
    for key in SETTINGS:
        assert key.help and key.form.expected, key.name
        assert key.option or key.variable or key.in_file


def test_the_tree_has_defaults_for_everything() -> None:
    assert Config().serve.port == 8090
