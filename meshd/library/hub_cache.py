"""Read Hugging Face's cache on this machine, in its library's layout, without the library.

`models--ORG--REPO/` has `blobs/HASH` (the bytes; HASH is their SHA-256), `snapshots/COMMIT/PATH` (links to
them), `refs/main` (a commit) and, during a download, `blobs/HASH.incomplete`.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from meshd.base.files import expanded, in_home
from meshd.library.disk import MAX_ENTRIES, files_below, folders_in, size_of
from meshd.library.interface import ModelSource, StoredModel
from meshd.model.gguf_names import GgufFile, GgufModel, choose, models_in
from meshd.model.model_name import HubName, parse_model_name

PREFIX = "models--"
PART_SUFFIX = ".incomplete"
_COMMIT = re.compile(r"[0-9a-fA-F]{40}")
_SNAPSHOT_DEPTH = 3


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Return the folder where the hub library keeps downloads, by its own rules."""
    given = environ.get("XDG_CACHE_HOME", str(in_home(".cache")))
    hf_home = _expanded(environ.get("HF_HOME", str(Path(given) / "huggingface")))
    legacy = environ.get("HUGGINGFACE_HUB_CACHE", str(hf_home / "hub"))
    return _expanded(environ.get("HF_HUB_CACHE", legacy))


def _expanded(text: str) -> Path:
    return expanded(os.path.expandvars(text))


def folder_of(cache: Path, name: HubName) -> Path:
    """Return the repository's folder."""
    return cache / f"{PREFIX}{name.org}--{name.repo}"


def find(cache: Path, name: HubName) -> list[StoredModel]:
    """Find the models that the name means among its repository's complete ones; several if ambiguous.

    Raises OSError if the folder cannot be read.
    """
    for snapshot in _snapshots(folder_of(cache, name)):
        there = [model for model in _models(snapshot) if model.complete]
        if fitting := choose(there, name.choice):
            return [_stored(name, snapshot, model, there) for model in fitting]
    return []


def all_models(cache: Path) -> Iterator[StoredModel]:
    """Find every model of the cache. Raises OSError if the cache itself cannot be read."""
    for folder in folders_in(cache, PREFIX):
        org, _, repo = folder.name.removeprefix(PREFIX).partition("--")
        try:
            name = parse_model_name(f"hf:{org}/{repo}")
        except ValueError:
            continue
        if isinstance(name, HubName):
            yield from _of_repository(name, folder)


def of_repository(cache: Path, name: HubName) -> list[StoredModel]:
    """Find all models of this repository in the cache, including incomplete ones and partial files."""
    return list(_of_repository(name, folder_of(cache, name)))


def _of_repository(name: HubName, folder: Path) -> Iterator[StoredModel]:
    seen: set[str] = set()
    for snapshot in _snapshots(folder):
        models = _models(snapshot)
        for model in models:
            if model.name not in seen:
                seen.add(model.name)
                yield _stored(name, snapshot, model, models)
    for part in _parts(folder):
        problem = "the download is not complete"
        yield StoredModel(str(name), ModelSource.HUB, (part,), size_of(part), problem=problem)


def _parts(folder: Path) -> list[Path]:
    with suppress(OSError):
        return sorted((folder / "blobs").glob(f"*{PART_SUFFIX}"))[:MAX_ENTRIES]
    return []


def _snapshots(folder: Path) -> list[Path]:
    """Return the snapshots: the current branch's first, then the newest."""
    try:
        found = [
            snapshot for snapshot in folders_in(folder / "snapshots", "") if _COMMIT.fullmatch(snapshot.name)
        ]
    except OSError:
        return []
    current = ""
    with suppress(OSError, UnicodeDecodeError), (folder / "refs" / "main").open("rb") as file:
        current = file.read(64).decode("ascii").strip()

    def order(snapshot: Path) -> tuple[bool, float]:
        try:
            return snapshot.name == current, snapshot.stat().st_mtime
        except OSError:
            return snapshot.name == current, 0.0

    return sorted(found, key=order, reverse=True)


def _models(snapshot: Path) -> list[GgufModel]:
    files = files_below(snapshot, depth=_SNAPSHOT_DEPTH)
    return models_in(GgufFile(path.relative_to(snapshot).as_posix(), size) for path, size in files)


def _stored(name: HubName, snapshot: Path, model: GgufModel, beside: list[GgufModel]) -> StoredModel:
    same = [other for other in beside if other.quant == model.quant]
    choice = model.quant if model.quant and len(same) == 1 else model.files[0].path
    return StoredModel(
        name=str(HubName(name.org, name.repo, choice)),
        source=ModelSource.HUB,
        paths=tuple(snapshot / file.path for file in model.files),
        size=model.size,
        stem=model.name.rpartition("/")[2],
        quant=model.quant,
        problem=_lacking(model),
    )


def _lacking(model: GgufModel) -> str:
    missing = model.missing
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return f"missing: {missing[0].rpartition('/')[2]}{more}" if missing else ""
