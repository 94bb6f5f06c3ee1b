"""How long devices took for layers, in a file of the cache: a line for each device and kind, measured once.

Lost or damaged it costs a measurement. Several daemons may share it, and each sees what another one adds:
the newest time counts.
"""

import re
from pathlib import Path

from meshd.base import log
from meshd.base.replaced_file import replace_file
from meshd.wire.capacity import MAX_POINTS, TimedLayer, checked_time

_MOST_SPEEDS = 256  # lines, the newest
_POINTS = re.compile(r"[0-9]{1,4}:[0-9]{1,13}(,[0-9]{1,4}:[0-9]{1,13}){0,7}")
_KEY_LETTERS = 64
_FILE_BYTES = _MOST_SPEEDS * 256
LOG = log.get("worker")

Points = tuple[tuple[int, int], ...]
"""Tokens, and nanoseconds of a layer with so many at once."""


class SpeedCache:
    """`path` None: kept as long as this object. Keys are those of trial_cache.py."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._speeds: dict[str, Points] = {}
        self._seen: tuple[int, int, int] | None = None  # the file as it was read or written last
        self._refresh()

    def find(self, key: str) -> Points | None:
        """What was measured; empty where the device has no time for it, None where nobody has looked."""
        self._refresh()
        return self._speeds.get(key)

    def add(self, key: str, points: Points) -> None:
        """From now on it need not be measured. A file that cannot be written is no error."""
        self._refresh()
        self._speeds.pop(key, None)
        self._speeds[key] = points[:MAX_POINTS]
        self._speeds = dict(list(self._speeds.items())[-_MOST_SPEEDS:])
        self._write()

    def clear(self) -> None:
        """From now on all has to be measured, by other daemons as well."""
        self._speeds = {}
        self._write()

    def _write(self) -> None:
        if self._path is None:
            return
        try:
            replace_file(self._path, "".join(_line(*one) for one in self._speeds.items()).encode())
        except OSError as error:
            LOG.warning("speed_not_kept", why=error.strerror)

    def _refresh(self) -> None:
        """As another daemon has left it since."""
        if self._path is None:
            return
        try:
            stat = self._path.stat()
        except OSError:
            return
        now = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if now != self._seen:
            self._seen = now
            self._speeds = self._read(self._path)

    @staticmethod
    def _read(path: Path) -> dict[str, Points]:
        try:
            with path.open("rb") as file:
                lines = file.read(_FILE_BYTES).decode("ascii", "replace").splitlines()
        except OSError:
            return {}
        return dict(one for one in map(_parsed, lines) if one is not None)


def _line(key: str, points: Points) -> str:
    return f"{key} {','.join(f'{tokens}:{took}' for tokens, took in points) or '-'}\n"


def _parsed(line: str) -> tuple[str, Points] | None:
    key, _, text = line.partition(" ")
    if len(key) != _KEY_LETTERS or not set(key) <= set("0123456789abcdef"):
        return None
    if text == "-":
        return key, ()
    if not _POINTS.fullmatch(text):
        return None
    points = tuple((int(tokens), int(took)) for tokens, took in (one.split(":") for one in text.split(",")))
    return (key, points) if all(checked_time(0, *point) for point in points) else None


def with_kind(kind: int, points: Points) -> tuple[TimedLayer, ...]:
    """As they are told, for the kind at this place."""
    return tuple(TimedLayer(kind, tokens, took) for tokens, took in points)
