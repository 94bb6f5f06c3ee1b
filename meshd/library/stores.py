"""All stores of this machine, in the order in which they are searched."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from meshd.library import folders, hub_cache, ollama
from meshd.library.interface import Source, StoredModel


@dataclass(frozen=True, slots=True)
class Stores:
    """Where each store is. Searched in this order, meshd's own cache last."""

    hub: Path
    ollama: list[Path]
    lm_studio: list[Path]
    folder: Path
    meshd: Path

    @classmethod
    def here(cls, cache: Path, environ: Mapping[str, str] | None = None) -> "Stores":
        """Those of this user; `cache` is meshd's."""
        variables = os.environ if environ is None else environ
        return cls(
            hub=hub_cache.cache_folder(variables),
            ollama=ollama.folders(variables),
            lm_studio=folders.lm_studio_folders(),
            folder=folders.models_folder(),
            meshd=cache / "models",
        )

    def all_models(self, unreadable: Callable[[Path], None] = lambda place: None) -> Iterator[StoredModel]:
        """Every model, store by store. `unreadable` is told of places that this user may not read."""
        for place, models in self._each():
            try:
                yield from models
            except OSError:
                unreadable(place)

    def _each(self) -> Iterator[tuple[Path, Iterator[StoredModel]]]:
        yield self.hub, hub_cache.all_models(self.hub)
        for place in self.ollama:
            yield place, ollama.all_models(place)
        for place in self.lm_studio:
            yield place, folders.all_models(place, Source.LM_STUDIO)
        yield self.folder, folders.all_models(self.folder, Source.FOLDER)
        yield self.meshd, folders.all_models(self.meshd, Source.MESHD)
