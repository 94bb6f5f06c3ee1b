"""The declaration of one setting: everything about it but the type and the default, which its field has.

The display of settings: the default in words, a value in TOML, and which the example has.
"""

import json
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, replace
from pathlib import Path

from meshd.config.forms import BOOLEAN, Form, HostPort

OF_ITS_FIELD = "--"
COMMON_SECTIONS = frozenset({"node", "log", "native", "links", "paths"})
Plain = None | bool | int | float | str | Sequence["Plain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, as the annotation of a dataclass's field: `slots: Annotated[int, Setting(...)] = 4`.

    `option`: empty for none; omitted, it has the field's name, unless only a variable (`env`) is given.
    `repeat`: the option may be given several times. `needed`: its verb cannot start without. `secret`: its
    value is never shown. `names_files`: some of its words may be relative paths, which become absolute.
    `names_models`: a word that is a file there is that file, else a name.

    For people: `help` is a phrase, `more` are sentences for the file, `default` says in words what holds
    without the setting (else `value` is shown), `example` is a value in TOML where there is no default to
    show. `make reference` writes docs/config.md, configs/meshd.example.toml and the synopses of docs/cli.md.

    `section`, `field` and `value` (the field's default; None where it depends on the machine) come from the
    place of the declaration: see `settings_of`.
    """

    form: Form
    help: str
    more: str = ""
    default: str = ""
    example: str = ""
    option: str = OF_ITS_FIELD
    env: str = ""
    metavar: str = ""
    repeat: bool = False
    needed: bool = False
    secret: bool = False
    names_files: bool = False
    names_models: bool = False
    in_file: bool = True
    section: str = ""
    field: str = ""
    value: object = None

    @property
    def is_common(self) -> bool:
        """True if every daemon has it; else the section is named after the one verb that does."""
        return self.section in COMMON_SECTIONS

    def is_for(self, role: str) -> bool:
        """Return True if the verb `role` has it."""
        return self.is_common or self.section == role

    @property
    def is_switch(self) -> bool:
        """True if its option takes no value."""
        return bool(self.option) and self.form is BOOLEAN

    @property
    def name(self) -> str:
        """The key `section.field`, as in the file and in `meshd config show`."""
        return f"{self.section}.{self.field}"

    @property
    def variable(self) -> str:
        """The environment's name: the option's in capitals, unless there is no option."""
        if self.env or not self.option:
            return self.env
        return "MESHD_" + self.option.removeprefix("--").replace("-", "_").upper()


def settings_of(table: type, section: str) -> tuple[Setting, ...]:
    """Return the settings that a dataclass declares, in the order of its fields, each with its place."""
    return tuple(
        replace(
            setting,
            section=section,
            field=item.name,
            option=_option_of(setting, item.name),
            value=None if item.default is MISSING else item.default,
        )
        for item in fields(table)
        for setting in getattr(item.type, "__metadata__", ())
        if isinstance(setting, Setting)
    )


def _option_of(setting: Setting, field: str) -> str:
    """Return the option that is declared, else the field's name, unless there is only a variable."""
    if setting.option != OF_ITS_FIELD:
        return setting.option
    return "" if setting.env else f"--{field.replace('_', '-')}"


def plain(value: object) -> Plain:
    """Return a value of the tree as JSON and TOML know it. Raises TypeError."""
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path | HostPort):
        return str(value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not a possible value of a setting")


def toml(value: object) -> str:
    """Return a TOML basic string, array or number, which is written as in JSON."""
    return json.dumps(plain(value), ensure_ascii=False)


def default_words(setting: Setting) -> str:
    """Return the default for `--help`; empty where there is nothing to say: no value, a switch, a list."""
    value = setting.value
    has_word = isinstance(value, str | int) and not isinstance(value, bool)
    return setting.default or (str(value) if has_word else "")


def help_of(setting: Setting) -> str:
    """Return the help with the default."""
    words = default_words(setting)
    return setting.help + (f" (default: {words})" if words else "")
