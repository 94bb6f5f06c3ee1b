"""Test that what is gone is an error that says what to do instead, wherever it is still set."""

from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.config.load import load
from meshd.config.removed import NOW_KEYS, REMOVED_SETTINGS, RemovedSetting, instead_of_option
from meshd.config.tree import SETTINGS

KEYS = {setting.name: setting for setting in SETTINGS}
ALL = pytest.mark.parametrize("gone", REMOVED_SETTINGS, ids=lambda gone: gone.key)


@ALL
def test_a_key_of_a_file(gone: RemovedSetting, tmp_path: Path) -> None:
    file = tmp_path / "meshd.toml"
    file.write_text(f"[{gone.section}]\n{gone.key.split('.')[1]} = 1\n")
    with pytest.raises(UserError, match=f"`{gone.key}` in `.*` is gone") as caught:
        load(environ={}, file=file)
    assert gone.instead in caught.value.hint


@ALL
def test_a_variable(gone: RemovedSetting) -> None:
    environ = {gone.variable: "1"}
    for role in ("", gone.section):
        with pytest.raises(UserError, match=f"the variable `{gone.variable}` is gone") as caught:
            load(environ=environ, role=role)
        assert gone.instead in caught.value.hint
    assert load(environ=environ, role="client").config == load(environ={}).config


def test_a_key_of_one_model(tmp_path: Path) -> None:
    file = tmp_path / "meshd.toml"
    file.write_text('[models.small]\nmodel = "glm"\nsample = "head"\n')
    with pytest.raises(UserError, match=r"`models.small.sample` in `.*` is gone"):
        load(environ={}, file=file)


@ALL
def test_nothing_is_both_there_and_gone(gone: RemovedSetting) -> None:
    assert gone.key not in KEYS
    assert gone.option not in {setting.option for setting in SETTINGS}
    assert gone.variable not in {setting.variable for setting in SETTINGS}


@pytest.mark.parametrize("option", NOW_KEYS)
def test_an_option_that_became_a_key_names_it(option: str) -> None:
    for name in NOW_KEYS[option]:
        setting = KEYS[name]
        role = setting.section if not setting.is_common else "worker"
        instead = instead_of_option(role, option)
        value = "true" if option.startswith("--no-") else "VALUE"
        assert not setting.option and f"`--set {name}={value}`" in instead
        assert f"the variable {setting.variable}, " in instead
        assert f"`{setting.field}` in `[{setting.section}]`" in instead


@pytest.mark.parametrize("value", ["caches", "all"])
def test_a_value(value: str) -> None:
    with pytest.raises(UserError, match="expected one of own, off") as caught:
        load(environ={"MESHD_GIVE_MODELS": value})
    assert caught.value.hint.startswith(f"`{value}` is gone: start the node with the models")


def test_other_options_were_never_there() -> None:
    assert instead_of_option("serve", "--frobnicate") == ""
    assert instead_of_option("worker", "--output-on") == "", "it was one of `meshd serve`"
