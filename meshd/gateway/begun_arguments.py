"""The arguments of a call of a tool as far as they came: an object in JSON that may end anywhere. Pure."""

import json
import re
from dataclasses import dataclass, field

# possessive, else each letter would be remembered, to go back to
_WHOLE_LETTERS = re.compile(r'(?:[^\\"]+|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+')
_NUMBER = re.compile(r"[-+.0-9eE]+")  # as far as it came: `0.` is none yet
_SPACE = re.compile(r"\s*")
_decoder = json.JSONDecoder(strict=False)


@dataclass(frozen=True, slots=True)
class BegunArgument:
    """`value`: its JSON, the last one's up to where it came."""

    name: str
    value: str

    @property
    def is_text(self) -> bool:
        return self.value.startswith('"')

    @property
    def is_whole(self) -> bool:
        try:
            return _decoder.raw_decode(self.value)[1] == len(self.value)
        except ValueError:
            return False

    @property
    def text(self) -> str:
        """What a text says so far."""
        return _letters(self.value[1:])


@dataclass(slots=True)
class BegunArguments:
    """`next_name`: how the name of the next one begins. `is_closed`: nothing is added to the last value."""

    arguments: list[BegunArgument] = field(default_factory=list)
    next_name: str | None = None
    is_closed: bool = True


def begun_arguments(text: str) -> BegunArguments | None:
    """None where that is no beginning of an object."""
    found, at = BegunArguments(), _behind_space(text, 0)
    if at == len(text):
        return found
    if text[at] != "{":
        return None
    at = _behind_space(text, at + 1)
    while at < len(text) and text[at] != "}":
        try:
            read = _read_one(text, at, found)
        except (ValueError, RecursionError):
            return None
        at = _behind_space(text, read)
        if at < len(text) and text[at] == ",":
            at = _behind_space(text, at + 1)
            found.is_closed, found.next_name = True, "" if at == len(text) else None
        elif at < len(text) and text[at] == "}":
            found.is_closed = True
        elif at < len(text):
            return None
    return found


def _read_one(text: str, at: int, found: BegunArguments) -> int:
    """Returns where it ends. Raises ValueError."""
    if text[at] != '"':
        raise ValueError("a name begins with a quotation mark")
    try:
        name, at = _decoder.raw_decode(text, at)
    except ValueError:
        found.next_name = _letters(text[at + 1 :])
        return len(text)
    at = _behind_space(text, at)
    if at < len(text):
        if text[at] != ":":
            raise ValueError("a name is followed by a colon")
        at = _behind_space(text, at + 1)
    if at == len(text):  # how its value is written can depend on what it is
        found.next_name, found.is_closed = name, True
        return at
    end = _end_of_value(text, at)
    argument = BegunArgument(name, text[at:end])
    found.arguments.append(argument)
    found.is_closed = argument.is_text and argument.is_whole  # a number can have more digits
    return end


def _end_of_value(text: str, at: int) -> int:
    if (number := _NUMBER.match(text, at)) is not None:
        return number.end()
    try:
        return _decoder.raw_decode(text, at)[1]
    except ValueError:
        return len(text)


def _letters(escaped: str) -> str:
    """Of a text without its first quotation mark, up to an escape sequence that is not whole."""
    whole = _WHOLE_LETTERS.match(escaped)
    found: str = json.loads(f'"{whole[0] if whole is not None else ""}"', strict=False)
    return found[:-1] if "\ud800" <= found[-1:] <= "\udbff" else found  # of two that are one letter


def _behind_space(text: str, at: int) -> int:
    space = _SPACE.match(text, at)
    return at if space is None else space.end()
