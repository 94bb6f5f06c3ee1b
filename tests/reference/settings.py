"""docs/config.md and configs/meshd.example.toml, from the list of settings."""

import re
import textwrap
import tomllib
from itertools import groupby

from meshd.config.forms import BOOLEAN
from meshd.config.load import MODEL_SETTINGS, MODELS
from meshd.config.setting import Setting, toml
from meshd.config.tree import SETTINGS

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
AS_IN_SERVE = "as in `[serve]`"
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
    """Return a list for each section. Settings of a model that are those of `[serve]` are only named."""
    own = [key for key in MODEL_SETTINGS if key.default != AS_IN_SERVE]
    shared = [f"`{key.field}`" for key in MODEL_SETTINGS if key.default == AS_IN_SERVE]
    sections = "\n\n".join(
        f"## [{_shown(section)}]\n\n" + "\n".join(map(item, keys))
        for section, keys in groupby((*SETTINGS, *own), key=lambda key: key.section)
    )
    return f"{sections}\n- **As in `[serve]`**, for one model: {', '.join(shared)}"


def _shown(section: str) -> str:
    return f"{MODELS}.NAME" if section == MODELS else section


def item(key: Setting) -> str:
    """Return the key with the ways to give it, its meaning, the values that it takes, and its default."""
    ways = [
        f"`{way}`" for way in (f"{key.option} {key.metavar}".strip(), key.env) if way
    ]  # the page has the rule for other variables
    if key.names_files and not key.option:
        ways.append("after `--`")
    name = f"**`{_shown(key.section)}.{key.field}`**" + (f" ({', '.join(ways)})" if ways else "")
    default = _default(key)
    return f"- {name}: {key.help}.{_takes(key)}" + (f" Default: {default}." if default else "")


def _takes(key: Setting) -> str:
    """Return the range or the choices; empty where the help or the option's value shows the form."""
    expected = key.form.expected
    if choices := re.fullmatch(r"one of (.+)", expected):
        is_said = all(choice in key.help for choice in choices.group(1).split(", "))
        return "" if is_said else f" O{expected[1:]}."
    span = re.search(r"\d+ to \d+", expected)
    return f" {span.group()}." if span and "whole number" in expected else ""


def _default(key: Setting) -> str:
    """Return the default in words; empty where it says nothing: not set, off, or no entries."""
    if key.default:
        return key.default
    return "" if key.value in (None, "", False, ()) else f"`{toml(key.value)}`"


def example() -> str:
    """Every key that a file may have, with a value: the default, or commented out where it is none."""
    text = HEAD
    for section, keys in groupby(SETTINGS, key=lambda key: key.section):
        text += f"\n[{section}]\n" + "\n".join(entry(key) for key in keys if key.in_file)
    return f"{text}\n{MODELS_HEAD}" + "\n".join(map(model_entry, MODEL_SETTINGS)) + f"\n{TAIL}"


def model_entry(key: Setting) -> str:
    """Commented out, so that the file names no model: without a space, unlike what explains."""
    return "\n".join([*(f"# {line}" for line in _note(key)), f"#{_line(key)}", ""])


def _line(key: Setting) -> str:
    return f"{key.field} = {key.example or toml(key.value)}"


def _note(key: Setting) -> list[str]:
    return [*_wrapped(f"{_phrase(key)}. {key.more}".strip()), *_wrapped(_origins(key))]


def entry(key: Setting) -> str:
    note, shown = _note(key), _line(key)
    if key.example and key.form.read(tomllib.loads(shown)[key.field]) != key.value:
        shown = f"# {shown}"
    return "\n".join([*(f"# {line}" for line in note), shown, ""])


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def _phrase(key: Setting) -> str:
    """The help as a sentence; that the option may repeat means nothing in a file, whose value is a list."""
    phrase = key.help.replace(", may repeat", "").replace("; may repeat", "")
    return f"true: {phrase}" if key.form is BOOLEAN else phrase[:1].upper() + phrase[1:]


def _origins(key: Setting) -> str:
    default = key.default or ("none" if key.value in (None, "") else "")
    words = [f"Default: {default}."] if default else []
    if key.option:
        words.append(f"Option {key.option}{' (may repeat)' if key.repeat else ''}, {key.variable}.")
    elif key.variable:
        words.append(f"Variable {key.variable}.")
    return " ".join(words)
