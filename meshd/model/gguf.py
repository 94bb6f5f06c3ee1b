"""Read the header of a GGUF file, versions 2 and 3, little endian, within limits.

Bytes come from a `pread` callback. The file is untrusted: counts, lengths, offsets and types are checked
before they are used, memory is bounded whatever the file says, and every fault is a UserError that names the
part of the file and what was expected there.

Format: `docs/gguf.md` of ggml and `ggml/src/gguf.cpp` of the pinned upstream commit. Upstream's own checks
(order and alignment of tensors, length of names) are made here too, so a file that passes also loads there.
"""

import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from blake3 import blake3

from meshd.base.errors import UserError
from meshd.base.units import in_exact_bytes, in_number
from meshd.model.ggml import TENSOR_TYPES, TensorType

PRead = Callable[[int, int], bytes]
"""`pread(offset, length)` returns the bytes there, fewer only at the end of the file. Like `os.pread`."""

WINDOW_BYTES = 256 * 1024  # two reads of a disk's usual read-ahead; a header needs a few dozen windows
MAX_HEADER_BYTES = 128 * 1024 * 1024  # the largest vocabularies with merges and scores take about 20 MiB
MAX_KEYS = 16_384  # real files have 20 to 100
MAX_TENSORS = 65_536  # the largest models with unmerged experts have about 60,000
MAX_KEY_BYTES = 256  # upstream allows 65535; real keys have up to 60
MAX_TENSOR_NAME_BYTES = 63  # GGML_MAX_NAME is 64, including the final zero
MAX_ARRAY_ELEMENTS = 1 << 24  # vocabularies have up to 300,000, merges up to 600,000
MAX_KEPT_ELEMENTS = 1024  # arrays up to this length are kept: one value a layer, 512 layers at most
MAX_KEPT_STRING_BYTES = 4096  # longer strings (chat templates) are not needed here
MAX_VALUES_BYTES = 4 * 1024 * 1024  # all kept values together
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 20

_STRING, _ARRAY = 8, 9
_FIXED: Mapping[int, tuple[str, struct.Struct]] = {
    0: ("uint8", struct.Struct("<B")),
    1: ("int8", struct.Struct("<b")),
    2: ("uint16", struct.Struct("<H")),
    3: ("int16", struct.Struct("<h")),
    4: ("uint32", struct.Struct("<I")),
    5: ("int32", struct.Struct("<i")),
    6: ("float32", struct.Struct("<f")),
    7: ("bool", struct.Struct("<?")),
    10: ("uint64", struct.Struct("<Q")),
    11: ("int64", struct.Struct("<q")),
    12: ("float64", struct.Struct("<d")),
}
LOOKED_AT = 1024  # bytes at the beginning of a file that is not GGUF
_FORMAT_HINT = "meshd reads models in llama.cpp's GGUF format (*.gguf)"
_CONVERT_HINT = "download the model as GGUF, or convert it with llama.cpp's `convert_hf_to_gguf.py`"
_TITLE = re.compile(r"<title[^>]*>([^<]{1,200})</title", re.IGNORECASE)
_LFS_SIZE = re.compile(rb"^size ([0-9]{1,15})$", re.MULTILINE)
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body", b"<script")
_PYTORCH = (b"PK\x03\x04", b"\x80\x02", b"\x80\x04")
_OLD_GGML = (b"lmgg", b"fmgg", b"tjgg", b"algg")  # `ggml`, `ggmf`, `ggjt`, `ggla` as little-endian numbers

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Read little-endian values one after the other; every fault is a UserError that names `label`.

    Reads forward, in bounded windows: the header of a model with a large vocabulary is tens of megabytes. At
    most one window of it is in memory, and values nobody asks for are skipped without creating objects.
    """

    def __init__(self, pread: PRead, *, size: int, label: str, window: int = WINDOW_BYTES) -> None:
        self._pread = pread
        self._read_ahead = window
        self._size = size
        self._label = label
        self._window = b""
        self._start = 0  # file offset of the window's first byte
        self._at = 0  # offset within the window
        self._digest: blake3 | None = None
        self._digested = 0  # offset within the window up to which the digest has seen the bytes

    @property
    def position(self) -> int:
        return self._start + self._at

    def fault(self, what: str, *, hint: str = "") -> UserError:
        """Return a UserError about this file; the caller raises it."""
        return UserError(f"cannot use `{self._label}`: {what}", hint=hint)

    def short(self, part: str, missing: int) -> UserError:
        """Return the fault of a file that ends inside `part`, `missing` bytes too early."""
        return self.fault(
            f"the file ends inside {part}: short by {in_exact_bytes(missing)}",
            hint="the download or copy is not complete: download the file again",
        )

    def u32(self, part: str) -> int:
        self._need(4, part)
        value = int(_U32.unpack_from(self._window, self._at)[0])
        self._at += 4
        return value

    def u64(self, part: str) -> int:
        self._need(8, part)
        value = int(_U64.unpack_from(self._window, self._at)[0])
        self._at += 8
        return value

    def take(self, length: int, part: str) -> bytes:
        """Return `length` bytes as an object; the caller has checked `length` against a limit."""
        self._need(length, part)
        value = self._window[self._at : self._at + length]
        self._at += length
        return value

    def skip(self, length: int, part: str) -> None:
        """Skip `length` bytes; they are read only while a digest runs."""
        self._check_end(length, part)
        if self._digest is None:
            inside = min(length, len(self._window) - self._at)
            self._at += inside
            if length > inside:
                self._start, self._at, self._window = self.position + length - inside, 0, b""
            return
        while length:
            if self._at == len(self._window):
                self._need(1, part)
            step = min(length, len(self._window) - self._at)
            self._at += step
            length -= step

    def skip_strings(self, count: int, part: str) -> None:
        """Skip `count` length-prefixed strings: the hot loop of a header with a vocabulary."""
        unpack = _U64.unpack_from
        done = 0
        while done < count:
            self._need(8, part)
            window, at, end = self._window, self._at, len(self._window) - 8
            while done < count and at <= end:
                after = at + 8 + unpack(window, at)[0]
                if after > end + 8:
                    break
                at = after
                done += 1
            self._at = at
            if done < count:  # the next string reaches beyond the window
                self.skip(self.u64(part), part)
                done += 1

    def start_digest(self) -> None:
        """Digest all bytes passed from here on."""
        self._digest = blake3()
        self._digested = self._at

    def end_digest(self) -> bytes:
        """Return the BLAKE3-256 of the bytes passed since `start_digest`."""
        self._feed_digest()
        assert self._digest is not None
        value = self._digest.digest()
        self._digest = None
        return value

    def _feed_digest(self) -> None:
        if self._digest is not None and self._at > self._digested:
            self._digest.update(memoryview(self._window)[self._digested : self._at])
        self._digested = self._at

    def _check_end(self, length: int, part: str) -> None:
        end = self.position + length
        if end > self._size:
            raise self.short(part, end - self._size)
        if end > MAX_HEADER_BYTES:
            raise self.fault(f"{part} reaches beyond byte {MAX_HEADER_BYTES}, the limit for a header")

    def _need(self, length: int, part: str) -> None:
        """Load the next `length` bytes into the window. Raises UserError if the file is too short."""
        if self._at + length <= len(self._window):
            return
        self._check_end(length, part)
        self._feed_digest()
        position = self.position
        data = self._pread(position, max(length, min(self._read_ahead, self._size - position)))
        if len(data) < length:
            raise self.short(part, length - len(data))
        self._window, self._start, self._at, self._digested = data, position, 0, 0


@dataclass(frozen=True, slots=True)
class Skipped:
    """A skipped value: a long array (`count` elements) or a long string (`count` bytes)."""

    kind: str
    count: int


Value = bool | int | float | str | tuple[bool | int | float, ...] | Skipped


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `offset` and `size` in bytes, `offset` from the start of the file."""

    name: str
    kind: TensorType
    dims: tuple[int, ...]
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Header:
    """The contents of a GGUF header. `digests` has the BLAKE3-256 of each key's type and value bytes.

    `missing_bytes`: the bytes of tensor data that are cut off; `tensors` has only complete tensors.
    """

    version: int
    metadata: Mapping[str, Value]
    digests: Mapping[str, bytes]
    tensors: tuple[TensorInfo, ...]
    alignment: int
    data_offset: int
    missing_bytes: int = 0

    def text(self, key: str, default: str = "") -> str:
        """Return the string under `key`; `default` if it is absent, skipped or of another type."""
        value = self.metadata.get(key)
        return value if isinstance(value, str) else default

    def integer(self, key: str, default: int = 0) -> int:
        """Return the integer (or bool) under `key`; `default` if it is absent or something else."""
        value = self.metadata.get(key)
        return int(value) if isinstance(value, int) else default

    def array(self, key: str) -> tuple[int, ...] | None:
        """Return the short array of integers or bools under `key`, else None."""
        value = self.metadata.get(key)
        if not isinstance(value, tuple):
            return None
        return tuple(int(item) for item in value if not isinstance(item, float))

    def length(self, key: str) -> int:
        """Return the number of elements of the array under `key`, kept or skipped; 0 if there is none."""
        value = self.metadata.get(key)
        if isinstance(value, tuple):
            return len(value)
        return value.count if isinstance(value, Skipped) else 0

    @property
    def shard(self) -> tuple[int, int]:
        """The number (from 0) and the count of this file in a sharded model; (0, 1) for a single file."""
        return self.integer("split.no"), max(1, self.integer("split.count", 1))


def read_header(
    pread: PRead, *, size: int, label: str, window: int = WINDOW_BYTES, partial: bool = False
) -> Header:
    """Read the header of a file of `size` bytes; `label` names it in errors.

    Keeps at most about `window` bytes of the file and MAX_VALUES_BYTES of values at a time. Checks that every
    tensor lies inside the file. Raises UserError for anything that is not a complete, well-formed GGUF file.
    With `partial` its end may be missing: the header has the complete tensors, and `missing_bytes`.
    """
    cursor = Cursor(pread, size=size, label=label, window=window)
    version = _magic_and_version(cursor, size)
    tensor_count = _count(cursor, "the number of tensors", MAX_TENSORS)
    key_count = _count(cursor, "the number of metadata keys", MAX_KEYS)
    metadata, digests = _Metadata(cursor).read(key_count)
    alignment = _alignment(cursor, metadata)
    described = [_tensor(cursor, number) for number in range(tensor_count)]
    data_offset = -(-cursor.position // alignment) * alignment
    placed = _placed(cursor, described, alignment=alignment, data_offset=data_offset)
    missing = max((tensor.offset + tensor.size - size for tensor in placed), default=0)
    if missing > 0 and not partial:
        raise cursor.short("the tensor data", missing)
    tensors = tuple(tensor for tensor in placed if tensor.offset + tensor.size <= size)
    return Header(version, metadata, digests, tensors, alignment, data_offset, max(0, missing))


def _magic_and_version(cursor: Cursor, size: int) -> int:
    if size == 0:
        raise cursor.fault("the file is empty", hint="download the model again")
    if size < 4:
        raise cursor.fault(f"not a GGUF file: it has only {in_number(size, 'byte')}", hint=_FORMAT_HINT)
    magic = cursor.take(4, "the magic number")
    if magic != b"GGUF":
        what, hint = what_it_is(magic + cursor.take(min(size, LOOKED_AT) - 4, "the file"))
        raise cursor.fault(what, hint=hint)
    version = cursor.u32("the version")
    if version & 0xFFFF == 0 and version != 0:
        raise cursor.fault(
            "the file is big endian, expected little endian",
            hint="download a little-endian one, or run gguf-py's `gguf_convert_endian.py FILE little`",
        )
    if version == 1:
        raise cursor.fault(
            "it has GGUF version 1, expected 2 or 3", hint="download the model again, or convert it"
        )
    if version not in (2, 3):
        raise cursor.fault(
            f"it has GGUF version {version}, expected 2 or 3",
            hint="the file is damaged, or made for a newer llama.cpp: download it again, or upgrade meshd",
        )
    return version


def _count(cursor: Cursor, part: str, most: int) -> int:
    value = cursor.u64(part)
    if value > most:
        raise cursor.fault(f"{part} is {value}, expected at most {most}")
    return value


def _text(cursor: Cursor, part: str, most: int) -> str:
    length = cursor.u64(f"the length of {part}")
    if length > most:
        raise cursor.fault(f"{part} has {length} bytes, expected at most {most}")
    data = cursor.take(length, part)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise cursor.fault(f"{part} is not UTF-8 text: `{data[:32].hex()}`") from None
    if not text or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise cursor.fault(f"{part} is empty or has control characters: `{data[:32].hex()}`")
    return text


class _Metadata:
    """Read the key-value pairs, keeping small values within one budget of bytes."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._budget = MAX_VALUES_BYTES

    def read(self, count: int) -> tuple[Mapping[str, Value], Mapping[str, bytes]]:
        cursor = self._cursor
        values: dict[str, Value] = {}
        digests: dict[str, bytes] = {}
        for number in range(count):
            key = _text(cursor, f"metadata key {number}", MAX_KEY_BYTES)
            if key in values:
                raise cursor.fault(f"metadata key `{key}` occurs twice")
            cursor.start_digest()
            values[key] = self._value(key)
            digests[key] = cursor.end_digest()
        return values, digests

    def _value(self, key: str) -> Value:
        part = f"the value of `{key}`"
        kind = self._cursor.u32(part)
        if kind == _STRING:
            return self._string(part)
        if kind == _ARRAY:
            return self._array(part)
        if kind not in _FIXED:
            raise self._cursor.fault(f"{part} has type {kind}, expected 0 to 12")
        name, layout = _FIXED[kind]
        return self._scalar(layout, self._cursor.take(layout.size, part), name)

    @staticmethod
    def _scalar(layout: struct.Struct, data: bytes, name: str) -> bool | int | float:
        value: bool | int | float = layout.unpack(data)[0]
        return bool(value) if name == "bool" else value

    def _string(self, part: str) -> Value:
        length = self._cursor.u64(part)
        if length > min(MAX_KEPT_STRING_BYTES, self._budget):
            self._cursor.skip(length, part)
            return Skipped("string", length)
        self._budget -= length
        return self._cursor.take(length, part).decode("utf-8", "replace")

    def _array(self, part: str) -> Value:
        kind = self._cursor.u32(part)
        count = _count(self._cursor, f"the length of the array in {part}", MAX_ARRAY_ELEMENTS)
        if kind == _STRING:
            self._cursor.skip_strings(count, part)
            return Skipped("string array", count)
        if kind not in _FIXED:  # upstream also refuses arrays of arrays
            raise self._cursor.fault(f"{part} is an array of type {kind}, expected 0 to 8 or 10 to 12")
        name, layout = _FIXED[kind]
        length = count * layout.size
        if count > MAX_KEPT_ELEMENTS or 8 * count > self._budget:
            self._cursor.skip(length, part)
            return Skipped(f"{name} array", count)
        self._budget -= 8 * count
        data = self._cursor.take(length, part)
        items = [data[at : at + layout.size] for at in range(0, length, layout.size)]
        return tuple(self._scalar(layout, item, name) for item in items)


def _alignment(cursor: Cursor, metadata: Mapping[str, Value]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if not isinstance(value, int) or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.fault(f"`general.alignment` is {value}, expected a power of two up to {MAX_ALIGNMENT}")
    return value


def _tensor(cursor: Cursor, number: int) -> TensorInfo:
    """Read one entry of the tensor table; `offset` is still relative to the data section."""
    name = _text(cursor, f"the name of tensor {number}", MAX_TENSOR_NAME_BYTES)
    part = f"tensor `{name}`"
    rank = cursor.u32(part)
    if rank > 4:
        raise cursor.fault(f"{part} has {rank} dimensions, expected at most 4")
    # The shape.
    dims = tuple(cursor.u64(part) for _ in range(rank))
    elements = 1
    for dim in dims:
        elements *= dim
    if elements >= 1 << 63 or any(dim >= 1 << 63 for dim in dims):
        raise cursor.fault(f"{part} has the shape {dims}, expected fewer than 2^63 elements")
    # The type.
    number_of_type = cursor.u32(part)
    kind = TENSOR_TYPES.get(number_of_type)
    if kind is None:
        raise cursor.fault(
            f"{part} has type {number_of_type}, which the pinned llama.cpp does not know",
            hint="the file was made by a newer or a very old llama.cpp: convert it again",
        )
    row = dims[0] if dims else 1
    if row % kind.block_elements:
        raise cursor.fault(
            f"{part} has rows of {row}, expected a multiple of {kind.block_elements} ({kind.name})"
        )
    return TensorInfo(name, kind, dims, cursor.u64(part), kind.tensor_bytes(dims))


def _placed(
    cursor: Cursor, tensors: Sequence[TensorInfo], *, alignment: int, data_offset: int
) -> tuple[TensorInfo, ...]:
    """Return the tensors with file offsets.

    They must lie one after the other, padded, as upstream requires.
    """
    seen: set[str] = set()
    placed: list[TensorInfo] = []
    expected = 0
    for tensor in tensors:
        if tensor.name in seen:
            raise cursor.fault(f"tensor `{tensor.name}` occurs twice")
        seen.add(tensor.name)
        if tensor.offset != expected:
            raise cursor.fault(f"tensor `{tensor.name}` has the offset {tensor.offset}, expected {expected}")
        end = expected + tensor.size
        expected = -(-end // alignment) * alignment
        placed.append(
            TensorInfo(tensor.name, tensor.kind, tensor.dims, data_offset + tensor.offset, tensor.size)
        )
    return tuple(placed)


def what_it_is(head: bytes) -> tuple[str, str]:
    """Return what the file is, and a hint, from up to LOOKED_AT bytes that do not begin with `GGUF`.

    People save a login page under the name of a model, clone a repository without Git LFS, or download
    another format from the same repository.
    """
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if text.startswith(b"version https://git-lfs.github.com/spec/"):
        size = _LFS_SIZE.search(head)
        of = f" of {int(size[1])} bytes" if size is not None else ""
        hint = "run `git lfs pull` in the clone, or download the file itself: `meshd model pull`"
        return f"it is a Git LFS pointer to a file{of}, not that file", hint
    if text.startswith(b"/annex/objects/"):
        return "it is a git-annex pointer, not the file itself", "run `git annex get` on it"
    if text.startswith(_HTML) or (text.startswith(b"<") and b"<html" in text):
        hint = "download the file again: the server wants a login, or the address was that of a page"
        return f"it is a web page{_title(head)}, not a model", hint
    if text.startswith((b"<?xml", b"{")):
        what = "it is a text document (XML or JSON), such as a server's error message, not a model"
        return what, "open it to read what the server said, then download the file again"
    if head[8:9] == b"{" and head[5:8] == bytes(3):
        return "it is a model in the safetensors format, not GGUF", _CONVERT_HINT
    if head.startswith(_PYTORCH):
        return "it is a ZIP archive or a PyTorch file, not GGUF", _CONVERT_HINT
    if head.startswith(_OLD_GGML):
        return "it is in a llama.cpp format older than GGUF", "download the model again, as GGUF"
    magic = head[:4]
    is_text = magic.isascii() and magic.decode().isprintable()
    seen = magic.decode() if is_text else magic.hex()
    return f"not a GGUF file: it begins with `{seen}`, expected `GGUF`", _FORMAT_HINT


def _title(head: bytes) -> str:
    """Return the title of a web page for a message, with a space in front; empty if it has none."""
    title = _TITLE.search(head.decode("utf-8", "replace"))
    words = " ".join("".join(c for c in title[1] if c.isprintable() or c.isspace()).split()) if title else ""
    return f" (`{words[:60]}`)" if words else ""
