"""Models that came from members: their names, those of which only the header is here, and their adoption.

A member may give its file any name. So a model in such a folder is found later by the names that the user
gave when it was pulled, and by its fingerprint, never by its file's name. The names are noted beside the
model, one per line, the newest last. A header (store/header_file.py) has its own folder.

A member's claim that its file is `hf:ORG/REPO:QUANT` proves nothing. The hub's list of a repository has the
SHA-256 of each file, and costs a few kB: a file that is right moves to Hugging Face's cache. If the hub
cannot be reached, the model stays here with a note of its requested name, by which `hf:ORG/REPO:QUANT` finds
it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.files import replace_file
from meshd.library.disk import bytes_on_disk, files_below, folders_in, size_of
from meshd.library.interface import ONLY_HEADER, ModelSource, NotTheSame, ReportProgress, StoredModel
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX, header_stem, quant_of
from meshd.model.model_name import (
    MAX_MODEL_NAME_CHARS,
    BareName,
    HubName,
    MeshName,
    ModelName,
    OllamaName,
    parse_model_name,
)
from meshd.model.short_names import hub_name_of
from meshd.store.hash_cache import FileState, PieceCache
from meshd.store.header_file import link_paths, note_path, read_note
from meshd.store.model_file import shards_of

WHOLE_KIND, HEADER_KIND = "mesh", "header"  # prefixes of the folders
_NOTE = ".pulled-as"
_MOST_NAMES = 8
_FOLDERS = f"{WHOLE_KIND}-"
_OWN_FOLDERS = (_FOLDERS, f"{HEADER_KIND}-")


def is_pulled(paths: Sequence[Path]) -> bool:
    """Say whether these files came from members; others are the user's, and never moved or removed."""
    return all(path.parent.name.startswith(_FOLDERS) for path in paths)


def is_own_folder(folder: Path) -> bool:
    """Say whether the folder was created for one model from members."""
    return folder.name.startswith(_OWN_FOLDERS)


def is_of_members(model: StoredModel) -> bool:
    """Say whether a member chose the name of the model's file."""
    return model.source is ModelSource.MESHD and all(is_own_folder(path.parent) for path in model.paths)


def note_names(folder: Path, names: Iterable[ModelName]) -> None:
    """Note the last of these names for the model in this folder, ignoring write errors."""
    lines = list(dict.fromkeys(map(str, names)))[-_MOST_NAMES:]
    with suppress(OSError):
        replace_file(folder / _NOTE, "".join(f"{line}\n" for line in lines).encode())


def add_name(name: ModelName, paths: Sequence[Path]) -> None:
    """Note that the model was also requested by this name."""
    note_names(paths[0].parent, [*names_of(paths), name])


def names_of(paths: Sequence[Path]) -> tuple[ModelName, ...]:
    """Return the names by which the model was pulled; empty if none, or an invalid one, was noted."""
    try:
        with (paths[0].parent / _NOTE).open("rb") as file:
            lines = file.read(_MOST_NAMES * 4 * MAX_MODEL_NAME_CHARS).decode("utf-8").splitlines()
        return tuple(map(parse_model_name, lines))
    except (OSError, ValueError):
        return ()


def name_of(paths: Sequence[Path]) -> str:
    """Return the last name by which the model was pulled, which `--model` accepts; empty if none."""
    names = names_of(paths)
    return str(names[-1]) if names else ""


def words_of(paths: Sequence[Path]) -> set[str]:
    """Return the model's bare and `mesh:` names, except digits, in lower case and without suffix."""
    return set(map(str.lower, texts_of(paths)))


def texts_of(paths: Sequence[Path]) -> list[str]:
    """Return the same names as the user wrote them."""
    return [text for name in names_of(paths) if (text := text_of(name))]


def text_of(name: ModelName) -> str:
    """Return the name without suffix; empty for names of stores, and for digits."""
    if isinstance(name, BareName) or (isinstance(name, MeshName) and not name.fingerprint):
        text = name.text
        return text[: -len(GGUF_SUFFIX)] if text.lower().endswith(GGUF_SUFFIX) else text
    return ""


def notes_of(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the note beside a model, if there is one."""
    note = paths[0].parent / _NOTE
    return (note,) if note.is_file() else ()


def find_noted(name: HubName | OllamaName, folder: Path) -> StoredModel | None:
    """Find a model in meshd's folder that was pulled by this name."""
    for place in folders_in(folder, _FOLDERS):
        paths = tuple(sorted(place.glob(f"*{GGUF_SUFFIX}")))
        noted = (
            next((noted_name for noted_name in names_of(paths) if _is_meant(name, noted_name)), None)
            if paths
            else None
        )
        if noted is not None:
            size = sum(map(size_of, paths))
            stem = paths[0].name.removesuffix(GGUF_SUFFIX)
            return StoredModel(str(noted), ModelSource.MESHD, paths, size, stem, quant_of(stem))
    return None


def _is_meant(name: HubName | OllamaName, noted: ModelName) -> bool:
    if isinstance(name, HubName) and isinstance(noted, HubName):
        choice = name.choice.lower() in ("", noted.choice.lower())
        return choice and name.repository.lower() == noted.repository.lower()
    return name == noted


def all_headers(folder: Path) -> Iterator[StoredModel]:
    """Find the headers below the folder of meshd's models; they are incomplete as models. Raises OSError."""
    for place in folders_in(folder, f"{HEADER_KIND}-"):
        found: dict[str, list[Path]] = {}
        for path, _ in files_below(place, depth=1, suffix=HEADER_SUFFIX):
            found.setdefault(header_stem(path.name), []).append(path)
        for stem, paths in found.items():
            yield _stored(paths, stem)


def find_header(folder: Path, name: MeshName) -> StoredModel | None:
    """Find the header that was pulled by this name, or has that fingerprint.

    A content id does not count: it says nothing about the hashes of layers that are not here.
    """
    for stored in all_headers(folder):
        with suppress(UserError):
            if _is_called(name, stored.paths[0]):
                return stored
    return None


def header_at(path: Path) -> StoredModel:
    """Return the header that consists of this file, or has it as one of several."""
    paths = [header for header, _ in files_below(path.parent, depth=1, suffix=HEADER_SUFFIX)]
    stem = header_stem(path.name)
    return _stored([header for header in paths if header_stem(header.name) == stem], stem)


def said_of(path: Path) -> str:
    """Tell the user which model this is, and which member says so. Raises UserError."""
    note = read_note(path)
    return (
        f"only the header of `{note.name}` is here; fingerprint (as reported by {note.node}): "
        f"{note.fingerprint}"
    )


def files_of(paths: Sequence[Path]) -> tuple[Path, ...]:
    """Return the files, the note on them, and links to them."""
    return (*paths, note_path(paths[0]), *(link_paths(paths) if len(paths) > 1 else ()))


def _stored(paths: Sequence[Path], stem: str) -> StoredModel:
    return StoredModel(
        name=name_of(paths) or str(paths[0]),
        source=ModelSource.MESHD,
        paths=tuple(paths),
        size=sum(map(bytes_on_disk, paths)),
        stem=stem,
        quant=quant_of(stem + GGUF_SUFFIX),
        problem=ONLY_HEADER,
    )


def _is_called(name: MeshName, path: Path) -> bool:
    """Say whether the header has this name or fingerprint. Raises UserError."""
    if name.fingerprint:
        return read_note(path).fingerprint.startswith(name.fingerprint)
    return text_of(name).lower() in words_of([path])


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
    with shards_of(paths[0]) as shards:
        headers = [shard.header for shard in shards]
        digests = [hashes.load(shard.state, shard.header, shard.descriptor) for shard in shards]
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
