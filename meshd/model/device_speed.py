"""How fast a device computes a model's layers, from the lines of `mesh-server --time-device`.

Times between two measured numbers of tokens lie on a line between them, and beyond the last on the line of
the last two.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from meshd.wire.capacity import TimedLayer, checked_time

_WORDS = 4  # of a line
_MOST_STEEP = 4.0  # times as long for each token as with fewer of them: no device is that much slower


def read_line(line: str) -> TimedLayer | None:
    """None for anything else that a program or a driver prints."""
    words = line.split(" ")
    if len(words) != _WORDS or words[0] != "took":
        return None
    if not all(word.isascii() and word.isdigit() and len(word) < 16 for word in words[1:]):
        return None
    kind, tokens, nanoseconds = map(int, words[1:])
    return checked_time(kind, tokens, nanoseconds)


def is_plausible(points: Iterable[tuple[int, int]]) -> bool:
    """Tokens, and nanoseconds for so many: more take longer, and each not many times as long.

    Anything else says what the machine did meanwhile.
    """
    return all(
        took <= longer <= took * _MOST_STEEP * count / fewer
        for (fewer, took), (count, longer) in pairwise(sorted(points))
    )


class DeviceSpeed:
    """The times of one device. `share`: of the processors that its node may use, with which it was measured.

    `cores`: which those are, as nodes of a machine tell them apart; empty: all.
    """

    def __init__(self, times: Iterable[TimedLayer], *, share: float = 1.0, cores: str = "") -> None:
        self.share = share
        self.cores = cores
        found: dict[int, dict[int, float]] = {}
        for one in times:
            points, seconds = found.setdefault(one.kind, {}), one.nanoseconds / 1e9
            points[one.tokens] = min(seconds, points.get(one.tokens, seconds))  # of two the shorter one
        self._points = {kind: sorted(points.items()) for kind, points in found.items()}

    @property
    def times(self) -> tuple[tuple[int, tuple[tuple[int, float], ...]], ...]:
        """By kind: numbers of tokens, and seconds for so many."""
        return tuple((kind, tuple(points)) for kind, points in sorted(self._points.items()))

    def __contains__(self, kind: int) -> bool:
        return kind in self._points

    def seconds(self, kind: int, tokens: float) -> float:
        """For one layer. Raises KeyError where this kind was not measured."""
        points = self._points[kind]
        if tokens <= points[0][0] or len(points) == 1:
            count, took = points[0]
            return took * max(1.0, tokens / count)
        after = next((i for i, (count, _) in enumerate(points) if count >= tokens), len(points) - 1)
        return _on_line(points[after - 1 : after + 1], tokens)


def _on_line(points: Sequence[tuple[int, float]], tokens: float) -> float:
    (count, took), (other, longer) = points
    slope = max(0.0, (longer - took) / (other - count))
    return took + slope * (tokens - count)
