"""How much longer each part of predicted times takes than predicted, from what whole sums took.

    a time that is predicted as parts with the shares s1, s2, … took r times as long
    the factors f1, f2, … are sought with s1 f1 + s2 f2 + … = r for all times that were measured

Seldom are there enough of them to decide all factors, and each is only about right. So factors are as near to
these equations, and as near to the mean of all r, as least squares allow. One time alone gives all of its
parts its own r; several that divide otherwise tell parts apart. A part that was in none of them gets the mean
of its kind, so that what was measured does not look worse than what was not, only because predictions of both
are as far off.
"""

import math
from collections.abc import Mapping, Sequence

LEAST_FACTOR, MOST_FACTOR = 0.5, 2.0
_DOUBT = 0.05  # (how far off a measured r is, 4.5 %, by how much factors differ, 20 %) squared
_MOST_ROUNDS = 200
_STILL = 1e-5  # of all factors in a round: then it ends
Part = tuple[str, str]
"""Its kind, and its name."""
Observed = tuple[Mapping[Part, float], float]
"""Shares of parts, and how many times as long as predicted their sum took."""


class PartFactors:
    """Of times: predicted ones are multiplied by them. Between LEAST_FACTOR and MOST_FACTOR."""

    def __init__(self, factors: Mapping[Part, float]) -> None:
        self._factors = factors
        of_kind: dict[str, list[float]] = {}
        for (kind, _), factor in factors.items():
            of_kind.setdefault(kind, []).append(factor)
        self._mean = {kind: sum(some) / len(some) for kind, some in of_kind.items()}

    def __bool__(self) -> bool:
        return bool(self._factors)

    def of(self, part: Part) -> float:
        """The mean of its kind for a part of which nothing is known; 1 where there is none."""
        return self._factors.get(part, self._mean.get(part[0], 1.0))

    def ratio(self, parts: Mapping[Part, float]) -> float:
        """How many times as long as predicted their sum takes; they in any unit."""
        predicted = sum(parts.values())
        if predicted <= 0:
            return 1.0
        return sum(amount * self.of(part) for part, amount in parts.items()) / predicted


def fitted(observed: Sequence[Observed]) -> PartFactors:
    """From times of which each r is greater than 0."""
    if not observed:
        return PartFactors({})
    mean = _clipped(math.exp(sum(math.log(ratio) for _, ratio in observed) / len(observed)))
    used: dict[Part, list[tuple[int, float]]] = {}
    for number, (shares, _) in enumerate(observed):
        for part, share in shares.items():
            if share > 0:
                used.setdefault(part, []).append((number, share))
    factors = dict.fromkeys(used, mean)
    left = [ratio - mean * sum(shares.values()) for shares, ratio in observed]
    for _ in range(_MOST_ROUNDS):  # each factor in turn as the others leave it: convex, so that this ends
        moved = 0.0
        for part, places in used.items():
            pull = sum(share * left[number] for number, share in places)
            weight = sum(share * share for _, share in places)
            before = factors[part]
            factors[part] = _clipped(before + (pull + _DOUBT * (mean - before)) / (weight + _DOUBT))
            step = factors[part] - before
            for number, share in places:
                left[number] -= share * step
            moved = max(moved, abs(step))
        if moved < _STILL:
            break
    return PartFactors(factors)


def _clipped(factor: float) -> float:
    return min(MOST_FACTOR, max(LEAST_FACTOR, factor))
