"""Merges settings from all origins into one tree, with the origin of each.

Errors: an option that cannot be read is a UsageError (the command line does not parse); a variable or a
file that cannot be read is a UserError. Both name origin, key, value and the expected form.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from meshd.base.errors import UsageError, UserError
from meshd.config.given import Given, raw_text, read_given, unknown_key
from meshd.config.key import Key
from meshd.config.keys import KEYS
from meshd.config.model_tables import MODELS, read_model_tables
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
    table = _read_file(file) if file is not None else {}
    in_file = dict(_flat(table, file)) if file is not None else {}
    values: dict[str, dict[str, object]] = {}
    origins: dict[str, str] = {}
    for key in KEYS:
        given = _find(key, options or {}, variables, in_file, file, role)
        if given is not None:
            values.setdefault(key.section, {})[key.field] = read_given(key, given)
            origins[key.name] = given.origin
    config = _build(values, variables)
    settings = [
        Setting(key, getattr(getattr(config, key.section), key.field), origins.get(key.name, "default"))
        for key in KEYS
    ]
    if file is not None and MODELS in table:
        models, given_there = read_model_tables(table[MODELS], file, config.serve)
        config = replace(config, models=models)
        settings += [Setting(key, value, f"file {file}") for key, value in given_there]
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
) -> Given | None:
    here = Path.cwd()
    if (raw := options.get(key.name)) is not None:
        name = key.option or "--"
        return Given(raw, f"option {name}", f"{name} {raw_text(key, raw)}", here, UsageError)
    if key.variable and (text := environ.get(key.variable)) and (not role or key.is_for(role)):
        raw = _divided(key, text) if key.list_separator else text
        return Given(
            raw, f"environment {key.variable}", f"{key.variable}={raw_text(key, text)}", here, UserError
        )
    if file is not None and key.name in in_file:
        raw = in_file[key.name]
        shown = f"{key.name} = {raw_text(key, raw)}"
        return Given(raw, f"file {file}", f"{shown}` in `{file}", file.absolute().parent, UserError)
    return None


def _divided(key: Key, text: str) -> list[str]:
    return split_models(text) if key.names_models else text.split(key.list_separator)


def _read_file(file: Path) -> dict[str, object]:
    """The file's sections."""
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
    return table


def _flat(table: Mapping[str, object], file: Path) -> Iterator[tuple[str, object]]:
    """Values by `section.field`, but for models; an unknown one is an error that names the nearest known."""
    known = [key.name for key in KEYS if key.in_file]
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
    for key in KEYS:
        if key.name == name and not key.in_file:
            return UserError(
                f"`{name}` cannot be set in `{file}`",
                hint=f"set {key.variable} in the environment, so that every verb finds the same directory",
            )
    return unknown_key(name, known, file)
