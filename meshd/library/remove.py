"""Remove a model that a download put into Hugging Face's cache or meshd's own; no other program's."""

import shlex
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshd.base.errors import UserError
from meshd.library import hub_cache
from meshd.library.disk import files_below, size_of
from meshd.library.hub_cache import PREFIX
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.pulled_models import files_of, header_at, is_own_folder, notes_of
from meshd.library.resolve import Resolver
from meshd.library.stores import Stores
from meshd.model.model_name import HubName, parse_model_name
from meshd.store.header_file import LINKS_FOLDER
from meshd.store.model_file import is_header


@dataclass(frozen=True, slots=True)
class Removal:
    """The files to remove, in this order; `size` counts the bytes that become free."""

    names: tuple[str, ...]
    files: tuple[Path, ...]
    size: int
    repository: Path | None = None  # its folder in Hugging Face's cache


def plan_removal(given: Path | str, resolver: Resolver, stores: Stores) -> Removal:
    """Decide what to remove for this name; `hf:ORG/REPO` means all that the cache has of the repository.

    Raises UserError if the model is not there, or is not ours to remove.
    """
    # A whole repository.
    name = None
    with suppress(ValueError):
        name = parse_model_name(given) if isinstance(given, str) else None
    if isinstance(name, HubName) and not name.choice:
        rows = hub_cache.of_repository(stores.hub, name)
        if not rows:
            raise UserError(f"`{name}` is not on this machine", hint="run `meshd model ls` for a list")
        return _of_hub(rows, hub_cache.folder_of(stores.hub, name))
    # One model.
    model = resolver.local(given)
    path = model.paths[0]
    if path.is_relative_to(stores.hub) and path.relative_to(stores.hub).parts[0].startswith(PREFIX):
        return _of_hub([model], stores.hub / path.relative_to(stores.hub).parts[0])
    if is_header(path) and is_own_folder(path.parent):
        model = header_at(path)  # by its path a header in several files is only one of them
        return Removal((model.name,), (*files_of(model.paths), *notes_of(model.paths)), model.size)
    if path.is_relative_to(stores.meshd):
        return Removal((model.name,), (*model.paths, *notes_of(model.paths)), model.size)
    raise _not_ours(model)


def check_unused(removal: Removal, in_use: Iterable[str]) -> None:
    """Check that the daemon here uses none of the files. Raises UserError. `in_use`: paths that it uses."""
    used = {Path(path).resolve() for path in in_use}
    if any(path.resolve() in used for path in removal.files):
        names = ", ".join(f"`{name}`" for name in removal.names)
        raise UserError(
            f"{names} was not removed: the node that runs here uses it",
            hint="stop the node (`meshd stop`), or restart it with another model, and try again",
        )


def _not_ours(model: StoredModel) -> UserError:
    name, path = model.name, model.paths[0]
    if model.source is ModelSource.OLLAMA:
        return UserError(
            f"`{name}` belongs to Ollama, and meshd does not remove it",
            hint=f"run `ollama rm {name.removeprefix('ollama:')}`",
        )
    if model.source is ModelSource.LM_STUDIO:
        return UserError(
            f"`{name}` belongs to LM Studio, and meshd does not remove it",
            hint="remove it there, under My Models",
        )
    return UserError(
        f"`{name}` was not downloaded by meshd, and meshd does not remove it",
        hint=f"remove the file yourself: `rm {shlex.quote(str(path))}`",
    )


def _of_hub(models: Sequence[StoredModel], repository: Path) -> Removal:
    """Return the links of every snapshot to the same bytes, then the bytes."""
    paths = {path for model in models for path in model.paths}
    blobs = {blob for path in paths if (blob := _blob(path, repository)) is not None}
    below = {path for path, _ in files_below(repository / "snapshots", depth=5)}
    links = {path for path in below if _blob(path, repository) in blobs}
    # Partial files, and files of a cache without links.
    plain = {path for path in paths if not path.is_symlink()}
    return Removal(
        names=tuple(model.name for model in models),
        files=(*sorted(links), *sorted(blobs), *sorted(plain)),
        size=sum(map(size_of, blobs | plain)),
        repository=repository,
    )


def _blob(path: Path, repository: Path) -> Path | None:
    """Return the link's target, if it is one of this repository's blobs."""
    try:
        target = (path.parent / path.readlink()).parent.resolve() / path.readlink().name
    except OSError:
        return None
    blobs = (repository / "blobs").resolve()
    return blobs / target.name if target.parent == blobs else None


def _is_ours(folder: Path) -> bool:
    return is_own_folder(folder.parent if folder.name == LINKS_FOLDER else folder)


def remove(removal: Removal) -> None:
    """Remove links first, so that none points to removed bytes. Raises UserError."""
    try:
        for path in removal.files:
            path.unlink(missing_ok=True)
    except OSError as error:
        raise UserError(
            f"cannot remove `{error.filename}`: {error.strerror}", hint="check who owns it"
        ) from None
    folders = {path.parent for path in removal.files}
    for own in sorted(filter(_is_ours, folders), reverse=True):  # subfolders first
        with suppress(OSError):  # not empty, for example
            own.rmdir()
    folder = removal.repository
    if folder is not None and not any(
        files_below(folder / name, depth=5, suffix="") for name in ("snapshots", "blobs")
    ):
        shutil.rmtree(folder, ignore_errors=True)
