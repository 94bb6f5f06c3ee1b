"""Check models of Hugging Face that came from members against the hub's hashes, and move them to its cache.

A member's claim that its file is `hf:ORG/REPO:QUANT` proves nothing. The hub's list of a repository has the
SHA-256 of each file, and costs a few kB. If the hub cannot be reached, the model stays in meshd's own folder
with a note of its requested name (pulled_models.py), by which `hf:ORG/REPO:QUANT` finds it there.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from meshd.base.errors import UserError
from meshd.library.interface import NotTheSame, ReportProgress
from meshd.library.pulled_models import add_name, is_pulled, names_of, notes_of
from meshd.model.model_name import HubName
from meshd.model.short_names import hub_name_of
from meshd.store.hash_cache import FileState
from meshd.store.piece_cache import PieceCache
from meshd.store.shard import close_all, open_shards


def keep_pulled(
    given: str,
    paths: Sequence[Path],
    hub: Path,
    cache: Path,
    report: ReportProgress,
    tell: Callable[[str], object],
) -> Path | None:
    """Return the final place of a model from members; None if Hugging Face has another by that name.

    `given`: the name that the user gave. `hub` and `cache` as in `adopt`. `tell` gets messages for the user.
    """
    if (name := hub_name_of(given)) is None or not is_pulled(paths):
        return paths[0]
    try:
        return adopt(name, paths, hub, cache, report)[0]
    except NotTheSame as error:
        tell(f"{error.what}; it was removed" if not paths[0].exists() else error.what)
        return None
    except (UserError, OSError) as error:
        tell(f"not compared with the hash that Hugging Face promises: {error}")
        add_name(name, paths)
        return paths[0]


def adopt(name: HubName, paths: Sequence[Path], hub: Path, cache: Path, report: ReportProgress) -> list[Path]:
    """Return the files in Hugging Face's cache, at `hub`; `cache` is meshd's.

    If they were also pulled under another name they stay here, too, because somebody may use them. Raises
    NotTheSame, after removing the files unless they have another name, and UserError if the hub cannot be
    reached; then they stay.
    """
    from meshd.library.download import adopt_files  # huggingface_hub: half a second to import

    # Remember the hashes by the old paths.
    pieces = PieceCache.below(cache)
    hashes = pieces.hashes
    before = [FileState.at(path) for path in paths]
    index = pieces.load(before)
    shards = open_shards(paths[0])
    try:
        digests = [hashes.load(shard.state, shard.header, shard.descriptor) for shard in shards]
        headers = [shard.header for shard in shards]
    finally:
        close_all(shards)
    # Compare and move the files.
    try:
        adopted = adopt_files(name, paths, hub, report)
    except NotTheSame:
        _drop(paths)
        raise
    _drop(paths)
    # The same files keep their hashes.
    after = [FileState.at(path) for path in adopted]
    if all(old.inode == new.inode and old.size == new.size for old, new in zip(before, after, strict=True)):
        for state, header, known in zip(after, headers, digests, strict=True):
            if known is not None:  # the bytes are the same, so their hashes need not be computed again
                hashes.save(state, header, known)
        if index is not None:
            pieces.save(after, index)
    return adopted


def _drop(paths: Sequence[Path]) -> None:
    """Remove the folder of a model, unless it has a name of its own here."""
    if any(not isinstance(name, HubName) for name in names_of(paths)):
        return
    with suppress(OSError):
        for path in (*paths, *notes_of(paths)):
            path.unlink(missing_ok=True)
        paths[0].parent.rmdir()
