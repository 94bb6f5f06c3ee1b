"""Compare a plan by tensors that runs with the fastest by layers, for `meshd why`.

Both are compared by a conversation, as `auto` does (ways.py). Other sets of workers are not looked at.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from meshd.base.errors import Refused, UserError
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.plan.choose_split import LEAST_GAIN, SplitAdvice, SplitChoice, choose_split
from meshd.plan.machines import Machines, measured_machines
from meshd.plan.plan_prediction import PlanPredictor
from meshd.plan.prediction import on_paths
from meshd.plan.split import Plan
from meshd.plan.two_ways import SplitByLayers, WaysCompared
from meshd.plan.ways import WaysFound, among, compare_ways
from meshd.plan.wishes import HeadOptions


def advise_together(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions, plan: Plan
) -> SplitAdvice:
    """Return the prediction of a plan by tensors, both ways, and whether by layers would be faster."""
    plan = on_paths(plan, {offer.node: offer.path for offer in machines.offers}.get)
    predictor = PlanPredictor(layers, work, machines, options)
    now = predictor.predict(plan)
    found: Sequence[SplitChoice] = ()
    with suppress(UserError, Refused):
        measured = measured_machines(work, machines, options).machines
        free = replace(options, split="layers", tensor_split=(), layers=(), workers=(), min_workers=0)
        found = choose_split(layers, work, measured, free)

    by_layers = [choice.plan for choice in found]
    least, may = len(plan.nodes), among(plan.nodes)
    ways = compare_ways(layers, work, machines, options, by_layers, drafts=False, may=may, least=least)
    best = min(found, key=lambda choice: predictor.conversation_seconds(choice.plan), default=None)
    gain = 0.0
    if best is not None and now.prediction.is_measured and best.prediction.is_measured:
        gain = 1 - predictor.conversation_seconds(best.plan) / predictor.conversation_seconds(plan)
    is_slower = best is not None and gain >= LEAST_GAIN
    then = best.outcome if best is not None and is_slower else now
    return SplitAdvice(
        change=SplitByLayers() if is_slower else None,
        gain=gain if is_slower else 0.0,
        basis=WaysCompared(is_compared=best is not None, estimated=not now.prediction.is_measured),
        now=now,
        then_tok_s=then.prediction.generate_tok_s,
        ways=ways.ways if isinstance(ways, WaysFound) else ways,
    )
