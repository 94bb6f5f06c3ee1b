"""Reads all bytes of a model, and compares them with what its store and meshd know about them."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.library.facts import problem_of
from meshd.library.interface import ModelSource, ReportProgress, StoredModel, TransferProgress
from meshd.library.meter import Meter
from meshd.library.promised_hash import hash_of, promised_by
from meshd.model.gguf import Header
from meshd.store.hash_cache import FileState, HashCache
from meshd.store.header_file import compare_headers, compare_present, read_note
from meshd.store.interface import HashProgress
from meshd.store.model_file import ModelFile
from meshd.store.shard import Shard, close_all, is_header, open_shards


@dataclass(frozen=True, slots=True)
class Verified:
    """A model whose bytes were all read and are right. `compared`: files with a hash to compare with.

    `header_only`: these are only its header and the tensors outside the layers.
    """

    fingerprint: str
    files: int
    compared: int
    header_only: bool = False


class _ReadAnew(HashCache):
    """A cache that knows nothing, so that everything is read, and keeps what is found."""

    def load(self, state: FileState, header: Header) -> tuple[bytes, ...] | None:
        """Nothing."""
        return None


def verify(model: StoredModel, hashes: Path, report: ReportProgress) -> Verified:
    """Raises UserError for a model that is incomplete or damaged; `hashes` is the folder of meshd's."""
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
    """What is there of it, against the hashes that a member told."""
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
