"""Models of members for `meshd model pull` and `plan`: the daemon takes them, and its progress is shown."""

import time
from pathlib import Path

from meshd.admin.api import NO_MEMBER_HAS_IT, PullProgressRequest, PullReply, PullRequest, PullStopRequest
from meshd.admin.client import Client, NotRunning
from meshd.base.errors import MeshdError, UserError
from meshd.cli.find_models import reporter
from meshd.cli.output import Output
from meshd.library.interface import TransferProgress
from meshd.model.model_name import MESH

_POLL_SECONDS = 0.5


def begin_pull(given: Path | str, home: Path, rate: int, out: Output) -> PullReply:
    """Have the daemon copy or download it unwatched; return its first reply that says what is fetched.

    Raises UserError: also for a path, which nobody else knows.
    """
    if isinstance(given, Path):
        hint = "give the model's name, as `meshd model ls` shows it"
        raise UserError(f"`--background` takes the name of a model, not `{given}`", hint=hint)
    with Client(home) as client:
        reply = client.ask(PullRequest(name=given, rate=rate, background=True, download=True))
        while reply.step == "asking":
            _show_pull(reply, set(), out)
            time.sleep(_POLL_SECONDS)
            reply = client.ask(PullProgressRequest(id=reply.id))
    if reply.note:
        out.note(reply.note)
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
    shown_lines: set[str] = set()
    try:
        while reply.step not in ("done", "failed"):
            _show_pull(reply, shown_lines, out)
            time.sleep(_POLL_SECONDS)
            reply = client.ask(PullProgressRequest(id=reply.id))
    except KeyboardInterrupt:
        try:
            client.ask(PullStopRequest(id=reply.id))
        except MeshdError as error:
            out.note(f"the daemon was not told: {error.what}")
        raise
    _show_pull(reply, shown_lines, out)
    return reply


def _show_pull(reply: PullReply, shown_lines: set[str], out: Output) -> None:
    """Show a bar with rate and remaining time on a terminal; elsewhere a line for each step and each tenth.

    `shown_lines` has the lines about members that give no more.
    """
    for holder in reply.holders:
        line = f"{holder.node} gives no more: {holder.problem}"
        if holder.problem and line not in shown_lines:
            shown_lines.add(line)
            out.note(line)
    came = reply.total_bytes > reply.before_bytes and not out.draws_progress
    if reply.step == "asking":
        out.progress(reply.activity or "asking the members of the mesh")
    elif reply.step == "looking":
        out.progress(
            "looking at what is there",
            reply.done_bytes / reply.total_bytes if reply.total_bytes else 0.0,
        )
    elif reply.step == "fetching" or (reply.step == "done" and came):
        giving = [holder.node for holder in reply.holders if holder.bytes and not holder.problem]
        # Without a bar, a line is printed whenever the words change.
        whose = f" from {', '.join(giving)}" if giving and out.draws_progress else ""
        activity = f"fetching {reply.name}{whose}"
        if reply.source == "download":
            activity = reply.activity or f"downloading {reply.name}"
        reporter(out)(TransferProgress(activity, reply.done_bytes, reply.total_bytes, reply.rate))
    elif reply.step == "checking":
        out.progress(f"checking {reply.name}")
