"""Device speeds for a model's layers, from the lines of `mesh-server --time-device`; also for a usual layer.

Times between two measured token counts are interpolated linearly, and beyond the last extrapolated from the
last two.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshd.wire.capacity import TimedLayer, checked_time

_WORDS = 4  # per line
TRIALS_DIFFER = 1.15  # four cards of one kind got 7, 8, 9 and 8 of 32 layers by their trials
_MOST_STEEP = 4.0  # maximum growth of the time per token with more tokens: no device slows down that much


def read_line(line: str) -> TimedLayer | None:
    """Parse a line; None for anything else that a program or a driver prints."""
    words = line.split(" ")
    if len(words) != _WORDS or words[0] != "took":
        return None
    if not all(word.isascii() and word.isdigit() and len(word) < 16 for word in words[1:]):
        return None
    kind, tokens, nanoseconds = map(int, words[1:])
    return checked_time(kind, tokens, nanoseconds)


def is_plausible(points: Iterable[tuple[int, int]]) -> bool:
    """Say whether the times are plausible: more tokens take longer, and each not many times as long.

    `points` are pairs of a token count and nanoseconds. Implausible times come from other work on the
    machine.
    """
    return all(
        took <= longer <= took * _MOST_STEEP * count / fewer
        for (fewer, took), (count, longer) in pairwise(sorted(points))
    )


class DeviceSpeed:
    """The times of one device.

    `share`: the share of its node's usable processors with which it was measured. `cores`: an id of these
    processors, as nodes of one machine compare them; empty: all.
    """

    def __init__(self, times: Iterable[TimedLayer], *, share: float = 1.0, cores: str = "") -> None:
        self.share = share
        self.cores = cores
        found: dict[int, dict[int, float]] = {}
        for time in times:
            points, seconds = found.setdefault(time.kind, {}), time.nanoseconds / 1e9
            # The shorter of two measurements counts.
            points[time.tokens] = min(seconds, points.get(time.tokens, seconds))
        self._points = {kind: sorted(points.items()) for kind, points in found.items()}

    @property
    def times(self) -> tuple[tuple[int, tuple[tuple[int, float], ...]], ...]:
        """The measured points by kind: token counts with their seconds."""
        return tuple((kind, tuple(points)) for kind, points in sorted(self._points.items()))

    def __contains__(self, kind: int) -> bool:
        return kind in self._points

    def as_shortest(self, alike: Sequence["DeviceSpeed"]) -> "DeviceSpeed":
        """Return the shortest times of devices like this one, itself among them.

        Unchanged if a time is longer than that by more than trials of one device differ: then it is slower.
        """
        found = DeviceSpeed((), share=self.share, cores=self.cores)
        for kind, points in self._points.items():
            others = [dict(other._points.get(kind, ())) for other in alike]
            found._points[kind] = [
                (tokens, min(other.get(tokens, took) for other in others)) for tokens, took in points
            ]
            if any(
                took > TRIALS_DIFFER * least
                for (_, took), (_, least) in zip(points, found._points[kind], strict=True)
            ):
                return self
        return found

    def seconds(self, kind: int, tokens: float) -> float:
        """Return the seconds of one layer. Raises KeyError if this kind was not measured."""
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


# A layer of usual size and type, for comparing devices without a model.
REFERENCE_LAYERS = (
    "2=mul_mat:q4_k:4096:4096,mul_mat:q4_k:4096:4096,mul_mat:q4_k:4096:8192,mul_mat:q4_k:4096:8192,"
    "mul_mat:q4_k:4096:8192",
)
_ELEMENTS = 4096 * (2 * 4096 + 3 * 8192)
_BYTES = _ELEMENTS // 256 * 144
_PROMPT_TOKENS = 128  # the prompt for which operations per second are reported


@dataclass(frozen=True, slots=True)
class ReferenceRates:
    """Bytes of weights per second for one token, operations per second for a prompt; None: not measured."""

    weight_bytes_s: float | None = None
    flops: float | None = None


def reference_rates(speed: DeviceSpeed | None) -> ReferenceRates:
    """Return the rates of a device with these times of REFERENCE_LAYERS, timed alone."""
    if speed is None or 0 not in speed:
        return ReferenceRates()
    return ReferenceRates(
        weight_bytes_s=_BYTES / speed.seconds(0, 1),
        flops=2 * _ELEMENTS * _PROMPT_TOKENS / speed.seconds(0, _PROMPT_TOKENS),
    )
