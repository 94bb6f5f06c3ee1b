"""The split that a head serves with: the fastest that is predicted, or by memory over all workers. Pure.

Where a device was never measured, or the user says how to split, the layers are divided as before: by memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from meshd.model.layer_work import LayerWork
from meshd.model.layers import ModelLayers
from meshd.model.prediction import Prediction
from meshd.model.split_values import LeftOut, Plan
from meshd.model.status import Speeds
from meshd.role.head.fixed_layers import with_fixed_layers
from meshd.role.head.longest_context import lengthened, with_largest
from meshd.role.head.plan_prediction import Machines, PlanPredictor
from meshd.role.head.shared_memory import plan_over
from meshd.role.head.split_choice import SplitChoice, choose_split
from meshd.role.head.split_plan import HeadOptions, NodeOffer, remote_device, without_idle

NOT_NEEDED = "the model is faster without it"


@dataclass(frozen=True, slots=True)
class ServingSplit:
    """A plan without idle workers, the offers that it uses; None: nothing can be said of its speed."""

    plan: Plan
    offers: Sequence[NodeOffer]
    speeds: Speeds | None


def serving_split(
    layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions
) -> ServingSplit:
    """Raises NotEnoughMemory, UserError, Refused."""
    machines, options = with_fixed_layers(machines, options, layers.count)
    split = with_largest(lambda given: _split(layers, work, machines, given), layers, options)
    return replace(split, plan=lengthened(layers, machines, options, split.plan, split.offers))


def _split(layers: ModelLayers, work: LayerWork, machines: Machines, options: HeadOptions) -> ServingSplit:
    if options.picks_by_speed and _is_measured(work, machines, options):
        best = choose_split(layers, work, machines, options, least=options.min_workers)[0]
        return _as_chosen(best, machines)
    planned, offers = plan_over(
        layers,
        offers=machines.offers,
        plain_rpc=machines.plain_rpc,
        own=machines.own,
        options=options,
        own_excluded=machines.own_excluded,
    )
    plan, used = without_idle(planned, offers)
    prediction = PlanPredictor(layers, work, machines, options).predict(plan).prediction
    return ServingSplit(plan, used, _speeds(prediction))


def _is_measured(work: LayerWork, machines: Machines, options: HeadOptions) -> bool:
    """All devices that may get layers are: an estimate does not compare with a measurement."""
    own = machines.own if options.devices != ("none",) else ()
    devices = [(options.node_name, device.name) for device in own]
    devices += [(offer.node, device.name) for offer in machines.offers for device in offer.devices]
    found = [machines.speeds.get(one) for one in devices]
    return bool(work.kinds) and all(
        speed is not None and all(kind in speed for kind in set(work.kinds)) for speed in found
    )


def _as_chosen(choice: SplitChoice, machines: Machines) -> ServingSplit:
    used = {offer.node for offer in choice.offers}
    spared = tuple(
        LeftOut(remote_device(offer.node, device, "", None), NOT_NEEDED)
        for offer in machines.offers
        if offer.node not in used
        for device in offer.devices
    )
    _, separator, unable = choice.plan.short.partition("; ")
    plan = replace(
        choice.plan,
        left_out=(*choice.plan.left_out, *spared),
        why=f"{choice.why}; {choice.plan.why}",
        short=f"{choice.why}{separator}{unable}",
    )
    return ServingSplit(plan, choice.offers, _speeds(choice.prediction))


def _speeds(prediction: Prediction) -> Speeds | None:
    if not prediction.is_measured:
        return None
    return Speeds(round(prediction.prompt_tok_s, 2), round(prediction.generate_tok_s, 2))
