"""Decide for `--split auto` whether workers compute each layer together, by tensors (docs/decisions/0092).

They do where that is advised (ways.py), of workers that gain from it for certain: their processors are those
of different machines, or their cards are different ones, and sums go past their daemons. What is not known
for certain counts against it, and so does a draft model, which only a split by layers can have. Tokens that
repeat are drafted either way.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations

from meshd.plan.machines import Machines, NodeOffer, card_in
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.split import Plan
from meshd.plan.two_ways import WayAdvice, against_paths
from meshd.plan.wishes import HeadOptions, read_llama_args

RoundSeconds = Callable[[int], float]


class WhyByLayers(StrEnum):
    """Say why `auto` splits by layers, beside what speaks against any split by tensors (WayAdvice)."""

    ONE_MACHINE = "these workers share a machine or a GPU"
    UNKNOWN_MACHINE = "a worker does not say which machine it is on"
    DAEMONS = (
        "what the workers exchange would pass through both daemons: the workers cannot connect directly, or "
        "cannot encrypt that connection (then install OpenSSL on both machines, on a Mac with Homebrew, and "
        "restart the workers)"
    )
    MORE_WORKERS = "`--min-workers` asks for more workers than would help"
    SHORTER = "the context would be shorter, or fewer requests would run at once"
    IMAGES = "with `--mmproj`, only an explicit `--split tensor` splits by tensors"


@dataclass(frozen=True, slots=True)
class AutoWay:
    """Hold what decides beside model and machines.

    `drafts`: whether a plan by layers would use a draft model, given the predicted seconds of its rounds
    (None: not known). `failed`: why it is not tried again, after a run by tensors that ended; empty: it may
    be.
    """

    drafts: Callable[[Plan, RoundSeconds | None], bool] = lambda _plan, _rounds: False
    failed: str = ""

    def would_draft(self, by_layers: Plan, options: HeadOptions, predictor: PlanPredictor) -> bool:
        """Tell whether this plan by layers would use a draft model, or drafts that the user configured."""
        asked = bool(read_llama_args(options.llama_args).speculation)
        return asked or self.drafts(by_layers, predictor.rounds_of(by_layers))


def candidates(machines: Machines) -> tuple[NodeOffer, ...]:
    """Return the workers that could compute together: those with one device."""
    return tuple(offer for offer in machines.offers if len(offer.devices) == 1)


def allowed_pairs(predictor: PlanPredictor) -> Callable[[NodeOffer, NodeOffer], bool]:
    """Return what tells whether two may compute together. It remembers them: there may be many."""
    known: dict[tuple[str, str], bool] = {}

    def may(first: NodeOffer, second: NodeOffer) -> bool:
        ends = first.node, second.node
        if ends not in known:
            known[ends] = known[ends[::-1]] = not pair_refusal(predictor, first, second)
        return known[ends]

    return may


def nearest_refusal(predictor: PlanPredictor, machines: Machines) -> str:
    """Return what is wrong with the pair of workers that lacks least; empty if one lacks nothing."""
    least = ""
    for pair in combinations(candidates(machines), 2):
        why = pair_refusal(predictor, *pair)
        if not why:
            return ""
        least = min(least or why, why, key=_lacking)
    return least


def pair_refusal(predictor: PlanPredictor, first: NodeOffer, second: NodeOffer) -> str:
    """Return why `auto` does not have these two compute together; empty if it may."""
    if "" in (first.offer.machine, second.offer.machine):
        return WhyByLayers.UNKNOWN_MACHINE
    if not _are_apart(first, second):
        return WhyByLayers.ONE_MACHINE
    way = predictor.way_between(first, second)
    return against_paths([way]) or (WhyByLayers.DAEMONS if way.between else "")


_REFUSALS = (
    "",
    WhyByLayers.DAEMONS,
    WayAdvice.UNMEASURED,
    WayAdvice.WIRELESS,
    WayAdvice.FAR,
    WhyByLayers.UNKNOWN_MACHINE,
    WhyByLayers.ONE_MACHINE,
)
_lacking = _REFUSALS.index


def _are_apart(first: NodeOffer, second: NodeOffer) -> bool:
    """Tell whether their devices are on two machines, or are two cards, for certain."""
    if first.offer.machine != second.offer.machine:
        return True
    cards = [card_in(offer.devices[0], offer.offer.machine) for offer in (first, second)]
    return "" not in cards and cards[0] != cards[1]
