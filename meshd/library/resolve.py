"""Find the file that `--model` means, and download it if no store of this machine has it."""

import asyncio
import difflib
from collections.abc import Sequence
from pathlib import Path

from meshd.base.errors import UserError
from meshd.base.files import expanded
from meshd.base.units import in_bytes
from meshd.build.fetch import demo_model
from meshd.build.interface import BuildProgress
from meshd.library import hub_cache, ollama
from meshd.library.disk import hint_for_missing, is_file, is_folder, size_of
from meshd.library.facts import facts_of
from meshd.library.interface import (
    ONLY_HEADER,
    ModelSource,
    NotDownloaded,
    NotHere,
    ReportProgress,
    StoredModel,
    TransferProgress,
)
from meshd.library.pulled_models import find_header, find_noted, is_of_members, names_of, text_of, words_of
from meshd.library.stores import Stores, models_below, only_model
from meshd.model.gguf_names import GGUF_SUFFIX, quant_of
from meshd.model.model_name import (
    DEMO,
    DEMO_FINGERPRINT,
    DEMO_STEM,
    BareName,
    HubName,
    MeshName,
    OllamaName,
    hint_for_name,
    is_path,
    parse_model_name,
)
from meshd.model.short_names import SHORT_NAMES, stem_of

_MOST_NAMED = 8  # candidates listed in an error
Given = Path | str
"""A path, or the text of a name."""


class Resolver:
    """Find models by the names that users give; report the progress of downloads."""

    def __init__(self, stores: Stores, report: ReportProgress) -> None:
        self._stores = stores
        self._report = report

    def get(self, given: Given, *, partial: bool = False) -> StoredModel:
        """Return the model, complete unless a `partial` one will do; may download it. Raises UserError."""
        found = self._find(given, download=True)
        return found if partial and found.paths and found.problem != ONLY_HEADER else _usable(found)

    def local(self, given: Given) -> StoredModel:
        """Find a model, perhaps an incomplete one, without a download; an error says how to start one.

        Raises NotHere, which includes NotDownloaded, and UserError for a name that means no model or several.
        """
        return self._find(given, download=False)

    def _find(self, given: Given, *, download: bool) -> StoredModel:
        if isinstance(given, Path):
            return self._path(given)
        try:
            name = parse_model_name(given)
        except ValueError as error:
            if is_path(given):
                return self._path(expanded(given).absolute())
            raise no_name(given, error) from None
        match name:
            case HubName():
                return self._hub(name, download)
            case OllamaName():
                return self._ollama(name)
            case MeshName():
                return self._mesh(name)
            case BareName():
                return self._bare(name.text, download)

    def _path(self, path: Path) -> StoredModel:
        if is_folder(path):
            return only_model(path)
        if not is_file(path):
            raise UserError(f"there is no model file `{path}`", hint=hint_for_missing(path))
        stem = path.name.removesuffix(GGUF_SUFFIX)
        return StoredModel(str(path), ModelSource.PATH, (path,), size_of(path), stem, quant_of(path.name))

    def _hub(self, name: HubName, download: bool) -> StoredModel:
        if found := hub_cache.find(self._stores.hub, name):
            if len(found) > 1:
                raise _ambiguous(str(name), found)
            return found[0]
        if (noted := find_noted(name, self._stores.meshd)) is not None:
            return noted
        if not download:
            raise NotDownloaded(f"`{name}` is not on this machine", hint=f"run `meshd model pull {name}`")
        from meshd.library.download import download as fetch  # huggingface_hub: half a second to import

        model, paths = fetch(name, self._stores.hub, self._report)
        chosen = HubName(name.org, name.repo, model.quant or model.files[0].path)
        stem = model.name.rpartition("/")[2]
        return StoredModel(str(chosen), ModelSource.HUB, tuple(paths), model.size, stem, model.quant)

    def _ollama(self, name: OllamaName) -> StoredModel:
        found = ollama.find(self._stores.ollama, name) or find_noted(name, self._stores.meshd)
        if found is not None:
            return found
        raise NotHere(
            f"Ollama has no model `{name.short}` on this machine",
            hint=f"run `ollama pull {name.short}`, or `meshd model ls` for a list",
            near=self._near(str(name)),
        )

    def _mesh(self, name: MeshName) -> StoredModel:
        """Return a model that was pulled from members before; only a daemon asks them.

        A fingerprint finds any model of this machine that is known to have it.
        """
        hashes = self._stores.meshd.parent / "weights"
        pulled = models_below(self._stores.meshd, ModelSource.MESHD)
        for model in self._stores.all_models() if name.fingerprint else pulled:
            if model.complete and _is_called(name, model, hashes):
                return model
        if (header := find_header(self._stores.meshd, name)) is not None:
            return header
        raise NotHere(f"`{name}` is not on this machine", hint=f"run `meshd model pull {name}`")

    def _bare(self, text: str, download: bool) -> StoredModel:
        low = text.lower().removesuffix(GGUF_SUFFIX)
        if low == DEMO:
            return self._demo(download)
        if (known := SHORT_NAMES.get(low)) is not None:
            return self._short(known, download)
        return self._by_stem(text, low)

    def _by_stem(self, text: str, low: str) -> StoredModel:
        found = [model for model in self._stores.all_models() if low in _words(model)]
        complete = [model for model in found if model.complete]
        if len(complete) == 1 or (found and not complete):
            return (complete or found)[0]
        if complete:
            raise _ambiguous(text, complete)
        if is_folder(Path(text)):
            raise UserError(f"`{text}` is a directory here, and no model", hint=f"give its path: `./{text}/`")
        raise NotHere(
            f"there is no model `{text}` on this machine",
            hint=f"run `meshd model ls` for a list, or {_FORMS}",
            near=self._near(text),
        )

    def _short(self, name: HubName, download: bool) -> StoredModel:
        if found := hub_cache.find(self._stores.hub, name):
            return found[0]
        low = stem_of(name).lower()
        for model in self._stores.all_models():
            if model.complete and low == model.stem.lower() and not is_of_members(model):
                return model
        return self._hub(name, download)

    def _demo(self, download: bool) -> StoredModel:
        complete = [model for model in self._stores.all_models() if model.complete]
        for model in complete:
            if _is_demo(model):
                return model
        hashes = self._stores.meshd.parent / "weights"
        for model in complete:  # under another name, from members for example
            if facts_of(model, hashes).fingerprint == DEMO_FINGERPRINT:
                return model
        if not download:
            raise NotDownloaded(f"`{DEMO}` is not on this machine", hint=f"run `meshd model pull {DEMO}`")

        def progress(step: BuildProgress) -> None:
            self._report(TransferProgress(step.text, step.done, step.total))

        path = asyncio.run(demo_model(self._stores.meshd.parent, progress))
        return StoredModel(
            str(path), ModelSource.MESHD, (path,), size_of(path), DEMO_STEM, quant_of(path.name)
        )

    def _near(self, text: str) -> str:
        """Return `near: …` with similar names, or nothing."""
        low = text.lower().removesuffix(GGUF_SUFFIX)
        by_word: dict[str, str] = {name: name for name in (*SHORT_NAMES, DEMO)}
        for model in self._stores.listed():
            by_word.update(dict.fromkeys(_words(model), model.name))
        near = difflib.get_close_matches(low, by_word, n=3)
        near += [word for word in sorted(by_word) if low in word and word not in near]
        names = list(dict.fromkeys(by_word[word] for word in near))[:3]
        return f"near: {', '.join(f'`{name}`' for name in names)}" if names else ""


_FORMS = (
    "give the path of a GGUF file, `hf:ORG/REPO:QUANT` (Hugging Face), `ollama:NAME` or a short name "
    "(`meshd model ls --fits` lists them)"
)


def no_name(text: str, error: ValueError) -> UserError:
    """Return the error for a text that parse_model_name refuses."""
    return UserError(f"`{text[:200]}` is not a model's name: {error}", hint=hint_for_name(text) or _FORMS)


def _is_demo(model: StoredModel) -> bool:
    """Say whether it has the demo's name; a model of members must have been pulled by the short name."""
    if is_of_members(model):
        return BareName(DEMO) in names_of(model.paths)
    return model.stem.lower() == DEMO_STEM.lower()


def _words(model: StoredModel) -> set[str]:
    """Return the bare names that mean the model, in lower case."""
    if is_of_members(model):
        return words_of(model.paths)
    words = {model.stem.lower(), model.name.lower()}
    if model.source is ModelSource.OLLAMA:
        words.add(model.name.lower().removeprefix("ollama:"))
    return words - {""}


def _is_called(name: MeshName, model: StoredModel, hashes: Path) -> bool:
    """Compare the model's fingerprint, if the name is one; else its name, unless a member chose that."""
    if name.fingerprint:
        return (facts_of(model, hashes).fingerprint or "").startswith(name.fingerprint)
    return text_of(name).lower() in _words(model)


def _usable(model: StoredModel) -> StoredModel:
    if not model.complete:
        hint = f"download it again, into `{_place(model)}`"
        if model.source is ModelSource.OLLAMA:
            hint = f"run `ollama pull {model.name.removeprefix('ollama:')}`"
        elif model.problem == ONLY_HEADER:
            hint = f"for all of it run `meshd model pull {model.name}`; `--header-only` serves it as it is"
        raise UserError(f"`{model.name}` cannot be used: {model.problem}", hint=hint)
    return model


def _place(model: StoredModel) -> Path:
    return model.paths[0].parent


def _ambiguous(text: str, found: Sequence[StoredModel]) -> UserError:
    listed = ", ".join(f"`{model.name}` ({in_bytes(model.size)})" for model in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    return UserError(f"`{text}` fits several models: {listed}{more}", hint="name one of them exactly")
