"""Models of Hugging Face that came from members: compared with the hub's hashes, and moved to its cache.

A member's word that its file is `hf:ORG/REPO:QUANT` proves nothing. The hub's list of a repository has the
SHA-256 of each file, and costs a few kB. Where the hub cannot be asked, the model stays in meshd's own folder
with a note of what it was called, by which `hf:ORG/REPO:QUANT` finds it there.
"""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from meshd.library.headers import HEADER_KIND
from meshd.library.interface import ModelSource, NotTheSame, ReportProgress, StoredModel
from meshd.library.walk import folders_in, size_of
from meshd.model.gguf_names import quant_of
from meshd.model.model_name import HubName, parse_model_name
from meshd.store.hash_cache import FileState
from meshd.store.piece_cache import PieceCache
from meshd.store.shard import close_all, open_shards

_NOTE = ".pulled-as"  # in the folder of a model that no hub has confirmed
_NOTE_BYTES = 1024
_FOLDERS = "mesh-"
_OWN_FOLDERS = (_FOLDERS, f"{HEADER_KIND}-")


def adopt(name: HubName, paths: Sequence[Path], hub: Path, cache: Path, report: ReportProgress) -> list[Path]:
    """The files in Hugging Face's cache, at `hub`; `cache` is meshd's.

    Raises NotTheSame, and then they are gone; UserError where the hub cannot be asked, and then they stay.
    """
    from meshd.library.download import adopt_files  # huggingface_hub: half a second to import

    pieces = PieceCache.below(cache)
    hashes = pieces.hashes
    before = [FileState.at(path) for path in paths]
    index = pieces.load(before)
    shards = open_shards(paths[0])
    try:
        digests = [hashes.load(shard.state, shard.header) for shard in shards]
        headers = [shard.header for shard in shards]
    finally:
        close_all(shards)
    try:
        adopted = adopt_files(name, paths, hub, report)
    except NotTheSame:
        _drop(paths)
        raise
    after = [FileState.at(path) for path in adopted]
    if all(old.inode == new.inode and old.size == new.size for old, new in zip(before, after, strict=True)):
        for state, header, known in zip(after, headers, digests, strict=True):
            if known is not None:  # the same bytes, whose hashes need not be read again
                hashes.save(state, header, known)
        if index is not None:
            pieces.save(after, index)
    _drop(paths)
    return adopted


def is_pulled(paths: Sequence[Path]) -> bool:
    """Whether these files came from members; any other ones are the user's, and never moved nor removed."""
    return all(path.parent.name.startswith(_FOLDERS) for path in paths)


def note_name(name: HubName, paths: Sequence[Path]) -> None:
    """So that it is found by this name, though nobody has confirmed it."""
    quant = quant_of(paths[0].name)
    whole = HubName(name.org, name.repo, name.choice or quant or paths[0].name)
    with suppress(OSError):
        (paths[0].parent / _NOTE).write_text(f"{whole}\n", "utf-8")


def notes_of(paths: Sequence[Path]) -> tuple[Path, ...]:
    """What was noted beside a model, if anything was."""
    note = paths[0].parent / _NOTE
    return (note,) if note.is_file() else ()


def is_own_folder(folder: Path) -> bool:
    """Whether it was made for one model that came from members."""
    return folder.name.startswith(_OWN_FOLDERS)


def find_noted(name: HubName, folder: Path) -> StoredModel | None:
    """A model in meshd's folder that was pulled by this name."""
    for place in folders_in(folder, _FOLDERS):
        try:
            with (place / _NOTE).open("rb") as file:
                noted = parse_model_name(file.read(_NOTE_BYTES).decode("utf-8").strip())
        except (OSError, ValueError):
            continue
        paths = tuple(sorted(place.glob("*.gguf")))
        if isinstance(noted, HubName) and paths and _is_meant(name, noted):
            size = sum(map(size_of, paths))
            stem = paths[0].name.removesuffix(".gguf")
            return StoredModel(str(noted), ModelSource.MESHD, paths, size, stem, quant_of(stem))
    return None


def _is_meant(name: HubName, noted: HubName) -> bool:
    choice = name.choice.lower() in ("", noted.choice.lower())
    return choice and name.repository.lower() == noted.repository.lower()


def _drop(paths: Sequence[Path]) -> None:
    """What is left in the folder of a model that is not there any more."""
    with suppress(OSError):
        for path in paths:
            path.unlink(missing_ok=True)
        paths[0].parent.rmdir()
