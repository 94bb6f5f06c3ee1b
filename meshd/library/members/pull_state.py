"""Where a pull from members puts a model, how far it is, as others see it, and how it may fail."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from meshd.base.errors import UserError
from meshd.identity.keys import PeerId
from meshd.library.interface import StoredModel
from meshd.library.members.ask_models import MemberModels
from meshd.model.model_name import MeshName, ModelName
from meshd.store.hash_cache import HashCache
from meshd.store.piece_cache import PieceCache


@dataclass(frozen=True, slots=True)
class PullPlace:
    """Where models go, and the hashes that are kept of them. `own`: the models of this machine; it blocks."""

    folder: Path
    hashes: HashCache
    pieces: PieceCache
    own: Callable[[], Iterable[StoredModel]] = tuple


class PullStep(StrEnum):
    """What a pull is doing; the words are part of `meshd model pull --json`."""

    ASKING = "asking"
    LOOKING = "looking"  # at what is there from before
    FETCHING = "fetching"
    CHECKING = "checking"  # the tensors of the whole file
    DONE = "done"
    FAILED = "failed"


@dataclass(slots=True)
class Holder:
    """A member that has the model. `bytes`: what it gave; `problem`: why it gives no more."""

    node: str
    bytes: int = 0
    problem: str = ""


@dataclass(slots=True)
class PullState:
    """As others see it while it runs. `before`: bytes that were there when it began."""

    step: PullStep = PullStep.ASKING
    name: str = ""
    done: int = 0
    total: int = 0
    before: int = 0
    rate: float = 0.0
    holders: dict[PeerId, Holder] = field(default_factory=dict)
    paths: tuple[Path, ...] = ()
    fingerprint: str = ""
    activity: str = ""
    was_here: bool = False  # `paths` are of a model of this machine, and nothing was fetched


class NobodyHasIt(UserError):
    """No member has the model."""


class HoldersLost(UserError):
    """Those that had it give no more."""


class UnusableContent(UserError):
    """What its holders have is nothing that can be used; others may have it right."""


def nobody_has(name: ModelName, told: Sequence[MemberModels], *, lied: int, by_content: bool) -> NobodyHasIt:
    """The error that says who was asked; `lied`: members that had something else.

    `by_content`: the name may have been a content id.
    """
    asked = ", ".join(one.node + (f" ({one.why_not})" if one.why_not else "") for one in told)
    what = f"no member of the mesh has `{name}`" + (f"; asked: {asked}" if asked else ": none is connected")
    if lied:
        what = f"what members gave as `{name}` was something else"
    hint = "list what there is: `meshd model ls`"
    if not by_content and isinstance(name, MeshName) and name.fingerprint:
        hint += "; with `--header-only`, name a model by its fingerprint, not by its content id"
    return NobodyHasIt(what, hint=hint)
