"""Options that follow from the list of settings (meshd/config/keys.py), and the parser all verbs use."""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from meshd.base.errors import UsageError, UserError
from meshd.cli.output import standard
from meshd.config import LoadedConfig, load
from meshd.config.forms import RATE, parse_duration, parse_rate, whole
from meshd.config.key import Key
from meshd.config.keys import KEYS
from meshd.config.shown import help_of

Arguments = argparse.Namespace
_REQUIRED = "the following arguments are required: "  # argparse's words
MOST_MILLISECONDS = 10_000


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions as they are written, and `FILE...` where argparse has `FILE [FILE ...]`."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs == argparse.ONE_OR_MORE:
            return f"{action.metavar or default_metavar}..."
        return super()._format_args(action, default_metavar)


class Parser(argparse.ArgumentParser):
    """Like argparse's, but errors are raised for main to print, and no option may be cut short."""

    def __init__(self, prog: str | None = None, description: str | None = None, **_more: object) -> None:
        super().__init__(
            prog=prog,
            description=description,
            allow_abbrev=False,
            formatter_class=HelpFormatter,
        )

    def error(self, message: str) -> NoReturn:
        """Raise UsageError instead of printing."""
        hint = f"run `{self.prog} --help`"
        if message.startswith(_REQUIRED):
            names = message.removeprefix(_REQUIRED)
            one_of = "one of " if "|" in names else ""
            raise UsageError(f"`{self.prog}` needs {one_of}{names}", hint=hint)
        raise UsageError(f"{self.prog}: {message}", hint=hint)

    def _check_value(self, action: argparse.Action, value: object) -> None:
        """Raise UsageError that names the nearest, where there is one."""
        if action.choices is not None and value not in action.choices:
            from meshd.cli.unknown_verb import unknown_choice

            option = action.option_strings[0] if action.option_strings else ""
            raise unknown_choice(self.prog, option, str(value), list(action.choices))

    def parse(self, argv: Sequence[str], *, passes_on: bool) -> Arguments:
        """The arguments of a verb; `passes_on`: it hands llama-server its options. Raises UsageError."""
        args, unknown = self.parse_known_args(argv)
        if unknown:
            from meshd.cli.unknown_verb import unknown_options  # difflib, which no daemon needs

            raise unknown_options(self.prog, unknown, option_strings(self), passes_on=passes_on)
        return args

    def format_help(self) -> str:
        """With a line for each action of the verb."""
        rows = [
            f"  {name:<10}  {one.description}\n"
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, one in action.choices.items()
        ]
        return super().format_help() + ("\nactions:\n" + "".join(rows) if rows else "")

    def print_help(self, file: object = None) -> None:
        """On stdout; argparse's own drops what cannot be written, and ends with 0."""
        standard().raw(self.format_help())


def option_strings(parser: argparse.ArgumentParser) -> list[str]:
    """All options of a verb, and of its actions."""
    found: list[str] = []
    for action in parser._actions:
        found += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            found += [option for one in action.choices.values() for option in option_strings(one)]
    return list(dict.fromkeys(found))


def add_config_file(parser: argparse.ArgumentParser) -> None:
    """`--config FILE`."""
    parser.add_argument(
        "--config", metavar="FILE", help="configuration file in TOML (default: $MESHD_CONFIG, if set)"
    )


def add_role_options(parser: argparse.ArgumentParser, role: str) -> None:
    """Every option of the verb `role`; values stay text, load() reads and judges them."""
    add_config_file(parser)
    common = parser.add_argument_group("options of worker, serve and client")
    for key in KEYS:
        if key.option and key.is_for(role):
            _add(common if key.is_common else parser, key)


def add_keys(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Options of these settings alone (`section.field`), for a verb that is no role."""
    by_name = {key.name: key for key in KEYS}
    for name in names:
        _add(parser, by_name[name])


def _add(group: argparse._ActionsContainer, key: Key) -> None:
    text = help_of(key).replace("%", "%%")
    if key.switch:
        group.add_argument(key.option, dest=key.name, action="store_const", const=True, help=text)
    elif key.repeat:
        group.add_argument(
            key.option, dest=key.name, metavar=key.metavar, action="extend", nargs="+", help=text
        )
    else:
        group.add_argument(key.option, dest=key.name, metavar=key.metavar, help=text)


def load_role(args: Arguments, role: str, more: Mapping[str, object] | None = None) -> LoadedConfig:
    """The configuration of a daemon verb from its options, the environment and `--config`."""
    given: dict[str, object] = {
        key.name: vars(args)[key.name] for key in KEYS if vars(args).get(key.name) is not None
    }
    from meshd.config.kept_name import with_kept_name  # cryptography, which `--help` does without

    return with_kept_name(load(options={**given, **(more or {})}, file=config_file(args), role=role))


def config_file(args: Arguments) -> Path | None:
    """What `--config` names."""
    name = args.config
    return Path(name).expanduser() if isinstance(name, str) else None


def split_rest(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """What stands before the first `--`, and what after it (None: there is no `--`)."""
    plain = list(argv)
    if "--" not in plain:
        return plain, None
    at = plain.index("--")
    return plain[:at], plain[at + 1 :]


def duration(option: str, text: str) -> int:
    """Seconds of an option such as `24h`. Raises UsageError."""
    try:
        return parse_duration(text)
    except ValueError:
        raise UsageError(
            f"cannot use `{option} {text}`: expected a duration such as 24h, 30m or 7d"
        ) from None


def rate(option: str, text: str) -> int:
    """Bytes a second of an option such as `20Mbit` or `2.5MB`. Raises UsageError."""
    try:
        return parse_rate(text)
    except ValueError:
        raise UsageError(f"cannot use `{option} {text[:64]}`: expected {RATE.expected}") from None


def number(option: str, text: str, low: int, high: int) -> int:
    """A whole number of an option. Raises UsageError."""
    form = whole(low, high)
    try:
        value = form.read(text)
    except ValueError:
        raise UsageError(f"cannot use `{option} {text}`: expected {form.expected}") from None
    assert isinstance(value, int)
    return value


def milliseconds(option: str, text: str) -> tuple[float, ...]:
    """Numbers of an option such as `20,30`, 0 to 10000 each. Raises UsageError."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= one <= MOST_MILLISECONDS for one in found):
        raise UsageError(
            f"cannot use `{option} {text[:64]}`: expected milliseconds, 0 to {MOST_MILLISECONDS}, as in 20,30"
        )
    return found


def read_text(source: str, what: str, limit: int) -> str:
    """At most `limit` characters of a file, or of standard input for `-`. Raises UserError."""
    if source == "-":
        return sys.stdin.read(limit)
    try:
        with Path(source).expanduser().open("r", encoding="utf-8") as stream:
            return stream.read(limit)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(
            f"cannot read {what} `{source}`: {why}", hint="check the path and its permissions"
        ) from None
