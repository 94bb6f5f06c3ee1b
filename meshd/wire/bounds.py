"""Annotations by which a message declares what its fields may hold; codec.py reads and writes by them.

    @dataclass(frozen=True, slots=True)
    class Grant(Message, tag="grant"):
        lease_id: Annotated[bytes, Size(16)]
        compressed: Annotated[int, Between(0, 7)] = 0

A field with a default may be left out by the sender (an earlier version does not know it), unless NEEDED.
"""

import re
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Annotated, NamedTuple

from meshd.wire.limits import MAX_NAME_BYTES, MAX_TEXT_BYTES, PEER_BYTES


class Between(NamedTuple):
    """A number from `low` to `high`; one to be sent is moved there if `clamp`."""

    low: float
    high: float
    clamp: bool = False


class Text(NamedTuple):
    """Printable text of `least` to `most` bytes of UTF-8, or of as many letters; all of it must match
    `pattern`.

    Text to be sent is cut off, and made printable, if `cut`: a message must not be refused for its words.
    """

    most: int
    least: int = 0
    cut: bool = False
    pattern: re.Pattern[str] | None = None
    in_letters: bool = False


class Size:
    """Bytes of exactly one of these sizes."""

    __slots__ = ("sizes",)

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes


class AtMost(NamedTuple):
    """Bytes: `least` to `most` of them, in whole pieces of `step`."""

    most: int
    least: int = 0
    step: int = 1


class Items(NamedTuple):
    """A list with `least` to `most` entries; those beyond are not sent if `cut`."""

    most: int
    least: int = 0
    cut: bool = False


class Check(NamedTuple):
    """A value that must satisfy `holds`; `expected` ends the sentence "the field must be …"."""

    holds: Callable[..., bool]
    expected: str


class As(NamedTuple):
    """The field crosses as `wire`, an annotation of its own; `read` may raise RemoteProtocolError."""

    wire: object
    write: Callable[..., object]
    read: Callable[..., object]


class Spread(NamedTuple):
    """The field crosses as several, each with a name and an annotation.

    `write` makes a value for each of them. `read` takes as many, and returns a Misfit if they do not belong
    together; a part that may be None may be missing.
    """

    parts: tuple[tuple[str, object], ...]
    write: Callable[..., Iterable[object]]
    read: Callable[..., object]


class Misfit(NamedTuple):
    """The reason why `Spread.read` rejects values: the field `name` must be `expected`."""

    name: str
    expected: str


class Name(NamedTuple):
    """The field's name on the wire, where it differs; it stands there before the field `before`."""

    wire: str
    before: str = ""


class Otherwise(NamedTuple):
    """A value that stands for a missing field, where the class itself has no default."""

    default: object


class Mark(Enum):
    """The marks without a parameter, exported below."""

    NEEDED = "needed"
    OR_NULL = "or_null"
    OMIT = "omit"
    ROW = "row"
    BESIDE = "beside"
    INLINE = "inline"


NEEDED = Mark.NEEDED  # the default is for those that build the message: on the wire the field must be there
OR_NULL = Mark.OR_NULL  # null stands for the default
OMIT = Mark.OMIT  # None is not sent at all
ROW = Mark.ROW  # a dataclass crosses as the list of its fields, not as a map
BESIDE = Mark.BESIDE  # not in a ROW: the field crosses elsewhere, and has its default until it is put in
INLINE = Mark.INLINE  # the fields of a dataclass stand among those of the message

NodeId = Annotated[bytes, Size(PEER_BYTES)]
ShortName = Annotated[str, Text(MAX_NAME_BYTES)]
Prose = Annotated[str, Text(MAX_TEXT_BYTES, cut=True)]  # for people: reasons, hints, progress
