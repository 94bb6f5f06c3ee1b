"""Messages of a question for capacity: what a node's devices could lend, how fast they are, and its paths.

Any member that may use workers opens a stream of service `capacity` and asks (AskCapacity); the node measures
what it has not measured before (Measuring, from time to time) and answers (Capacity). Nothing is reserved.
"""

import re
from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.lease import LEASE_ID_BYTES, OfferedDevice, device_row, read_device
from meshd.wire.limits import (
    MAX_ASKED_TENSORS,
    MAX_CAPACITY_PATHS,
    MAX_DEVICES,
    MAX_TEXT_BYTES,
    MAX_TIMED,
    MAX_TIMED_BYTES,
    PEER_BYTES,
)
from meshd.wire.message import Fields, pack, plain, unpack
from meshd.wire.needs import read_marks

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
_TIMED = re.compile(r"[0-9]{1,2}=[a-z0-9_:,]+")
_POINT = 3  # numbers of a TimedLayer


@dataclass(frozen=True, slots=True)
class TimedLayer:
    """One layer of a kind took so long for so many tokens at once. `kind`: its place in what was asked."""

    kind: int
    tokens: int
    nanoseconds: int


def checked_time(kind: int, tokens: int, nanoseconds: int) -> TimedLayer | None:
    """None for what no device says."""
    fits = 0 <= kind < MAX_TIMED and 1 <= tokens <= MAX_TIMED_TOKENS and 1 <= nanoseconds <= MAX_NANOSECONDS
    return TimedLayer(kind, tokens, nanoseconds) if fits else None


@dataclass(frozen=True, slots=True)
class AskCapacity:
    """`timed`: what layers compute (model/layer_work.py). `measure`: what was not measured before, is now.

    `recent`: the memory of devices does not matter, so they need not be listed for this. `spans`: how long
    this `lease` of the asker has computed from so many microseconds ago to so many microseconds ago. `marks`:
    which of these tensors (wire/needs.py) are here?
    """

    timed: tuple[str, ...] = ()
    measure: bool = False
    recent: bool = False
    lease: bytes = b""
    spans: tuple[tuple[int, int], ...] = ()
    marks: bytes = b""

    def encode(self) -> bytes:
        return pack(
            {
                "type": "ask",
                "timed": list(self.timed),
                "measure": self.measure,
                "recent": self.recent,
                "lease": self.lease,
                "spans": [list(span) for span in self.spans],
                "marks": self.marks,
            }
        )


@dataclass(frozen=True, slots=True)
class Measuring:
    """The node is still measuring: `text` says what."""

    text: str

    def encode(self) -> bytes:
        return pack({"type": "measuring", "text": plain(self.text)})


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """A device that could be lent, and the times of what was asked, as far as they are known."""

    device: OfferedDevice
    times: tuple[TimedLayer, ...] = ()


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """To another member: its id, the shortest round trip in microseconds, bytes a second (0: not known)."""

    peer: bytes
    rtt_us: int
    rate: int


@dataclass(frozen=True, slots=True)
class ComputedSpan:
    """In one of the spans that were asked for: microseconds, and results that left in it."""

    busy_us: int
    results: int


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer. `machine` as in WorkerOffer; `busy`: devices compute, so nothing new was measured.

    `cpu_share`: with so many thousandths of the processors that it may use its CPU computes; `core_set`: the
    same for nodes of a machine that may use the same ones, empty for all. `computed`: of each span that was
    asked for; nothing where there is no lease, or nobody knows. `lacks`: a bit for each of the marks, set
    where nothing of that content is here; nothing while that is not known.
    """

    devices: tuple[MeasuredDevice, ...]
    machine: str
    paths: tuple[MeasuredPath, ...] = ()
    busy: bool = False
    cpu_share: int = WHOLE_SHARE
    computed: tuple[ComputedSpan, ...] = ()
    core_set: str = ""
    lacks: bytes = b""

    def encode(self) -> bytes:
        return pack(
            {
                "type": "capacity",
                "devices": [device_row(one.device) for one in self.devices],
                "cards": [one.device.card for one in self.devices],
                "times": [[list(_numbers(time)) for time in one.times] for one in self.devices],
                "machine": self.machine,
                "paths": [[path.peer, path.rtt_us, path.rate] for path in self.paths],
                "busy": self.busy,
                "cpu_share": self.cpu_share,
                "computed": [[one.busy_us, one.results] for one in self.computed],
                "core_set": self.core_set,
                "lacks": self.lacks,
            }
        )


CapacityMessage = AskCapacity | Measuring | Capacity


def decode(data: bytes) -> CapacityMessage:
    """One message. Raises RemoteProtocolError."""
    fields = unpack(data)
    kind = fields.text("type", most=16)
    if kind == "ask":
        timed = fields.texts("timed", most=MAX_TIMED_BYTES, count=MAX_TIMED)
        if not all(_TIMED.fullmatch(text) for text in timed):  # they become arguments of a program
            raise RemoteProtocolError("field `timed` has an invalid layer", code="message")
        measure, recent = (fields.flag(name, default=False) for name in ("measure", "recent"))
        lease = fields.raw("lease", most=LEASE_ID_BYTES, default=b"")
        return AskCapacity(timed, measure, recent, lease, _spans(fields), read_marks(fields))
    if kind == "measuring":
        return Measuring(fields.text("text", most=MAX_TEXT_BYTES))
    if kind == "capacity":
        return _capacity(fields)
    raise RemoteProtocolError(f"capacity message of unknown type `{kind}`", code="message")


def _numbers(time: TimedLayer) -> tuple[int, int, int]:
    return time.kind, time.tokens, time.nanoseconds


def _capacity(fields: Fields) -> Capacity:
    rows = fields.lists("devices", count=MAX_DEVICES)
    cards = fields.texts("cards", most=64, count=MAX_DEVICES)
    times = fields.lists("times", count=MAX_DEVICES)
    if not len(rows) == len(cards) == len(times):
        raise RemoteProtocolError("`devices`, `cards` and `times` must be of one length", code="message")
    devices = tuple(
        MeasuredDevice(read_device(row, card), _times(own))
        for row, card, own in zip(rows, cards, times, strict=True)
    )
    if len({one.device.name for one in devices}) != len(devices):
        raise RemoteProtocolError("field `devices` names a device twice", code="message")
    paths = tuple(_path(row) for row in fields.lists("paths", count=MAX_CAPACITY_PATHS))
    return Capacity(
        devices,
        fields.text("machine", most=64),
        paths,
        fields.flag("busy", default=False),
        fields.number("cpu_share", low=1, high=WHOLE_SHARE),
        tuple(ComputedSpan(*pair) for pair in _pairs(fields, "computed")),
        fields.text("core_set", most=CORE_SET_LETTERS) if "core_set" in fields else "",
        fields.raw("lacks", most=MAX_ASKED_TENSORS // 8, default=b""),
    )


def _spans(fields: Fields) -> tuple[tuple[int, int], ...]:
    spans = _pairs(fields, "spans")
    if not all(begin >= end for begin, end in spans):
        raise RemoteProtocolError("field `spans` has one that ends before it begins", code="message")
    return spans


def _pairs(fields: Fields, name: str) -> tuple[tuple[int, int], ...]:
    """Who does not have the field is of an earlier version."""
    found: list[tuple[int, int]] = []
    for row in fields.lists(name, count=MAX_SPANS) if name in fields else []:
        match row:
            case [int(one), int(two)] if not (isinstance(one, bool) or isinstance(two, bool)):
                if 0 <= one <= MAX_SPAN_US and 0 <= two <= MAX_SPAN_US:
                    found.append((one, two))
                    continue
        raise RemoteProtocolError(f"field `{name}` has an invalid pair", code="message")
    return tuple(found)


def _times(rows: list[object]) -> tuple[TimedLayer, ...]:
    if len(rows) > MAX_TIMED * MAX_POINTS:
        raise RemoteProtocolError("field `times` has too many entries", code="message")
    found = []
    for row in rows:
        is_point = isinstance(row, list) and len(row) == _POINT and all(type(item) is int for item in row)
        time = checked_time(*row) if is_point and isinstance(row, list) else None
        if time is None:
            raise RemoteProtocolError("field `times` has an invalid time", code="message")
        found.append(time)
    if len({(time.kind, time.tokens) for time in found}) != len(found):
        raise RemoteProtocolError("field `times` has two times for one number of tokens", code="message")
    return tuple(found)


def _path(row: list[object]) -> MeasuredPath:
    match row:
        case [bytes(peer), int(rtt), int(rate)] if not (isinstance(rtt, bool) or isinstance(rate, bool)):
            if len(peer) == PEER_BYTES and 0 <= rtt <= _MOST_RTT_US and 0 <= rate <= _MOST_RATE:
                return MeasuredPath(peer, rtt, rate)
    raise RemoteProtocolError("field `paths` has an invalid path", code="message")
