"""The errors for a command or option that meshd does not have: mistyped, of another program, or of a later
version.
"""

import difflib
import re
from collections.abc import Collection, Sequence

from meshd.base.errors import UsageError, UserError
from meshd.config.removed import IS_GONE, instead_of_option

_LEAST_BEGINNING = 5  # letters of an option, with its dashes, to be taken for the beginning of a longer one
# an argument that begins like an invite or a reply code, its option included where `=` joins them
_PASTED = re.compile(r"(?:--[a-z-]+=)?[\"'`<]*(meshd(?:reply)?[0-9].*)", re.IGNORECASE | re.DOTALL)
NOT_HERE = "not in this version"
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


# options of a later version, by verb and option, and what to do until then
LATER_OPTIONS = {("meshd invite", "--qr"): "copy the invite, or send it as a file for `--join @FILE`"}


def unknown_verb(name: str, verbs: Collection[str], later: Collection[str]) -> UsageError:
    """Return the error, with what may have been meant as its hint."""
    if name in later:
        return UsageError(f"`meshd {name}` is {NOT_HERE}", hint="run `meshd --help` for the list")
    if name.startswith("-"):
        near = difflib.get_close_matches(name, ["--help", "--version"], n=1, cutoff=0.75)
        hint = f"did you mean `{near[0]}`?" if near else "put a command first; `meshd --help` lists them"
        return UsageError(f"unknown option `{name}`", hint=hint)
    if name in LIKE_OTHERS:
        return UsageError(f"unknown command `{name}`", hint=f"try `meshd {LIKE_OTHERS[name]}`")
    near = difflib.get_close_matches(name, verbs, n=1)
    hint = f"try `meshd {near[0]}`" if near else "run `meshd --help` for the list"
    return UsageError(f"unknown command `{name}`", hint=hint)


def unknown_choice(verb: str, option: str, value: str, choices: Sequence[str]) -> UsageError:
    """Return the error for an action that the verb does not have, or for a value that its option does not
    take.
    """
    near = difflib.get_close_matches(value, choices, n=1)
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
    near = [key for key in known if key.endswith(f".{name}")] or difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean `{near[0]}`?" if near else "run `meshd config show` to list all keys"
    return UsageError(f"cannot use `--set {name[:64]}=…`: there is no such setting", hint=hint)


def unknown_options(
    verb: str, argv: Sequence[str], unknown: Sequence[str], options: Collection[str], *, passes_on: bool
) -> UsageError:
    """Return the error for the arguments in `argv` that the verb does not have.

    `passes_on`: it hands llama-server its options.
    """
    # A pasted token in pieces, or an option that is gone or still to come.
    if (misplaced := _misplaced_paste(verb, argv, unknown, options)) is not None:
        return misplaced
    for option in (word.partition("=")[0] for word in unknown if word.startswith("--")):
        if until_then := LATER_OPTIONS.get((verb, option)):
            return UsageError(f"`{option}` is {NOT_HERE}", hint=until_then)
        if instead := instead_of_option(verb.removeprefix("meshd "), option):
            return UsageError(f"`{option}` of `{verb}` {IS_GONE}", hint=instead)
    # Else the nearest option of this verb, or a verb that has it.
    help_of_verb = f"run `{verb} --help`"
    option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), "")
    near = difflib.get_close_matches(option, options, n=1, cutoff=0.75) if option else []
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
    elif others := _verbs_with(option):
        hint = f"`{option}` is an option of {others}; for those of this one {help_of_verb}"
    elif passes_on:
        hint = f"options of llama-server go after `--`: `{verb} … -- {option}`; for others {help_of_verb}"
    return UsageError(f"{verb}: unrecognized arguments: {' '.join(unknown)}", hint=hint)
