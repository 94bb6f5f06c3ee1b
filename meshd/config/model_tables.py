"""The tables `[models.NAME]`: several models of one serving node, each with its own settings."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import TypeVar

from meshd.base.errors import UserError
from meshd.config import forms
from meshd.config.forms import listed, whole
from meshd.config.given import Given, raw_text, read_given, unknown_key
from meshd.config.key import Key
from meshd.config.keys import KEYS
from meshd.config.serve_keys import SERVE_KEYS, serve_key
from meshd.config.tree import ModelConfig, ServeConfig

T = TypeVar("T")
MODELS = "models"
MAX_MODELS = 64
MAX_TTL = 10 * 86400  # seconds
# The settings of [serve] that a table can override. The others concern the API, or plain rpc-servers.
_OF_SERVE = (
    "header_only",
    "ctx_size",
    "slots",
    "min_workers",
    "workers",
    "standby",
    "tensor_split",
    "split",
    "layers",
    "devices",
    "load_mode",
    "no_push",
    "activations",
    "sample",
    "output",
    "mmproj",
    "speculate",
    "draft_model",
    "fallback_models",
    "llama_args",
)


def _of_model(key: Key) -> Key:
    only_in_file = replace(
        key, section=MODELS, option="", metavar="", switch=False, repeat=False, needed=False
    )
    return replace(only_in_file, list_separator="", default="as in `[serve]`", more="")


MODEL_KEYS: tuple[Key, ...] = (
    replace(
        _of_model(serve_key("model")),
        default="none: each table needs one",
        example='"hf:unsloth/Qwen3-4B-GGUF:Q4_K_M"',
    ),
    Key(
        section=MODELS,
        field="aliases",
        form=listed(forms.WORD),
        help="further names of the model in requests",
        example='["small", "gpt-4o-mini"]',
    ),
    Key(
        section=MODELS,
        field="ttl",
        form=whole(0, MAX_TTL),
        help="seconds without a request after which the model is unloaded; 0: never",
        example="600",
    ),
    Key(
        section=MODELS,
        field="group",
        form=forms.NODE_NAME,
        help="models of one group may be loaded at the same time, as far as memory allows; others take turns",
        default="none: the model is loaded alone",
        example='"small"',
    ),
    Key(
        section=MODELS,
        field="preload",
        form=forms.BOOLEAN,
        help="load the model at the start, not with its first request",
        example="true",
    ),
    *(_of_model(serve_key(name)) for name in _OF_SERVE),
)
_KEYS = {key.field: key for key in MODEL_KEYS}
_OWN = frozenset(field.name for field in fields(ModelConfig))


def read_model_tables(
    tables: object, file: Path, serve: ServeConfig
) -> tuple[tuple[ModelConfig, ...], Sequence[tuple[Key, object]]]:
    """The models of a file, and each value that is set there. Raises UserError."""
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
            (replace(_KEYS[field], section=_section(name)), value) for field, value in values.items()
        ]
    _check_names(models, file)
    return tuple(models), settings


def _section(name: str) -> str:
    """As TOML writes it."""
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
        key = _KEYS.get(field)
        if key is None:
            raise _unknown(section, field, file)
        text = f"{section}.{field} = {raw_text(key, raw)}"
        given = Given(raw, f"file {file}", f"{text}` in `{file}", file.absolute().parent, UserError)
        values[field] = read_given(replace(key, section=f"{MODELS}.NAME"), given)
    return values


def _unknown(section: str, field: str, file: Path) -> UserError:
    """A setting that only other sections have is most likely meant; else the nearest of a model's."""
    for key in (*SERVE_KEYS, *KEYS):
        if key.field == field and key.in_file:
            return UserError(
                f"unknown key `{section}.{field}` in `{file}`",
                hint=f"`{field}` belongs in `[{key.section}]`: it is not set for each model",
            )
    return unknown_key(f"{section}.{field}", [f"{section}.{known}" for known in _KEYS], file)


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
