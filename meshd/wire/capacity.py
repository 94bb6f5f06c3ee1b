"""Messages of a question for capacity: what a node's devices could lend, how fast they are, and its paths.

Any member that may use workers opens a stream of service `capacity` and asks (AskCapacity); the node measures
what it has not measured before (Measuring, from time to time) and answers (Capacity). Nothing is reserved.
"""

import re
from dataclasses import dataclass
from typing import Annotated

from meshd.wire.codec import Family, Message
from meshd.wire.lease import (
    LEASE_ID_BYTES,
    Cards,
    DeviceRows,
    Lacks,
    Machine,
    Marks,
    OfferedDevice,
    with_cards,
)
from meshd.wire.limits import (
    MAX_CAPACITY_PATHS,
    MAX_DEVICES,
    MAX_TIMED,
    MAX_TIMED_BYTES,
    NEEDED,
    OR_NULL,
    ROW,
    AtMost,
    Between,
    Check,
    Items,
    Misfit,
    NodeId,
    Prose,
    Spread,
    Text,
)

CAPACITY_SERVICE = "capacity"
MAX_TIMED_TOKENS = 4096
MAX_NANOSECONDS = 10**12
MAX_POINTS = 8  # numbers of tokens with which one kind is timed
CORE_SET_LETTERS = 16
WHOLE_SHARE = 1000
MAX_SPANS = 4
MAX_SPAN_US = 86_400_000_000  # a day
_MOST_RTT_US = 60_000_000
_MOST_RATE = 1 << 50
PathBits = Annotated[bytes, AtMost(MAX_CAPACITY_PATHS // 8)]  # a bit for each path
_TIMED = re.compile(r"[0-9]{1,2}=[a-z0-9_:,]+")  # they become arguments of a program
_SpanUs = Annotated[int, Between(0, MAX_SPAN_US)]


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """The time of one layer of a kind for so many tokens at once. `kind`: its place in the request."""

    kind: Annotated[int, Between(0, MAX_TIMED - 1)]
    tokens: Annotated[int, Between(1, MAX_TIMED_TOKENS)]
    nanoseconds: Annotated[int, Between(1, MAX_NANOSECONDS)]


def checked_time(kind: int, tokens: int, nanoseconds: int) -> TimedLayer | None:
    """Return the timed layer, or None if a value is out of range."""
    fits = 0 <= kind < MAX_TIMED and 1 <= tokens <= MAX_TIMED_TOKENS and 1 <= nanoseconds <= MAX_NANOSECONDS
    return TimedLayer(kind, tokens, nanoseconds) if fits else None


@dataclass(frozen=True, slots=True)
class AskCapacity(Message, tag="ask"):
    """A request for capacity. `timed`: what layers compute (model/layer_work.py). `measure`: measure now what
    was not measured before.

    `recent`: the memory of devices does not matter, so they need not be listed for this. `spans`: how long
    this `lease` of the asker has computed from so many microseconds ago to so many microseconds ago. `marks`:
    which of these tensors (wire/lease.py) are here?
    """

    timed: Annotated[
        tuple[Annotated[str, Text(MAX_TIMED_BYTES, pattern=_TIMED)], ...], Items(MAX_TIMED), NEEDED
    ] = ()
    measure: bool = False
    recent: bool = False
    lease: Annotated[bytes, AtMost(LEASE_ID_BYTES)] = b""
    spans: Annotated[
        tuple[tuple[_SpanUs, _SpanUs], ...],
        Items(MAX_SPANS),
        Check(lambda spans: all(begin >= end for begin, end in spans), "spans that begin before they end"),
        OR_NULL,
    ] = ()
    marks: Marks = b""


@dataclass(frozen=True, slots=True)
class Measuring(Message, tag="measuring"):
    """The node is still measuring: `text` says what."""

    text: Prose


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device that could be lent, and the requested times, as far as they are known."""

    device: OfferedDevice
    times: tuple[TimedLayer, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """A path: the other member's id, the shortest round trip in microseconds, bytes a second (0: unknown)."""

    peer: NodeId
    rtt_us: Annotated[int, Between(0, _MOST_RTT_US)]
    rate: Annotated[int, Between(0, _MOST_RATE)]


@dataclass(frozen=True, slots=True)
class ComputedSpan:
    """The work in one of the requested spans: microseconds, and results that left in it."""

    busy_us: _SpanUs
    results: _SpanUs


_Times = Annotated[
    tuple[
        Annotated[
            tuple[Annotated[TimedLayer, ROW], ...],
            Items(MAX_TIMED * MAX_POINTS),
            Check(
                lambda times: len({(time.kind, time.tokens) for time in times}) == len(times),
                "a list with one time for each number of tokens",
            ),
        ],
        ...,
    ],
    Items(MAX_DEVICES),
]


def _columns(devices: tuple[MeasuredDevice, ...]) -> tuple[list[object], ...]:
    return (
        [measured.device for measured in devices],
        [measured.device.card for measured in devices],
        [measured.times for measured in devices],
    )


def _measured(
    rows: tuple[OfferedDevice, ...], cards: tuple[str, ...], times: tuple[tuple[TimedLayer, ...], ...]
) -> tuple[MeasuredDevice, ...] | Misfit:
    devices = with_cards(rows, cards)
    if isinstance(devices, Misfit):
        return devices
    if len(times) != len(devices):
        return Misfit("times", "a list with an entry for each device")
    return tuple(MeasuredDevice(device, own) for device, own in zip(devices, times, strict=True))


@dataclass(frozen=True, slots=True)
class Capacity(Message, tag="capacity"):
    """The reply. `machine` as in WorkerOffer. `busy`: devices compute, or did a moment ago, so not all were
    measured.

    `cpu_share`: the share of its usable cores, in thousandths, with which its CPU computes; `core_set`: the
    same for nodes of a machine that may use the same ones, empty for all. `computed`: of each span that was
    asked for; nothing where there is no lease, or nobody knows. `lacks`: a bit for each of the marks, set
    where nothing of that content is here; nothing while that is not known. `sealable`: a bit for each of
    `paths`, set where mesh-servers could exchange sealed data past both daemons, as this node sees it.
    `wireless`: such bits, set where the path leaves this machine over Wi-Fi.
    """

    devices: Annotated[
        tuple[MeasuredDevice, ...],
        Spread((("devices", DeviceRows), ("cards", Cards), ("times", _Times)), _columns, _measured),
    ]
    machine: Machine
    paths: Annotated[tuple[Annotated[MeasuredPath, ROW], ...], Items(MAX_CAPACITY_PATHS), NEEDED] = ()
    busy: bool = False
    cpu_share: Annotated[int, Between(1, WHOLE_SHARE), NEEDED] = WHOLE_SHARE
    computed: Annotated[tuple[Annotated[ComputedSpan, ROW], ...], Items(MAX_SPANS), OR_NULL] = ()
    core_set: Annotated[str, Text(CORE_SET_LETTERS), OR_NULL] = ""
    lacks: Lacks = b""
    sealable: PathBits = b""
    wireless: PathBits = b""


CapacityMessage = AskCapacity | Measuring | Capacity


_CAPACITY: Family[CapacityMessage] = Family("capacity", CapacityMessage)


def decode(data: bytes) -> CapacityMessage:
    """Read one message. Raises RemoteProtocolError."""
    return _CAPACITY.decode(data)
