"""A pack: one file with tensors that came over the network, and at its end a table of them.

Several in one file, so that a lease needs few descriptors. A pack is written under a passing name, and gets
its own, the hash of its table, when it is complete and on the disk; then nobody changes it. Beside it grows a
journal of its whole tensors, by which a pack is finished whose process was killed. Locks (flock)
tell processes that share the folder what is in use: a writer, or a process that removes a pack, holds it
alone; readers share it.
"""

import errno
import fcntl
import os
import stat
import struct
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from meshd.base.files import NEW_PREFIX
from meshd.model.ggml import TENSOR_TYPES
from meshd.model.gguf import TensorInfo
from meshd.rpc.mesh_keeping import Missed
from meshd.store.hash_cache import FileState

SUFFIX = ".tensors"
JOURNAL = ".whole"  # behind the passing name
MAX_PACK_TENSORS = 4096
MAX_TABLE_BYTES = 1 << 20
MAX_PEER = 64
_READ_BYTES = 1 << 20
_VERSION = "meshd-tensors 1"
_TRAILER = struct.Struct("<8sQ")
_MAGIC = b"MESHDTEN"


@dataclass(frozen=True, slots=True)
class KeptTensor:
    """A tensor of a pack."""

    digest: bytes
    kind: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Table:
    """The contents of a pack, and the node that sent it."""

    peer: str
    tensors: tuple[KeptTensor, ...]

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        """The tensors in the form that `hash_tensors` takes."""
        return tuple(
            TensorInfo(t.digest.hex(), TENSOR_TYPES[t.kind], (t.size,), t.offset, t.size)
            for t in self.tensors
        )


def _line(tensor: KeptTensor) -> str:
    return f"tensor {tensor.kind} {tensor.offset} {tensor.size} {tensor.digest.hex()}"


def encode_table(table: Table) -> bytes:
    """Return the text at the end of a pack, with the trailer by which it is found."""
    lines = [_VERSION, f"from {table.peer}", *map(_line, table.tensors)]
    body = ("\n".join(lines) + "\n").encode()
    text = body + f"end {blake3(body).hexdigest()}\n".encode()
    return text + _TRAILER.pack(_MAGIC, len(text))


def decode_table(text: bytes, *, data_bytes: int) -> Table:
    """Decode a pack's table, which `data_bytes` precede. Raises ValueError if damaged or implausible."""
    body, _, checksum = text.rpartition(b"end ")
    if checksum.strip() != blake3(body).hexdigest().encode():
        raise ValueError("its table is damaged")
    lines = body.decode("ascii").splitlines()
    head = [*lines[:2], "", ""]
    if head[0] != _VERSION or not head[1].startswith("from ") or len(lines) > 2 + MAX_PACK_TENSORS:
        raise ValueError("its table is of another version")
    tensors = tuple(_read_line(line, data_bytes) for line in lines[2:])
    return Table(head[1].removeprefix("from "), tensors)


def _read_line(line: str, data_bytes: int) -> KeptTensor:
    word, kind, offset, size, digest = line.split(" ")
    kept = KeptTensor(bytes.fromhex(digest), int(kind), int(offset), int(size))
    inside = kept.offset >= 0 and 0 < kept.size <= data_bytes - kept.offset
    if word != "tensor" or not inside or len(kept.digest) != 32 or kept.kind not in TENSOR_TYPES:
        raise ValueError("its table is invalid")
    return kept


def read_table(descriptor: int) -> Table:
    """Read the table of an open pack. Raises ValueError, OSError."""
    about = os.fstat(descriptor)
    if not stat.S_ISREG(about.st_mode) or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise ValueError("other users could have written it")
    begin = about.st_size - _TRAILER.size
    if begin < 0:
        raise ValueError("it is cut")
    magic, length = _TRAILER.unpack(os.pread(descriptor, _TRAILER.size, begin))
    if magic != _MAGIC or not 0 < length <= min(begin, MAX_TABLE_BYTES):
        raise ValueError("it is cut")
    return decode_table(os.pread(descriptor, length, begin - length), data_bytes=begin - length)


def locked(path: Path, *, alone: bool) -> int | None:
    """Return a locked descriptor of the file (unlocked by closing it); None when it is gone, or in use.

    A shared lock opens it for reading only, which works on a read-only disk.
    """
    try:
        access = os.O_RDWR if alone else os.O_RDONLY
        descriptor = os.open(path, access | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor
    except OSError:  # held by others, or a file system without locks: left alone
        pass
    os.close(descriptor)
    return None


def remove(path: Path, descriptor: int) -> None:
    """Remove a pack locked exclusively. Truncates it, so that a process that still has it open takes no
    space.
    """
    with suppress(OSError):
        path.unlink()
        os.ftruncate(descriptor, 0)
    journal_of(path).unlink(missing_ok=True)


def journal_of(path: Path) -> Path:
    """Return the path of the journal of the pack being written at `path`."""
    return path.with_name(path.name + JOURNAL)


def finish_leftover(path: Path, descriptor: int) -> bool:
    """Give a pack whose writer was killed its table and its name; False when nothing of it is whole.

    It is held alone. Its tensors are as the journal says, which nobody believes: like any pack that this
    process did not write, it is read to its end before it is used. Raises OSError.
    """
    try:
        lines = journal_of(path).read_text("ascii").rpartition("\n")[0].splitlines()
        data_bytes = os.fstat(descriptor).st_size
        tensors = tuple(_read_line(line, data_bytes) for line in lines[1 : 1 + MAX_PACK_TENSORS])
    except (OSError, ValueError):  # no journal, or what is none
        return False
    if not tensors:
        return False
    _name_pack(path, descriptor, Table(lines[0].removeprefix("from "), tensors))
    return True


def _name_pack(path: Path, descriptor: int, table: Table) -> str:
    """Add the table, and rename the pack once all is on the disk. Raises OSError."""
    text = encode_table(table)
    end = max(tensor.offset + tensor.size for tensor in table.tensors)
    os.ftruncate(descriptor, end)
    _write_all(descriptor, text, end)
    os.fsync(descriptor)
    name = blake3(text).hexdigest() + SUFFIX
    path.rename(path.with_name(name))
    journal_of(path).unlink(missing_ok=True)
    _sync_folder(path.parent)
    return name


@dataclass(frozen=True, slots=True)
class Sealed:
    """A pack that is complete, in the state in which it lies in its folder."""

    name: str
    state: FileState
    table: Table


@dataclass(slots=True)
class _Region:
    tensor: Missed
    offset: int
    hashed: int = 0  # bytes that came in order


class PackWriter:
    """A pack that is being written. After an OSError only `abandon` is useful."""

    def __init__(self, folder: Path, peer: str) -> None:
        self._peer = peer[:MAX_PEER]
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=NEW_PREFIX)
        self._descriptor, self._path = descriptor, Path(name)
        with suppress(OSError):  # without locks others may take it for a leftover, when they start
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._journal = -1
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._journal = os.open(journal_of(self._path), flags, 0o600)
            self._note(f"from {self._peer}")
        except OSError:
            self.abandon()
            raise
        self._end = 0
        self._regions: dict[bytes, _Region] = {}
        self._hashes: dict[bytes, blake3] = {}
        self._kept: list[KeptTensor] = []
        self.written = 0  # bytes

    def _note(self, line: str) -> None:
        os.write(self._journal, f"{line}\n".encode())

    @property
    def count(self) -> int:
        """The number of tensors that are complete, or begun."""
        return len(self._kept) + len(self._regions)

    @property
    def between(self) -> bool:
        """True if no tensor is incomplete."""
        return not self._regions

    def write(self, tensor: Missed, offset: int, data: bytes) -> None:
        """Write a piece of a tensor. Raises OSError."""
        region = self._regions.get(tensor.digest)
        if region is None:
            if self.count >= MAX_PACK_TENSORS:
                raise OSError(errno.EFBIG, "too many tensors are incomplete")
            region = self._regions[tensor.digest] = _Region(tensor, self._end)
            self._hashes[tensor.digest] = blake3()
            self._end += tensor.size
        if region.tensor != tensor or not 0 <= offset <= tensor.size - len(data):
            raise OSError(errno.EINVAL, "a piece is outside its tensor")
        _write_all(self._descriptor, data, region.offset + offset)
        self.written += len(data)
        if offset == region.hashed:
            self._hashes[tensor.digest].update(data)
            region.hashed += len(data)

    def complete(self, tensor: Missed) -> bool:
        """Check a complete tensor against its hash and keep it; False if it differs, and is dropped."""
        region = self._regions.pop(tensor.digest)
        digest = self._hashes.pop(tensor.digest)
        if region.hashed < tensor.size:  # it came in another order
            digest = self._read(region)
        if digest.digest() == tensor.digest:
            self._kept.append(KeptTensor(tensor.digest, tensor.kind, region.offset, tensor.size))
            self._note(_line(self._kept[-1]))
            return True
        self._roll_back(region)
        return False

    def drop(self, tensor: Missed) -> None:
        """Drop an incomplete tensor, of which no more comes."""
        region = self._regions.pop(tensor.digest, None)
        if region is not None:
            del self._hashes[tensor.digest]
            self._roll_back(region)

    def _roll_back(self, region: _Region) -> None:
        if region.offset + region.tensor.size == self._end:
            self._end = region.offset

    def _read(self, region: _Region) -> blake3:
        digest, done, size = blake3(), 0, region.tensor.size
        while done < size:
            data = os.pread(self._descriptor, min(_READ_BYTES, size - done), region.offset + done)
            if not data:
                break
            digest.update(data)
            done += len(data)
        return digest

    def seal(self) -> Sealed | None:
        """Close the pack, and name it once it is on the disk; None when it holds no complete tensor."""
        for region in list(self._regions.values()):
            self.drop(region.tensor)
        if not self._kept:
            self.abandon()
            return None
        table = Table(self._peer, tuple(self._kept))
        name = _name_pack(self._path, self._descriptor, table)
        state = FileState.of(self._descriptor)
        self._close()
        return Sealed(name, state, table)

    def abandon(self) -> None:
        """Remove the pack. Idempotent."""
        if self._descriptor >= 0:
            remove(self._path, self._descriptor)
            self._close()

    def _close(self) -> None:
        os.close(self._descriptor)
        if self._journal >= 0:
            os.close(self._journal)
        self._descriptor = self._journal = -1


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    left = memoryview(data)
    while left:
        count = os.pwrite(descriptor, left, offset)
        left, offset = left[count:], offset + count


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
