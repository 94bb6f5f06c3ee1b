"""State that must be on disk at the next start, also while the disk cannot be written to.

A write that fails is logged once and remembered; the daemon continues with what it has in memory, says so in
its status, and tries again until the newest content of each file is written.
"""

import threading
from collections.abc import Callable, Mapping
from types import MappingProxyType

from meshd.base import log
from meshd.base.errors import UserError

LOG = log.get("identity")


class Keeping:
    """The pending writes, by file name. May be used by several threads; an older content never overtakes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, Callable[[], None]] = {}
        self._why: dict[str, str] = {}

    @property
    def waiting(self) -> Mapping[str, str]:
        """The files whose newest content is in memory only, and why they could not be written."""
        return MappingProxyType(dict(self._why))

    def keep(self, name: str, write: Callable[[], None]) -> bool:
        """Call `write` now, or again at each `retry` until it works or a newer one comes; True if it worked.

        `write` raises UserError or OSError when the disk does not take it.
        """
        with self._lock:
            return self._try(name, write)

    def retry(self) -> bool:
        """Write what is pending; True when nothing is left."""
        for name in list(self._waiting):
            with self._lock:
                write = self._waiting.get(name)
                if write is not None:  # else a newer one has been written meanwhile
                    self._try(name, write)
        return not self._waiting

    def _try(self, name: str, write: Callable[[], None]) -> bool:
        try:
            write()
        except (UserError, OSError) as error:
            why = str(error)
            if self._why.get(name) != why:
                LOG.warning("state_not_written", file=name, why=why)
            self._waiting[name], self._why[name] = write, why
            return False
        self._waiting.pop(name, None)
        if self._why.pop(name, None) is not None:
            LOG.info("state_written", file=name)
        return True
