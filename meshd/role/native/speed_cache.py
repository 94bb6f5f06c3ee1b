"""How long devices took for layers, in a file of the cache: a line for each device and kind, measured once.

Lost or damaged it costs a measurement.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshd.base import log
from meshd.role.native.keyed_lines import KeyedLines
from meshd.wire.capacity import MAX_POINTS, TimedLayer, checked_time

_MOST_SPEEDS = 256  # lines
_MOST_KEPT_FOR_ITSELF = _MOST_SPEEDS // 2  # lines of this node that no question of others displaces
_ASKER_DIGITS = 32
_POINTS = re.compile(r"[0-9]{1,4}:[0-9]{1,13}(,[0-9]{1,4}:[0-9]{1,13}){0,7}")
_ASKER = re.compile(rf"[0-9a-f]{{{_ASKER_DIGITS}}}")
LOG = log.get("worker")

Points = tuple[tuple[int, int], ...]
"""Tokens, and nanoseconds of a layer with so many at once."""


@dataclass(frozen=True, slots=True)
class _Timed:
    """`asker`: a digest of that of SpeedCache.add."""

    points: Points
    asker: str


class SpeedCache:
    """Bounded: who has had most measured loses a time first, so members do not displace those of others."""

    def __init__(self, path: Path | None) -> None:
        self._lines = KeyedLines(
            path,
            read=_parsed,
            show=_line,
            most=_MOST_SPEEDS,
            on_unwritten=_unwritten,
            displaced=_displaced,
        )

    def find(self, key: str) -> Points | None:
        """No points where the device has no time for it, None where nobody has looked."""
        found = self._lines.find(key)
        return None if found is None else found.points

    def add(self, key: str, value: Points, asker: str = "") -> None:
        """From now on it need not be measured.

        `asker`: who let in the member that asked; this node if empty.
        """
        digest = hashlib.sha256(asker.encode()).hexdigest()[:_ASKER_DIGITS] if asker else ""
        self._lines.add(key, _Timed(value[:MAX_POINTS], digest))

    def clear(self) -> None:
        """Nothing is known any more, for other daemons as well."""
        self._lines.clear()


def _displaced(values: Mapping[str, _Timed]) -> str:
    """The oldest of the largest share; of this node's own only if they are more than others may not touch."""
    counts = Counter(timed.asker for timed in values.values())
    if counts[""] <= _MOST_KEPT_FOR_ITSELF:
        del counts[""]
    (largest, _), *_ = counts.most_common(1)
    return next(key for key, timed in values.items() if timed.asker == largest)


def _unwritten(why: str) -> None:
    LOG.warning("speed_not_kept", why=why)


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
    """As they are told, for the kind at this place."""
    return tuple(TimedLayer(kind, tokens, took) for tokens, took in points)
