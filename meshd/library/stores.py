"""The stores of this machine, in search order, and the models in plain folders."""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.files import in_home
from meshd.library import hub_cache, ollama
from meshd.library.disk import files_below, is_file, size_of
from meshd.library.interface import ModelSource, StoredModel
from meshd.library.pulled_models import all_headers, is_of_members, texts_of
from meshd.model.gguf_names import GGUF_SUFFIX, SHARD, GgufFile, models_in, quant_of
from meshd.model.model_name import DEMO, DEMO_STEM
from meshd.model.short_names import SHORT_NAMES

_LM_STUDIO_DEPTH = 4  # LM Studio uses PUBLISHER/REPO/FILE
_BY_STEM = frozenset(
    {ModelSource.LM_STUDIO, ModelSource.FOLDER, ModelSource.MESHD}
)  # these stores only have file names


def lm_studio_folders() -> list[Path]:
    """Return LM Studio's folders, of current and earlier versions."""
    return [in_home(path) for path in (".lmstudio/models", ".cache/lm-studio/models")]


def models_folder() -> Path:
    """Return the folder where people put files themselves."""
    return in_home(".models")


def models_below(folder: Path, source: ModelSource) -> Iterator[StoredModel]:
    """Find every model below the folder, named by its path."""
    files = files_below(folder, depth=_LM_STUDIO_DEPTH)
    for model in models_in(GgufFile(path.relative_to(folder).as_posix(), size) for path, size in files):
        missing = model.missing
        paths = tuple(folder / file.path for file in model.files)
        yield StoredModel(
            name=str(paths[0]),
            source=source,
            paths=paths,
            size=model.size,
            stem=model.name.rpartition("/")[2],
            quant=model.quant,
            problem=f"missing: {missing[0].rpartition('/')[2]}" if missing else "",
        )


def only_model(folder: Path) -> StoredModel:
    """Return the folder's only model. Raises UserError if it has none, or several."""
    found = list(models_below(folder, ModelSource.PATH))
    if not found:
        raise UserError(
            f"`{folder}` has no model: no file in it ends in `.gguf`",
            hint="give the path of a GGUF file, or a name that `meshd model ls` lists",
        )
    if len(found) > 1:
        names = [f"`{model.paths[0].relative_to(folder)}`" for model in found]
        more = f" and {len(names) - 12} more" if len(names) > 12 else ""
        raise UserError(
            f"`{folder}` has several models: {', '.join(names[:12])}{more}",
            hint=f"give the path of one: `{found[0].paths[0]}`",
        )
    return found[0]


@dataclass(frozen=True, slots=True)
class Stores:
    """The places of all stores, searched in this order, meshd's own cache last."""

    hub: Path
    ollama: list[Path]
    lm_studio: list[Path]
    folder: Path
    meshd: Path

    @classmethod
    def here(cls, cache: Path) -> "Stores":
        """Find the stores of this user; `cache` is meshd's."""
        return cls(
            hub=hub_cache.cache_folder(os.environ),
            ollama=ollama.folders(os.environ),
            lm_studio=lm_studio_folders(),
            folder=models_folder(),
            meshd=cache / "models",
        )

    def all_models(self, unreadable: Callable[[Path], None] = lambda place: None) -> Iterator[StoredModel]:
        """Find every model, store by store. `unreadable` gets places that this user may not read."""
        for place, models in self._each():
            try:
                yield from models
            except OSError:
                unreadable(place)

    def listed(self, unreadable: Callable[[Path], None] = lambda place: None) -> list[StoredModel]:
        """List all models by their shortest unambiguous names: a file's own name, if no other file has it.

        A model of members has the name by which it was pulled.
        """
        models = list(self.all_models(unreadable))
        texts = [_texts_of(model) if model.complete else [] for model in models]
        counts = Counter(text.lower() for found in texts for text in found)
        return [
            replace(model, name=next((name for name in found if counts[name.lower()] == 1), model.name))
            if model.source in _BY_STEM
            else model
            for model, found in zip(models, texts, strict=True)
        ]

    def named(self, model: StoredModel) -> StoredModel:
        """Return the model under its listed name, if it is in a store."""
        paths = [path.resolve() for path in model.paths[:1]]
        here = (model for model in self.listed() if [path.resolve() for path in model.paths[:1]] == paths)
        return next(here, model) if paths else model

    def _each(self) -> Iterator[tuple[Path, Iterator[StoredModel]]]:
        yield self.hub, hub_cache.all_models(self.hub)
        for place in self.ollama:
            yield place, ollama.all_models(place)
        for place in self.lm_studio:
            yield place, models_below(place, ModelSource.LM_STUDIO)
        yield self.folder, models_below(self.folder, ModelSource.FOLDER)
        yield self.meshd, models_below(self.meshd, ModelSource.MESHD)
        yield self.meshd, all_headers(self.meshd)


def _texts_of(model: StoredModel) -> list[str]:
    """Return the bare names that may mean the model, the best first."""
    if is_of_members(model):
        return [text for text in texts_of(model.paths) if text.lower() not in SHORT_NAMES]
    return [model.stem, DEMO] if model.stem.lower() == DEMO_STEM.lower() else [model.stem]


def own_models(stores: Stores, started_with: Sequence[Path]) -> list[StoredModel]:
    """Return the complete models, each once, the largest first. `started_with`: this node's own files.

    Walks the folders of all stores, so run it in a thread.
    """
    found: dict[tuple[str, ...], StoredModel] = {}
    for model in (*stores.all_models(), *(of_path(path) for path in started_with if is_file(path))):
        if model.complete and model.paths:
            found.setdefault(tuple(map(os.path.realpath, model.paths)), model)
    return sorted(found.values(), key=lambda model: (-model.size, model.stem))


def of_path(path: Path) -> StoredModel:
    """Return the model of a file that the user named, which may be any of its shards."""
    stem = path.name.removesuffix(GGUF_SUFFIX)
    paths: tuple[Path, ...] = (path,)
    if match := SHARD.fullmatch(path.name):
        stem, count = match["stem"], int(match["count"])
        names = [f"{stem}-{number:05d}-of-{count:05d}{GGUF_SUFFIX}" for number in range(1, count + 1)]
        paths = tuple(path.with_name(name) for name in names)
    problem = "" if all(map(is_file, paths)) else "missing"
    size = sum(map(size_of, paths))
    return StoredModel(str(path), ModelSource.PATH, paths, size, stem, quant_of(path.name), problem)
