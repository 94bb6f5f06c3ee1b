"""The synopses of docs/cli.md, from the parsers of the verbs."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence

from meshd.base.errors import UsageError
from meshd.cli.main import VERBS, Verb
from meshd.cli.options import Parser
from meshd.config.tree import SETTINGS
from meshd.daemon.roles import ROLES

WIDTH = 108
INDENT = "    "
COMMON = frozenset(key.name for key in SETTINGS if key.is_common and key.section != "paths") | {
    "config",
    "set",
    "verbose",
}
REPEATED = tuple(type(Parser().add_argument("--option", action=kind)) for kind in ("append", "extend"))
NEEDED = frozenset(key.name for key in SETTINGS if key.needed)


def parts() -> dict[str, str]:
    """Return what follows each heading: a synopsis for each verb, and the options that all daemons have."""
    made = {f"meshd {verb.name}": _synopsis(verb) for verb in VERBS}
    return {**made, "Options of every daemon": _common()}


def with_synopses(page: str, parts: Mapping[str, str]) -> str:
    """Return the page with these parts below their headings. Raises ValueError if a heading is missing.

    A part is what stands first in its chapter: indented lines, or a paragraph that begins with code.
    """
    for heading, text in parts.items():
        found = re.compile(rf"^### {re.escape(heading)}\n\n((?: {{4}}.*\n)+\n|`-(?:.+\n)+\n)?", re.MULTILINE)
        made = f"### {heading}\n\n{text}\n\n"
        page, count = found.subn(made.replace("\\", r"\\"), page)
        if count != 1:
            raise ValueError(f"the page needs the heading `### {heading}` once, and an empty line below it")
    return page


def _synopsis(verb: Verb) -> str:
    parser = verb.parser()
    is_role = verb.name in ROLES
    if parser.usage and not is_role:  # the verb has written it down, because its parser cannot tell
        return "\n".join(
            INDENT + line.removeprefix(" " * len("usage: ")) for line in parser.usage.splitlines()
        )
    elsewhere = COMMON - {"node.join"} if is_role else frozenset()
    words = [_words(action) for action in _own(parser) if action.dest not in elsewhere]
    if is_role:
        words.append("[OPTIONS]")
    if verb.rest:
        words.append("[-- LLAMA_SERVER_ARGS...]")
    lines = [] if _needs_a_word(parser) else [_wrapped(parser.prog, words)]
    return "\n".join([*lines, *map(_line_of_action, parser.below.values())])


def _line_of_action(parser: Parser) -> str:
    more = ["[-- OPTIONS_OF_ROLE...]"] if parser.prog == "meshd service install" else []
    return _wrapped(parser.prog, [*map(_words, _own(parser)), *more])


def _own(parser: Parser) -> list[argparse.Action]:
    """Return what follows its name: first what has no dashes, then the options, the needed ones first."""
    actions = [
        action
        for action in parser.own
        if "--help" not in action.option_strings and action.help != argparse.SUPPRESS
    ]
    return sorted(actions, key=lambda one: (bool(one.option_strings), one.dest not in NEEDED))


def _needs_a_word(parser: Parser) -> bool:
    if not parser.below:
        return False
    try:
        parser.parse([], passes_to="")
    except UsageError:
        return True
    return False


def _words(action: argparse.Action) -> str:
    """`[--count N]`, `PEER`, `[FILE]`, `[--role R ...]`."""
    value = "|".join(map(str, action.choices)) if action.choices else str(action.metavar or "")
    if not action.option_strings:
        return f"[{value}]" if action.nargs == "?" else value
    repeats = isinstance(action, REPEATED)
    option = " | ".join(action.option_strings)
    whole = f"{option}{f' {value}' if value and action.nargs != 0 else ''}{' ...' if repeats else ''}"
    return whole if action.required or action.dest in NEEDED else f"[{whole}]"


def _wrapped(name: str, words: Iterator[str] | Sequence[str]) -> str:
    lines, line = [], INDENT + name
    for word in words:
        if len(line) + 1 + len(word) > WIDTH:
            lines.append(line)
            line = INDENT + " " * len(name)
        line += f" {word}"
    return "\n".join([*lines, line])


def _common() -> str:
    verb = next(verb for verb in VERBS if verb.name in ROLES)
    options = [action for action in _own(verb.parser()) if action.dest in COMMON]
    text, line = [], ""
    for action in options:
        word = f"`{_words(action).strip('[]')}`"
        if line and len(line) + len(word) > WIDTH:
            text.append(line)
            line = ""
        line += f"{word}, "
    return "\n".join([*text, line]).replace(", \n", ",\n").removesuffix(", ") + "."
