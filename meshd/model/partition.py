"""Divides layers into one run for each device: whole numbers, in order, proportional, within limits."""

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate


def partition(
    costs: Sequence[Sequence[int]], *, weights: Sequence[int], limits: Sequence[int]
) -> tuple[int, ...] | None:
    """Number of layers of each device, at least one each; None when no cut keeps every limit.

    `costs[d][i]`: bytes of layer i on device d; `weights`: what the shares follow; `limits`: bytes that
    device d can hold. Exact: a cut is found whenever there is one. The cut is the feasible one nearest to
    proportion, looked for from the first device on.
    """
    devices, layers = len(costs), len(costs[0])
    sums = [[0, *accumulate(row)] for row in costs]
    # holds[d][b]: devices d, d+1, … can take exactly the layers from b on
    holds = [[False] * (layers + 1) for _ in range(devices)] + [[False] * layers + [True]]
    for device in reversed(range(devices)):
        for begin in range(layers):
            last = _last_end(sums[device], begin, limits[device])
            holds[device][begin] = any(holds[device + 1][begin + 1 : last + 1])
    if not holds[0][0]:
        return None
    total_weight = sum(weights)
    begin, counts = 0, []
    for device in range(devices):
        last = _last_end(sums[device], begin, limits[device])
        share = sum(weights[: device + 1]) / total_weight if total_weight else (device + 1) / devices
        target = share * sums[device][-1]
        ends = [end for end in range(begin + 1, last + 1) if holds[device + 1][end]]
        end = min(ends, key=lambda end: (abs(sums[device][end] - target), -end))
        counts.append(end - begin)
        begin = end
    return tuple(counts)


def _last_end(row: Sequence[int], begin: int, limit: int) -> int:
    """The layer before which a device that starts at `begin` must stop; `row` is cumulated."""
    return bisect_right(row, row[begin] + limit) - 1


def share_out(shares: Sequence[float], layers: int) -> tuple[int, ...]:
    """Whole numbers that sum up to `layers` in proportion to `shares` (largest remainder).

    A share above zero gets at least one layer as long as there are enough. Shares are not all zero.
    """
    total = sum(shares)
    exact = [share / total * layers for share in shares]
    counts = [int(value) for value in exact]
    by_remainder = sorted(range(len(shares)), key=lambda i: (counts[i] - exact[i], i))
    for index in by_remainder[: layers - sum(counts)]:
        counts[index] += 1
    for index, share in enumerate(shares):
        if share > 0 and counts[index] == 0 and max(counts) > 1:
            counts[counts.index(max(counts))] -= 1
            counts[index] = 1
    return tuple(counts)


def how_divided(nodes: Sequence[str], counts: Sequence[int]) -> str:
    """For people: devices of these nodes have so many layers, by their memory."""
    taking = [node for node, count in zip(nodes, counts, strict=True) if count]
    return f"all layers on `{taking[0]}`" if len(taking) == 1 else "layers in proportion to usable memory"
