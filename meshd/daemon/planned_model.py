"""The parts of a model that a plan reads: its headers, and the index of its weights if known."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from meshd.model.gguf import Header
from meshd.model.gguf_names import GGUF_SUFFIX, HEADER_SUFFIX
from meshd.model.weights_index import WeightsIndex
from meshd.store.hash_cache import HashCache
from meshd.store.header_file import HeaderFile, note_path
from meshd.store.model_file import ModelFile, opened
from meshd.store.shard import close_all, is_header


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A model to plan for. `name`: its file's name; `index` None: it was never hashed here."""

    name: str
    headers: Sequence[Header]
    index: WeightsIndex | None = None


async def planned_model(path: Path, cache: HashCache) -> PlannedModel:
    """Open a model for a plan: a whole one, a header that a head serves, or headers fetched for a plan.

    Raises UserError.
    """
    if is_header(path) and not note_path(path).exists():
        shards = await opened(path, header_only=True)
        close_all(shards)
        name = path.name.removesuffix(HEADER_SUFFIX) + GGUF_SUFFIX
        return PlannedModel(name, [shard.header for shard in shards])
    if is_header(path):
        file: ModelFile = await HeaderFile.open_header(path)
    else:
        file = await ModelFile.open(path, cache=cache)
    try:
        return PlannedModel(file.name, file.headers, file.known_index())
    finally:
        file.close()
