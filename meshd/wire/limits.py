"""Limit what crosses the wire: sizes, each with its origin, and annotations for the fields of messages.

A message declares by annotations what its fields may hold; codec.py reads and writes by them:

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

MAX_FRAME_BYTES = 256 << 10  # payload of one frame; 256 KiB is where a bare TLS pump stops getting faster
MAX_CONTROL_BYTES = 64 << 10  # payload of a control frame (hello, open, resume …)
MAX_UNPROVEN_BYTES = 4 << 10  # what a connection may send before it has proven who it is
MAX_STREAMS = 1024  # open streams of one session; llama.cpp uses some dozens
MAX_TEXT_BYTES = 1024  # any human text from a peer (reason, hint)
MAX_NAME_BYTES = 64  # a node's name, a service's name
MAX_TAG_BYTES = 16  # the word that says what a message is
PEER_BYTES = 32  # a node's id, which is its public key
MAX_CHAIN_BYTES = 1536  # the certificates by which a node is a member
MAX_TIME = 1 << 40  # unix seconds, far behind any clock
MAX_DEVICES = 16  # of one worker
MAX_OPERATIONS = 64  # of one trial of a device: real models need 15 to 40
MAX_TIMED = 8  # kinds of layers whose time on a device is asked for
MAX_TIMED_BYTES = 2048  # of one: the operations of a layer
MAX_CAPACITY_PATHS = 64  # to other members that a node tells of
MAX_MODELS_TOLD = 512  # models that one member tells of
MAX_MODEL_ROWS = 32  # of them in one message
MAX_MODEL_NAMES = 4  # names of one model
MAX_MODEL_NAME_BYTES = 255  # of one: a file's name, or one with a scheme
MAX_MODEL_FILES = 512  # shards of one model
MAX_GIVEN_BYTES = 1 << 40  # of one model: the largest published ones have a fifth
MAX_DISK_BYTES = 1 << 60  # that a member may say are free
MAX_MODEL_PIECES = (MAX_GIVEN_BYTES >> 22) + MAX_MODEL_FILES  # its 4 MiB each, and the rests of its files
MAX_PIECE_HASHES = 1024  # hashes in one message
MAX_SERVED_MODELS = 32  # models of one head's API
MAX_SERVED_ALIASES = 4  # further names of one of them
MAX_SERVED_CAPABILITIES = 8  # words of one of them
MAX_SERVED_CONTEXT = 1 << 24  # tokens, as of `--ctx-size`
MAX_SERVED_REASON_BYTES = 256  # why one of them takes no requests
MAX_API_SLOTS = 65_535  # requests that a head counts for one model
MAX_ASKED_TENSORS = 4096  # of a model, by their marks in one question; models with more are sent by the head
MAX_NEEDED_ROWS = 1024  # tensors of a worker's part in one message
MAX_NEIGHBOUR = 65_535  # number of a worker that another one sends to
MAX_CANDIDATES = 32  # addresses of one peer
MAX_RECORD_BYTES = 4 << 10  # a signed record of a node
MAX_BAN_BYTES = 3 << 10  # a signed ban; one by an inviter with its evidence has about 1100
MAX_SEQUENCE = (1 << 62) - 1  # of a node's record, and so of what is said of its life
MAX_NESTING = 8  # depth of a msgpack value
MAX_ITEMS = 4096  # entries of one msgpack list or map


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
