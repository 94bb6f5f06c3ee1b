"""By which names models were pulled that came from members: noted beside them, one a line, the newest last.

A member calls its file as it likes. So what lies in a folder of such a model is found later by the names that
the user gave when it was pulled, and by its fingerprint, and never by what its file is called.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from meshd.base.replaced_file import replace_file
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.walk import folders_in, size_of
from meshd.model.gguf_names import GGUF_SUFFIX, quant_of
from meshd.model.model_name import (
    MAX_MODEL_NAME_CHARS,
    BareName,
    HubName,
    MeshName,
    ModelName,
    OllamaName,
    parse_model_name,
)

WHOLE_KIND, HEADER_KIND = "mesh", "header"  # with which the names of their folders begin
_NOTE = ".pulled-as"
_MOST_NAMES = 8
_FOLDERS = f"{WHOLE_KIND}-"
_OWN_FOLDERS = (_FOLDERS, f"{HEADER_KIND}-")


def is_pulled(paths: Sequence[Path]) -> bool:
    """Whether these files came from members; any other ones are the user's, and never moved nor removed."""
    return all(path.parent.name.startswith(_FOLDERS) for path in paths)


def is_own_folder(folder: Path) -> bool:
    """Whether it was made for one model that came from members."""
    return folder.name.startswith(_OWN_FOLDERS)


def is_of_members(model: StoredModel) -> bool:
    """Whether its file has the name that a member gave it."""
    return model.source is ModelSource.MESHD and all(is_own_folder(path.parent) for path in model.paths)


def note_names(folder: Path, names: Iterable[ModelName]) -> None:
    """So that the model in this folder is found by the last of these; no error if that cannot be written."""
    lines = list(dict.fromkeys(map(str, names)))[-_MOST_NAMES:]
    with suppress(OSError):
        replace_file(folder / _NOTE, "".join(f"{line}\n" for line in lines).encode())


def add_name(name: ModelName, paths: Sequence[Path]) -> None:
    """It was asked for by this name as well."""
    note_names(paths[0].parent, [*names_of(paths), name])


def names_of(paths: Sequence[Path]) -> tuple[ModelName, ...]:
    """By which it was pulled; none where nothing, or nothing that is a name, was noted."""
    try:
        with (paths[0].parent / _NOTE).open("rb") as file:
            lines = file.read(_MOST_NAMES * 4 * MAX_MODEL_NAME_CHARS).decode("utf-8").splitlines()
        return tuple(map(parse_model_name, lines))
    except (OSError, ValueError):
        return ()


def name_of(paths: Sequence[Path]) -> str:
    """For people and `--model`: by which it was pulled last; empty where nothing was noted."""
    names = names_of(paths)
    return str(names[-1]) if names else ""


def words_of(paths: Sequence[Path]) -> set[str]:
    """Its names without a scheme or with `mesh:`, but for digits; in small letters, without an ending."""
    return set(map(str.lower, texts_of(paths)))


def texts_of(paths: Sequence[Path]) -> list[str]:
    """The same as the user wrote them."""
    return [text for name in names_of(paths) if (text := text_of(name))]


def text_of(name: ModelName) -> str:
    """Without an ending; empty for names of stores, and for digits."""
    if isinstance(name, BareName) or (isinstance(name, MeshName) and not name.fingerprint):
        text = name.text
        return text[: -len(GGUF_SUFFIX)] if text.lower().endswith(GGUF_SUFFIX) else text
    return ""


def notes_of(paths: Sequence[Path]) -> tuple[Path, ...]:
    """What was noted beside a model, if anything was."""
    note = paths[0].parent / _NOTE
    return (note,) if note.is_file() else ()


def find_noted(name: HubName | OllamaName, folder: Path) -> StoredModel | None:
    """A model in meshd's folder that was pulled by this name."""
    for place in folders_in(folder, _FOLDERS):
        paths = tuple(sorted(place.glob(f"*{GGUF_SUFFIX}")))
        noted = next((one for one in names_of(paths) if _is_meant(name, one)), None) if paths else None
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
