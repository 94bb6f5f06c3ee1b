"""What the predicted time of a token or a prompt is the sum of: devices, paths, and a rest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from meshd.model.device_speed import DeviceSpeed
from meshd.model.output import DevicePath


@dataclass(frozen=True, slots=True)
class PredictedPart:
    """`seconds` that a device takes, or the `path` between two nodes; the rest where neither is given.

    `device`: its label; `speed`: as it was measured; `ends`: of the path, as `ends_of` has them. Several
    parts of a sum may be of one device or path.
    """

    seconds: float
    device: str = ""
    speed: DeviceSpeed | None = None
    ends: tuple[str, str] = ("", "")
    path: DevicePath | None = None


@dataclass(frozen=True, slots=True)
class PredictedParts:
    """Of a split: what a token and a prompt of the usual length are the sums of."""

    token: Sequence[PredictedPart]
    prompt: Sequence[PredictedPart]


@dataclass(frozen=True, slots=True)
class PassedPath:
    """A path that hidden states pass, between two nodes."""

    ends: tuple[str, str]
    path: DevicePath

    def part(self, seconds: float) -> PredictedPart:
        """That takes so long."""
        return PredictedPart(seconds, ends=self.ends, path=self.path)


def total(parts: Iterable[PredictedPart]) -> float:
    """Seconds."""
    return sum(part.seconds for part in parts)


def ends_of(node: str, other: str = "") -> tuple[str, str]:
    """Of the path between two nodes, in either direction; the head's name is empty."""
    return (node, other) if node < other else (other, node)
