"""Cut a row of layers into one run for each device: whole numbers, in order, in proportion, within limits."""

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
    if devices > layers:
        return None
    sums = [[0, *accumulate(row)] for row in costs]
    first = _latest_safe_starts(sums, limits)
    if first is None or first[0] > 0:
        return None
    total_weight = sum(weights)
    begin, counts = 0, []
    for device in range(devices):
        low = max(begin + 1, first[device + 1])
        high = layers - (devices - 1 - device)
        while high > low and sums[device][high] - sums[device][begin] > limits[device]:
            high -= 1
        share = sum(weights[: device + 1]) / total_weight if total_weight else (device + 1) / devices
        end = _nearest(sums[device], share, low=low, high=high)
        counts.append(end - begin)
        begin = end
    return tuple(counts)


def _latest_safe_starts(sums: Sequence[Sequence[int]], limits: Sequence[int]) -> list[int] | None:
    """first[d]: the earliest layer from which devices d, d+1, … hold all the rest; None if one holds none."""
    layers = len(sums[0]) - 1
    first = [layers] * (len(sums) + 1)
    for device in reversed(range(len(sums))):
        end = start = first[device + 1]
        row = sums[device]
        while start > 0 and row[end] - row[start - 1] <= limits[device]:
            start -= 1
        # the devices before need a layer each
        start = max(start, device)
        if start >= end:
            return None
        first[device] = start
    return first


def _nearest(row: Sequence[int], share: float, *, low: int, high: int) -> int:
    """The cut between `low` and `high` whose cumulated cost is nearest to `share` of the whole."""
    target = share * row[-1]
    return min(range(low, high + 1), key=lambda end: (abs(row[end] - target), -end))


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
