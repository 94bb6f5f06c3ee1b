"""Passed trials of devices and checks of programs, in a cache file with one line each.

A passed trial is not repeated. If the file is lost or damaged, it costs a trial. Several daemons may share
it: the last one to write wins.
"""

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

from meshd.base import log
from meshd.base.files import replace_file

MAX_TRIALS = 256  # trials kept, the newest
_LINE = re.compile(r"[0-9a-f]{64}")
_MOST_BYTES = MAX_TRIALS * 65
LOG = log.get("worker")


def trial_key(parts: Sequence[str]) -> str:
    """Return a key for everything that decides how a trial ends."""
    digest = hashlib.sha256(b"meshd trial 1\0")
    for part in parts:
        raw = part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


class TrialCache:
    """The passed trials; with `path` None they are kept only in this object."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._keys = dict.fromkeys(self._read())

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def use(self, key: str) -> bool:
        """Say whether the trial was passed.

        A used entry moves to the end, so a head with many cannot displace it.
        """
        if key not in self._keys:
            return False
        if key not in list(self._keys)[-MAX_TRIALS // 2 :]:
            self.add(key)
        return True

    def add(self, key: str) -> None:
        """Note that the trial was passed. A file that cannot be written is no error."""
        others = [old for old in self._read() if old not in self._keys]
        kept = [*others, *(old for old in self._keys if old != key), key]
        self._keys = dict.fromkeys(kept[-MAX_TRIALS:])
        if self._path is None:
            return
        try:
            replace_file(self._path, "".join(f"{kept}\n" for kept in self._keys).encode())
        except OSError as error:
            LOG.warning("trial_not_kept", why=error.strerror)

    def _read(self) -> list[str]:
        if self._path is None:
            return []
        try:
            with self._path.open("rb") as file:
                lines = file.read(_MOST_BYTES).decode("ascii", "replace").splitlines()
        except OSError:
            return []
        return [line for line in lines if _LINE.fullmatch(line)]
