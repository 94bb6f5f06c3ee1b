"""The description of one setting: its name, how it can be set, and which roles have it."""

from dataclasses import dataclass

from meshd.config.forms import Form

COMMON_SECTIONS = frozenset({"node", "log", "native", "links", "paths"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One setting: where it stands in the tree and in the file, and by which other ways it is given.

    `switch`: the option takes no value. `repeat`: it may be given several times. `needed`: its verb cannot
    start without. `secret`: its value is never shown. `names_files`: some of its words may be relative paths,
    which become absolute. `names_models`: a word that is a file there is that file, else a name.
    `list_separator` divides a variable's value.

    For people: `help` is a phrase, `more` sentences for the file, `default` says in words what holds without
    it (else the tree's value is shown), `example` is a value in TOML where the tree has none to show.
    docs/config.md and configs/meshd.example.toml are made from these (`make reference`).
    """

    section: str
    field: str
    form: Form
    help: str
    more: str = ""
    default: str = ""
    example: str = ""
    option: str = ""
    env: str = ""
    metavar: str = ""
    repeat: bool = False
    switch: bool = False
    needed: bool = False
    secret: bool = False
    names_files: bool = False
    names_models: bool = False
    in_file: bool = True
    list_separator: str = ""

    @property
    def is_common(self) -> bool:
        """Whether every daemon has it; else the section is named for the one verb that does."""
        return self.section in COMMON_SECTIONS

    def is_for(self, role: str) -> bool:
        """Whether the verb `role` has it."""
        return self.is_common or self.section == role

    @property
    def name(self) -> str:
        """`section.field`, as in the file and in `meshd config show`."""
        return f"{self.section}.{self.field}"

    @property
    def variable(self) -> str:
        """The environment's name for it: the option's in capitals, unless there is no option."""
        if self.env or not self.option:
            return self.env
        return "MESHD_" + self.option.removeprefix("--").replace("-", "_").upper()
