"""Requests about models of members, and their replies; see api.py for the rules."""

from dataclasses import dataclass

from meshd.admin.plan_api import LeftOutView
from meshd.admin.request import Request

NO_MEMBER_HAS_IT = "nobody"  # code of a pull that found no member with the model


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberModelView:
    """A model that a member has. `fingerprint` is null until that member has hashed it, `content` until it
    has read its pieces."""

    node: str
    name: str
    names: tuple[str, ...]
    bytes: int
    files: int
    quant: str | None
    architecture: str | None
    fingerprint: str | None
    content: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesInUseReply:
    """Paths of model files, of those with shards the first one's."""

    paths: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesInUseRequest(Request[FilesInUseReply], name="files_in_use"):
    """A request for the model files that this node serves or lends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HolderView:
    """A member that a model comes from. `problem`: why it gives no more; empty while it does."""

    node: str
    bytes: int
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullReply:
    """The progress of a pull. `step`: asking, looking, fetching, checking, done or failed; `before_bytes`:
    those present when it began; `rate` in bytes a second, 0 if unknown. `paths` and `fingerprint` when it is
    done; `was_here`: they are of a model that this machine had under another name or elsewhere. `error`,
    `hint` and `code` when it has failed.
    """

    id: int
    step: str
    name: str = ""
    done_bytes: int = 0
    total_bytes: int = 0
    before_bytes: int = 0
    rate: float = 0.0
    activity: str = ""
    holders: tuple[HolderView, ...] = ()
    paths: tuple[str, ...] = ()
    fingerprint: str | None = None
    was_here: bool = False
    error: str = ""
    hint: str = ""
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberModelsReply:
    """The models of all connected members; `left_out` did not reply. `pulls`: those that run on this node,
    and those in the background that failed and were not restarted.
    """

    models: tuple[MemberModelView, ...]
    left_out: tuple[LeftOutView, ...] = ()
    pulls: tuple[PullReply, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberModelsRequest(Request[MemberModelsReply], name="member_models"):
    """A request for the models of members, asked now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRequest(Request[PullReply], name="pull"):
    """Take the model `name` from members, at most `rate` bytes a second (0: no limit).

    `header_only`: of it only what a head without layers needs; `for_plan`: only the headers of its files,
    which the requester removes. It runs for as long as somebody asks how far
    it is, every few seconds; with `background` it runs to its end.
    """

    name: str
    rate: int = 0
    header_only: bool = False
    for_plan: bool = False
    background: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgressRequest(Request[PullReply], name="pull_progress"):
    """A request for the progress of the pull with this `id`."""

    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PullStopRequest(Request[PullReply], name="pull_stop"):
    """Stop a pull; what was fetched stays."""

    id: int
