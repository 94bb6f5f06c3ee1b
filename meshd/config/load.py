"""Merge settings from all origins into one tree, with the origin of each.

An option that cannot be read is a UsageError (the command line does not parse); a variable or a file that
cannot be read is a UserError. Both name origin, key, value and the expected form.
"""

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from meshd.base.errors import UsageError, UserError
from meshd.base.files import expanded, read_regular
from meshd.config import forms
from meshd.config.removed import check_variables, instead_of_value, removed_key
from meshd.config.serve_settings import ClientConfig, ModelConfig, ModelSettings, ServeConfig
from meshd.config.setting import Setting, settings_of
from meshd.config.tree import (
    SETTINGS,
    Config,
    LinksConfig,
    LogConfig,
    NodeConfig,
    Paths,
    WorkerConfig,
    find_cache,
    find_home,
    host_name,
)
from meshd.identity import naming
from meshd.identity.folder import PrivateFolder
from meshd.model.model_name import hint_for_name, split_models

if TYPE_CHECKING:
    from meshd.identity.keystore import Home  # cryptography, which `config show` does without

_PREFIX = "MESHD_"
T = TypeVar("T")
MODELS = "models"
MAX_MODELS = 64
MAX_FILE_BYTES = 1 << 20
_MAX_KEY_PARTS = 64  # of a dotted key; settings have three
_KEY_RUN = re.compile(r"""[\w\-."' \t]+""")  # nothing that ends a key in TOML
_KEY_PART = re.compile(r"""[\w\-"'][ \t]*\.""")
_NAME_KEY = "node.name"


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value: how to show it, and the folder (`base`) of its relative paths."""

    raw: object
    origin: str
    shown: str
    base: Path
    error: type[UserError]


def read_given(setting: Setting, given: Given) -> object:
    """Return the value of the tree. Raises `given.error`."""
    try:
        value = setting.form.read(given.raw)
    except ValueError:
        hint = hint_for_name(str(given.raw)) if setting.names_models else ""
        hint = hint or instead_of_value(setting.name, given.raw)
        if given.error is not UsageError or not setting.option:  # else the verb points to its --help
            hint = hint or f"see `{setting.name}` in docs/config.md"
        raise given.error(
            f"cannot use `{given.shown}`: expected {setting.form.expected}", hint=hint
        ) from None
    if setting.names_models:
        value = _models(value, given.base)
    if setting.names_files and isinstance(value, tuple):
        return tuple(_absolute(word, given.base) for word in value)
    return _anchored(value, given.base)


def _models(value: object, base: Path) -> object:
    """Return the file's path for a word that names a file in `base`; else the word is a model's name."""
    if isinstance(value, tuple):
        return tuple(_models(item, base) for item in value)
    try:
        return Path(value) if isinstance(value, str) and (base / value).is_file() else value
    except OSError:
        return value


def _absolute(word: str, base: Path) -> str:
    """Return the absolute path of a word that names a file in `base`; any other word unchanged."""
    if word.startswith("-") or not {".", "/"} & set(word):
        return word
    try:
        return str(base / word) if (base / word).exists() else word
    except (OSError, ValueError):  # for example too long for a path
        return word


def _anchored(value: object, base: Path) -> object:
    # a path in a file is relative to that file: a service has no working folder of its own
    if isinstance(value, Path):
        return base / value
    if isinstance(value, tuple):
        return tuple(_anchored(item, base) for item in value)
    return value


def raw_text(setting: Setting, raw: object) -> str:
    """Return the text to show in an error: never a secret."""
    if setting.secret:
        return "[hidden]"
    if isinstance(raw, list | tuple):
        return " ".join(str(item) for item in raw)
    return str(raw).lower() if isinstance(raw, bool) else str(raw)


def nearest(word: str, known: Collection[str], cutoff: float = 0.6) -> list[str]:
    """Return the known word that is most like this one, in a list; an empty list where none is like it."""
    import difflib  # which nothing needs but an error

    return difflib.get_close_matches(word, known, n=1, cutoff=cutoff)


def unknown_variables(environ: Mapping[str, str], known: Sequence[str]) -> list[UserError]:
    """Return what to say about each variable that looks like a setting and is none.

    None of them is raised, as it may be another program's.
    """
    unknown = []
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in known:
            own = [variable.removeprefix(_PREFIX) for variable in known]  # what all share says nothing
            near = nearest(name.removeprefix(_PREFIX), own, cutoff=0.8)
            hint = (
                f"did you mean `{_PREFIX}{near[0]}`?"
                if near
                else "`meshd config init FILE` writes all settings"
            )
            unknown.append(UserError(f"meshd has no setting for the variable `{name[:64]}`", hint=hint))
    return unknown


def unknown_key(name: str, known: Sequence[str], file: Path) -> UserError:
    """Return the error for an unknown key, with the nearest known one."""
    section = name.rpartition(".")[0]
    near = nearest(name, known, cutoff=0.75)
    if section and near and near[0].startswith(f"{section}."):  # what they share says nothing
        fields = [key.removeprefix(f"{section}.") for key in known if key.startswith(f"{section}.")]
        field = name.removeprefix(f"{section}.")
        near = [f"{section}.{key}" for key in nearest(field, fields)]
    short = [k for k in known if k.split(".")[-1] == name.split(".")[-1]]
    best = (short or near or [""])[0]
    hint = f"use `{best}`, the nearest key" if best else "run `meshd config show` to list all keys"
    return UserError(f"unknown key `{name}` in `{file}`", hint=hint)


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
            raise _unknown_key(section, field, file)
        text = f"{section}.{field} = {raw_text(setting, raw)}"
        given = Given(raw, f"file {file}", f"{text}` in `{file}", file.absolute().parent, UserError)
        values[field] = read_given(replace(setting, section=f"{MODELS}.NAME"), given)
    return values


def _unknown_key(section: str, field: str, file: Path) -> UserError:
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


@dataclass(frozen=True, slots=True)
class EffectiveValue:
    """The value of a setting; `origin` is `option --x`, `environment MESHD_X`, `file PATH` or `default`."""

    setting: Setting
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The tree, and the origin of each of its values, in the order of `SETTINGS`."""

    config: Config
    values: tuple[EffectiveValue, ...]

    def origin(self, name: str) -> str:
        """Return the origin of the key `section.field`. Raises KeyError when there is none such."""
        for value in self.values:
            if value.setting.name == name:
                return value.origin
        raise KeyError(name)


def load(
    *,
    options: Mapping[str, object] | None = None,
    assigned: Mapping[str, str] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    role: str = "",
) -> LoadedConfig:
    """Return the effective configuration. `options` maps `section.field` to what the command line gave, and
    `assigned` to what `--set` gave: text as in a variable.

    With a `role`, variables that belong only to other roles are not looked at. `file` None: the one that
    MESHD_CONFIG names, if any. Raises UsageError for options, UserError for the rest.
    """
    # Read the file.
    variables = os.environ if environ is None else environ
    if file is None and variables.get("MESHD_CONFIG"):
        file = expanded(variables["MESHD_CONFIG"])
    table = _read_file(file) if file is not None else {}
    in_file = dict(_flat(table, file)) if file is not None else {}
    # For each setting, take the value of the origin that comes first.
    values: dict[str, dict[str, object]] = {}
    origins: dict[str, str] = {}
    check_variables(variables, role)
    for setting in SETTINGS:
        given = _find(setting, options or {}, assigned or {}, variables, in_file, file, role)
        if given is not None:
            values.setdefault(setting.section, {})[setting.field] = read_given(setting, given)
            origins[setting.name] = given.origin
    # Build the tree, and report each value with its origin.
    config = _build(values, variables)
    effective = [
        EffectiveValue(
            setting,
            getattr(getattr(config, setting.section), setting.field),
            origins.get(setting.name, "default"),
        )
        for setting in SETTINGS
    ]
    # Add the tables of several models.
    if file is not None and MODELS in table:
        models, given_there = read_model_tables(table[MODELS], file, config.serve)
        config = replace(config, models=models)
        effective += [EffectiveValue(setting, value, f"file {file}") for setting, value in given_there]
    return LoadedConfig(config, tuple(effective))


def _build(values: Mapping[str, Mapping[str, object]], environ: Mapping[str, str]) -> Config:
    def section(make: Callable[..., T], name: str, **more: object) -> T:
        return make(**{**more, **values.get(name, {})})

    return Config(
        node=section(NodeConfig, "node"),
        log=section(LogConfig, "log"),
        links=section(LinksConfig, "links"),
        worker=section(WorkerConfig, "worker"),
        serve=section(ServeConfig, "serve"),
        client=section(ClientConfig, "client"),
        paths=section(Paths, "paths", home=find_home(environ), cache=find_cache(environ)),
    )


def current_directory() -> Path:
    """Return the directory from which relative paths count. Raises UserError if it was removed."""
    try:
        return Path.cwd()
    except OSError:
        raise UserError("the current directory is gone", hint="change to another one: `cd`") from None


def _find(
    setting: Setting,
    options: Mapping[str, object],
    assigned: Mapping[str, str],
    environ: Mapping[str, str],
    in_file: Mapping[str, object],
    file: Path | None,
    role: str,
) -> Given | None:
    """Return what was given for a setting: by option, else by variable, else in the file."""
    here = current_directory()
    if (raw := options.get(setting.name)) is not None:
        name = setting.option or "--"
        return Given(raw, f"option {name}", f"{name} {raw_text(setting, raw)}", here, UsageError)
    if (text := assigned.get(setting.name)) is not None:
        shown = f"--set {setting.name}={raw_text(setting, text)}"
        return Given(_divided(setting, text), "option --set", shown, here, UsageError)
    variable = setting.variable
    if variable and (text := environ.get(variable)) and (not role or setting.is_for(role)):
        raw = _divided(setting, text)
        return Given(raw, f"environment {variable}", f"{variable}={raw_text(setting, text)}", here, UserError)
    if file is not None and setting.name in in_file:
        raw = in_file[setting.name]
        shown = f"{setting.name} = {raw_text(setting, raw)}"
        return Given(raw, f"file {file}", f"{shown}` in `{file}", file.absolute().parent, UserError)
    return None


def _divided(setting: Setting, text: str) -> str | list[str]:
    """Return the text of a variable, or its items where the setting is a list."""
    if not setting.form.separator:
        return text
    return split_models(text) if setting.names_models else text.split(setting.form.separator)


def _read_file(file: Path) -> dict[str, object]:
    """Return the file's sections. Raises UserError."""
    import tomllib

    try:
        data = read_regular(file, MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UserError(
                f"configuration `{file}` is larger than {MAX_FILE_BYTES} bytes",
                hint="check the path: this is not a configuration file",
            )
        text = data.decode()
        if key := _deep_key(text):
            raise UserError(
                f"`{key}…` in configuration `{file}` is not a key: it has more than {_MAX_KEY_PARTS} parts",
                hint="run `meshd config init FILE` for a file with all keys",
            )
        table: dict[str, object] = tomllib.loads(text)
    except OSError as error:
        raise UserError(
            f"cannot read configuration `{file}`: {error.strerror}",
            hint="check the path, or run `meshd config init FILE` to create one",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"configuration `{file}` is not valid TOML: {error}", hint="fix that line; strings need quotes"
        ) from None
    return table


def _deep_key(text: str) -> str:
    """Return the beginning of a dotted key with too many parts, for which tomllib takes quadratic time."""
    for run in _KEY_RUN.finditer(text):
        if len(_KEY_PART.findall(run[0])) > _MAX_KEY_PARTS:
            return run[0].strip()[:32]
    return ""


def _flat(table: Mapping[str, object], file: Path) -> Iterator[tuple[str, object]]:
    """Yield values by `section.field`, but for models. Raises UserError with the nearest key for an unknown
    one.
    """
    known = [setting.name for setting in SETTINGS if setting.in_file]
    sections = list(dict.fromkeys(name.split(".")[0] for name in known))
    for section, content in table.items():
        if section == MODELS:
            continue
        if section not in sections:
            raise _unknown(section, [*sections, *known], file)
        if not isinstance(content, dict):
            raise UserError(
                f"cannot use `{section} = {content}` in `{file}`: expected a section",
                hint=f"write `[{section}]` and its keys below it",
            )
        for name, value in content.items():
            if f"{section}.{name}" not in known:
                raise _unknown(f"{section}.{name}", known, file)
            yield f"{section}.{name}", value


def _unknown(name: str, known: Sequence[str], file: Path) -> UserError:
    if (gone := removed_key(name, f"`{name}` in `{file}`")) is not None:
        return gone
    for setting in SETTINGS:
        if setting.name == name and not setting.in_file:
            return UserError(
                f"`{name}` cannot be set in `{file}`",
                hint=f"set {setting.variable} in the environment: every verb has to find the same directory",
            )
    return unknown_key(name, known, file)


def with_kept_name(loaded: LoadedConfig) -> LoadedConfig:
    """Return `loaded` with the name of earlier starts where no option, variable or file gives one.

    Other nodes know it by that name: a restart with a plain `meshd worker` would otherwise use the host's.
    Raises UserError.
    """
    if loaded.origin(_NAME_KEY) != "default":
        return loaded
    config = loaded.config
    name = _kept(config.paths.home)
    if not name:
        return loaded
    values = tuple(
        replace(value, value=name, origin=f"kept in {config.paths.home}")
        if value.setting.name == _NAME_KEY
        else value
        for value in loaded.values
    )
    return LoadedConfig(replace(config, node=replace(config.node, name=name)), values)


def keep_name(home: "Home", name: str) -> None:
    """Keep the name for the next start. The host's name alone is not kept: it is the default, and
    may change.
    """
    kept = _kept(home.path)
    if name != kept and (kept or name != host_name()):
        home.keep_blob(naming.NAME_BLOB, name.encode())


def _kept(home: Path) -> str:
    folder = PrivateFolder(home, mark="")
    data = folder.read(f"{naming.NAME_BLOB}.blob", limit=naming.MAX_NAME_CHARS)
    name = (data or b"").decode("ascii", "replace")
    return name if naming.is_name(name) else ""
