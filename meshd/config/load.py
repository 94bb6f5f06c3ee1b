"""Merges settings from all origins into one tree, with the origin of each.

Errors: an option that cannot be read is a UsageError (the command line does not parse); a variable or a
file that cannot be read is a UserError. Both name origin, key, value and the expected form.
"""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from meshd.base.errors import UsageError, UserError
from meshd.config.key import Key
from meshd.config.keys import KEYS
from meshd.config.tree import (
    ClientConfig,
    Config,
    LinksConfig,
    LogConfig,
    NodeConfig,
    Paths,
    ServeConfig,
    WorkerConfig,
    find_cache,
    find_home,
)
from meshd.model.model_name import split_models

MAX_FILE_BYTES = 1 << 20
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective value; `origin` is `option --x`, `environment MESHD_X`, `file PATH` or `default`."""

    key: Key
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """The tree, and where each of its values came from, in the order of `KEYS`."""

    config: Config
    settings: tuple[Setting, ...]

    def origin(self, name: str) -> str:
        """Origin of the key `section.field`; KeyError when there is none such."""
        for setting in self.settings:
            if setting.key.name == name:
                return setting.origin
        raise KeyError(name)


@dataclass(frozen=True, slots=True)
class _Given:
    """A raw value as found: how to show it, and what relative paths in it are relative to."""

    raw: object
    origin: str
    shown: str
    base: Path
    error: type[UserError]


def load(
    *,
    options: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
    file: Path | None = None,
    role: str = "",
) -> LoadedConfig:
    """The effective configuration. `options` maps `section.field` to what the command line gave.

    With a `role`, variables that belong only to other roles are not looked at. `file` None: the one that
    MESHD_CONFIG names, if any. Raises UsageError for options, UserError for the rest.
    """
    variables = os.environ if environ is None else environ
    if file is None and variables.get("MESHD_CONFIG"):
        file = Path(variables["MESHD_CONFIG"]).expanduser()
    in_file = _read_file(file) if file is not None else {}
    values: dict[str, dict[str, object]] = {}
    origins: dict[str, str] = {}
    for key in KEYS:
        given = _find(key, options or {}, variables, in_file, file, role)
        if given is not None:
            values.setdefault(key.section, {})[key.field] = _read(key, given)
            origins[key.name] = given.origin
    config = _build(values, variables)
    settings = (
        Setting(key, getattr(getattr(config, key.section), key.field), origins.get(key.name, "default"))
        for key in KEYS
    )
    return LoadedConfig(config, tuple(settings))


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


def _find(
    key: Key,
    options: Mapping[str, object],
    environ: Mapping[str, str],
    in_file: Mapping[str, object],
    file: Path | None,
    role: str,
) -> _Given | None:
    here = Path.cwd()
    if (raw := options.get(key.name)) is not None:
        name = key.option or "--"
        return _Given(raw, f"option {name}", f"{name} {_shown(key, raw)}", here, UsageError)
    if key.variable and (text := environ.get(key.variable)) and (not role or key.is_for(role)):
        raw = _divided(key, text) if key.list_separator else text
        return _Given(
            raw, f"environment {key.variable}", f"{key.variable}={_shown(key, text)}", here, UserError
        )
    if file is not None and key.name in in_file:
        raw = in_file[key.name]
        shown = f"{key.name} = {_shown(key, raw)}"
        return _Given(raw, f"file {file}", f"{shown}` in `{file}", file.absolute().parent, UserError)
    return None


def _read(key: Key, given: _Given) -> object:
    try:
        value = key.form.read(given.raw)
    except (ValueError, RuntimeError):  # RuntimeError: `~name` of a user that does not exist
        hint = "run the verb with `--help` for its options" if given.error is UsageError else ""
        raise given.error(
            f"cannot use `{given.shown}`: expected {key.form.expected}",
            hint=hint or f"see `{key.name}` in docs/config.md",
        ) from None
    if key.names_models:
        value = _models(value, given.base)
    if key.names_files and isinstance(value, tuple):
        return tuple(_absolute(word, given.base) for word in value)
    return _anchored(value, given.base)


def _divided(key: Key, text: str) -> list[str]:
    return split_models(text) if key.names_models else text.split(key.list_separator)


def _models(value: object, base: Path) -> object:
    """A word without a slash that is a file there means that file, as in a shell; any other is a name."""
    if isinstance(value, tuple):
        return tuple(_models(item, base) for item in value)
    try:
        return Path(value) if isinstance(value, str) and (base / value).is_file() else value
    except OSError:
        return value


def _absolute(word: str, base: Path) -> str:
    """A word that names a file from there; any other as it is."""
    if word.startswith("-") or not {".", "/"} & set(word):
        return word
    try:
        return str(base / word) if (base / word).exists() else word
    except (OSError, ValueError):  # longer than a path may be, say
        return word


def _anchored(value: object, base: Path) -> object:
    # a path in a file is relative to that file: a service has no working folder of its own
    if isinstance(value, Path):
        return base / value
    if isinstance(value, tuple):
        return tuple(_anchored(item, base) for item in value)
    return value


def _shown(key: Key, raw: object) -> str:
    if key.secret:
        return "[hidden]"
    if isinstance(raw, list | tuple):
        return " ".join(str(item) for item in raw)
    return str(raw).lower() if isinstance(raw, bool) else str(raw)


def _read_file(file: Path) -> dict[str, object]:
    """The file's values by `section.field`; an unknown one is an error that names the nearest known."""
    import tomllib

    try:
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
        if len(data) > MAX_FILE_BYTES:
            raise UserError(
                f"configuration `{file}` is larger than {MAX_FILE_BYTES} bytes",
                hint="check the path: this is not a configuration file",
            )
        table: dict[str, object] = tomllib.loads(data.decode())
    except OSError as error:
        raise UserError(
            f"cannot read configuration `{file}`: {error.strerror}",
            hint="check the path, or run `meshd config init FILE` to create one",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(
            f"configuration `{file}` is not valid TOML: {error}", hint="fix that line; strings need quotes"
        ) from None
    return dict(_flat(table, file))


def _flat(table: Mapping[str, object], file: Path) -> Iterator[tuple[str, object]]:
    known = {key.name for key in KEYS if key.in_file}
    sections = {name.split(".")[0] for name in known}
    for section, content in table.items():
        if section not in sections:
            raise _unknown(section, sections | known, file)
        if not isinstance(content, dict):
            raise UserError(
                f"cannot use `{section} = {content}` in `{file}`: expected a section",
                hint=f"write `[{section}]` and its keys below it",
            )
        for name, value in content.items():
            if f"{section}.{name}" not in known:
                raise _unknown(f"{section}.{name}", known, file)
            yield f"{section}.{name}", value


def _unknown(name: str, known: set[str], file: Path) -> UserError:
    import difflib

    for key in KEYS:
        if key.name == name and not key.in_file:
            return UserError(
                f"`{name}` cannot be set in `{file}`",
                hint=f"set {key.variable} in the environment, so that every verb finds the same directory",
            )
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    short = [key.name for key in KEYS if key.name in known and key.field == name.split(".")[-1]]
    best = (short or near or [""])[0]
    hint = f"use `{best}`, the nearest key" if best else "run `meshd config show` to list all keys"
    return UserError(f"unknown key `{name}` in `{file}`", hint=hint)
