"""The split that a head serves with: the fastest that is predicted, or by memory over all workers. Pure.

Workers that were never measured take no part in the comparison, and where the model needs them, or the user
says how to split, the layers are divided by memory over all. What a worker says of its speed decides only how
fast the model is: an unexpected failure of the comparison, too, leads to the split by memory, with a line in
the log.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshd.base.errors import Refused, UserError
from meshd.base.fault_boundary import Contained, Fault
from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.prediction import Prediction
from meshd.model.split_values import LeftOut, Plan
from meshd.model.status import Speeds
from meshd.role.head.fixed_layers import with_fixed_layers
from meshd.role.head.longest_context import lengthened, with_largest
from meshd.role.head.measured_machines import Measured, measured_machines
from meshd.role.head.plan_prediction import Machines, PlanPredictor
from meshd.role.head.shared_cards import one_for_each_card
from meshd.role.head.shared_memory import plan_over
from meshd.role.head.split_choice import SplitChoice, choose_split
from meshd.role.head.split_plan import HeadOptions, NodeOffer, remote_device, without_idle

NOT_NEEDED = "the model is faster without it"


@dataclass(frozen=True, slots=True)
class ServingSplit:
    """A plan without idle workers, the offers that it uses; None: nothing can be said of its speed.

    `machines`: what its speed is predicted with.
    """

    plan: Plan
    offers: Sequence[NodeOffer]
    speeds: Speeds | None
    machines: Machines


def serving_split(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
) -> ServingSplit:
    """Raises NotEnoughMemory, UserError, Refused."""
    machines, options = with_fixed_layers(machines, options, layers.count)

    def split(machines: Machines, options: HeadOptions) -> ServingSplit:
        found = with_largest(lambda given: _split(layers, work, machines, given), layers, options)
        return replace(found, plan=lengthened(layers, machines, options, found.plan, found.offers))

    try:
        with Contained("workers", "a comparison of splits"):
            return split(machines, options)
    except Fault as fault:  # of what a worker says of its speed, or its paths, most likely
        silent = replace(machines, speeds={}, paths={}, corrections=None)
        found = split(silent, replace(options, split="always"))
        return _with_reason(found, f"layers by memory, as splits could not be compared ({fault.what})")


def _split(layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions) -> ServingSplit:
    if not options.picks_by_speed:
        return _by_memory(layers, work, machines, options)
    measured = measured_machines(work, machines, options)
    why_not = measured.why_not
    if not why_not:
        try:
            best = choose_split(layers, work, measured.machines, options, least=options.min_workers)[0]
            return _as_chosen(best, machines, measured)
        except (UserError, Refused) as error:
            if not measured.unmeasured:
                raise
            why_not = f"{measured.text}; and without that: {error.what}"
    return _with_reason(
        _by_memory(layers, work, machines, options), f"layers by memory, not by speed: {why_not}"
    )


def _by_memory(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
) -> ServingSplit:
    planned, offers = plan_over(
        layers,
        offers=one_for_each_card(machines.offers, machines, options, least=options.min_workers),
        plain_rpc=machines.plain_rpc,
        own=machines.own,
        options=options,
        own_excluded=machines.own_excluded,
    )
    plan, used = without_idle(planned, offers)
    prediction = PlanPredictor(layers, work, machines, options).predict(plan).prediction
    return ServingSplit(plan, used, _speeds(prediction), machines)


def _with_reason(split: ServingSplit, why: str) -> ServingSplit:
    plan = replace(split.plan, why=f"{why}; {split.plan.why}", short=why)
    return replace(split, plan=plan)


def _as_chosen(choice: SplitChoice, machines: Machines, measured: Measured) -> ServingSplit:
    used = {offer.node for offer in choice.offers}
    told = {one.device.label for one in choice.plan.left_out}
    spared = tuple(
        LeftOut(remote_device(offer.node, device, "", None), offer.exclusion_reason(device) or NOT_NEEDED)
        for offer in measured.machines.offers
        if offer.node not in used
        for device in offer.offer.devices
        if f"{offer.node} {device.name}" not in told
    )
    without = "".join(f"; without `{node}`: {why}" for node, why in measured.unmeasured.items())
    _, separator, unable = choice.plan.short.partition("; ")
    plan = replace(
        choice.plan,
        left_out=(*choice.plan.left_out, *spared),
        why=f"{choice.why}{without}; {choice.plan.why}",
        short=f"{choice.why}{without}{separator}{unable}",
    )
    return ServingSplit(plan, choice.offers, _speeds(choice.prediction), machines)


def _speeds(prediction: Prediction) -> Speeds | None:
    if not prediction.is_measured:
        return None
    return Speeds(round(prediction.prompt_tok_s, 2), round(prediction.generate_tok_s, 2))
