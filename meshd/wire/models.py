"""Messages by which members tell which models they have, give pieces of them, and serve them.

A member that may use the mesh opens a stream of service `models` and asks for the list (AskModels), for the
pieces of one model (AskPieces) or for the hashes of its tensors (AskTensors). The list comes as some
ModelsTold, of which the last one says so; the pieces as some ReadingModel while the file is read, one
PiecesTold with the sizes of the files, and as many PieceHashes as follow from these; the hashes of tensors as
some ReadingModel, and as many TensorHashes as follow from the model's header. Names are told, and no paths.

The bytes of a stream of service `pieces`: numbers of pieces one way, pieces the other.

The stream's metadata names the content (model/weights_index.py). A request is a piece's number (u32). The
answers come in the order of the requests: one byte 1 and the piece, whose length follows from the index, or
one byte 0, which says that the file is not what it was; that ends the stream. A piece may be asked for before
the last one has come, so that no round trip is lost, and at most PIECES_ASKED of them.

For the models that a head's API serves, a member that may use the mesh opens a stream of service `serving`
and sends nothing. The head writes what it serves and how busy each model is (ServingTold), and again whenever
that has changed. Requests go over streams of service `api`.
"""

import struct
from collections import deque
from dataclasses import dataclass
from typing import Annotated

from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import PIECES_ASKED
from meshd.wire.codec import Family, Message
from meshd.wire.limits import (
    MAX_API_SLOTS,
    MAX_DISK_BYTES,
    MAX_GIVEN_BYTES,
    MAX_MODEL_FILES,
    MAX_MODEL_NAME_BYTES,
    MAX_MODEL_NAMES,
    MAX_MODEL_PIECES,
    MAX_MODEL_ROWS,
    MAX_PIECE_HASHES,
    MAX_SERVED_ALIASES,
    MAX_SERVED_CAPABILITIES,
    MAX_SERVED_CONTEXT,
    MAX_SERVED_MODELS,
    MAX_SERVED_REASON_BYTES,
    MAX_TIME,
    NEEDED,
    AtMost,
    Between,
    Check,
    Items,
    Name,
    Prose,
    Size,
    Text,
)

MODELS_SERVICE = "models"
MODEL_KEY_BYTES = 16
PIECE_HASH_BYTES = 32
_WORD_BYTES = 64  # of a quantisation or an architecture
_Key = Annotated[bytes, Size(MODEL_KEY_BYTES)]
_DiskBytes = Annotated[int, Between(0, MAX_DISK_BYTES)]
_Hashes = Annotated[
    bytes, AtMost(MAX_PIECE_HASHES * PIECE_HASH_BYTES, least=PIECE_HASH_BYTES, step=PIECE_HASH_BYTES)
]
PIECES_SERVICE = "pieces"
CONTENT_FIELD = "content"  # of a stream's metadata
HERE, GONE = b"\1", b"\0"
_REQUEST = struct.Struct(">I")

SERVING_SERVICE = "serving"
API_SERVICE = "api"
KEY_PROOF = "key"  # metadata of a stream of service `api`
_STATE_BYTES = 16
_WEIGHTS_ID_BYTES = 32


@dataclass(frozen=True, slots=True)
class AskModels(Message, tag="list"):
    """A request for the list of models."""


@dataclass(frozen=True, slots=True)
class AskPieces(Message, tag="pieces"):
    """A request for the hashes of the pieces of the model announced with this key."""

    key: _Key


@dataclass(frozen=True, slots=True)
class AskTensors(Message, tag="tensors"):
    """A request for the hashes of the tensors of the model announced with this key."""

    key: _Key


@dataclass(frozen=True, slots=True)
class ToldModel:
    """A model of a member. `key` means it there, until that daemon ends; `names`: its file's without `.gguf`
    or the shard's number, then those with a scheme. `fingerprint` and `content` (model/weights_index.py) are
    empty until the member has read the whole model.
    """

    key: _Key
    names: Annotated[
        tuple[Annotated[str, Text(MAX_MODEL_NAME_BYTES, least=1, cut=True)], ...],
        Items(MAX_MODEL_NAMES, least=1, cut=True),
    ]
    size: Annotated[int, Between(1, MAX_GIVEN_BYTES)]
    files: Annotated[int, Between(1, MAX_MODEL_FILES), NEEDED] = 1
    quant: Annotated[str, Text(_WORD_BYTES, cut=True), NEEDED] = ""
    architecture: Annotated[str, Text(_WORD_BYTES, cut=True), Name("arch"), NEEDED] = ""
    fingerprint: Annotated[bytes, Size(0, PIECE_HASH_BYTES), NEEDED] = b""
    content: Annotated[bytes, Size(0, PIECE_HASH_BYTES), NEEDED] = b""


@dataclass(frozen=True, slots=True)
class ToldDisk:
    """The disk of a member's cache, in bytes: `free` there, and `room` for weights that it would keep of what
    comes over the network; None: its role keeps none."""

    free: _DiskBytes
    room: _DiskBytes | None = None


@dataclass(frozen=True, slots=True)
class ModelsTold(Message, tag="models"):
    """Some of the models; `last`: all are listed. `disk`: with the last; None: it is not said."""

    models: Annotated[tuple[ToldModel, ...], Items(MAX_MODEL_ROWS)]
    last: Annotated[bool, NEEDED] = True
    disk: ToldDisk | None = None


@dataclass(frozen=True, slots=True)
class ReadingModel(Message, tag="reading"):
    """The model is being read, so that its pieces are known: `text` says how far."""

    text: Prose


@dataclass(frozen=True, slots=True)
class PiecesTold(Message, tag="files"):
    """The sizes of the model's files, in order."""

    sizes: Annotated[
        tuple[Annotated[int, Between(1, MAX_GIVEN_BYTES)], ...],
        Items(MAX_MODEL_FILES, least=1),
        Check(lambda sizes: sum(sizes) <= MAX_GIVEN_BYTES, f"of at most {MAX_GIVEN_BYTES} bytes in all"),
    ]


@dataclass(frozen=True, slots=True)
class PieceHashes(Message, tag="hashes"):
    """The next BLAKE3-256 hashes of pieces, one behind the other."""

    hashes: _Hashes


@dataclass(frozen=True, slots=True)
class TensorHashes(Message, tag="tensor_hashes"):
    """The next BLAKE3-256 hashes of tensors, in the order of the header, one behind the other."""

    hashes: _Hashes


@dataclass(frozen=True, slots=True)
class NoPieces(Message, tag="none"):
    """A refusal: the member cannot give the pieces, or the hashes of the tensors, and `why`."""

    why: Prose


ModelsMessage = (
    AskModels
    | AskPieces
    | AskTensors
    | ModelsTold
    | ReadingModel
    | PiecesTold
    | PieceHashes
    | TensorHashes
    | NoPieces
)


_MODELS: Family[ModelsMessage] = Family("models", ModelsMessage)


def decode(data: bytes) -> ModelsMessage:
    """Read one message. Raises RemoteProtocolError."""
    return _MODELS.decode(data)


def piece_request(number: int) -> bytes:
    """Return the request for one piece."""
    return _REQUEST.pack(number)


class PieceRequests:
    """The giver's side: the pieces requested, in order; keeps at most PIECES_ASKED of them."""

    def __init__(self, pieces: int) -> None:
        self._pieces = min(pieces, MAX_MODEL_PIECES)
        self._buffer = b""
        self._waiting: deque[int] = deque()

    def feed(self, data: bytes | memoryview) -> None:
        """Take received bytes in. Raises RemoteProtocolError for pieces that do not exist, and for
        too many.
        """
        if len(self._buffer) + len(data) > _REQUEST.size * (PIECES_ASKED.most + 1):
            raise RemoteProtocolError("too many pieces asked for at once", code="pieces")
        data = self._buffer + bytes(data)
        whole = len(data) - len(data) % _REQUEST.size
        self._buffer = data[whole:]
        for (number,) in _REQUEST.iter_unpack(data[:whole]):
            if number >= self._pieces:
                raise RemoteProtocolError(f"there is no piece {number}", code="pieces")
            if len(self._waiting) >= PIECES_ASKED.most:
                raise RemoteProtocolError("too many pieces asked for at once", code="pieces")
            self._waiting.append(number)

    def next(self) -> int | None:
        """Return the piece to send next; None for "need more"."""
        return self._waiting.popleft() if self._waiting else None


class PieceInbox:
    """The puller's side: the requested pieces; holds one of them, and what came in one read."""

    def __init__(self) -> None:
        self._expected: deque[tuple[int, int]] = deque()
        self._begun = False  # the byte before the piece has come
        self._piece = bytearray()
        self.is_gone = False

    @property
    def expected(self) -> int:
        """The number of pieces still to come."""
        return len(self._expected)

    @property
    def first_length(self) -> int:
        """The length of the piece that comes next; 0 where none is expected."""
        return self._expected[0][1] if self._expected else 0

    def expect(self, number: int, length: int) -> None:
        """Record that this piece was requested."""
        self._expected.append((number, length))

    def feed(self, data: bytes | memoryview) -> list[tuple[int, bytes]]:
        """Return the pieces that are whole now. Raises RemoteProtocolError for unrequested bytes."""
        done: list[tuple[int, bytes]] = []
        left = memoryview(data)
        while len(left):
            if self.is_gone or not self._expected:
                raise RemoteProtocolError("bytes that nobody asked for", code="pieces")
            if not self._begun:
                self._begin(bytes(left[:1]))
                left = left[1:]
                continue
            number, length = self._expected[0]
            taken = left[: length - len(self._piece)]
            self._piece += taken
            left = left[len(taken) :]
            if len(self._piece) == length:
                done.append((number, bytes(self._piece)))
                self._expected.popleft()
                self._piece, self._begun = bytearray(), False
        return done

    def _begin(self, word: bytes) -> None:
        if word == GONE:
            self.is_gone = True
        elif word == HERE:
            self._begun = True
        else:
            raise RemoteProtocolError("an answer about a piece is neither 0 nor 1", code="pieces")


@dataclass(frozen=True, slots=True)
class ApiModel:
    """A model of a head's API; the first is its default. `takes`: requests for it are accepted now, though it
    may have to be loaded for them; `reason` says why in other states. `aliases`: other names in requests.

    `requests` are under way, `slots` of them are answered at once. `fingerprint` (of its weights) is empty
    until it is known. `context`, `created` and `capabilities` are those of model/served_facts.py.
    """

    name: Annotated[str, Text(MAX_MODEL_NAME_BYTES, least=1, cut=True)]
    state: Annotated[str, Text(_STATE_BYTES, cut=True)]
    takes: bool
    reason: Annotated[str, Text(MAX_SERVED_REASON_BYTES, cut=True), NEEDED] = ""
    requests: Annotated[int, Between(0, MAX_API_SLOTS, clamp=True), NEEDED] = 0
    slots: Annotated[int, Between(1, MAX_API_SLOTS, clamp=True), NEEDED] = 1
    fingerprint: Annotated[bytes, Size(0, _WEIGHTS_ID_BYTES), NEEDED] = b""
    aliases: Annotated[
        tuple[Annotated[str, Text(MAX_MODEL_NAME_BYTES, cut=True)], ...],
        Items(MAX_SERVED_ALIASES, cut=True),
        NEEDED,
    ] = ()
    context: Annotated[int, Between(0, MAX_SERVED_CONTEXT, clamp=True)] = 0
    created: Annotated[int, Between(0, MAX_TIME, clamp=True)] = 0
    capabilities: Annotated[
        tuple[Annotated[str, Text(_STATE_BYTES, cut=True)], ...], Items(MAX_SERVED_CAPABILITIES, cut=True)
    ] = ()


_NAMED_ONCE = Check(
    lambda models: len({model.name for model in models}) == len(models), "a list that names no model twice"
)


@dataclass(frozen=True, slots=True)
class ServingTold(Message, tag="serving"):
    """All that a head serves. `asks_key`: a member needs one of its API keys, too."""

    models: Annotated[tuple[ApiModel, ...], Items(MAX_SERVED_MODELS, cut=True), _NAMED_ONCE]
    asks_key: Annotated[bool, Name("key"), NEEDED] = False


_SERVING: Family[ServingTold] = Family("serving", ServingTold)


def decode_serving(data: bytes) -> ServingTold:
    """Read one message. Raises RemoteProtocolError."""
    return _SERVING.decode(data)
