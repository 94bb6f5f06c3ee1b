"""Read what a model's files say about themselves; verify their bytes against what is known about them.

Facts come from the headers alone, and the fingerprint if the file was hashed before. `verify` reads all
bytes, and compares them with what the model's store and meshd know about them.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.units import in_exact_bytes
from meshd.library.interface import ONLY_HEADER, ModelSource, ReportProgress, StoredModel, TransferProgress
from meshd.model.architectures import KNOWN_ARCHITECTURES
from meshd.model.ggml import FILE_TYPES
from meshd.model.gguf import Header, read_header
from meshd.model.weights_index import fingerprint
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.header_file import compare_headers, compare_present, read_note
from meshd.store.interface import HashProgress
from meshd.store.model_file import ModelFile, Shard, is_header, known_hashes, shards_of

_READ_BYTES = 1 << 20
_SHA256_DIGITS, _GIT_DIGITS = 64, 40
_REPORT_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The facts in the headers. `problem`: what is missing, or why the files cannot be read.

    Without a readable header, `shards` is 0, and only `problem` and `hint` are set.
    """

    architecture: str = ""
    supported: bool = False  # by the pinned llama.cpp
    title: str = ""
    quant: str = ""
    parameters: int = 0
    layers: int = 0
    context: int = 0
    tensors: int = 0
    shards: int = 0
    has_chat_template: bool = False
    fingerprint: str | None = None
    problem: str = ""
    hint: str = ""


def facts_of(model: StoredModel, hashes: Path) -> ModelFacts:
    """Read only the headers; a file that cannot be read is a `problem`, not an error.

    `hashes`: the folder of meshd's own hashes.
    """
    if not model.paths or not model.paths[0].name:
        return ModelFacts(problem=model.problem)
    path, header_only = model.paths[0], is_header(model.paths[0])
    try:
        with shards_of(path, partial=True, header_only=header_only) as shards:
            facts = _facts(model, shards, HashCache(hashes))
    except UserError as error:
        return ModelFacts(problem=model.problem or error.what, hint="" if model.problem else error.hint)
    if not header_only:
        return facts
    # Of a header, add the fingerprint that a member reported.
    try:
        return replace(facts, fingerprint=read_note(path).fingerprint, problem=ONLY_HEADER)
    except UserError as error:
        return replace(facts, fingerprint=None, problem=error.what)


def _facts(model: StoredModel, shards: list[Shard], hashes: HashCache) -> ModelFacts:
    headers = [shard.header for shard in shards]
    first = headers[0]
    architecture = first.text("general.architecture")
    whole = not any(header.missing_bytes for header in headers) and len(shards) == first.shard[1]
    known = known_hashes(shards, hashes) if whole else None
    return ModelFacts(
        architecture=architecture,
        supported=architecture in KNOWN_ARCHITECTURES,
        title=first.text("general.name"),
        quant=FILE_TYPES.get(first.integer("general.file_type", -1), "") or model.quant,
        parameters=sum(math.prod(tensor.dims) for header in headers for tensor in header.tensors),
        layers=first.integer(f"{architecture}.block_count"),
        context=first.integer(f"{architecture}.context_length"),
        tensors=sum(len(header.tensors) for header in headers),
        shards=first.shard[1],
        has_chat_template="tokenizer.chat_template" in first.metadata,
        fingerprint=fingerprint(headers, known) if known is not None else None,
        problem=problem_of(shards) or model.problem,
    )


def problem_of(shards: list[Shard]) -> str:
    """Return what these files lack; empty if they are complete."""
    lacking = shards[0].header.shard[1] - len(shards)
    if lacking > 0:
        return f"{lacking} of {shards[0].header.shard[1]} files missing"
    missing = sum(shard.header.missing_bytes for shard in shards)
    return f"short by {in_exact_bytes(missing)}" if missing else ""


def read_beginning(
    pread: Callable[[int, int], bytes], *, end: int, size: int, label: str, may_grow: bool
) -> Header | None:
    """Read a header from the first `end` bytes of a file, which `pread` returns. Raises UserError.

    None: the header is longer than that. Without `may_grow` that is an error as well.
    """
    was_short = False

    def bounded(offset: int, length: int) -> bytes:
        nonlocal was_short
        was_short = was_short or offset + length > end
        return pread(offset, max(0, min(length, end - offset)))

    try:
        return read_header(bounded, size=size, label=label)
    except UserError:
        if was_short and may_grow:
            return None
        raise


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
        self._began = self._reported_at = time.monotonic()
        self.done = begin_at
        self._tell(0.0)

    def add(self, count: int) -> None:
        """Count `count` more bytes; negative if some have to come again."""
        self.done += count
        now = time.monotonic()
        if now - self._reported_at >= _REPORT_SECONDS or self.done == self._total:
            self._reported_at = now
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
        return _verify_header(model.paths[0], report)
    if model.problem and (not model.paths or not model.paths[0].exists()):
        raise _bad(model, model.problem)
    with shards_of(model.paths[0], partial=True) as shards:
        if problem := problem_of(shards) or model.problem:
            raise _bad(model, problem)
        # Compare the bytes with the store's hashes, then hash the tensors.
        known = [HashCache(hashes).load(shard.state, shard.header) for shard in shards]
        compared = sum(_compare(model, shard.path, report) for shard in shards)
        found = asyncio.run(_hashed(shards[0].path, hashes, report))
        # Compare the tensors with what was known of them.
        again = [HashCache(hashes).load(shard.state, shard.header) for shard in shards]
        for shard, before, now in zip(shards, known, again, strict=True):
            if before is not None and now is not None and before != now:
                what = f"`{shard.path.name}` has other bytes than before, with the same time and size"
                raise _bad(model, what)
    return Verified(found, len(shards), compared)


def _verify_header(path: Path, report: ReportProgress) -> Verified:
    """Compare the present tensors with the hashes that a member reported."""
    note = read_note(path)
    with shards_of(path, header_only=True) as shards:
        report(TransferProgress(f"checking `{path.name}`"))
        compare_headers(shards, note)
        asyncio.run(compare_present(shards, note))
    return Verified(note.fingerprint, len(shards), 0, header_only=True)


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
