"""Read all bytes of a model, and compare them with what its store and meshd know about them."""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.library.facts import problem_of
from meshd.library.interface import ModelSource, ReportProgress, StoredModel, TransferProgress
from meshd.model.gguf import Header
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.header_file import compare_headers, compare_present, read_note
from meshd.store.interface import HashProgress
from meshd.store.model_file import ModelFile
from meshd.store.shard import Shard, close_all, is_header, open_shards

_READ_BYTES = 1 << 20
_SHA256_DIGITS, _GIT_DIGITS = 64, 40
_REPORT_SECONDS = 0.5


def hash_of(path: Path, promised: str, read: Callable[[int], None]) -> str:
    """Hash the file like `promised`: SHA-256, or git's hash of a blob. Raises OSError.

    `read` gets the number of bytes of each step.
    """
    with path.open("rb") as file:
        if len(promised) == _SHA256_DIGITS:
            digest = hashlib.sha256()
        else:
            digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while data := file.read(_READ_BYTES):
            digest.update(data)
            read(len(data))
    return digest.hexdigest()


def promised_by(path: Path) -> str:
    """Return the hash in the name of the file behind a store's path; empty if there is none.

    Hugging Face's blobs are called HASH, Ollama's `sha256-HASH`. Only the first link counts: the blob itself
    may be a link into a store that several caches share and that uses other names.
    """
    try:
        name = path.readlink().name if path.is_symlink() else path.name
    except OSError:
        return ""
    name = name.removeprefix("sha256-").lower()
    if len(name) in (_SHA256_DIGITS, _GIT_DIGITS) and all(char in "0123456789abcdef" for char in name):
        return name
    return ""


class Meter:
    """Count the bytes of one activity; `begin_at` of them were there before."""

    def __init__(self, report: ReportProgress, activity: str, total: int, *, begin_at: int = 0) -> None:
        self._report = report
        self._activity = activity
        self._total = total
        self._first = begin_at
        self._began = self._told = time.monotonic()
        self.done = begin_at
        self._tell(0.0)

    def add(self, count: int) -> None:
        """Count `count` more bytes; negative if some have to come again."""
        self.done += count
        now = time.monotonic()
        if now - self._told >= _REPORT_SECONDS or self.done == self._total:
            self._told = now
            self._tell(now - self._began)

    def _tell(self, seconds: float) -> None:
        rate = (self.done - self._first) / seconds if seconds > 0 else 0.0
        self._report(TransferProgress(self._activity, self.done, self._total, max(0.0, rate)))


@dataclass(frozen=True, slots=True)
class Verified:
    """A model whose bytes were all read and are right. `compared`: files with a hash to compare with.

    `header_only`: only the header and the tensors outside the layers were read.
    """

    fingerprint: str
    files: int
    compared: int
    header_only: bool = False


class _ReadAnew(HashCache):
    """A cache that loads nothing, so that all bytes are read, and keeps the results."""

    def load(
        self, state: FileState, header: Header, descriptor: int | None = None
    ) -> tuple[bytes, ...] | None:
        """Return None."""
        return None


def verify(model: StoredModel, hashes: Path, report: ReportProgress) -> Verified:
    """Verify all bytes; `hashes` is meshd's folder of hashes. Raises UserError for a bad model."""
    if model.paths and is_header(model.paths[0]):
        return _verify_header(model, report)
    shards = _opened(model)
    try:
        if problem := problem_of(shards) or model.problem:
            raise _bad(model, problem)
        known = [HashCache(hashes).load(shard.state, shard.header) for shard in shards]
        paths = [shard.path for shard in shards]
        compared = sum(_compare(model, path, report) for path in paths)
        found = asyncio.run(_hashed(paths[0], hashes, report))
        again = [HashCache(hashes).load(shard.state, shard.header) for shard in shards]
        for path, before, now in zip(paths, known, again, strict=True):
            if before is not None and now is not None and before != now:
                raise _bad(model, f"`{path.name}` has other bytes than before, with the same time and size")
    finally:
        close_all(shards)
    return Verified(found, len(paths), compared)


def _verify_header(model: StoredModel, report: ReportProgress) -> Verified:
    """Compare the present tensors with the hashes that a member reported."""
    path = model.paths[0]
    note = read_note(path)
    shards = open_shards(path, header_only=True)
    try:
        report(TransferProgress(f"checking `{path.name}`"))
        compare_headers(shards, note)
        asyncio.run(compare_present(shards, note))
    finally:
        close_all(shards)
    return Verified(note.fingerprint, len(shards), 0, header_only=True)


def _opened(model: StoredModel) -> list[Shard]:
    if model.problem and (not model.paths or not model.paths[0].exists()):
        raise _bad(model, model.problem)
    return open_shards(model.paths[0], partial=True)


def _compare(model: StoredModel, path: Path, report: ReportProgress) -> bool:
    promised = promised_by(path)
    if not promised:
        return False
    try:
        meter = Meter(report, f"checking `{path.name}`", path.stat().st_size)
        found = hash_of(path, promised, meter.add)
    except OSError as error:
        raise UserError(f"cannot read `{path}`: {error.strerror}", hint="check the disk") from None
    if found != promised:
        raise _bad(model, f"the hash of `{path.name}` is {found[:16]}…, expected {promised[:16]}…")
    return True


async def _hashed(path: Path, hashes: Path, report: ReportProgress) -> str:
    def progress(now: HashProgress) -> None:
        report(TransferProgress(f"hashing the tensors of `{now.label}`", now.done, now.total, now.rate))

    file = await ModelFile.open(path, cache=_ReadAnew(hashes))
    try:
        return (await file.index(progress)).fingerprint
    finally:
        file.close()


def _bad(model: StoredModel, what: str) -> UserError:
    again = {
        ModelSource.OLLAMA: f"run `ollama pull {model.name.removeprefix('ollama:')}`",
        ModelSource.HUB: f"run `meshd model rm {model.name}`, then `meshd model pull {model.name}`",
    }
    return UserError(
        f"`{model.name}` is damaged or incomplete: {what}",
        hint=again.get(model.source, "download the file again"),
    )
