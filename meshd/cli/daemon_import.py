"""The daemon's modules, imported for one that will run for long."""

import gc
from collections.abc import Callable

from meshd.config import Config


def import_daemon() -> Callable[[Config, str, Callable[[str], None]], int]:
    """`meshd.daemon.run`. Nothing that its import makes is garbage, so none is looked for meanwhile.

    That, and not to walk it all again while the node starts, is a seventh of the processor time of a start.
    """
    gc.disable()
    try:
        from meshd.daemon import run
    finally:
        gc.enable()
    gc.freeze()
    return run
