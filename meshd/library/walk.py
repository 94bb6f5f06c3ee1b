"""Bounded walks of folders that other programs fill: so deep, so many entries, and no loop of links."""

import os
from pathlib import Path

from meshd.model.gguf_names import GGUF_SUFFIX

MAX_ENTRIES = 20_000  # of one walk; the largest collections have some thousand files


def folders_in(folder: Path, prefix: str) -> list[Path]:
    """The folders in it whose names begin so, by name. Raises OSError; none if there is no such folder."""
    try:
        with os.scandir(folder) as entries:
            found = [
                Path(entry.path)
                for entry, _ in zip(entries, range(MAX_ENTRIES), strict=False)
                if entry.name.startswith(prefix) and entry.is_dir()
            ]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted(found)


def files_below(folder: Path, *, depth: int, suffix: str = GGUF_SUFFIX) -> list[tuple[Path, int]]:
    """Files with this ending and their sizes, by path; links to files count, links to folders do not.

    Folders that cannot be read, and links to nothing, are passed over. `depth` 1: the folder's own files.
    """
    found: list[tuple[Path, int]] = []
    waiting = [(folder, depth)]
    left = MAX_ENTRIES
    while waiting and left > 0:
        place, levels = waiting.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    left -= 1
                    if left < 0:
                        break
                    if entry.is_dir(follow_symlinks=False):
                        if levels > 1 and not entry.name.startswith("."):
                            waiting.append((Path(entry.path), levels - 1))
                    elif entry.name.lower().endswith(suffix) and (size := _file_size(entry)) is not None:
                        found.append((Path(entry.path), size))
        except OSError:
            continue
    return sorted(found)


def _file_size(entry: "os.DirEntry[str]") -> int | None:
    try:
        return entry.stat().st_size if entry.is_file() else None
    except OSError:
        return None


def is_folder(path: Path) -> bool:
    """False also for what cannot be looked at, which opening it explains."""
    try:
        return path.is_dir()
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """False also for what cannot be looked at."""
    try:
        return path.is_file()
    except OSError:
        return False


def hint_for_missing(path: Path) -> str:
    """What to do about a model file that is not there; `ORG/REPO` may be meant for Hugging Face."""
    if path.suffix.lower() != GGUF_SUFFIX and path.parent.name and not is_folder(path.parent):
        return f"for a repository of Hugging Face: `hf:{path.parent.name}/{path.name}`"
    return "check the path and its permissions"


def size_of(path: Path) -> int:
    """0 for what is gone or cannot be read."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def bytes_on_disk(path: Path) -> int:
    """Without the holes; 0 for what is gone."""
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0
