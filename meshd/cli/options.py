"""Options that follow from the settings (meshd/config/tree.py), and the parser all verbs use."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from meshd.base.errors import UsageError, UserError
from meshd.base.files import expanded, read_regular
from meshd.cli.layout import Layout
from meshd.cli.output import Output, standard
from meshd.config.forms import RATE, parse_duration, parse_rate, whole
from meshd.config.load import LoadedConfig, load, nearest, unknown_variables, with_kept_name
from meshd.config.removed import IS_GONE, instead_of_option, removed_key
from meshd.config.setting import Setting, help_of
from meshd.config.tree import SETTINGS
from meshd.config.tree import VARIABLES as VARIABLES

Arguments = argparse.Namespace
_REQUIRED = "the following arguments are required: "  # argparse's words
MOST_MILLISECONDS = 10_000
_LEAST_BEGINNING = 5  # letters of an option, with its dashes, to be taken for the beginning of a longer one
# an argument that begins like an invite or a reply code, its option included where `=` joins them
_PASTED = re.compile(r"(?:--[a-z-]+=)?[\"'`<]*(meshd(?:reply)?[0-9].*)", re.IGNORECASE | re.DOTALL)
_EXAMPLE = re.compile(r"( +.*?\S)  +(\S.*)")
_ACTION_CELLS = 14  # before the description of an action
LLAMA_SERVER, THE_ROLE = "llama-server", "the role"  # what gets the arguments after `--`
# verbs of other programs for models, and what does the same here
LIKE_OTHERS = {
    "chat": "serve",
    "join": "worker --join INVITE",
    "list": "model ls",
    "ls": "model ls",
    "ps": "status",
    "pull": "model pull NAME",
    "rm": "model rm NAME",
    "run": "serve --model FILE|NAME",
    "show": "model show NAME",
    "start": "worker",
}


class HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Descriptions that fit the terminal, and `FILE...` where argparse has `FILE [FILE ...]`."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        """Fill paragraphs; examples that are too long are broken before their explanations."""
        layout = Layout(width)
        return "\n\n".join(_filled(block.splitlines(), layout, width) for block in text.split("\n\n"))

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
        """Raise UsageError that names the nearest choice, if there is one."""
        if action.choices is not None and value not in action.choices:
            option = action.option_strings[0] if action.option_strings else ""
            raise unknown_choice(self.prog, option, str(value), list(action.choices))

    def parse(self, argv: Sequence[str], *, passes_to: str) -> Arguments:
        """Parse a verb's arguments; `passes_to`: what gets those after `--`, if any. Raises UsageError."""
        options = option_strings(self)
        first = argv[0].partition("=")[0] if argv else ""
        if self.below and len(first) > 2 and first.startswith("--") and first not in options:
            # Else argparse takes the option's value for an action, and complains about that.
            raise unknown_options(self.prog, argv, argv[:1], options, passes_to=passes_to)
        args, unknown = self.parse_known_args(argv)
        if unknown:
            raise unknown_options(self.prog, argv, unknown, options, passes_to=passes_to)
        return args

    @property
    def own(self) -> list[argparse.Action]:
        """Its options and arguments, those of the parsers below left out."""
        return [action for action in self._actions if not isinstance(action, argparse._SubParsersAction)]

    @property
    def below(self) -> dict[str, "Parser"]:
        """The parsers of the verb's actions, by name."""
        return {
            name: parser
            for action in self._actions
            if isinstance(action, argparse._SubParsersAction)
            for name, parser in action.choices.items()
        }

    def format_help(self) -> str:
        """Return the help with a line for each action of the verb."""
        layout = Layout(shutil.get_terminal_size().columns - 2)  # as argparse has it
        rows = [
            f"  {name:<10}  {layout.wrapped(parser.description or '', _ACTION_CELLS)}\n"
            for name, parser in self.below.items()
        ]
        return super().format_help() + ("\nactions:\n" + "".join(rows) if rows else "")

    def print_help(self, file: object = None) -> None:
        """Print the help on stdout; argparse's own drops what cannot be written, and ends with 0."""
        standard().raw(self.format_help())


def _filled(block: Sequence[str], layout: Layout, width: int) -> str:
    """Fill the lines of a block that are not indented; the others are examples."""
    words = [line for line in block if not line.startswith(" ")]
    examples = list(block[len(words) :])
    if max(map(len, examples), default=0) > width:
        examples = list(map(_broken_example, examples))
    return "\n".join([*([layout.wrapped(" ".join(words))] if words else []), *examples])


def _broken_example(line: str) -> str:
    if (found := _EXAMPLE.fullmatch(line)) is not None:
        return f"{found[1]}\n      {found[2]}"
    rest_of_explanation = line.startswith(" " * 7)
    return f"      {line.lstrip()}" if rest_of_explanation else line


def option_strings(parser: Parser) -> list[str]:
    """Return all options of a verb, and of its actions."""
    found = [option for action in parser.own for option in action.option_strings]
    found += [option for below in parser.below.values() for option in option_strings(below)]
    return list(dict.fromkeys(found))


def add_config_file(parser: argparse.ArgumentParser) -> None:
    """Add `--config FILE`."""
    parser.add_argument(
        "--config", metavar="FILE", help="configuration file in TOML (default: $MESHD_CONFIG, if set)"
    )


def add_role_options(parser: argparse.ArgumentParser, role: str) -> None:
    """Add every option of the verb `role`; values stay text, load() parses and checks them."""
    add_config_file(parser)
    common = parser.add_argument_group("options of worker, serve and client")
    common.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="any setting that `meshd config` shows, such as links.compress=on; lists as in its environment "
        "variable",
    )
    common.add_argument("-v", "--verbose", action="store_true", help="print the log, also on a terminal")
    for setting in SETTINGS:
        if setting.option and setting.is_for(role):
            _add(common if setting.is_common else parser, setting)


def add_keys(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """Add options of these settings alone (`section.field`), for a verb that is no role."""
    by_name = {setting.name: setting for setting in SETTINGS}
    for name in names:
        _add(parser, by_name[name])


def _add(group: argparse._ActionsContainer, setting: Setting) -> None:
    option, dest, metavar = setting.option, setting.name, setting.metavar
    text = help_of(setting).replace("%", "%%")
    if setting.is_switch:
        group.add_argument(option, dest=dest, action="store_const", const=True, help=text)
    elif setting.repeat:
        group.add_argument(option, dest=dest, metavar=metavar, action="extend", nargs="+", help=text)
    else:
        group.add_argument(option, dest=dest, metavar=metavar, help=text)


def load_role(
    args: Arguments,
    role: str,
    more: Mapping[str, object] | None = None,
    environ: Mapping[str, str] | None = None,
) -> LoadedConfig:
    """Load the configuration of a daemon verb from its options, the environment and `--config`. Raises
    UserError.

    `environ`: None for that of this process.
    """
    given: dict[str, object] = {
        setting.name: vars(args)[setting.name]
        for setting in SETTINGS
        if vars(args).get(setting.name) is not None
    }
    note_unknown_variables(standard())
    assigned = _assigned(vars(args).get("set", ()), role)
    options = {**given, **(more or {})}
    loaded = load(options=options, assigned=assigned, environ=environ, file=config_file(args), role=role)
    return with_kept_name(loaded)


def _assigned(words: Sequence[str], role: str) -> Mapping[str, str]:
    """Return the values that `--set KEY=VALUE` gives, by key. Raises UsageError."""
    known = {setting.name: setting for setting in SETTINGS if setting.in_file}
    values: dict[str, str] = {}
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise UsageError(f"cannot use `--set {name[:64]}`: expected KEY=VALUE, such as links.compress=on")
        if (gone := removed_key(name, f"`{name}`")) is not None:
            raise UsageError(gone.what, hint=gone.hint)
        setting = known.get(name)
        if setting is None:
            raise unknown_setting(name, known)
        if not setting.is_for(role):
            raise UsageError(f"`{name}` is a setting of `meshd {setting.section}`, not of `meshd {role}`")
        values[name] = text
    return values


def note_unknown_variables(out: Output) -> None:
    """Warn of environment variables without effect: one of them may be mistyped."""
    for unknown in unknown_variables(os.environ, VARIABLES):
        out.note(f"{unknown.what}; {unknown.hint}")


def config_file(args: Arguments) -> Path | None:
    """Return the file that `--config` names, if any."""
    name = args.config
    return expanded(name) if isinstance(name, str) else None


def split_rest(argv: Sequence[str]) -> tuple[list[str], list[str] | None]:
    """Split at the first `--`: what stands before it, and what after it (None: there is no `--`)."""
    plain = list(argv)
    if "--" not in plain:
        return plain, None
    at = plain.index("--")
    return plain[:at], plain[at + 1 :]


def duration(option: str, text: str) -> int:
    """Return the seconds of an option such as `24h`. Raises UsageError."""
    try:
        return parse_duration(text)
    except ValueError:
        raise UsageError(
            f"cannot use `{option} {text}`: expected a duration such as 24h, 30m or 7d"
        ) from None


def rate(option: str, text: str) -> int:
    """Return the bytes a second of an option such as `20Mbit` or `2.5MB`. Raises UsageError."""
    try:
        return parse_rate(text)
    except ValueError:
        raise UsageError(f"cannot use `{option} {text[:64]}`: expected {RATE.expected}") from None


def number(option: str, text: str, low: int, high: int) -> int:
    """Return a whole number of an option. Raises UsageError."""
    form = whole(low, high)
    try:
        value = form.read(text)
    except ValueError:
        raise UsageError(f"cannot use `{option} {text}`: expected {form.expected}") from None
    assert isinstance(value, int)
    return value


def milliseconds(option: str, text: str) -> tuple[float, ...]:
    """Return the numbers of an option such as `20,30`, 0 to 10000 each. Raises UsageError."""
    try:
        found = tuple(float(part) for part in text.split(","))
    except ValueError:
        found = (-1.0,)
    if not all(0 <= value <= MOST_MILLISECONDS for value in found):
        raise UsageError(
            f"cannot use `{option} {text[:64]}`: expected milliseconds, 0 to {MOST_MILLISECONDS}, as in 20,30"
        )
    return found


def read_text(source: str, what: str, limit: int) -> str:
    """Read at most `limit` bytes of a text file, or of standard input for `-`. Raises UserError."""
    if source == "-":
        return sys.stdin.read(limit)
    try:
        return read_regular(expanded(source), limit).decode()
    except UnicodeDecodeError:
        raise UserError(
            f"cannot read {what} `{source}`: not text", hint="put only that text into the file"
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot read {what} `{source}`: {error.strerror}", hint="check the path and its permissions"
        ) from None


def unknown_verb(name: str, verbs: Collection[str]) -> UsageError:
    """Return the error, with what may have been meant as its hint."""
    if name.startswith("-"):
        near = nearest(name, ["--help", "--version"], cutoff=0.75)
        hint = f"did you mean `{near[0]}`?" if near else "put a command first; `meshd --help` lists them"
        return UsageError(f"unknown option `{name}`", hint=hint)
    if name in LIKE_OTHERS:
        return UsageError(f"unknown command `{name}`", hint=f"try `meshd {LIKE_OTHERS[name]}`")
    near = nearest(name, verbs)
    hint = f"try `meshd {near[0]}`" if near else "run `meshd --help` for the list"
    return UsageError(f"unknown command `{name}`", hint=hint)


def unknown_choice(verb: str, option: str, value: str, choices: Sequence[str]) -> UsageError:
    """Return the error for an action that the verb does not have, or for a value that its option does not
    take.
    """
    near = nearest(value, choices)
    if option:
        expected = f"expected one of {', '.join(choices)}"
        hint = f"did you mean `{option} {near[0]}`?" if near else f"run `{verb} --help`"
        return UsageError(f"cannot use `{option} {value}`: {expected}", hint=hint)
    hint = f"did you mean `{verb} {near[0]}`?" if near else f"choose one of {', '.join(choices)}"
    return UsageError(f"`{verb}` has no `{value}`", hint=hint)


def _verbs_with(option: str) -> str:
    """Return the daemons that have this option, as a phrase; empty if none has."""
    from meshd.config.tree import SETTINGS

    verbs = [f"`meshd {key.section}`" for key in SETTINGS if key.option == option and not key.is_common]
    if option and any(key.option == option and key.is_common for key in SETTINGS):
        verbs = ["`meshd worker`", "`meshd serve`", "`meshd client`"]
    return " and ".join(verbs) if len(verbs) < 3 else f"{', '.join(verbs[:-1])} and {verbs[-1]}"


def _is_token(text: str) -> bool:
    """Return True if `text` is a whole token, not its first piece."""
    from meshd.identity.invite import parse_token  # cryptography, which `--help` does without

    try:
        parse_token(text)
    except UserError:
        return False
    return True


def _misplaced_paste(
    verb: str, argv: Sequence[str], unknown: Sequence[str], options: Collection[str]
) -> UsageError | None:
    """Return the error for an invite or reply code in pieces or without its option, none of it shown."""
    has_join = "--join" in options
    for at, word in enumerate(argv):
        if (begun := _PASTED.fullmatch(word)) is None:
            continue
        stray = [text for text in argv[at + 1 : at + 2] if text in unknown and not text.startswith("-")]
        if stray and not _is_token(begun[1]):
            in_file = ", or in a file: `--join @FILE`" if has_join else ""
            what = "invite" if has_join else "code"
            return UsageError(
                f"the {what} was split at a space or line break", hint=f"put it in quotes{in_file}"
            )
        if word in unknown:
            hint = "give it with `--join INVITE`, or in a file: `--join @FILE`" if has_join else ""
            return UsageError(f"`{verb}` takes no invite as an argument", hint=hint)
    return None


def unknown_setting(name: str, known: Collection[str]) -> UsageError:
    """Return the error for a key of `--set` that does not exist, with the nearest one."""
    near = [key for key in known if key.endswith(f".{name}")] or nearest(name, known)
    hint = f"did you mean `{near[0]}`?" if near else "run `meshd config show` to list all keys"
    return UsageError(f"cannot use `--set {name[:64]}=…`: there is no such setting", hint=hint)


def unknown_options(
    verb: str, argv: Sequence[str], unknown: Sequence[str], options: Collection[str], *, passes_to: str
) -> UsageError:
    """Return the error for the arguments in `argv` that the verb does not have.

    `passes_to`: what gets the arguments after `--`; empty if nothing does.
    """
    # A pasted token in pieces, or an option that is gone or still to come.
    if (misplaced := _misplaced_paste(verb, argv, unknown, options)) is not None:
        return misplaced
    for option in (word.partition("=")[0] for word in unknown if word.startswith("--")):
        if instead := instead_of_option(verb.removeprefix("meshd "), option):
            return UsageError(f"`{option}` of `{verb}` {IS_GONE}", hint=instead)
    # Else the nearest option of this verb, or a verb that has it.
    help_of_verb = f"run `{verb} --help`"
    option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
    near = nearest(option, options, cutoff=0.75) if option else []
    if not near and len(option) >= _LEAST_BEGINNING:
        near = [word for word in options if word.startswith(f"{option}-")]
    hint = help_of_verb
    if option in options:  # of the verb itself, or of another of its actions
        hint = f"`{option}` does not apply here; run `{verb} ACTION --help` for the options of an action"
    elif near:
        hint = f"did you mean `{near[0]}`? All options: `{verb} --help`"
    elif not option:
        if "--model" in options:
            hint = f"give a model with its option: `--model {unknown[0]}`"
    elif (others := _verbs_with(option)) and passes_to != THE_ROLE:
        hint = f"`{option}` is an option of {others}; for those of this one {help_of_verb}"
    elif passes_to:
        hint = f"options of {passes_to} go after `--`: `{verb} … -- {option}`; for others {help_of_verb}"
    return UsageError(f"{verb}: unrecognized arguments: {' '.join(unknown)}", hint=hint)
