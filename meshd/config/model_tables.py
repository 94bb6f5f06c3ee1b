"""The tables `[models.NAME]`: several models of one serving node, each with its own settings."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from meshd.base.errors import UserError
from meshd.config import forms
from meshd.config.given import Given, raw_text, read_given, unknown_key
from meshd.config.removed import removed_key
from meshd.config.serve_settings import ModelConfig, ModelSettings, ServeConfig
from meshd.config.setting import Setting, settings_of
from meshd.config.tree import SETTINGS

T = TypeVar("T")
MODELS = "models"
MAX_MODELS = 64


def _for_each_model(setting: Setting) -> Setting:
    only_in_file = replace(setting, section=MODELS, option="", env="", metavar="", repeat=False, needed=False)
    if setting.field == "model":
        return replace(
            only_in_file, default="none: each table needs one", example='"hf:unsloth/Qwen3-4B-GGUF:Q4_K_M"'
        )
    return replace(only_in_file, default="as in `[serve]`", more="")


_model_row, *_other_rows = map(_for_each_model, settings_of(ModelSettings, MODELS))
MODEL_SETTINGS: tuple[Setting, ...] = (_model_row, *settings_of(ModelConfig, MODELS), *_other_rows)
_ROWS = {setting.field: setting for setting in MODEL_SETTINGS}
_OWN = frozenset(field.name for field in fields(ModelConfig))


def read_model_tables(
    tables: object, file: Path, serve: ServeConfig
) -> tuple[tuple[ModelConfig, ...], Sequence[tuple[Setting, object]]]:
    """Return the models of a file, and each value that is set there. Raises UserError."""
    if not isinstance(tables, dict):
        raise UserError(
            f"cannot use `{MODELS} = {tables}` in `{file}`: expected tables",
            hint=f"write `[{MODELS}.NAME]` for each model, and its keys below it",
        )
    if len(tables) > MAX_MODELS:
        raise UserError(
            f"`{file}` has {len(tables)} models; at most {MAX_MODELS} can be served", hint="remove some"
        )
    models, settings = [], []
    for name, table in tables.items():
        values = _values(name, table, file)
        models.append(_model(name, values, serve))
        settings += [
            (replace(_ROWS[field], section=_section(name)), value) for field, value in values.items()
        ]
    _check_names(models, file)
    return tuple(models), settings


def _section(name: str) -> str:
    """Return the section's name as TOML writes it."""
    return f"{MODELS}.{json.dumps(name) if '.' in name else name}"


def _values(name: str, table: object, file: Path) -> dict[str, object]:
    section = _section(name)
    try:
        forms.NODE_NAME.read(name)
    except ValueError:
        raise UserError(
            f"cannot use `[{section}]` in `{file}`: expected {forms.NODE_NAME.expected}",
            hint='give it a simpler name, and the other one as an alias: `aliases = ["NAME"]`',
        ) from None
    if not isinstance(table, dict):
        raise UserError(
            f"cannot use `{section} = {table}` in `{file}`: expected a table",
            hint=f"write `[{section}]` and its keys below it",
        )
    values = {}
    for field, raw in table.items():
        setting = _ROWS.get(field)
        if setting is None:
            raise _unknown(section, field, file)
        text = f"{section}.{field} = {raw_text(setting, raw)}"
        given = Given(raw, f"file {file}", f"{text}` in `{file}", file.absolute().parent, UserError)
        values[field] = read_given(replace(setting, section=f"{MODELS}.NAME"), given)
    return values


def _unknown(section: str, field: str, file: Path) -> UserError:
    """Return the error: a setting that is gone, else one of other sections, else the nearest of a model's."""
    if (gone := removed_key(f"serve.{field}", f"`{section}.{field}` in `{file}`")) is not None:
        return gone
    for other in (*settings_of(ServeConfig, "serve"), *SETTINGS):
        if other.field == field and other.in_file:
            return UserError(
                f"unknown key `{section}.{field}` in `{file}`",
                hint=f"`{field}` belongs in `[{other.section}]`: it is not set for each model",
            )
    return unknown_key(f"{section}.{field}", [f"{section}.{known}" for known in _ROWS], file)


def _model(name: str, values: Mapping[str, object], serve: ServeConfig) -> ModelConfig:
    own = {field: value for field, value in values.items() if field in _OWN}
    other = {field: value for field, value in values.items() if field not in _OWN}
    if other.get("speculate") == "off":
        other.setdefault("draft_model", None)  # the one of [serve] is for the other models
    return _with(ModelConfig(name=name, serve=_with(replace(serve, model=None), other)), own)


def _check_names(models: Sequence[ModelConfig], file: Path) -> None:
    owners: dict[str, str] = {}
    for model in models:
        for name in (model.name, *model.aliases):
            if (owner := owners.setdefault(name, model.name)) != model.name:
                raise UserError(
                    f"two models in `{file}` are called `{name}`: `{owner}` and `{model.name}`",
                    hint="rename one of them; aliases count as names",
                )


def _with(made: T, values: Mapping[str, object]) -> T:
    change: Callable[..., T] = replace
    return change(made, **values)
