"""Models of which only the header is here (store/header_file.py), below meshd's own models."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from meshd.base.errors import UserError
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.pulled_names import HEADER_KIND, name_of, text_of, words_of
from meshd.library.walk import bytes_on_disk, files_below, folders_in
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX, header_stem, quant_of
from meshd.model.model_name import MeshName
from meshd.store.header_file import link_paths, note_path, read_note

ONLY_HEADER = "only its header is here"


def all_headers(folder: Path) -> Iterator[StoredModel]:
    """Those below the folder of meshd's models; incomplete as models. Raises OSError."""
    for place in folders_in(folder, f"{HEADER_KIND}-"):
        found: dict[str, list[Path]] = {}
        for path, _ in files_below(place, depth=1, suffix=HEADER_SUFFIX):
            found.setdefault(header_stem(path.name), []).append(path)
        for stem, paths in found.items():
            yield _stored(paths, stem)


def find_header(folder: Path, name: MeshName) -> StoredModel | None:
    """The one that was pulled by this name, or has that fingerprint.

    A content id would not do: it says nothing about the hashes of layers that are not here.
    """
    for stored in all_headers(folder):
        with suppress(UserError):
            if _is_called(name, stored.paths[0]):
                return stored
    return None


def header_at(path: Path) -> StoredModel:
    """The header of which this file is one, or one of several."""
    paths = [one for one, _ in files_below(path.parent, depth=1, suffix=HEADER_SUFFIX)]
    stem = header_stem(path.name)
    return _stored([one for one in paths if header_stem(one.name) == stem], stem)


def said_of(path: Path) -> str:
    """For the user: which model this is, and who says so. Raises UserError."""
    note = read_note(path)
    return (
        f"only the header of `{note.name}` is here; fingerprint (as reported by {note.node}): "
        f"{note.fingerprint}"
    )


def files_of(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The files, what is noted of them, and links to them."""
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
    """Raises UserError."""
    if name.fingerprint:
        return read_note(path).fingerprint.startswith(name.fingerprint)
    return text_of(name).lower() in words_of([path])
