"""Messages of a lease: one head's use of one worker, over a stream of service `lease`.

The head opens the stream and asks (Acquire); the worker says what it could lend (Offer); the head plans and
takes a part (Reserve); the worker starts a mesh-server held to that (Grant). Progress may come before any
answer, Lost at any time. Once its model is loaded the head says so (Loaded): no weights come then.

With the id in the offer the head need not wait for the grant: streams that name it wait at the worker until
the mesh-server is there. Then all of Reserve, Admit, Neighbour and the first requests cross together.

Weights that members can give are taken from them before the grant: wire/needs.py.

Workers that send to one another directly are introduced by the head: the one that takes the stream is told
from whom (Admit), the one that opens it to whom (Neighbour), and says what came of it (Reached). The head
says when it has named all (Introduced), for which their servers wait.
The lease lives exactly as long as the stream: ended, reset or lost, it is over.

Over 350 lines: it is one conversation, message by message.
"""

import re
from dataclasses import dataclass, replace

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import (
    MAX_ASKED_TENSORS,
    MAX_DEVICES,
    MAX_NAME_BYTES,
    MAX_NEIGHBOUR,
    MAX_OPERATIONS,
    MAX_TEXT_BYTES,
    PEER_BYTES,
)
from meshd.wire.message import Fields, pack, plain, unpack
from meshd.wire.needs import Begin, Fetched, Needs, read_fetched, read_marks, read_needs

LEASE_SERVICE = "lease"
RPC_SERVICE = "rpc"
PUSH_SERVICE = "push"  # from a worker's mesh-server to the next one's
LEASE_ID_BYTES = 16
RPC_SERVER_ENDED = "rpc_server_ended"  # code of Lost
HEAD_ENDED = "head_ended"  # code of Lost: its mesh-server was left by the head's llama-server, and ended too
RPC_SERVER_CRASHED = "rpc_server_crashed"  # code of Lost: by a fault of its own, which a device may be
PAUSED = "paused"  # code of Lost: the worker's user has paused it
OLD_PROTOCOL = "rpc"  # of a node that does not say what it speaks
MAX_MODEL_BYTES = 256
MOST_VERSION = 1 << 16
MAX_OPERATION_BYTES = 64
_PROTOCOL = re.compile(r"[a-z]{1,8}( [0-9]{1,5})?")
_OPERATION = re.compile(r"[a-z0-9_]+(:[a-z0-9_]+)*")


@dataclass(frozen=True, slots=True)
class Acquire:
    """The head asks: its incarnation, what model (for the worker's status), which native version it runs.

    `operations`: what the model needs of a device (model/operations.py), to be tried before the offer.
    `protocol` is what its llama-server speaks (NativeVersion.protocol). `marks` of the model's
    tensors (wire/needs.py), or nothing.
    """

    incarnation: bytes
    model: str
    fingerprint: str
    native_pin: str
    operations: tuple[str, ...] = ()
    protocol: str = OLD_PROTOCOL
    marks: bytes = b""

    def encode(self) -> bytes:
        return pack(
            {
                "type": "acquire",
                "incarnation": self.incarnation,
                "model": plain(self.model, MAX_MODEL_BYTES),
                "fingerprint": self.fingerprint,
                "native_pin": self.native_pin,
                "operations": list(self.operations),
                "protocol": self.protocol,
                "marks": self.marks,
            }
        )


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device of a lease. `kind` is `cpu` or `gpu`; memory in bytes, as the program reports it.

    `card` is the same for all devices of the mesh that are one card, and says nothing else; empty: unknown.
    """

    name: str
    kind: str
    description: str
    free_bytes: int
    total_bytes: int
    card: str = ""


@dataclass(frozen=True, slots=True)
class WorkerOffer:
    """What the worker could lend now; `has_model`: it has its own copy of the file, known by content.

    `machine` is the same for nodes on one machine (which share its memory) and says nothing else. `lease_id`:
    streams may name it once the head has reserved. `unfit`: for each device why it may not be used, empty
    where it may; or nothing at all. `compressed` as in Grant, `protocol` as in Acquire. `lacks`: a bit for
    each of Acquire's marks, set where the worker has none of that content and could fetch it.
    """

    devices: tuple[OfferedDevice, ...]
    has_model: bool
    machine: str
    lease_id: bytes
    unfit: tuple[str, ...] = ()
    compressed: int = 0
    protocol: str = OLD_PROTOCOL
    lacks: bytes = b""

    def encode(self) -> bytes:
        return pack(
            {
                "type": "offer",
                "devices": [device_row(device) for device in self.devices],
                "cards": [device.card for device in self.devices],
                "has_model": self.has_model,
                "machine": self.machine,
                "unfit": [plain(why) for why in self.unfit],
                "lease_id": self.lease_id,
                "compressed": self.compressed,
                "protocol": self.protocol,
                "lacks": self.lacks,
            }
        )


@dataclass(frozen=True, slots=True)
class Reserve:
    """The head takes this many bytes of each device of the offer; 0 leaves a device out.

    `fetch`: Needs follow, and Begin. `hold`: with it, what is needed is read as well, and stays in memory
    until then, which may be for as long as the lease lives.
    """

    bytes_per_device: tuple[int, ...]
    fetch: bool = False
    hold: bool = False

    def encode(self) -> bytes:
        counts = list(self.bytes_per_device)
        return pack({"type": "reserve", "bytes": counts, "fetch": self.fetch, "hold": self.hold})


@dataclass(frozen=True, slots=True)
class Grant:
    """Yes: a stream of service `rpc` with this id in its metadata reaches the lease's mesh-server.

    `compressed`: the version of compressed streams (wire/compressed.py) that it takes, 0 for none.
    """

    lease_id: bytes
    compressed: int = 0

    def encode(self) -> bytes:
        return pack({"type": "grant", "lease_id": self.lease_id, "compressed": self.compressed})


@dataclass(frozen=True, slots=True)
class Admit:
    """The head says who may push to this lease's mesh-server: another of its workers, by node id.

    `number`: its place in the head's list of workers.
    """

    peer: bytes
    number: int

    def encode(self) -> bytes:
        return pack({"type": "admit", "peer": self.peer, "number": self.number})


@dataclass(frozen=True, slots=True)
class Neighbour:
    """The head says to whom this lease's mesh-server may push: `number` as in Admit, a member of the mesh,
    and the lease that it has granted this head.

    `compressed`: as that one's Grant, 0 as well when the head wants none; `always`: whatever the path is.
    """

    number: int
    peer: bytes
    lease_id: bytes
    compressed: int = 0
    always: bool = False

    def encode(self) -> bytes:
        return pack(
            {
                "type": "neighbour",
                "number": self.number,
                "peer": self.peer,
                "lease_id": self.lease_id,
                "compressed": self.compressed,
                "always": self.always,
            }
        )


@dataclass(frozen=True, slots=True)
class Introduced:
    """The head has named all neighbours of this lease."""

    def encode(self) -> bytes:
        return pack({"type": "introduced"})


@dataclass(frozen=True, slots=True)
class Reached:
    """The worker says what came of a Neighbour: `why_not` is empty when there is a way to it."""

    number: int
    why_not: str

    def encode(self) -> bytes:
        return pack({"type": "reached", "number": self.number, "why_not": plain(self.why_not)})


@dataclass(frozen=True, slots=True)
class Progress:
    """The worker is still getting ready (hashing its file, starting the server): `text` says what."""

    text: str

    def encode(self) -> bytes:
        return pack({"type": "progress", "text": plain(self.text)})


@dataclass(frozen=True, slots=True)
class Loaded:
    """The head's model is loaded: the worker has all of its weights."""

    def encode(self) -> bytes:
        return pack({"type": "loaded"})


@dataclass(frozen=True, slots=True)
class Lost:
    """The lease has ended on the worker's side: why, in words."""

    code: str
    text: str
    hint: str = ""

    def encode(self) -> bytes:
        return pack({"type": "lost", "code": self.code, "text": plain(self.text), "hint": plain(self.hint)})


LeaseMessage = (
    Acquire
    | WorkerOffer
    | Reserve
    | Needs
    | Fetched
    | Begin
    | Grant
    | Admit
    | Neighbour
    | Introduced
    | Reached
    | Loaded
    | Progress
    | Lost
)


def decode(data: bytes) -> LeaseMessage:
    """One lease message. Raises RemoteProtocolError."""
    fields = unpack(data)
    kind = fields.text("type", most=16)
    if kind == "acquire":
        return Acquire(
            fields.raw("incarnation", exact=16),
            fields.text("model", most=MAX_MODEL_BYTES),
            fields.text("fingerprint", most=128),
            fields.text("native_pin", most=128),
            _operations(fields),
            _protocol(fields),
            read_marks(fields),
        )
    if kind == "offer":
        rows = fields.lists("devices", count=MAX_DEVICES)
        devices = _with_cards(fields, [read_device(row) for row in rows])
        if len({device.name for device in devices}) != len(devices):
            raise RemoteProtocolError("field `devices` names a device twice", code="message")
        return WorkerOffer(
            devices,
            fields.flag("has_model"),
            fields.text("machine", most=64),
            fields.raw("lease_id", exact=LEASE_ID_BYTES),
            _unfit(fields, len(devices)),
            _compressed(fields),
            _protocol(fields),
            fields.raw("lacks", most=MAX_ASKED_TENSORS // 8, default=b""),
        )
    if kind == "reserve":
        counts = fields.numbers("bytes", low=0, high=(1 << 60) - 1, count=MAX_DEVICES)
        return Reserve(counts, fields.flag("fetch", default=False), fields.flag("hold", default=False))
    if kind == "needs":
        return read_needs(fields)
    if kind == "fetched":
        return read_fetched(fields)
    if kind == "begin":
        return Begin()
    if kind == "grant":
        return Grant(fields.raw("lease_id", exact=LEASE_ID_BYTES), _compressed(fields))
    if kind in _INTRODUCTIONS:
        return _introduction(kind, fields)
    if kind == "loaded":
        return Loaded()
    if kind == "progress":
        return Progress(fields.text("text", most=MAX_TEXT_BYTES))
    if kind == "lost":
        return Lost(
            fields.text("code", most=MAX_NAME_BYTES),
            fields.text("text", most=MAX_TEXT_BYTES),
            fields.text("hint", most=MAX_TEXT_BYTES, default=""),
        )
    raise RemoteProtocolError(f"lease message of unknown type `{kind}`", code="message")


_INTRODUCTIONS = ("admit", "neighbour", "introduced", "reached")


def _introduction(kind: str, fields: Fields) -> LeaseMessage:
    if kind == "introduced":
        return Introduced()
    number = fields.number("number", low=0, high=MAX_NEIGHBOUR)
    if kind == "reached":
        return Reached(number, fields.text("why_not", most=MAX_TEXT_BYTES))
    peer = fields.raw("peer", exact=PEER_BYTES)
    if kind == "admit":
        return Admit(peer, number)
    lease_id, always = fields.raw("lease_id", exact=LEASE_ID_BYTES), fields.flag("always", default=False)
    return Neighbour(number, peer, lease_id, _compressed(fields), always)


def _compressed(fields: Fields) -> int:
    """Who does not say so takes none."""
    return fields.number("compressed", low=0, high=MOST_VERSION, default=0)


def _protocol(fields: Fields) -> str:
    """Who does not say so is of an earlier version."""
    protocol = fields.text("protocol", most=16, default=OLD_PROTOCOL)
    if not _PROTOCOL.fullmatch(protocol):
        raise RemoteProtocolError("field `protocol` must be a name, and a version or none", code="message")
    return protocol


def _with_cards(fields: Fields, devices: list[OfferedDevice]) -> tuple[OfferedDevice, ...]:
    """A worker of an earlier version says nothing of them."""
    if "cards" not in fields:
        return tuple(devices)
    cards = fields.texts("cards", most=64, count=MAX_DEVICES)
    if len(cards) != len(devices):
        raise RemoteProtocolError("field `cards` must have one entry for each device", code="message")
    return tuple(replace(device, card=card) for device, card in zip(devices, cards, strict=True))


def _operations(fields: Fields) -> tuple[str, ...]:
    """A head of an earlier version names none. They become arguments of a program: no other letters."""
    if "operations" not in fields:
        return ()
    words = fields.texts("operations", most=MAX_OPERATION_BYTES, count=MAX_OPERATIONS)
    if not all(_OPERATION.fullmatch(word) for word in words):
        raise RemoteProtocolError("field `operations` has an invalid operation", code="message")
    return words


def _unfit(fields: Fields, devices: int) -> tuple[str, ...]:
    if "unfit" not in fields:
        return ()
    reasons = fields.texts("unfit", most=MAX_TEXT_BYTES, count=MAX_DEVICES)
    if len(reasons) not in (0, devices):
        raise RemoteProtocolError("field `unfit` must have one entry for each device", code="message")
    return reasons


def device_row(device: OfferedDevice) -> list[str | int]:
    """What crosses of a device, but for its card."""
    return [device.name, device.kind, device.description, device.free_bytes, device.total_bytes]


def read_device(row: list[object], card: str = "") -> OfferedDevice:
    """The device of such a row. Raises RemoteProtocolError."""
    match row:
        case [str(name), str(kind), str(description), int(free), int(total)] if not (
            isinstance(free, bool) or isinstance(total, bool)
        ):
            fits = len(name) <= 64 and kind in ("cpu", "gpu") and len(description) <= 256
            printable = name.isprintable() and description.isprintable()
            if fits and printable and 0 <= free < 1 << 60 and 0 <= total < 1 << 60:
                return OfferedDevice(name, kind, description, free, total, card)
    raise RemoteProtocolError("field `devices` has an invalid device", code="message")
