"""Which tensors of a model a plan puts on the devices of which node."""

from collections.abc import Sequence
from itertools import accumulate

from meshd.model.layers import ModelLayers, TensorPlace, place_of
from meshd.model.output import EMBEDDING
from meshd.model.split_values import Plan


def placed_tensors(plan: Plan, layers: ModelLayers, names: Sequence[str]) -> dict[str, list[int]]:
    """By node, the numbers of its tensors among `names`, in order; of the head none but for its layers.

    What every device may need counts for each node. Tensors that the user has placed (`-- -ot`) are taken for
    where they would have been: the head sends what is missing all the same.
    """
    ends = list(accumulate(share.layers for share in plan.shares))
    holders = {
        number: share.device.node
        for share, end in zip(plan.shares, ends, strict=True)
        for number in range(end - share.layers, end)
    }
    nodes = list(dict.fromkeys(holders[number] for number in sorted(holders)))
    found: dict[str, list[int]] = {node: [] for node in nodes}
    if not nodes:
        return found
    for number, name in enumerate(names):
        for node in _nodes_of(name, plan, layers, holders, nodes):
            found[node].append(number)
    return found


def _nodes_of(
    name: str, plan: Plan, layers: ModelLayers, holders: dict[int, str], nodes: Sequence[str]
) -> Sequence[str]:
    place = place_of(name, layers.count)
    last = holders[max(holders)]
    makes_logits = plan.output_worker is not None
    match place:
        case int():
            return [holders[place]] if place in holders else []
        case TensorPlace.SHARED:
            return nodes
        case TensorPlace.OUTPUT:
            return [last] if makes_logits else []
        case TensorPlace.OUTPUT_REST:
            return [last]
        case TensorPlace.INPUT if name == EMBEDDING:
            first = [holders[0]] if plan.input_device else []
            also = [last] if layers.tied and makes_logits and last not in first else []
            return [*first, *also]
        case TensorPlace.INPUT:  # on the head's CPU
            return []
