"""The models of this machine, whatever members are told of them; nothing of the files is read."""

import os
from collections.abc import Sequence
from pathlib import Path

from meshd.library.interface import ModelSource, StoredModel
from meshd.library.stores import Stores
from meshd.library.walk import is_file, size_of
from meshd.model.gguf_names import GGUF_SUFFIX, SHARD, quant_of


def own_models(stores: Stores, started_with: Sequence[Path]) -> list[StoredModel]:
    """The complete ones, each once, the largest first. `started_with`: files of this node, wherever they are.

    Walks the folders of all stores: for a thread.
    """
    found: dict[tuple[str, ...], StoredModel] = {}
    for one in (*stores.all_models(), *(of_path(path) for path in started_with if is_file(path))):
        if one.complete and one.paths:
            found.setdefault(tuple(map(os.path.realpath, one.paths)), one)
    return sorted(found.values(), key=lambda one: (-one.size, one.stem))


def of_path(path: Path) -> StoredModel:
    """A model that the user named by its file; of several shards any."""
    stem = path.name.removesuffix(GGUF_SUFFIX)
    paths: tuple[Path, ...] = (path,)
    if match := SHARD.fullmatch(path.name):
        stem, count = match["stem"], int(match["count"])
        names = [f"{stem}-{number:05d}-of-{count:05d}{GGUF_SUFFIX}" for number in range(1, count + 1)]
        paths = tuple(path.with_name(name) for name in names)
    problem = "" if all(map(is_file, paths)) else "missing"
    size = sum(map(size_of, paths))
    return StoredModel(str(path), ModelSource.PATH, paths, size, stem, quant_of(path.name), problem)
