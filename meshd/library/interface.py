"""Models by name: this machine's stores and their models, and the download of others.

A *store* is a place where programs keep model files: Hugging Face's cache, Ollama's and LM Studio's folders,
`~/.models`, and meshd's own cache. Files are used in place and never written to. Downloads go to Hugging
Face's cache, where other programs find them. All functions here work without a daemon and block their caller:
verbs call them before a daemon starts. Tests: tests/unit/library.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from meshd.base.errors import UserError

ONLY_HEADER = "only its header is here"  # the problem of a model of which nothing else is here
ASKING_SECONDS = 600.0  # for members to read a model of theirs that may be downloaded instead


class ModelSource(StrEnum):
    """The store of a model; the words are part of `meshd model ls --json`."""

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
    `.gguf`, which also finds it. `problem` says what is missing, if anything.
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
    """The progress of a download or a check. Bytes; `rate` in bytes per second, 0 if not known yet.

    `is_asking`: it has not begun, a hub is only asked what there is.
    """

    activity: str
    done: int = 0
    total: int = 0
    rate: float = 0.0
    is_asking: bool = False


class NotHere(UserError):
    """Raised if this machine does not have the model; members may. `near`: similar names, in words."""

    def __init__(self, what: str, *, hint: str = "", near: str = "") -> None:
        super().__init__(f"{what}; {near}" if near else what, hint=hint)
        self.near = near


class NotDownloaded(NotHere):
    """Raised if this machine does not have the model; a download may bring it."""


class NotTheSame(UserError):
    """Raised if the hub's file of that name differs from the members' file."""


ReportProgress = Callable[[TransferProgress], None]
"""Report progress, a few times per second at most, on the caller's thread."""
