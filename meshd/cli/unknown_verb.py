"""What to say of a command or option that meshd does not have: mistyped, of another program, or of a later
version.
"""

import difflib
from collections.abc import Collection, Sequence

from meshd.base.errors import UsageError

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


def unknown_options(
    verb: str, unknown: Sequence[str], options: Collection[str], *, passes_on: bool
) -> UsageError:
    """The error for arguments that the verb does not have. `passes_on`: it hands llama-server its options."""
    help_of_verb = f"run `{verb} --help`"
    option = next((one.partition("=")[0] for one in unknown if one.startswith("-")), "")
    near = difflib.get_close_matches(option, options, n=1, cutoff=0.75) if option else []
    hint = help_of_verb
    if near:
        hint = f"did you mean `{near[0]}`? All options: `{verb} --help`"
    elif option and passes_on:
        hint = f"options of llama-server go after `--`: `{verb} … -- {option}`; for others {help_of_verb}"
    return UsageError(f"{verb}: unrecognized arguments: {' '.join(unknown)}", hint=hint)
