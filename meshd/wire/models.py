"""Messages by which members tell each other which models they have, and the hashes of their pieces.

A member that may use the mesh opens a stream of service `models` and asks for the list (AskModels), for the
pieces of one model (AskPieces) or for the hashes of its tensors (AskTensors). The list comes as some
ModelsTold, of which the last one says so; the pieces as some ReadingModel while the file is read, one
PiecesTold with the sizes of the files, and as many PieceHashes as follow from these; the hashes of tensors as
some ReadingModel, and as many TensorHashes as follow from the model's header. Names are told, and no paths.
"""

from dataclasses import dataclass

from meshd.base.errors import RemoteProtocolError
from meshd.wire.limits import (
    MAX_DISK_BYTES,
    MAX_GIVEN_BYTES,
    MAX_MODEL_FILES,
    MAX_MODEL_NAME_BYTES,
    MAX_MODEL_NAMES,
    MAX_MODEL_ROWS,
    MAX_PIECE_HASHES,
    MAX_TEXT_BYTES,
)
from meshd.wire.message import Fields, pack, plain, unpack

MODELS_SERVICE = "models"
MODEL_KEY_BYTES = 16
PIECE_HASH_BYTES = 32
_WORD_BYTES = 64  # of a quantisation or an architecture


@dataclass(frozen=True, slots=True)
class AskModels:
    """Which models are there?"""

    def encode(self) -> bytes:
        return pack({"type": "list"})


@dataclass(frozen=True, slots=True)
class AskPieces:
    """What are the pieces of the model that was told of with this key?"""

    key: bytes

    def encode(self) -> bytes:
        return pack({"type": "pieces", "key": self.key})


@dataclass(frozen=True, slots=True)
class AskTensors:
    """What are the hashes of the tensors of the model that was told of with this key?"""

    key: bytes

    def encode(self) -> bytes:
        return pack({"type": "tensors", "key": self.key})


@dataclass(frozen=True, slots=True)
class ToldModel:
    """A model of a member. `key` means it there, until that daemon ends; `names`: its file's without `.gguf`
    or the shard's number, then those with a scheme. `fingerprint` and `content` (model/piece_index.py) are
    empty until the member has read the whole model.
    """

    key: bytes
    names: tuple[str, ...]
    size: int
    files: int = 1
    quant: str = ""
    architecture: str = ""
    fingerprint: bytes = b""
    content: bytes = b""


@dataclass(frozen=True, slots=True)
class ToldDisk:
    """The disk of a member's cache, in bytes: `free` there, and `room` for weights that it would keep of what
    comes over the network; None: its role keeps none."""

    free: int
    room: int | None = None


@dataclass(frozen=True, slots=True)
class ModelsTold:
    """Some of the models; `last`: all have been told. `disk`: with the last; None: it is not said."""

    models: tuple[ToldModel, ...]
    last: bool = True
    disk: ToldDisk | None = None

    def encode(self) -> bytes:
        rows = [_row(one) for one in self.models]
        disk = None if self.disk is None else {"free": self.disk.free, "room": self.disk.room}
        return pack({"type": "models", "models": rows, "last": self.last, "disk": disk})


@dataclass(frozen=True, slots=True)
class ReadingModel:
    """The model is being read, so that its pieces are known: `text` says how far."""

    text: str

    def encode(self) -> bytes:
        return pack({"type": "reading", "text": plain(self.text)})


@dataclass(frozen=True, slots=True)
class PiecesTold:
    """The sizes of the model's files, in order."""

    sizes: tuple[int, ...]

    def encode(self) -> bytes:
        return pack({"type": "files", "sizes": list(self.sizes)})


@dataclass(frozen=True, slots=True)
class PieceHashes:
    """The next BLAKE3-256 hashes of pieces, one behind the other."""

    hashes: bytes

    def encode(self) -> bytes:
        return pack({"type": "hashes", "hashes": self.hashes})


@dataclass(frozen=True, slots=True)
class TensorHashes:
    """The next BLAKE3-256 hashes of tensors, in the order of the header, one behind the other."""

    hashes: bytes

    def encode(self) -> bytes:
        return pack({"type": "tensor_hashes", "hashes": self.hashes})


@dataclass(frozen=True, slots=True)
class NoPieces:
    """The member cannot tell the pieces, or the hashes of the tensors, and `why`."""

    why: str

    def encode(self) -> bytes:
        return pack({"type": "none", "why": plain(self.why)})


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


def decode(data: bytes) -> ModelsMessage:
    """One message. Raises RemoteProtocolError."""
    fields = unpack(data)
    match kind := fields.text("type", most=16):
        case "list":
            return AskModels()
        case "pieces":
            return AskPieces(fields.raw("key", exact=MODEL_KEY_BYTES))
        case "tensors":
            return AskTensors(fields.raw("key", exact=MODEL_KEY_BYTES))
        case "models":
            rows = fields.maps("models", count=MAX_MODEL_ROWS)
            return ModelsTold(tuple(map(_told, rows)), fields.flag("last"), _disk(fields))
        case "reading":
            return ReadingModel(fields.text("text", most=MAX_TEXT_BYTES))
        case "files":
            return PiecesTold(_sizes(fields))
        case "hashes":
            return PieceHashes(_hashes(fields))
        case "tensor_hashes":
            return TensorHashes(_hashes(fields))
        case "none":
            return NoPieces(fields.text("why", most=MAX_TEXT_BYTES))
    raise RemoteProtocolError(f"models message of unknown type `{kind}`", code="message")


def _row(model: ToldModel) -> dict[str, str | int | bytes | list[str]]:
    return {
        "key": model.key,
        "names": [plain(name, MAX_MODEL_NAME_BYTES) for name in model.names[:MAX_MODEL_NAMES]],
        "size": model.size,
        "files": model.files,
        "quant": plain(model.quant, _WORD_BYTES),
        "arch": plain(model.architecture, _WORD_BYTES),
        "fingerprint": model.fingerprint,
        "content": model.content,
    }


def _told(row: Fields) -> ToldModel:
    names = row.texts("names", most=MAX_MODEL_NAME_BYTES, count=MAX_MODEL_NAMES)
    if not names or not all(names):
        raise RemoteProtocolError("field `names` must name the model", code="message")
    return ToldModel(
        key=row.raw("key", exact=MODEL_KEY_BYTES),
        names=names,
        size=row.number("size", low=1, high=MAX_GIVEN_BYTES),
        files=row.number("files", low=1, high=MAX_MODEL_FILES),
        quant=row.text("quant", most=_WORD_BYTES),
        architecture=row.text("arch", most=_WORD_BYTES),
        fingerprint=_digest(row, "fingerprint"),
        content=_digest(row, "content"),
    )


def _disk(fields: Fields) -> ToldDisk | None:
    """Members of an earlier version do not tell it."""
    if "disk" not in fields:
        return None
    disk = fields.map("disk")
    room = disk.number("room", low=0, high=MAX_DISK_BYTES) if "room" in disk else None
    return ToldDisk(disk.number("free", low=0, high=MAX_DISK_BYTES), room)


def _digest(row: Fields, name: str) -> bytes:
    value = row.raw(name, most=PIECE_HASH_BYTES)
    if len(value) not in (0, PIECE_HASH_BYTES):
        raise RemoteProtocolError(f"field `{name}` must be empty or {PIECE_HASH_BYTES} bytes", code="message")
    return value


def _sizes(fields: Fields) -> tuple[int, ...]:
    sizes = fields.numbers("sizes", low=1, high=MAX_GIVEN_BYTES, count=MAX_MODEL_FILES)
    if not sizes or sum(sizes) > MAX_GIVEN_BYTES:
        raise RemoteProtocolError(
            f"field `sizes` must be of at most {MAX_GIVEN_BYTES} bytes in all", code="message"
        )
    return sizes


def _hashes(fields: Fields) -> bytes:
    hashes = fields.raw("hashes", most=MAX_PIECE_HASHES * PIECE_HASH_BYTES)
    if not hashes or len(hashes) % PIECE_HASH_BYTES:
        raise RemoteProtocolError("field `hashes` must be whole hashes", code="message")
    return hashes
