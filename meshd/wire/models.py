"""Messages by which members tell each other which models they have, and the hashes of their pieces.

A member that may use the mesh opens a stream of service `models` and asks for the list (AskModels), for the
pieces of one model (AskPieces) or for the hashes of its tensors (AskTensors). The list comes as some
ModelsTold, of which the last one says so; the pieces as some ReadingModel while the file is read, one
PiecesTold with the sizes of the files, and as many PieceHashes as follow from these; the hashes of tensors as
some ReadingModel, and as many TensorHashes as follow from the model's header. Names are told, and no paths.
"""

from dataclasses import dataclass
from typing import Annotated

from meshd.wire.bounds import NEEDED, AtMost, Between, Check, Items, Name, Prose, Size, Text
from meshd.wire.codec import Family, Message
from meshd.wire.limits import (
    MAX_DISK_BYTES,
    MAX_GIVEN_BYTES,
    MAX_MODEL_FILES,
    MAX_MODEL_NAME_BYTES,
    MAX_MODEL_NAMES,
    MAX_MODEL_ROWS,
    MAX_PIECE_HASHES,
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
    or the shard's number, then those with a scheme. `fingerprint` and `content` (model/piece_index.py) are
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
