"""All stores of this machine, in the order in which they are searched."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.library import folders, headers, hub_cache, ollama
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.pulled_names import is_of_members, texts_of
from meshd.library.short_names import DEMO, DEMO_STEM, SHORT_NAMES

_BY_STEM = frozenset(
    {ModelSource.LM_STUDIO, ModelSource.FOLDER, ModelSource.MESHD}
)  # have no names but those of files


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

    def listed(self, unreadable: Callable[[Path], None] = lambda place: None) -> list[StoredModel]:
        """All models by the shortest names that mean them: a file's own, where no other is called so.

        One of members is called as it was pulled.
        """
        models = list(self.all_models(unreadable))
        texts = [_texts_of(model) if model.complete else [] for model in models]
        counts = Counter(text.lower() for found in texts for text in found)
        return [
            replace(model, name=next((one for one in found if counts[one.lower()] == 1), model.name))
            if model.source in _BY_STEM
            else model
            for model, found in zip(models, texts, strict=True)
        ]

    def named(self, model: StoredModel) -> StoredModel:
        """The same, by the name that lists have of it, if it lies in a store."""
        paths = [path.resolve() for path in model.paths[:1]]
        here = (one for one in self.listed() if [path.resolve() for path in one.paths[:1]] == paths)
        return next(here, model) if paths else model

    def _each(self) -> Iterator[tuple[Path, Iterator[StoredModel]]]:
        yield self.hub, hub_cache.all_models(self.hub)
        for place in self.ollama:
            yield place, ollama.all_models(place)
        for place in self.lm_studio:
            yield place, folders.all_models(place, ModelSource.LM_STUDIO)
        yield self.folder, folders.all_models(self.folder, ModelSource.FOLDER)
        yield self.meshd, folders.all_models(self.meshd, ModelSource.MESHD)
        yield self.meshd, headers.all_headers(self.meshd)


def _texts_of(model: StoredModel) -> list[str]:
    """By which a bare name may mean it, the best first."""
    if is_of_members(model):
        return [text for text in texts_of(model.paths) if text.lower() not in SHORT_NAMES]
    return [model.stem, DEMO] if model.stem.lower() == DEMO_STEM.lower() else [model.stem]
