"""The daemon's modules, imported for one that will run for long."""

import gc
from collections.abc import Callable

from meshd.config import Config


def import_daemon() -> Callable[[Config, str, Callable[[str], None]], int]:
    """Return `meshd.daemon.run`, imported without garbage collection: nothing that its import makes is
    garbage.

    That, and not to walk it all again while the node starts, saves a seventh of the processor time of a
    start.
    """
    gc.disable()
    try:
        from meshd.daemon.run import run
    finally:
        gc.enable()
    gc.freeze()
    return run
