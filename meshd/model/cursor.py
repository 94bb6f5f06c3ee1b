"""Read forward through `pread`, in bounded windows, and optionally digest the bytes passed.

The GGUF header of a model with a large vocabulary is tens of megabytes. At most one window of it is in
memory, and values nobody asks for are skipped without creating objects.
"""

import struct
from collections.abc import Callable

from blake3 import blake3

from meshd.base.errors import UserError
from meshd.base.units import in_exact_bytes

PRead = Callable[[int, int], bytes]
"""`pread(offset, length)` returns the bytes there, fewer only at the end of the file. Like `os.pread`."""

WINDOW_BYTES = 256 * 1024  # two reads of a disk's usual read-ahead; a header needs a few dozen windows
MAX_HEADER_BYTES = 128 * 1024 * 1024  # the largest vocabularies with merges and scores take about 20 MiB

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")


class Cursor:
    """Read little-endian values one after the other; every fault is a UserError that names `label`."""

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
