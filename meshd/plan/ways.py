"""Compare the two ways to divide a model: whole layers on each machine, or a part of every layer on each.

All sets of two to four workers are planned by tensors, of the five fastest with room and a partner; the one
with the shortest conversation is compared with the fastest split by layers. A conversation has a long prompt:
by tensors that is bound by the cable before the answer is.

`--split tensor` is only advised where all of it was measured, the workers are near each other as on a cable,
and a conversation is clearly faster than by layers. When `auto` chooses it: auto_way.py.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, combinations, islice

from meshd.base.errors import Refused, UserError
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.plan.by_tensors import MOST_WORKERS, NoTensorSplit, by_tensors, for_layers
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.over_offers import plan_over
from meshd.plan.plan_prediction import CONVERSATION_ANSWER, CONVERSATION_PROMPT, LEAST_SHARE, PlanPredictor
from meshd.plan.prediction import PlanOutcome, Split
from meshd.plan.split import Plan
from meshd.plan.tensor_prediction import LOCAL_PATH, VALUE_BYTES, PairWay
from meshd.plan.two_ways import OneWay, TwoWays, WayAdvice, WayRates, against_paths, lack_cable
from meshd.plan.wishes import HeadOptions

_ALL_SETS = 5  # workers of which all sets are looked at
CLEARLY = 0.85  # of the time of a conversation by layers
_MORE_THAN_TWO = 1.25  # times the predicted seconds: prompts of three were predicted 22 % too fast (0092)
_FAST_CABLE = 1.17e9  # bytes a second that 10 GbE carries
_VISIBLE = 1.02  # times as fast, with such a cable


@dataclass(frozen=True, slots=True)
class WaysFound:
    """Hold the comparison, and what is predicted by tensors; `all_workers`: it uses all that are there."""

    ways: TwoWays
    outcome: PlanOutcome
    all_workers: bool


def compare_ways(
    layers: ModelLayers,
    work: LayerWork,
    machines: Machines,
    options: HeadOptions,
    by_layers: Sequence[Plan],
    *,
    drafts: bool,
    may: Callable[[NodeOffer, NodeOffer], bool] = lambda _first, _second: True,
    least: int = 0,
) -> WaysFound | OneWay | None:
    """Compare the best of these plans by layers with the best by tensors; None: there is no worker.

    The user's wishes for how the model is split do not count. `drafts`: by layers it would run with such as a
    split by tensors cannot have; none are in the figures. `may`: which two may compute together; `least`: of
    so many workers.
    """
    if not machines.offers or not by_layers:
        return None
    predictor = PlanPredictor(layers, work, machines, options)
    # The best by tensors.
    found: list[Plan] = []
    why_not = ""
    for offers in _sets(predictor, layers, machines, may, least):
        try:
            found.append(_planned(layers, replace(machines, offers=offers), options, predictor))
        except NoTensorSplit as error:
            why_not = why_not or error.why
        except (UserError, Refused) as error:
            why_not = why_not or error.what
    if not found:
        return OneWay(why_not)
    wired = [plan for plan in found if not lack_cable(predictor.split_of(plan).pairs)]
    tensors = min(wired or found, key=lambda plan: surely(plan, predictor.conversation_seconds(plan)))
    # Both, with what is between the workers.
    best = min(by_layers, key=predictor.conversation_seconds)
    outcome, split = predictor.predict(tensors), predictor.split_of(tensors)
    rates = [
        WayRates(
            tok_s=predictor.predict(plan).prediction.generate_tok_s,
            seconds=predictor.conversation_seconds(plan),
        )
        for plan in (best, tensors)
    ]
    sure = surely(tensors, rates[1].seconds)
    pair = max(split.pairs, key=lambda pair: pair.seconds(VALUE_BYTES * layers.widths.embedding))
    is_measured = all(predictor.predictor.is_measured(each) for each in (split, predictor.split_of(best)))
    ways = TwoWays(
        nodes=tensors.nodes,
        layers=rates[0],
        tensors=rates[1],
        prompt=CONVERSATION_PROMPT,
        answer=CONVERSATION_ANSWER,
        pair=None if pair.path is LOCAL_PATH else (pair.path.rtt, pair.path.rate),
        on_cable=_on_cable(predictor, split, rates[1].tok_s),
        advice=_advice(split.pairs, rates, sure, is_measured=is_measured, drafts=drafts),
    )
    return WaysFound(ways, outcome, len(tensors.nodes) == len(machines.offers))


def surely(plan: Plan, seconds: float) -> float:
    """Return the seconds by which a plan is compared: more for more workers, which are predicted too fast."""
    return seconds * (_MORE_THAN_TWO if len(plan.nodes) > 2 else 1.0)


def among(nodes: Collection[str]) -> Callable[[NodeOffer, NodeOffer], bool]:
    """Return what lets only these nodes compute together."""
    return lambda first, second: {first.node, second.node} <= set(nodes)


def _sets(
    predictor: PlanPredictor,
    layers: ModelLayers,
    machines: Machines,
    may: Callable[[NodeOffer, NodeOffer], bool],
    least: int,
) -> Iterator[tuple[NodeOffer, ...]]:
    """Yield sets of workers that may compute together, or else what tells best why there are none."""
    able = [offer for offer in machines.offers if len(offer.devices) == 1]
    if len(able) < 2:
        yield machines.offers
        return
    fastest = sorted(able, key=lambda offer: predictor.seconds_of(offer.node, offer.devices[0]))
    place = {offer.node: number for number, offer in enumerate(able)}
    weights, undivided = sum(layers.layers), layers.shared + layers.output + layers.output_rest

    def sets(count: int, *, with_room: bool) -> Iterator[tuple[NodeOffer, ...]]:
        # What each holds at least, and two together, without caches and buffers.
        part = LEAST_SHARE / (count - 1 + LEAST_SHARE)
        each = int(part * weights) + undivided if with_room else 0
        both = weights + 2 * undivided if with_room and count == 2 else 0
        free = {offer.node: offer.devices[0].free_bytes for offer in able}

        def may_pair(first: NodeOffer, second: NodeOffer) -> bool:
            return free[first.node] + free[second.node] >= both and may(first, second)

        best = _paired([offer for offer in fastest if free[offer.node] >= each], may_pair)
        for offers in combinations(sorted(best, key=lambda offer: place[offer.node]), count):
            if all(may(*pair) for pair in combinations(offers, 2)):
                yield offers

    counts = range(max(2, least), MOST_WORKERS + 1)
    found = [offers for count in counts for offers in sets(count, with_room=True)]
    yield from found or islice(chain.from_iterable(sets(count, with_room=False) for count in counts), 1)


def _paired(fastest: Sequence[NodeOffer], may: Callable[[NodeOffer, NodeOffer], bool]) -> Sequence[NodeOffer]:
    """Return the fastest workers with a partner among them: others would only take up places."""
    found: dict[str, NodeOffer] = {}
    for number, second in enumerate(fastest):
        for first in fastest[:number]:
            if len(found) >= _ALL_SETS:
                return tuple(found.values())[:_ALL_SETS]
            if may(first, second):
                found |= {first.node: first, second.node: second}
    return tuple(found.values())[:_ALL_SETS]


def _planned(layers: ModelLayers, machines: Machines, options: HeadOptions, predictor: PlanPredictor) -> Plan:
    """Plan by tensors over all of these workers. Raises UserError, Refused."""
    free = replace(for_layers(options), split="always", tensor_split=(), layers=(), min_workers=0)
    plan, _ = plan_over(layers, replace(machines, plain_rpc=()), free)
    by_speed = predictor.tensor_shares(plan)
    return by_tensors(layers, plan, replace(options, tensor_split=()), by_speed, apart=machines.apart)


def _advice(
    pairs: Sequence[PairWay], rates: Sequence[WayRates], sure: float, *, is_measured: bool, drafts: bool
) -> WayAdvice:
    if against := against_paths(pairs):
        return against
    if not is_measured:
        return WayAdvice.UNMEASURED
    by_layers, tensors = (each.seconds for each in rates)
    if tensors >= by_layers:
        return WayAdvice.SLOWER
    if tensors > CLEARLY * by_layers:
        return WayAdvice.NO_GAIN
    if sure > CLEARLY * by_layers:
        return WayAdvice.UNSURE
    return WayAdvice.DRAFTS if drafts else WayAdvice.WORTH


def _on_cable(predictor: PlanPredictor, split: Split, tok_s: float) -> float | None:
    """Predict tokens a second with the same round trips at the rate of a faster cable."""
    if lack_cable(split.pairs):
        return None
    faster = {
        ends: pair.path
        if pair.path is LOCAL_PATH
        else replace(pair.path, rate=max(pair.path.rate or 0.0, _FAST_CABLE), seals=not pair.between)
        for pair in split.pairs
        for ends in (pair.ends, pair.ends[::-1])
    }
    found = predictor.predictor.predict(replace(split, paths=faster)).generate_tok_s
    return found if found > _VISIBLE * tok_s else None
