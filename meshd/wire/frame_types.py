"""The types of frames: one frozen value for each, and their numbers.

Ids of streams are even when the session's leader opens them, odd when the follower does. Offsets count the
bytes of one direction of one stream from 0.
"""

from collections.abc import Mapping
from dataclasses import dataclass

HELLO, RESUME, OPEN, DATA, ACK, RESET, RESET_ACK = 0x81, 0x82, 0x83, 0x84, 0x85, 0x86, 0x87
MAX_DATA, LINK_ACK, PING, PONG, SWITCH, GOODBYE = 0x88, 0x89, 0x8A, 0x8B, 0x8C, 0x8D
LINK_LOST = 0x0E  # a hint: a peer that does not know it loses time, nothing else
CRITICAL = 0x80

MAX_METADATA_BYTES = 4 << 10  # packed service and metadata of Open
MAX_METADATA_ITEMS = 32
MAX_OFFSET = 1 << 62  # no honest stream comes near it, and sums of two stay within 64 bits


@dataclass(frozen=True, slots=True)
class HelloFrame:
    """First frame on a link, each way; belongs to the link and not to a session."""

    payload: bytes


@dataclass(frozen=True, slots=True)
class ResumeEntry:
    """One side's state of one live stream. Offsets in bytes of the direction they speak of."""

    stream_id: int
    received: int  # all bytes below it are here
    credit: int  # the peer may send up to this offset
    sent: int  # highest offset ever sent
    accepted: bool = False
    ended: bool = False  # the peer's fin is here
    eof: bool = False  # our fin has been written
    resetting: bool = False  # we reset it and wait for ResetAck


@dataclass(frozen=True, slots=True)
class Resume:
    """The first frame of a session on a link: all that the sender knows of its live streams."""

    max_data: int  # session credit, absolute
    opened: int  # lowest id that the sender has not opened yet
    seen: int  # lowest id of the receiver's that the sender has not seen yet
    streams: tuple[ResumeEntry, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """A new stream; `window` is what the receiver of this frame may send on it at once."""

    stream_id: int
    service: str
    metadata: Mapping[str, str | int | bytes]
    priority: int  # 0 interactive, 1 bulk
    window: int


@dataclass(slots=True)  # not frozen: one is made for every message, and that would take thrice as long
class Data:
    """Bytes of a stream from `offset` on; `fin`: nothing comes after them."""

    stream_id: int
    offset: int
    payload: bytes | memoryview
    fin: bool = False


@dataclass(frozen=True, slots=True)
class Ack:
    """Everything below `received` is here; the peer may send up to `credit` (absolute)."""

    stream_id: int
    received: int
    credit: int
    accepted: bool = False
    ended: bool = False


@dataclass(frozen=True, slots=True)
class Reset:
    """The stream is thrown away, both directions.

    `final` is the highest offset its sender ever sent, `received` the highest it ever received: with them
    both sides settle the session's credit to the same numbers.
    """

    stream_id: int
    code: int
    reason: str
    final: int
    received: int


@dataclass(frozen=True, slots=True)
class ResetAck:
    """The Reset is known here: no frame of this stream follows."""

    stream_id: int


@dataclass(frozen=True, slots=True)
class MaxData:
    """The session's credit: the sum of the highest offsets of all streams may reach it (absolute)."""

    credit: int


@dataclass(frozen=True, slots=True)
class LinkAck:
    """The bytes that came over this link since its Hello."""

    received: int


@dataclass(frozen=True, slots=True)
class Ping:
    """Asks for a Pong. The stamp stays with the sender, under `number`, where nobody can forge it."""

    number: int
    heard_ms: int  # since the sender last heard anything on this link
    hold: bool = False  # send no data on this link until a Ping without it (or a second has passed)


@dataclass(frozen=True, slots=True)
class Pong:
    """The answer to the Ping of that number."""

    number: int
    heard_ms: int


@dataclass(frozen=True, slots=True)
class Switch:
    """This link carries the data from now on; of two, the one with the higher sequence counts."""

    sequence: int


@dataclass(frozen=True, slots=True)
class LinkLost:
    """The follower has lost the link that this Switch chose."""

    sequence: int


@dataclass(frozen=True, slots=True)
class Goodbye:
    """The session ends on purpose."""

    code: int
    reason: str


Control = (
    Ack
    | LinkAck
    | MaxData
    | Open
    | Reset
    | ResetAck
    | Ping
    | Pong
    | Switch
    | LinkLost
    | Resume
    | Goodbye
    | HelloFrame
)
Frame = Data | Control
