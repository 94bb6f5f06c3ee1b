"""docs/config.md and configs/meshd.example.toml, from the list of settings."""

import textwrap
import tomllib
from itertools import groupby

from meshd.config.key import Key
from meshd.config.keys import KEYS
from meshd.config.model_tables import MODEL_KEYS, MODELS
from meshd.config.shown import default_of, toml

from tests.reference.marks import table

WIDTH = 112
HEAD = """\
# Configuration of meshd: every key, with its default, unit and reason.
#
# Use:         meshd worker --config FILE    (or MESHD_CONFIG=FILE)
# Precedence:  option, then environment (MESHD_…), then this file, then the default.
# See also:    meshd config show             (effective values and where each comes from)
#
# Keys without a default that can be written down are commented out, with an example.
# A relative path is relative to this file.
"""
MODELS_HEAD = """\
# Several models behind one API, instead of `model` above: a table for each. Requests choose by `model`, a
# name or an alias; those without one get the first. A model is loaded by its first request.
#[models.small]
"""
TAIL = """\
# The node's state (home) and cache are set by MESHD_HOME and MESHD_CACHE only, because every verb has to
# find the same folders. Defaults: ~/.local/state/meshd and ~/.cache/meshd on Linux,
# ~/Library/Application Support/meshd and ~/Library/Caches/meshd on macOS.
"""


def page() -> str:
    """A table for each section."""
    return "\n\n".join(
        f"## [{_shown(section)}]\n\n"
        + table(("key", "option", "variable", "takes", "default", "meaning"), map(row, keys))
        for section, keys in groupby((*KEYS, *MODEL_KEYS), key=lambda key: key.section)
    )


def _shown(section: str) -> str:
    return f"{MODELS}.NAME" if section == MODELS else section


def row(key: Key) -> tuple[str, ...]:
    option = f"`{key.option}`" if key.option else "after `--`" if key.in_file else "–"
    role = "" if key.is_common else f" ({key.section})"
    if key.section == MODELS:
        option, role = "–", ""
    variable = f"`{key.variable}`" if key.variable else "–"
    return (
        f"`{_shown(key.section)}.{key.field}`",
        option + role,
        variable,
        key.form.expected,
        _default(key),
        key.help,
    )


def _default(key: Key) -> str:
    if key.default:
        return key.default
    value = default_of(key)
    return "not set" if value in (None, "") else f"`{toml(value)}`"


def example() -> str:
    """Every key that a file may have, with a value: the default, or commented out where it is none."""
    text = HEAD
    for section, keys in groupby(KEYS, key=lambda key: key.section):
        text += f"\n[{section}]\n" + "\n".join(entry(key) for key in keys if key.in_file)
    return f"{text}\n{MODELS_HEAD}" + "\n".join(map(model_entry, MODEL_KEYS)) + f"\n{TAIL}"


def model_entry(key: Key) -> str:
    """Commented out, so that the file names no model: without a space, unlike what explains."""
    return "\n".join([*(f"# {line}" for line in _note(key)), f"#{_line(key)}", ""])


def _line(key: Key) -> str:
    return f"{key.field} = {key.example or toml(default_of(key))}"


def _note(key: Key) -> list[str]:
    return [*_wrapped(f"{_phrase(key)}. {key.more}".strip()), *_wrapped(_origins(key))]


def entry(key: Key) -> str:
    note, shown = _note(key), _line(key)
    if key.example and key.form.read(tomllib.loads(shown)[key.field]) != default_of(key):
        shown = f"# {shown}"
    return "\n".join([*(f"# {line}" for line in note), shown, ""])


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _phrase(key: Key) -> str:
    """The help as a sentence; that the option may repeat means nothing in a file, whose value is a list."""
    phrase = key.help.replace(", may repeat", "").replace("; may repeat", "")
    return f"true: {phrase}" if key.switch else phrase[:1].upper() + phrase[1:]


def _origins(key: Key) -> str:
    default = key.default or ("none" if default_of(key) in (None, "") else "")
    words = [f"Default: {default}."] if default else []
    if key.option:
        words.append(f"Option {key.option}{' (may repeat)' if key.repeat else ''}, {key.variable}.")
    return " ".join(words)
