"""How settings are displayed: the default in words, a value in TOML, whether the example has it."""

import json
from collections.abc import Sequence
from dataclasses import MISSING, fields
from pathlib import Path

from meshd.config.key import Key
from meshd.config.model_tables import MODELS
from meshd.config.tree import Config, HostPort, ModelConfig

Plain = None | bool | int | float | str | Sequence["Plain"]


def plain(value: object) -> Plain:
    """What the tree holds, as JSON and TOML know it."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path | HostPort):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not a possible value of a setting")


def toml(value: object) -> str:
    """A TOML basic string, array or number is written as in JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def default_of(key: Key) -> object:
    """What the tree has for it when nobody sets it; None where that depends on the machine."""
    section = getattr(Config(), key.section)
    if key.section == MODELS:
        section = ModelConfig(name="")
        section = section if hasattr(section, key.field) else section.serve
    (item,) = (item for item in fields(section) if item.name == key.field)
    value: object = item.default
    return None if value is MISSING else value


def default_words(key: Key) -> str:
    """For `--help`; empty where there is nothing to say: no value, a switch, a list."""
    value = default_of(key)
    return key.default or (str(value) if isinstance(value, str | int) and not isinstance(value, bool) else "")


def help_of(key: Key) -> str:
    """With the default."""
    words = default_words(key)
    return key.help + (f" (default: {words})" if words else "")
