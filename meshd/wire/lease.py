"""Messages of a lease: one head's use of one worker, over a stream of service `lease`.

The head opens the stream and asks (Acquire); the worker says what it could lend (Offer); the head plans and
takes a part (Reserve); the worker starts a mesh-server held to that (Grant). Progress may come before any
answer, Lost at any time. Once its model is loaded the head says so (Loaded): no weights come then.

With the id in the offer the head need not wait for the grant: streams that name it wait at the worker until
the mesh-server is there. Then all of Reserve, Admit, Neighbour and the first requests cross together.

Weights that members can give are taken from them before the grant. With the question comes a mark of each
tensor (the beginning of its hash), and with the offer which of them the worker lacks. If members give the
file, the head reserves with `fetch` and says where in the file the tensors of the worker's part are (some
Needs, the last of which says so). The worker takes what it lacks from members that have the file's content
(model/weights_index.py), and says what came (Fetched). When all workers have said so, the head lets them
start their servers (Begin). A worker that only holds weights ready for the loss of another one is asked in
the same way, and told to begin never.

Workers that send to one another directly are introduced by the head: the one that takes the stream is told
from whom (Admit), the one that opens it to whom (Neighbour), and says what came of it (Reached). The head
says when it has named all (Introduced), for which their servers wait.
The lease lives exactly as long as the stream: ended, reset or lost, it is over.
"""

import re
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated

from meshd.wire.codec import Family, Message
from meshd.wire.limits import (
    BESIDE,
    MAX_ASKED_TENSORS,
    MAX_DEVICES,
    MAX_GIVEN_BYTES,
    MAX_MODEL_FILES,
    MAX_NEEDED_ROWS,
    MAX_NEIGHBOUR,
    MAX_OPERATIONS,
    NEEDED,
    OR_NULL,
    ROW,
    As,
    AtMost,
    Between,
    Items,
    Misfit,
    Name,
    NodeId,
    Prose,
    ShortName,
    Size,
    Spread,
    Text,
)
from meshd.wire.versions import MAX_VERSION_BYTES

CONTENT_BYTES = 32
MARK_BYTES = 8  # of a hash: a wrong guess makes a worker fetch in vain, or get a tensor from the head
Marks = Annotated[bytes, AtMost(MAX_ASKED_TENSORS * MARK_BYTES, step=MARK_BYTES)]
Lacks = Annotated[bytes, AtMost(MAX_ASKED_TENSORS // 8)]  # a bit for each of the marks
_ROW = struct.Struct(">HHQQ32s")

LEASE_SERVICE = "lease"
RPC_SERVICE = "rpc"
PUSH_SERVICE = "push"  # from a worker's mesh-server to the next one's
LEASE_ID_BYTES = 16
RPC_SERVER_ENDED = "rpc_server_ended"  # code of Lost
HEAD_ENDED = "head_ended"  # code of Lost: its mesh-server was left by the head's llama-server, and ended too
RPC_SERVER_CRASHED = "rpc_server_crashed"  # code of Lost: by a fault of its own, which a device may be
NO_MEMORY = "memory"  # code of Lost: less is free than was offered; a new question gets what is free now
PAUSED = "paused"  # code of Lost: the worker's user has paused it
OLD_PROTOCOL = "rpc"  # of a node that does not say what it speaks
MAX_MODEL_BYTES = 256
MOST_VERSION = 1 << 16
MAX_OPERATION_BYTES = 64
_PROTOCOL = re.compile(r"[a-z]{1,8}( [0-9]{1,5}(-[0-9]{1,5})?)?")
_OPERATION = re.compile(r"[a-z0-9_]+(:[a-z0-9_]+)*")

_DEVICE_KIND = re.compile("cpu|gpu")

LeaseId = Annotated[bytes, Size(LEASE_ID_BYTES)]
Machine = Annotated[str, Text(64)]
Card = Annotated[str, Text(64)]
_DeviceBytes = Annotated[int, Between(0, (1 << 60) - 1)]
_Number = Annotated[int, Between(0, MAX_NEIGHBOUR)]
_Compressed = Annotated[int, Between(0, MOST_VERSION)]
_Protocol = Annotated[str, Text(16, pattern=_PROTOCOL)]


@dataclass(frozen=True, slots=True)
class NeededTensor:
    """`size` bytes at `offset` of file number `file`, with this BLAKE3-256; `kind`: ggml's number."""

    file: int
    kind: int
    offset: int
    size: int
    digest: bytes


def _packed(tensors: tuple[NeededTensor, ...]) -> bytes:
    return b"".join(
        _ROW.pack(tensor.file, tensor.kind, tensor.offset, tensor.size, tensor.digest) for tensor in tensors
    )


def _unpacked(rows: bytes) -> tuple[NeededTensor, ...]:
    return tuple(NeededTensor(*row) for row in _ROW.iter_unpack(rows))


@dataclass(frozen=True, slots=True)
class Needs(Message, tag="needs"):
    """The tensors of a worker's part, in the `files` files of this content, which have `size` bytes."""

    content: Annotated[bytes, Size(CONTENT_BYTES)]
    size: Annotated[int, Between(1, MAX_GIVEN_BYTES)]
    files: Annotated[int, Between(1, MAX_MODEL_FILES)]
    tensors: Annotated[
        tuple[NeededTensor, ...],
        As(Annotated[bytes, AtMost(MAX_NEEDED_ROWS * _ROW.size, step=_ROW.size)], _packed, _unpacked),
    ]
    last: Annotated[bool, NEEDED] = True

    def conflict(self) -> str:
        """Return what is wrong with the values together; empty: nothing."""
        if all(self._has(tensor) for tensor in self.tensors):
            return ""
        return "a message whose `tensors` lie in its `files` and `size`"

    def _has(self, tensor: NeededTensor) -> bool:
        return (
            tensor.file < self.files
            and 0 < tensor.size <= self.size
            and tensor.offset <= self.size - tensor.size
        )


@dataclass(frozen=True, slots=True)
class Fetched(Message, tag="fetched"):
    """The worker fetches no more: `count` bytes came from members; `text` says from whom, or why none did.

    `held`: bytes of what it needs that it has read, and that are in its memory; 0 unless it was to hold them.
    """

    count: Annotated[int, Between(0, 2 * MAX_GIVEN_BYTES)]
    text: Prose
    held: Annotated[int, Between(0, MAX_GIVEN_BYTES)] = 0


@dataclass(frozen=True, slots=True)
class Begin(Message, tag="begin"):
    """All workers have fetched: start the server."""


def in_messages(needs: Needs) -> Iterator[Needs]:
    """Split into messages of at most MAX_NEEDED_ROWS rows; only the final one is `last`."""
    rows = needs.tensors
    for at in range(0, max(1, len(rows)), MAX_NEEDED_ROWS):
        last = at + MAX_NEEDED_ROWS >= len(rows)
        yield replace(needs, tensors=rows[at : at + MAX_NEEDED_ROWS], last=last)


def mark(digest: bytes) -> bytes:
    """Return the short form by which both sides name a tensor until its full hash matters."""
    return digest[:MARK_BYTES]


def split_marks(marks: bytes) -> list[bytes]:
    """Split concatenated `mark`s."""
    return [marks[at : at + MARK_BYTES] for at in range(0, len(marks), MARK_BYTES)]


def as_bits(flags: Sequence[bool]) -> bytes:
    """Pack flags as bits: the first flag is the lowest bit of the first byte."""
    number = sum(1 << place for place, flag in enumerate(flags) if flag)
    return number.to_bytes(-(-len(flags) // 8), "little")


def from_bits(bits: bytes, count: int) -> list[bool]:
    """Return the first `count` flags; missing ones are not set."""
    number = int.from_bytes(bits, "little")
    return [bool(number >> place & 1) for place in range(count)]


@dataclass(frozen=True, slots=True)
class Acquire(Message, tag="acquire"):
    """The head's request: its incarnation, the model (for the worker's status), its native version.

    `operations`: what the model needs of a device (model/layer_work.py), to be tried before the offer.
    `protocol` is what its llama-server speaks (NativeVersion.protocol). `marks` of the model's
    tensors, or nothing.
    """

    incarnation: Annotated[bytes, Size(16)]
    model: Annotated[str, Text(MAX_MODEL_BYTES, cut=True)]
    fingerprint: Annotated[str, Text(MAX_VERSION_BYTES)]
    native_pin: Annotated[str, Text(MAX_VERSION_BYTES)]
    operations: Annotated[
        tuple[Annotated[str, Text(MAX_OPERATION_BYTES, pattern=_OPERATION)], ...],
        Items(MAX_OPERATIONS),
        OR_NULL,
    ] = ()
    protocol: _Protocol = OLD_PROTOCOL
    marks: Marks = b""


SHARED_MEMORY = "memory"  # in place of a card: a GPU without memory of its own


@dataclass(frozen=True, slots=True)
class OfferedDevice:
    """A device of a lease. `kind` is `cpu` or `gpu`; memory in bytes, as the program reports it.

    `card` is the same for all devices of the mesh that are one card, and says nothing else but for
    SHARED_MEMORY; empty: unknown.
    """

    name: Annotated[str, Text(64, in_letters=True)]
    kind: Annotated[str, Text(3, pattern=_DEVICE_KIND)]
    description: Annotated[str, Text(256, in_letters=True)]
    free_bytes: _DeviceBytes
    total_bytes: _DeviceBytes
    card: Annotated[Card, BESIDE] = ""


DeviceRows = Annotated[tuple[Annotated[OfferedDevice, ROW], ...], Items(MAX_DEVICES)]


Cards = Annotated[tuple[Card, ...], Items(MAX_DEVICES)]  # of each row's device


def with_cards(
    devices: tuple[OfferedDevice, ...], cards: tuple[str, ...] | None
) -> tuple[OfferedDevice, ...] | Misfit:
    """Return the devices with their cards; a worker of an earlier version says nothing of them."""
    if len({device.name for device in devices}) != len(devices):
        return Misfit("devices", "a list that names no device twice")
    if cards is None:
        return devices
    if len(cards) != len(devices):
        return Misfit("cards", "a list with an entry for each device")
    return tuple(replace(device, card=card) for device, card in zip(devices, cards, strict=True))


@dataclass(frozen=True, slots=True)
class WorkerOffer(Message, tag="offer"):
    """The worker's offer: what it could lend now; `has_model`: it has its own copy of the file, known by
    content.

    `machine` is the same for nodes on one machine (which share its memory) and says nothing else. `lease_id`:
    streams may name it once the head has reserved. `unfit`: for each device why it may not be used, empty
    where it may; or nothing at all. `compressed` as in Grant, `protocol` as in Acquire. `lacks`: a bit for
    each of Acquire's marks, set where the worker has none of that content and could fetch it. `seals`: its
    mesh-server can exchange sealed data with another one, past both daemons.
    """

    devices: Annotated[
        tuple[OfferedDevice, ...],
        Spread(
            (("devices", DeviceRows), ("cards", Cards | None)),
            lambda devices: (devices, [device.card for device in devices]),
            with_cards,
        ),
    ]
    has_model: bool
    machine: Machine
    lease_id: LeaseId
    unfit: Annotated[tuple[Prose, ...], Items(MAX_DEVICES), OR_NULL, Name("unfit", before="lease_id")] = ()
    compressed: _Compressed = 0
    protocol: _Protocol = OLD_PROTOCOL
    lacks: Lacks = b""
    seals: bool = False

    def conflict(self) -> str:
        """Return what is wrong with the values together; empty: nothing."""
        fits = len(self.unfit) in (0, len(self.devices))
        return "" if fits else "a message whose `unfit` has an entry for each of its `devices`"


@dataclass(frozen=True, slots=True)
class Reserve(Message, tag="reserve"):
    """The head takes this many bytes of each device of the offer; 0 leaves a device out.

    `fetch`: Needs follow, and Begin. `hold`: with it, what is needed is read as well, and stays in memory
    until then, which may be for as long as the lease lives.
    """

    bytes_per_device: Annotated[tuple[_DeviceBytes, ...], Items(MAX_DEVICES), Name("bytes")]
    fetch: bool = False
    hold: bool = False


@dataclass(frozen=True, slots=True)
class Grant(Message, tag="grant"):
    """Yes: a stream of service `rpc` with this id in its metadata reaches the lease's mesh-server.

    `compressed`: the version of compressed streams (wire/compressed.py) that it takes, 0 for none.
    """

    lease_id: LeaseId
    compressed: _Compressed = 0


@dataclass(frozen=True, slots=True)
class Admit(Message, tag="admit"):
    """The head says who may push to this lease's mesh-server: another of its workers, by node id.

    `number`: its place in the head's list of workers.
    """

    peer: NodeId
    number: _Number


@dataclass(frozen=True, slots=True)
class Neighbour(Message, tag="neighbour"):
    """The head says to whom this lease's mesh-server may push: `number` as in Admit, a member of the mesh,
    and the lease that it has granted this head.

    `compressed`: as that one's Grant, 0 as well when the head wants none; `always`: whatever the path is;
    `seals`: as that one's WorkerOffer, and worth it for this split.
    """

    number: _Number
    peer: NodeId
    lease_id: LeaseId
    compressed: _Compressed = 0
    always: bool = False
    seals: bool = False


@dataclass(frozen=True, slots=True)
class Introduced(Message, tag="introduced"):
    """The head has named all neighbours of this lease."""


@dataclass(frozen=True, slots=True)
class Reached(Message, tag="reached"):
    """The worker says what came of a Neighbour: `why_not` is empty when there is a way to it.

    `direct`: it goes from mesh-server to mesh-server, past both daemons.
    """

    number: _Number
    why_not: Prose
    direct: bool = False


@dataclass(frozen=True, slots=True)
class Progress(Message, tag="progress"):
    """The worker is still getting ready (hashing its file, starting the server): `text` says what."""

    text: Prose


@dataclass(frozen=True, slots=True)
class Loaded(Message, tag="loaded"):
    """The head's model is loaded: the worker has all of its weights."""


@dataclass(frozen=True, slots=True)
class Lost(Message, tag="lost"):
    """The lease has ended on the worker's side: why, in words."""

    code: ShortName
    text: Prose
    hint: Prose = ""


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


_LEASE: Family[LeaseMessage] = Family("lease", LeaseMessage)


def decode(data: bytes) -> LeaseMessage:
    """Read one lease message. Raises RemoteProtocolError."""
    return _LEASE.decode(data)
