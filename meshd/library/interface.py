"""Models by name: the stores of this machine, what is in them, and how the rest is downloaded.

A *store* is a place where programs keep model files: Hugging Face's cache, Ollama's and LM Studio's folders,
`~/.models`, and meshd's own cache. Files are used where they are and never written to. What is downloaded
goes to Hugging Face's cache, where other programs find it. Everything here works without a daemon and blocks
its caller: verbs call it before a daemon starts. Tests: tests/unit/library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from meshd.base.errors import UserError


class ModelSource(StrEnum):
    """Which store a model is in; the words are part of `meshd model ls --json`."""

    HUB = "huggingface"
    OLLAMA = "ollama"
    LM_STUDIO = "lmstudio"
    FOLDER = "models"  # ~/.models
    MESHD = "meshd"  # meshd's cache: the model of the demo
    PATH = "path"  # a path that the user gave


@dataclass(frozen=True, slots=True)
class StoredModel:
    """A model in a store. `name` can be given to `--model`; `size` counts the bytes that are there.

    `paths`: its files, shards in order; may be empty if it is incomplete. `stem`: its file's name without
    `.gguf`, by which it can be found too. `problem` says what is lacking, if anything is.
    """

    name: str
    source: ModelSource
    paths: tuple[Path, ...]
    size: int
    stem: str = ""
    quant: str = ""
    problem: str = ""

    @property
    def complete(self) -> bool:
        return not self.problem


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """How far a download or a check is. Bytes; `rate` in bytes a second, 0 when not known yet."""

    activity: str
    done: int = 0
    total: int = 0
    rate: float = 0.0


class NotHere(UserError):
    """This machine does not have the model; members of the mesh may."""


class NotDownloaded(NotHere):
    """This machine does not have the model; a download may bring it."""


class NotTheSame(UserError):
    """The hub has another file of that name than members."""


ReportProgress = Callable[[TransferProgress], None]
"""Called a few times a second at most, on the caller's thread."""
