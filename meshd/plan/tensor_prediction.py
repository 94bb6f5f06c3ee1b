"""Predict what it costs that workers compute each layer together, by tensors (docs/decisions/0092).

    token  = the slowest worker's share of layers and output + sums x a sum + the head's ways + STEP
    a sum  = software and bytes to each other worker + half a round trip, of the slowest pair of workers
    prompt = the same for each micro batch, one after the other: its rows are as many times the bytes

Two sums a layer. What is not divided (norms, and the output of a tied model) is computed by each worker, and
heads are divided in whole groups, so that attention takes longer where they do not come out even. The
constants were measured with two workers (1.1B on CPUs, 8B on H100s, 2026-11-25), and hold all that each other
worker adds to a sum at no distance.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations

from meshd.model.layers import Widths
from meshd.model.output import LOCAL_RATE, DevicePath

SUMS_A_LAYER = 2  # behind attention, and behind the feed-forward part
VALUE_BYTES = 4  # daemons exchange f32
CPU_SUM_SECONDS = 0.00007  # 19.3 ms a token instead of 17 with 32 sums
GPU_SUM_SECONDS = 0.00004  # with copies to and from the card
GPU_LAYER_SECONDS = 0.000037  # launches, which do not shrink: 4.67 ms a token with 64 sums, of 3.02 alone
SUM_RATE = 1.4e9  # bytes a second through the processors of both ends
SWITCHED_SECONDS = 0.001  # a longer round trip is none of cables and a switch
PROMPT_GROWTH = 1.07  # processor time of half a prompt: 4.3 s of 8.0
_MATRICES_BEHIND = 3  # of the feed-forward part: gate, up and down
LOCAL_PATH = DevicePath(0.0, LOCAL_RATE)
"""Between two nodes on one machine, past their daemons. Known by identity: a worker may tell such figures."""


@dataclass(frozen=True, slots=True)
class SumMember:
    """Describe a worker that takes part in sums. `path`: to the head."""

    node: str
    path: DevicePath | None
    is_gpu: bool


@dataclass(frozen=True, slots=True)
class PairWay:
    """Describe the path between two of so many `members` of sums.

    `software`: of both ends; `between`: of their daemons, 0 where sums go past them: on one machine, or
    sealed where both ends say that they can. `is_known`: the round trip was measured; else that of the longer
    path to the head is taken. `is_rated`: the rate was measured, or follows: where all of the
    paths are near, as through one switch, it is the lower one of both to the head.
    """

    ends: tuple[str, str]
    path: DevicePath
    members: int
    software: float
    between: float
    is_known: bool
    is_rated: bool

    def seconds(self, count: int) -> float:
        """Predict a sum of so many bytes. Each worker sends its own to all others, over one cable."""
        others = self.members - 1
        sent = others * count
        carried = max(others * self.software + self.path.carrying(sent), sent / SUM_RATE)
        return self.between + self.path.rtt / 2 + carried


def ways_between(
    members: Sequence[SumMember], paths: Mapping[tuple[str, str], DevicePath], hop: float
) -> tuple[PairWay, ...]:
    """Describe each pair; `hop`: of a message between two daemons, where sums cross them."""
    return tuple(_way(first, second, paths, len(members), hop) for first, second in combinations(members, 2))


def _way(
    first: SumMember,
    second: SumMember,
    paths: Mapping[tuple[str, str], DevicePath],
    members: int,
    hop: float,
) -> PairWay:
    software = GPU_SUM_SECONDS if first.is_gpu and second.is_gpu else CPU_SUM_SECONDS
    ends = (min(first.node, second.node), max(first.node, second.node))
    both = [path for key in (ends, ends[::-1]) if (path := paths.get(key)) is not None]
    if any(path is LOCAL_PATH for path in both):
        return PairWay(ends, LOCAL_PATH, members, software, 0.0, is_known=True, is_rated=True)
    to_head = [member.path for member in (first, second) if member.path is not None]
    known = both or to_head
    rtt = max((path.rtt for path in known), default=0.0)
    rates = [path.rate for path in both if path.rate]
    is_rated = bool(rates)
    if not rates:
        rates = [path.rate for path in to_head if path.rate]
        is_near = all(path.rtt < SWITCHED_SECONDS for path in (*both, *to_head))
        is_rated = bool(both) and len(rates) == len((first, second)) and is_near
    path = DevicePath(rtt, min(rates, default=None), is_wireless=any(path.is_wireless for path in both))
    seals = len(both) == len(ends) and all(path.seals for path in both)
    between = 0.0 if seals else hop
    return PairWay(ends, path, members, software, between, is_known=bool(both), is_rated=is_rated)


def divided_seconds(seconds: float, share: float, layers: int, *, is_gpu: bool, is_prompt: bool) -> float:
    """Predict a worker's share of `layers` layers, all of which would take it `seconds`."""
    fixed = min(seconds, layers * GPU_LAYER_SECONDS) if is_gpu else 0.0
    growth = PROMPT_GROWTH if is_prompt else 1.0
    return fixed + growth * share * (seconds - fixed)


def uneven_growth(widths: Widths, shares: Sequence[float]) -> float:
    """Predict how many times as long layers take because heads are divided in whole groups.

    All wait for the worker with the largest part in proportion to its share. A group is a key and value head,
    with the heads that share it; llama.cpp rounds down, gives the last worker the rest, and begins with
    another worker in each layer (llama_meta_device_get_split_state in src/llama-model.cpp).
    """
    if not widths.kv_heads or not widths.attention or min(shares, default=0.0) <= 0:
        return 1.0
    attention = widths.attention / (widths.attention + _MATRICES_BEHIND * widths.feed_forward)
    return 1 - attention + attention * _largest_part(widths.kv_heads, shares)


def _largest_part(groups: int, shares: Sequence[float]) -> float:
    """Return the largest part of so many groups over its share, as the mean of the workers to begin with."""
    found = 0.0
    for first in range(len(shares)):
        turned = [*shares[first:], *shares[:first]]
        ends = [int(groups * end / sum(shares)) for end in accumulate(turned)][:-1]
        parts = [end - begin for begin, end in zip([0, *ends], [*ends, groups], strict=True)]
        whole = [part / groups * sum(shares) / share for part, share in zip(parts, turned, strict=True)]
        found += max(whole)
    return found / len(shares)
