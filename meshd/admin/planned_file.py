"""Find the file to plan for: the model itself, or just its headers if this machine lacks it."""

import shutil
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from meshd.admin.api import NO_MEMBER_HAS_IT, PullReply
from meshd.base.errors import UserError
from meshd.library.interface import NotHere, ReportProgress
from meshd.model.model_name import MESH, OLLAMA, check_no_file


@dataclass(frozen=True, slots=True)
class NotHereYet:
    """A model that only members can have; `error`: why it is not here."""

    error: UserError


def local_or_header(
    given: Path | str,
    cache: Path,
    held: ExitStack,
    *,
    report: ReportProgress,
    note: Callable[[str], object],
) -> Path | NotHereYet:
    """Return the first file of a model of this machine, or of its headers, which Hugging Face has.

    What was downloaded for this plan alone is removed with `held`. `note` gets a remark for people. Blocks.
    Raises UserError.
    """
    from meshd.library.members.part_files import remove_old_plans
    from meshd.library.resolve import Resolver
    from meshd.library.stores import Stores
    from meshd.model.short_names import hub_name_of

    text = str(given)
    try:
        return Resolver(Stores.here(cache), report).local(given).paths[0]
    except NotHere as error:
        if isinstance(given, str):
            check_no_file(given, error)
        if text.startswith(OLLAMA):
            raise  # its registry is Ollama's to ask
        missing = error
    remove_old_plans(cache, cache / "models")
    if (name := hub_name_of(text)) is None:
        return NotHereYet(missing)
    from meshd.library.download import fetch_headers  # huggingface_hub: half a second to import

    path = fetch_headers(name, _folder(cache, held), report)[0]
    note(f"`{text}` is not on this machine: planned from its header, which Hugging Face has")
    return path


def header_from_members(
    text: str, missing: NotHereYet, reply: PullReply, held: ExitStack, *, note: Callable[[str], object]
) -> Path:
    """Return the file that a pull for a plan has brought, once it has ended; `text` names the model.

    The file is removed with `held`. Raises UserError if the pull failed.
    """
    if reply.code == NO_MEMBER_HAS_IT and not text.startswith(MESH):
        raise UserError(f"{missing.error.what}; {reply.error}", hint=missing.error.hint)
    if reply.error:
        raise UserError(reply.error, hint=reply.hint)
    path = Path(reply.paths[0])
    if not reply.was_here:
        held.callback(shutil.rmtree, path.parent, ignore_errors=True)
        note(f"`{text}` is not on this machine: planned from its header, which members have")
    return path


def _folder(cache: Path, held: ExitStack) -> Path:
    """Create a folder for headers. Raises UserError."""
    from meshd.library.members.part_files import hub_plans

    try:
        hub_plans(cache).mkdir(parents=True, exist_ok=True)
        return Path(held.enter_context(tempfile.TemporaryDirectory(dir=hub_plans(cache))))
    except OSError as error:
        raise UserError(
            f"cannot write below `{cache}`: {(error.strerror or str(error)).lower()}",
            hint="fix the cause, or set MESHD_CACHE to a directory that you can write to",
        ) from None
