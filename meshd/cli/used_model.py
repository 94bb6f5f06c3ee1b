"""`meshd model rm` leaves what the node that runs here uses: its next load would find the file gone."""

from pathlib import Path
from typing import TYPE_CHECKING

from meshd.admin.client import Client, NotRunning
from meshd.admin.models_api import FilesInUseRequest
from meshd.base.errors import UserError

if TYPE_CHECKING:
    from meshd.library.remove import Removal


def check_unused(removal: "Removal", home: Path) -> None:
    """Raise UserError where the daemon of `home` uses one of the files, or does not answer."""
    try:
        with Client(home) as client:
            reply = client.ask(FilesInUseRequest())
    except NotRunning:
        return
    used = {Path(path).resolve() for path in reply.paths}
    if any(path.resolve() in used for path in removal.files):
        names = ", ".join(f"`{name}`" for name in removal.names)
        raise UserError(
            f"{names} was not removed: the node that runs here uses it",
            hint="stop the node (`meshd stop`), or restart it with another model, and try again",
        )
