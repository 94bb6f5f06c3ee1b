"""Ask the running node, if there is one: whether it answers, its version, and its own warnings."""

import os
from collections.abc import Iterator
from pathlib import Path

from meshd import __version__
from meshd.admin.api import StatusRequest
from meshd.admin.client import NotAnswering, NotRunning, OtherVersion, Silent, ask
from meshd.admin.status import HealthWarning
from meshd.base.errors import MeshdError
from meshd.doctor.kinds import Finding, Kind

ANSWER_SECONDS = 5.0


def check_node(home: Path) -> Iterator[Finding]:
    """Report whether a node runs, and what it warns of."""
    if home.exists() and not os.access(home, os.X_OK):
        return  # folders.py reports it
    try:
        status = ask(home, StatusRequest(), seconds=ANSWER_SECONDS)
    except NotRunning:
        yield Kind.NODE.found(what="not running")
    except NotAnswering as error:
        yield Kind.NODE_STARTING.found(why=error.what, remedy=error.hint)
    except Silent as error:
        yield Kind.NODE_SILENT.found(why=error.what, remedy=error.hint)
    except OtherVersion as error:
        yield Kind.NODE_OTHER_VERSION.found(running=error.version, installed=__version__)
    except MeshdError as error:
        yield Kind.NODE_UNREACHABLE.found(why=error.what, remedy=error.hint)
    else:
        yield Kind.NODE.found(what=f"`{status.node.name}` runs as {status.node.role}")
        if status.node.version != __version__:
            yield Kind.NODE_OTHER_VERSION.found(running=status.node.version, installed=__version__)
        yield from map(_of_warning, status.warnings)


def _of_warning(warning: HealthWarning) -> Finding:
    """Return a warning of the node as it is worded there."""
    state = "ok" if warning.severity == "info" else warning.severity
    return Finding(warning.code, warning.code, state, warning.what, hint=warning.hint)
