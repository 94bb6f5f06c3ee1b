"""The Dockerfile, read by stages."""

import re
import shlex
from dataclasses import dataclass, field

from tests.rules.source import ROOT


@dataclass(slots=True)
class Stage:
    """From one FROM to the next; `steps` are (instruction, text) in their order."""

    base: str
    name: str
    steps: list[tuple[str, str]] = field(default_factory=list)

    def texts(self, instruction: str) -> list[str]:
        return [text for word, text in self.steps if word == instruction]

    def env(self) -> dict[str, str]:
        """As it is at the end."""
        return {name: value for text in self.texts("ENV") for name, value in _pairs(text).items()}


def _pairs(text: str) -> dict[str, str]:
    return dict(pair.partition("=")[::2] for pair in shlex.split(text))


def stages(text: str) -> list[Stage]:
    """All of a Dockerfile."""
    plain = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", " ")
    found: list[Stage] = []
    for line in filter(None, map(str.strip, plain.splitlines())):
        word, rest = line.split(None, 1)
        if word == "FROM":
            base, *named = rest.split()
            found.append(Stage(base, named[1] if named else str(len(found))))
        else:
            found[-1].steps.append((word, rest))
    return found


def read() -> list[Stage]:
    """The project's."""
    return stages((ROOT / "Dockerfile").read_text(encoding="utf-8"))
