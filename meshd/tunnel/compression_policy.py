"""Whether compressing what crosses pays on a path: a rule of facts."""

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.link.interface import LOOPBACK, RELAYED
from meshd.model.output import NEAR_SECONDS
from meshd.peer.interface import PathStatus

# Bytes a second of a path above which it takes longer to compress activations (some 200 MB/s, and 13 % saved)
# than to send what that saves of them. Masks and graphs pay on faster ones, too, and are little there.
FAST_RATE = 25e6


@dataclass(frozen=True, slots=True)
class Verdict:
    """Compress or not, and why."""

    pays: bool
    why: str


def judge(paths: Sequence[PathStatus]) -> Verdict:
    """By the path that carries data: what it carried when it was full, else what stands in between."""
    path = next((path for path in paths if path.selected), None)
    if path is None:
        return Verdict(False, "no path is known")
    if path.link.path == LOOPBACK:  # whatever it measures: a busy machine answers late
        return Verdict(False, "the other node is on this machine")
    if path.rate is not None:
        return Verdict(path.rate < FAST_RATE, f"the path carries {path.rate / 1e6:.1f} MB/s")
    if path.link.path == RELAYED:
        return Verdict(True, "the path is relayed")
    shortest = path.rtt_min if path.rtt_min is not None else path.rtt
    if shortest is None:
        return Verdict(False, "nothing is known of the path")
    return Verdict(shortest >= NEAR_SECONDS, f"the round trip is {shortest * 1000:.1f} ms")
