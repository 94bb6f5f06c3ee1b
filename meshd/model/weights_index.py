"""The index of a model's weights by content: which bytes of which file hold the tensor with which hash.

`encode_index` writes the text that the native worker and head read from an inherited descriptor (format:
docs/models.md). `fingerprint` says whether two models are the same, whatever their paths, names and shards.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from blake3 import blake3

from meshd.model.gguf import Header

_MAGIC = "meshd-weights 1"
_NO_DESCRIPTOR = -1


@dataclass(frozen=True, slots=True)
class FileEntry:
    """The identity of one state of one file: if any of these four changes, its bytes may have changed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor: `offset` and `size` in bytes of file `file`; `digest` is their BLAKE3-256."""

    file: int
    kind: int  # ggml type number
    offset: int
    size: int
    digest: bytes
    name: str


@dataclass(frozen=True, slots=True)
class WeightsIndex:
    """Every tensor of a model; `files` in the order of the shards."""

    files: tuple[FileEntry, ...]
    tensors: tuple[TensorEntry, ...]
    fingerprint: str  # hex of BLAKE3-256

    @property
    def weight_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors)


def fingerprint(headers: Sequence[Header], digests: Sequence[Sequence[bytes]]) -> str:
    """Return a hex digest that two files share if they hold the same model.

    It covers names, types, shapes and content of all tensors, and all metadata that changes what is computed
    (architecture, tokenizer). It ignores how the file is laid out or described: shards, alignment, names,
    authors. `digests[i][j]` is the hash of tensor j of file i.
    """
    whole = blake3(b"meshd model 1\n")
    tensors = sorted(
        (tensor.name, tensor.kind.number, tensor.dims, digest)
        for header, values in zip(headers, digests, strict=True)
        for tensor, digest in zip(header.tensors, values, strict=True)
    )
    for name, kind, dims, digest in tensors:
        whole.update(f"{kind} {' '.join(map(str, dims))} {name}\n".encode() + digest)
    keys = {key: value for header in headers for key, value in header.digests.items() if _matters(key)}
    for key in sorted(keys):
        whole.update(f"{key}\n".encode() + keys[key])
    return whole.hexdigest()


def _matters(key: str) -> bool:
    if key.startswith("split."):
        return False
    # Of the general keys the model loader reads only these; the rest describes the model.
    return not key.startswith("general.") or key.startswith(("general.architecture", "general.tensor_extra"))


def encode_index(index: WeightsIndex, descriptors: Sequence[int] | None = None) -> bytes:
    """Return the text for the native side; `descriptors`: inherited by the child, None on the head."""
    if descriptors is None:
        descriptors = [_NO_DESCRIPTOR] * len(index.files)
    lines = [_MAGIC]
    for number, (file, descriptor) in enumerate(zip(index.files, descriptors, strict=True)):
        lines.append(f"file {number} {descriptor} {file.size} {file.mtime_ns} {file.ctime_ns} {file.inode}")
    for tensor in index.tensors:
        lines.append(
            f"tensor {tensor.file} {tensor.kind} {tensor.offset} {tensor.size} "
            f"{tensor.digest.hex()} {tensor.name}"
        )
    lines.append("end\n")
    return "\n".join(lines).encode()


def join_indexes(indexes: Sequence[WeightsIndex]) -> WeightsIndex:
    """Join the indexes and fingerprints of several models, for a worker that holds more than one."""
    files: list[FileEntry] = []
    tensors: list[TensorEntry] = []
    for index in indexes:
        first = len(files)
        files.extend(index.files)
        tensors.extend(
            TensorEntry(
                tensor.file + first, tensor.kind, tensor.offset, tensor.size, tensor.digest, tensor.name
            )
            for tensor in index.tensors
        )
    joined = blake3("\n".join(index.fingerprint for index in indexes).encode()).hexdigest()
    return WeightsIndex(tuple(files), tuple(tensors), indexes[0].fingerprint if len(indexes) == 1 else joined)
