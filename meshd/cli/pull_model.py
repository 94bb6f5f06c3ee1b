"""`meshd model pull` from members of the mesh: asks the daemon, and shows how far it is until it is done."""

import time
from pathlib import Path

from meshd.admin.client import Client, NotRunning
from meshd.admin.models_api import (
    NO_MEMBER_HAS_IT,
    HolderView,
    PullProgressRequest,
    PullReply,
    PullRequest,
    PullStopRequest,
)
from meshd.base.errors import MeshdError, UserError
from meshd.cli.find_models import reporter
from meshd.cli.output import Output
from meshd.library.interface import TransferProgress
from meshd.model.model_name import MESH

_POLL_SECONDS = 0.5


def begin_pull(given: Path | str, home: Path, rate: int, out: Output) -> PullReply:
    """Have the daemon take it from members unwatched; return its first reply after asking them.

    Raises UserError: also for names of Hugging Face, whose hashes only this process would compare.
    """
    from meshd.model.short_names import hub_name_of

    if isinstance(given, Path) or hub_name_of(given) is not None:
        hint = f"name it `{MESH}NAME`, as `meshd model ls` shows it, or omit `--background`"
        raise UserError(f"`--background` takes models of members, not `{given}`", hint=hint)
    with Client(home) as client:
        reply = client.ask(PullRequest(name=given, rate=rate, background=True))
        while reply.step == "asking":
            out.progress(reply.activity or "asking the members of the mesh")
            time.sleep(_POLL_SECONDS)
            reply = client.ask(PullProgressRequest(id=reply.id))
    if reply.error:
        raise UserError(reply.error, hint=reply.hint)
    return reply


def pull_from_members(given: Path | str, home: Path, rate: int, out: Output) -> PullReply | None:
    """Return what came from members; None if no daemon runs, or no member has it: then the hub may.

    Raises MeshdError; for `mesh:NAME` also where there is no daemon, or nobody has it.
    """
    if isinstance(given, Path):
        return None
    only_members = given.startswith(MESH)
    try:
        client = Client(home)
    except UserError as error:
        if only_members:
            raise
        if not isinstance(error, NotRunning):
            out.note(f"members of the mesh are not asked: {error.what}")
        return None
    with client:
        reply = watched(client, client.ask(PullRequest(name=given, rate=rate)), out)
    if not reply.error:
        return reply
    if reply.code == NO_MEMBER_HAS_IT and not only_members:
        return None
    raise UserError(reply.error, hint=reply.hint)


def watched(client: Client, reply: PullReply, out: Output) -> PullReply:
    """Watch a pull until it has ended; Ctrl-C ends it."""
    shown = PullProgress(out)
    try:
        while reply.step not in ("done", "failed"):
            shown.show(reply)
            time.sleep(_POLL_SECONDS)
            reply = client.ask(PullProgressRequest(id=reply.id))
    except KeyboardInterrupt:
        try:
            client.ask(PullStopRequest(id=reply.id))
        except MeshdError as error:
            out.note(f"the daemon was not told: {error.what}")
        raise
    shown.show(reply)
    return reply


class PullProgress:
    """A bar with rate and remaining time on a terminal; elsewhere a line for each step and each tenth."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self._report = reporter(out)
        self._told: set[str] = set()

    def show(self, reply: PullReply) -> None:
        for holder in reply.holders:
            self._tell(holder)
        match reply.step:
            case "asking":
                self._out.progress(reply.activity or "asking the members of the mesh")
            case "looking":
                self._out.progress("looking at what is there", _share(reply))
            case "fetching":
                self._fetching(reply)
            case "done" if reply.total_bytes > reply.before_bytes and not self._out.draws_progress:
                self._fetching(reply)
            case "checking":
                self._out.progress(f"checking {reply.name}")

    def _tell(self, holder: HolderView) -> None:
        line = f"{holder.node} gives no more: {holder.problem}"
        if holder.problem and line not in self._told:
            self._told.add(line)
            self._out.note(line)

    def _fetching(self, reply: PullReply) -> None:
        giving = [holder.node for holder in reply.holders if holder.bytes and not holder.problem]
        # Without a bar, a line is printed whenever the words change.
        whose = f" from {', '.join(giving)}" if giving and self._out.draws_progress else ""
        activity = f"fetching {reply.name}{whose}"
        self._report(TransferProgress(activity, reply.done_bytes, reply.total_bytes, reply.rate))


def _share(reply: PullReply) -> float:
    return reply.done_bytes / reply.total_bytes if reply.total_bytes else 0.0
