"""The display of settings: the default in words, a value in TOML, and which the example has."""

import json
from collections.abc import Sequence
from pathlib import Path

from meshd.config.forms import HostPort
from meshd.config.setting import Setting

Plain = None | bool | int | float | str | Sequence["Plain"]


def plain(value: object) -> Plain:
    """Return a value of the tree as JSON and TOML know it. Raises TypeError."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path | HostPort):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not a possible value of a setting")


def toml(value: object) -> str:
    """Return a TOML basic string, array or number, which is written as in JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def default_words(setting: Setting) -> str:
    """Return the default for `--help`; empty where there is nothing to say: no value, a switch, a list."""
    value = setting.value
    has_word = isinstance(value, str | int) and not isinstance(value, bool)
    return setting.default or (str(value) if has_word else "")


def help_of(setting: Setting) -> str:
    """Return the help with the default."""
    words = default_words(setting)
    return setting.help + (f" (default: {words})" if words else "")
