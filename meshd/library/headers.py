"""Models of which only the header is here (store/header_file.py), below meshd's own models."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from meshd.base.errors import UserError
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.walk import bytes_on_disk, files_below, folders_in
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX, quant_of
from meshd.model.model_name import MESH, MeshName
from meshd.store.header_file import HeaderNote, note_path, read_note

HEADER_KIND = "header"  # with which the names of their folders begin
ONLY_HEADER = "only its header is here"


def all_headers(folder: Path) -> Iterator[StoredModel]:
    """Those below the folder of meshd's models; incomplete as models. Raises OSError."""
    for place in folders_in(folder, f"{HEADER_KIND}-"):
        for path, _ in files_below(place, depth=1, suffix=HEADER_SUFFIX):
            stem = path.name.removesuffix(HEADER_SUFFIX)
            yield StoredModel(
                name=f"{MESH}{stem}",
                source=ModelSource.MESHD,
                paths=(path,),
                size=bytes_on_disk(path),
                stem=stem,
                quant=quant_of(stem + GGUF_SUFFIX),
                problem=ONLY_HEADER,
            )


def find_header(folder: Path, name: MeshName) -> StoredModel | None:
    """The one that is called so, or has that fingerprint.

    A content id would not do: it says nothing about the hashes of layers that are not here.
    """
    for stored in all_headers(folder):
        with suppress(UserError):
            if _is_called(name, read_note(stored.paths[0])):
                return stored
    return None


def said_of(path: Path) -> str:
    """For the user: which model this is, and who says so. Raises UserError."""
    note = read_note(path)
    return (
        f"only the header of `{note.name}` is here; fingerprint (as reported by {note.node}): "
        f"{note.fingerprint}"
    )


def files_of(path: Path) -> tuple[Path, ...]:
    """The file, and what is noted of it."""
    return (path, note_path(path))


def _is_called(name: MeshName, note: HeaderNote) -> bool:
    if name.fingerprint:
        return note.fingerprint.startswith(name.fingerprint)
    return name.text.lower().removesuffix(GGUF_SUFFIX) == note.name.lower()
