"""How long devices took for layers, in a file of the cache: a line for each device and kind, measured once.

Lost or damaged it costs a measurement.
"""

import re
from pathlib import Path

from meshd.base import log
from meshd.role.native.keyed_lines import KeyedLines
from meshd.wire.capacity import MAX_POINTS, TimedLayer, checked_time

_MOST_SPEEDS = 256  # lines, the newest
_POINTS = re.compile(r"[0-9]{1,4}:[0-9]{1,13}(,[0-9]{1,4}:[0-9]{1,13}){0,7}")
LOG = log.get("worker")

Points = tuple[tuple[int, int], ...]
"""Tokens, and nanoseconds of a layer with so many at once."""


class SpeedCache(KeyedLines[Points]):
    """`find` gives no points where the device has no time for it, None where nobody has looked."""

    def __init__(self, path: Path | None) -> None:
        super().__init__(path, read=_parsed, show=_line, most=_MOST_SPEEDS, on_unwritten=_unwritten)

    def add(self, key: str, value: Points) -> None:
        """From now on it need not be measured."""
        super().add(key, value[:MAX_POINTS])


def _unwritten(why: str) -> None:
    LOG.warning("speed_not_kept", why=why)


def _line(points: Points) -> str:
    return ",".join(f"{tokens}:{took}" for tokens, took in points) or "-"


def _parsed(text: str) -> Points | None:
    if text == "-":
        return ()
    if not _POINTS.fullmatch(text):
        return None
    points = tuple((int(tokens), int(took)) for tokens, took in (one.split(":") for one in text.split(",")))
    is_one_each = len(dict(points)) == len(points)
    return points if is_one_each and all(checked_time(0, *point) for point in points) else None


def with_kind(kind: int, points: Points) -> tuple[TimedLayer, ...]:
    """As they are told, for the kind at this place."""
    return tuple(TimedLayer(kind, tokens, took) for tokens, took in points)
