"""Which file of a model is loaded: its own, or a smaller one where that does not fit after a loss. Pure.

Smaller ones are quantisations of the same model: they have its vocabulary, so that open answers go on. The
model's own file is tried first in each life; it is the first one, too, that must have been loaded.
"""

from collections.abc import Sequence

from meshd.base.errors import UserError
from meshd.model.gguf import Header
from meshd.store.interface import WeightsFile

_ARCHITECTURE = "general.architecture"
_VOCABULARY = ("tokenizer.ggml.model", "tokenizer.ggml.pre", "tokenizer.ggml.tokens", "tokenizer.ggml.merges")


class ServedFiles:
    """Of one head."""

    def __init__(self, own: WeightsFile, smaller: Sequence[WeightsFile] = ()) -> None:
        """Raises UserError when one of `smaller` is another model."""
        for file in smaller:
            check_same_model(file.headers[0], own.headers[0], name=file.name, own=own.name)
        self._files = (own, *smaller)
        self._at = 0
        self._was_loaded = False
        self._why = ""

    @property
    def current(self) -> WeightsFile:
        """To be loaded, or loaded."""
        return self._files[self._at]

    @property
    def own(self) -> WeightsFile:
        """The model's."""
        return self._files[0]

    @property
    def smaller(self) -> Sequence[WeightsFile]:
        """Those that may take its place."""
        return self._files[1:]

    @property
    def note(self) -> str:
        """What people should know of the current one; empty for the model's own."""
        if not self._at:
            return ""
        return f"`{self.current.name}` in place of `{self.own.name}`: {self._why}"

    def begin(self) -> None:
        """As if nothing had ever been loaded: what does not fit is waited for."""
        self._was_loaded = False
        self.lost()

    def loaded(self) -> None:
        """The current one is."""
        self._was_loaded = self._was_loaded or not self._at

    def lost(self) -> None:
        """What was loaded is not any more: the model's own is tried first."""
        self._at, self._why = 0, ""

    def does_not_fit(self, why: str) -> bool:
        """Whether a smaller one than the current one is tried now; else it is the model's own again."""
        if self._was_loaded and self._at + 1 < len(self._files):
            self._why = self._why or why
            self._at += 1
            return True
        self.lost()
        return False


def check_same_model(header: Header, served: Header, *, name: str, own: str) -> None:
    """Raises UserError if a file cannot go on with the answers of the served one."""
    kinds = header.text(_ARCHITECTURE), served.text(_ARCHITECTURE)
    if kinds[0] != kinds[1]:
        raise UserError(
            f"`{name}` cannot take the place of `{own}`: it is `{kinds[0]}`, not `{kinds[1]}`",
            hint="give smaller quantisations of the same model with `--fallback-model`",
        )
    if any(header.digests.get(key) != served.digests.get(key) for key in _VOCABULARY):
        raise UserError(
            f"`{name}` cannot take the place of `{own}`: it has another vocabulary",
            hint="give smaller quantisations of the same model with `--fallback-model`",
        )
