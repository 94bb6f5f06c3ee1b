"""Turns a raw value of a setting, from any origin, into the value of the tree; errors name the setting."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UsageError, UserError
from meshd.config.key import Key
from meshd.model.model_name import hint_of_digits


@dataclass(frozen=True, slots=True)
class Given:
    """A raw value: how to show it, and the folder (`base`) of its relative paths."""

    raw: object
    origin: str
    shown: str
    base: Path
    error: type[UserError]


def read_given(key: Key, given: Given) -> object:
    """The value of the tree. Raises `given.error`."""
    try:
        value = key.form.read(given.raw)
    except (ValueError, RuntimeError):  # RuntimeError: `~name` of a user that does not exist
        hint = hint_of_digits(str(given.raw)) if key.names_models else ""
        if given.error is not UsageError:  # to that one the verb adds what it is called
            hint = hint or f"see `{key.name}` in docs/config.md"
        raise given.error(f"cannot use `{given.shown}`: expected {key.form.expected}", hint=hint) from None
    if key.names_models:
        value = _models(value, given.base)
    if key.names_files and isinstance(value, tuple):
        return tuple(_absolute(word, given.base) for word in value)
    return _anchored(value, given.base)


def _models(value: object, base: Path) -> object:
    """A word without a slash means the file of that name in `base`, if there is one; else it is a name."""
    if isinstance(value, tuple):
        return tuple(_models(item, base) for item in value)
    try:
        return Path(value) if isinstance(value, str) and (base / value).is_file() else value
    except OSError:
        return value


def _absolute(word: str, base: Path) -> str:
    """The absolute path of a word that names a file in `base`; any other word unchanged."""
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


def raw_text(key: Key, raw: object) -> str:
    """As an error shows it: never a secret."""
    if key.secret:
        return "[hidden]"
    if isinstance(raw, list | tuple):
        return " ".join(str(item) for item in raw)
    return str(raw).lower() if isinstance(raw, bool) else str(raw)


def unknown_key(name: str, known: Sequence[str], file: Path) -> UserError:
    """With the nearest key that is known."""
    import difflib

    section = name.rpartition(".")[0]
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
    if section and near and near[0].startswith(f"{section}."):  # what they share says nothing
        fields = [one.removeprefix(f"{section}.") for one in known if one.startswith(f"{section}.")]
        field = name.removeprefix(f"{section}.")
        near = [f"{section}.{one}" for one in difflib.get_close_matches(field, fields, n=1)]
    short = [k for k in known if k.split(".")[-1] == name.split(".")[-1]]
    best = (short or near or [""])[0]
    hint = f"use `{best}`, the nearest key" if best else "run `meshd config show` to list all keys"
    return UserError(f"unknown key `{name}` in `{file}`", hint=hint)
