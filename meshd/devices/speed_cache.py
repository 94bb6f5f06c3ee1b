"""Layer times of devices, in a cache file: one line for each device and kind, measured once.

If the file is lost or damaged, the times are measured again. Several daemons may share the file, and each
sees what another one adds: the newest counts.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.base.files import replace_file
from meshd.wire.capacity import MAX_POINTS, TimedLayer, checked_time

_MOST_SPEEDS = 256  # lines
_MOST_KEPT_FOR_ITSELF = _MOST_SPEEDS // 2  # lines of this node that no question of others displaces
_LINE_BYTES = 256  # at most, with key and line end
_ASKER_DIGITS = 32
_KEY = re.compile(r"[0-9a-f]{64}")
_POINTS = re.compile(r"[0-9]{1,4}:[0-9]{1,13}(,[0-9]{1,4}:[0-9]{1,13}){0,7}")
_ASKER = re.compile(rf"[0-9a-f]{{{_ASKER_DIGITS}}}")
LOG = log.get("worker")

Points = tuple[tuple[int, int], ...]
"""Pairs of tokens computed at once and the nanoseconds of one layer."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """One entry. `asker`: a digest of the `asker` of SpeedCache.add."""

    points: Points
    asker: str


class SpeedCache:
    """A bounded cache of layer times.

    The asker with the most entries loses one first, so members do not displace those of others. Other threads
    may look times up: what they see is complete, and current or a moment old.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the file at `path`; None keeps times only in this object."""
        self._path = path
        self._timed: dict[str, _Timed] = {}
        # The file's inode, size and time when last read or written.
        self._seen: tuple[int, int, int] | None = None
        self._refresh()

    def find(self, key: str) -> Points | None:
        """Return the points; none if the device has no time for the key, None if nothing was ever measured.

        Keys are those of trial_cache.py.
        """
        self._refresh()
        found = self._timed.get(key)
        return None if found is None else found.points

    def add(self, key: str, value: Points, asker: str = "") -> None:
        """Keep a time, so that it need not be measured again. A file that cannot be written is no error.

        `asker`: the node that admitted the member that asked; empty for this node.
        """
        digest = hashlib.sha256(asker.encode()).hexdigest()[:_ASKER_DIGITS] if asker else ""
        self._refresh()
        timed = {one: known for one, known in self._timed.items() if one != key}
        timed[key] = _Timed(value[:MAX_POINTS], digest)
        while len(timed) > _MOST_SPEEDS:
            del timed[_displaced(timed)]
        self._timed = timed
        self._write()

    def clear(self) -> None:
        """Forget all times, for other daemons as well."""
        self._timed = {}
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        lines = (f"{key} {_line(timed)}\n" for key, timed in self._timed.items())
        try:
            replace_file(self._path, "".join(lines).encode())
        except OSError as error:
            LOG.warning("speed_not_kept", why=error.strerror or str(error))

    def _refresh(self) -> None:
        """Read the file again if another daemon has changed it."""
        if self._path is None:
            return
        try:
            stat = self._path.stat()
        except OSError:
            return
        now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if now != self._seen:
            self._seen = now
            self._timed = _read(self._path)


def _read(path: Path) -> dict[str, _Timed]:
    """Return the lines that this module may have written, by key."""
    try:
        with path.open("rb") as file:
            lines = file.read(_MOST_SPEEDS * _LINE_BYTES).decode("ascii", "replace").splitlines()
    except OSError:
        return {}
    found: dict[str, _Timed] = {}
    for line in lines:
        key, _, text = line.partition(" ")
        timed = _parsed(text) if _KEY.fullmatch(key) else None
        if timed is not None:
            found[key] = timed
    return found


def _displaced(values: Mapping[str, _Timed]) -> str:
    """Choose the oldest of the largest share; this node's own only beyond what others may not touch."""
    counts = Counter(timed.asker for timed in values.values())
    if counts[""] <= _MOST_KEPT_FOR_ITSELF:
        del counts[""]
    (largest, _), *_ = counts.most_common(1)
    return next(key for key, timed in values.items() if timed.asker == largest)


def _line(timed: _Timed) -> str:
    points = ",".join(f"{tokens}:{took}" for tokens, took in timed.points) or "-"
    return f"{points} {timed.asker}" if timed.asker else points


def _parsed(text: str) -> _Timed | None:
    listed, space, asker = text.partition(" ")
    if space and not _ASKER.fullmatch(asker):
        return None
    if listed == "-":
        return _Timed((), asker)
    if not _POINTS.fullmatch(listed):
        return None
    points = tuple((int(tokens), int(took)) for tokens, took in (one.split(":") for one in listed.split(",")))
    is_one_each = len(dict(points)) == len(points)
    return _Timed(points, asker) if is_one_each and all(checked_time(0, *point) for point in points) else None


def with_kind(kind: int, points: Points) -> tuple[TimedLayer, ...]:
    """Return the points as wire messages carry them, for the kind at this index."""
    return tuple(TimedLayer(kind, tokens, took) for tokens, took in points)
