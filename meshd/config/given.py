"""Turns a raw value of a setting, from any origin, into the value of the tree; errors name the setting."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UsageError, UserError
from meshd.config.removed import instead_of_value
from meshd.config.setting import Setting
from meshd.model.model_name import hint_for_name

_PREFIX = "MESHD_"


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


def unknown_variables(environ: Mapping[str, str], known: Sequence[str]) -> list[str]:
    """Return a line about each variable that looks like a setting and is none: no error, as it may be another
    program's.
    """
    lines = []
    for name in sorted(environ):
        if name.startswith(_PREFIX) and name not in known:
            own = [variable.removeprefix(_PREFIX) for variable in known]  # what all share says nothing
            near = nearest(name.removeprefix(_PREFIX), own, cutoff=0.8)
            hint = (
                f"did you mean `{_PREFIX}{near[0]}`?"
                if near
                else "`meshd config init FILE` writes all settings"
            )
            lines.append(f"meshd has no setting for the variable `{name[:64]}`; {hint}")
    return lines


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
