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
_NAMES = {  # of what a node warns of
    "membership": ("not_in_mesh", "banned", "identity_copied"),
    "root key": ("no_backup",),
    "peer": (
        "nobody_reached",
        "name_shared",
        "peer_suspended",
        "peer_lost",
        "peer_unreachable",
        "peer_faults",
    ),
    "network": ("mdns_silent", "relayed"),
    "version": ("version_refused", "version_mismatch", "native_mismatch", "native_differs"),
    "clock": ("clock_off",),
    "llama.cpp": ("child_failed", "child_restarts", "rpc_refused"),
    "model": ("model_failed", "model_waiting", "model_slow", "model_file", "tensors_from_network"),
    "worker": ("unknown_worker",),
    "cache": ("weights_not_kept",),
    "disk": ("disk",),
    "gpu": ("no_cuda",),
    "device": ("device_unfit",),
}


def check_node(home: Path) -> Iterator[Finding]:
    """Report whether a node runs, and what it warns of."""
    try:
        is_closed = home.exists() and not os.access(home, os.X_OK)
    except PermissionError:  # it is in a directory that this user cannot enter
        is_closed = True
    if is_closed:
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
    name = next((name for name, codes in _NAMES.items() if warning.code in codes), "node")
    return Finding(warning.code, name, warning.severity, warning.what, hint=warning.hint)
