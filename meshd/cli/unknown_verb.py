"""What to say of a command or option that meshd does not have: mistyped, of another program, or of a later
version.
"""

import difflib
from collections.abc import Collection, Sequence

from meshd.base.errors import UsageError

_LEAST_BEGINNING = 5  # letters of an option, with its dashes, to be taken for the beginning of a longer one
NOT_HERE = "not in this version"
# verbs of other programs for models, and what does the same here
LIKE_OTHERS = {
    "chat": "serve",
    "join": "worker --join TOKEN",
    "list": "model ls",
    "ls": "model ls",
    "ps": "status",
    "pull": "model pull NAME",
    "rm": "model rm NAME",
    "run": "serve --model FILE|NAME",
    "show": "model show NAME",
    "start": "worker",
}


def unknown_verb(name: str, verbs: Collection[str], later: Collection[str]) -> UsageError:
    """The error, with what may have been meant as its hint."""
    if name in later:
        return UsageError(f"`meshd {name}` is {NOT_HERE}", hint="run `meshd --help` for the list")
    if name.startswith("-"):
        return UsageError(f"unknown option `{name}`", hint="put a command first; `meshd --help` lists them")
    if name in LIKE_OTHERS:
        return UsageError(f"unknown command `{name}`", hint=f"try `meshd {LIKE_OTHERS[name]}`")
    near = difflib.get_close_matches(name, verbs, n=1)
    hint = f"try `meshd {near[0]}`" if near else "run `meshd --help` for the list"
    return UsageError(f"unknown command `{name}`", hint=hint)


def unknown_choice(verb: str, option: str, value: str, choices: Sequence[str]) -> UsageError:
    """The error for an action that the verb does not have, or for a value that its option does not take."""
    near = difflib.get_close_matches(value, choices, n=1)
    if option:
        expected = f"expected one of {', '.join(choices)}"
        hint = f"did you mean `{option} {near[0]}`?" if near else f"run `{verb} --help`"
        return UsageError(f"cannot use `{option} {value}`: {expected}", hint=hint)
    hint = f"did you mean `{verb} {near[0]}`?" if near else f"choose one of {', '.join(choices)}"
    return UsageError(f"`{verb}` has no `{value}`", hint=hint)


def _verbs_with(option: str) -> str:
    """The daemons that have this option, as a phrase; empty if none has."""
    from meshd.config.keys import KEYS

    verbs = [f"`meshd {key.section}`" for key in KEYS if key.option == option and not key.is_common]
    if option and any(key.option == option and key.is_common for key in KEYS):
        verbs = ["`meshd worker`", "`meshd serve`", "`meshd client`"]
    return " and ".join(verbs) if len(verbs) < 3 else f"{', '.join(verbs[:-1])} and {verbs[-1]}"


def unknown_options(
    verb: str, unknown: Sequence[str], options: Collection[str], *, passes_on: bool
) -> UsageError:
    """The error for arguments that the verb does not have. `passes_on`: it hands llama-server its options."""
    help_of_verb = f"run `{verb} --help`"
    option = next((one.partition("=")[0] for one in unknown if one.startswith("-")), "")
    near = difflib.get_close_matches(option, options, n=1, cutoff=0.75) if option else []
    if not near and len(option) >= _LEAST_BEGINNING:
        near = [one for one in options if one.startswith(f"{option}-")]
    hint = help_of_verb
    if near:
        hint = f"did you mean `{near[0]}`? All options: `{verb} --help`"
    elif others := _verbs_with(option):
        hint = f"`{option}` is an option of {others}; for those of this one {help_of_verb}"
    elif option and passes_on:
        hint = f"options of llama-server go after `--`: `{verb} … -- {option}`; for others {help_of_verb}"
    return UsageError(f"{verb}: unrecognized arguments: {' '.join(unknown)}", hint=hint)
