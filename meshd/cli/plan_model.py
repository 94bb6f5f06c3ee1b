"""Finds the model of a plan: on this machine, or only its headers, from Hugging Face or members."""

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path

from meshd.admin.client import Client
from meshd.admin.models_api import NO_MEMBER_HAS_IT, PullRequest
from meshd.base.errors import UserError
from meshd.cli.find_models import check_no_file, local_model, reporter
from meshd.cli.output import Output
from meshd.cli.pull_model import watched
from meshd.config import Config
from meshd.model.model_name import MESH, OLLAMA


def model_for_plan(text: str, config: Config, client: Client, held: ExitStack, out: Output) -> Path:
    """Return the first file. What was taken for this plan alone is removed with `held`. Raises UserError."""
    from meshd.library.interface import NotHere
    from meshd.model.model_name import hub_name_of

    try:
        return local_model(text, config, out)
    except NotHere as not_here:
        check_no_file(text, not_here)
        missing = not_here
    if text.startswith(OLLAMA):
        raise missing  # its registry is Ollama's to ask
    from meshd.library.members.part_files import remove_old_plans

    remove_old_plans(config.paths.cache, config.paths.cache / "models")
    # Its header from Hugging Face.
    if (name := hub_name_of(text)) is not None:
        from meshd.library.download import fetch_headers  # huggingface_hub: half a second to import

        path = fetch_headers(name, _folder(config.paths.cache, held), reporter(out))[0]
        out.note(f"`{text}` is not on this machine: planned from its header, which Hugging Face has")
        return path
    # Its header from members.
    reply = watched(client, client.ask(PullRequest(name=text, for_plan=True)), out)
    if reply.code == NO_MEMBER_HAS_IT and not text.startswith(MESH):
        raise UserError(f"{missing.what}; {reply.error}", hint=missing.hint)
    if reply.error:
        raise UserError(reply.error, hint=reply.hint)
    path = Path(reply.paths[0])
    if not reply.was_here:
        held.callback(shutil.rmtree, path.parent, ignore_errors=True)
        out.note(f"`{text}` is not on this machine: planned from its header, which members have")
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
