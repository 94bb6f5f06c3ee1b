"""Decides what of a stream is compressed on a path: a rule of facts."""

from collections.abc import Sequence
from dataclasses import dataclass

from meshd.link.interface import LOOPBACK, RELAYED
from meshd.model.output import NEAR_SECONDS
from meshd.peer.interface import PathStatus
from meshd.wire.compressed import Compression

# Bytes a second of a path above which it takes longer to compress activations (some 200 MB/s, and 13 % saved)
# than to send what that saves of them
FAST_RATE = 25e6
# The round trip from which a load's round trips weigh more than 0.05 to 0.1 ms for each token, which it takes
# to see that there is nothing to compress in it
FAR_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class Verdict:
    """Say what is compressed, and why."""

    how: Compression
    why: str


def judge(paths: Sequence[PathStatus]) -> Verdict:
    """Judge by the path that carries data: what it carried when it was full, else what stands in between.

    On a fast path over a distance graphs and masks are compressed all the same: for the 1 MB of a load, whose
    windows have to grow first, it is as slow as any other.
    """
    path = next((path for path in paths if path.selected), None)
    if path is None:
        return Verdict(Compression.NOTHING, "no path is known")
    if path.link.path == LOOPBACK:  # whatever it measures: a busy machine answers late
        return Verdict(Compression.NOTHING, "the other node is on this machine")
    shortest = path.rtt_min if path.rtt_min is not None else path.rtt
    if path.rate is not None:
        is_far = shortest is not None and shortest >= FAR_SECONDS
        fast = Compression.REPEATS if is_far else Compression.NOTHING
        how = Compression.ALL if path.rate < FAST_RATE else fast
        return Verdict(how, f"the path carries {path.rate / 1e6:.1f} MB/s")
    if path.link.path == RELAYED:
        return Verdict(Compression.ALL, "the path is relayed")
    if shortest is None:
        return Verdict(Compression.NOTHING, "nothing is known of the path")
    how = Compression.ALL if shortest >= NEAR_SECONDS else Compression.NOTHING
    return Verdict(how, f"the round trip is {shortest * 1000:.1f} ms")
