"""Which weights a standby worker holds: what the plan after the loss of a worker would give it. Pure.

Where the whole model fits into what it lends it holds that, and no plan has to be foreseen.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from meshd.base.errors import Refused, UserError
from meshd.model.placed_tensors import placed_tensors
from meshd.model.split_values import Plan
from meshd.model.weights_index import WeightsIndex
from meshd.role.head.explain import RunFacts
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.serving_split import serving_split
from meshd.role.head.split_plan import SLACK_BYTES, NodeOffer
from meshd.wire.limits import MAX_ASKED_TENSORS

FOR_ANY = "for the loss of any worker"


@dataclass(frozen=True, slots=True)
class StandbyPart:
    """`numbers` of tensors in the index; `why`: for which losses."""

    numbers: tuple[int, ...]
    size: int
    why: str


def standby_part(facts: RunFacts, index: WeightsIndex, standby: NodeOffer, machines: Machines) -> StandbyPart:
    """What this worker is asked to hold. `machines`: `facts.machines`, with what is known of its speed."""
    room = sum(device.free_bytes for device in standby.devices) - SLACK_BYTES
    every = range(len(index.tensors))
    if len(index.tensors) > MAX_ASKED_TENSORS:
        return StandbyPart((), 0, f"the model has more than {MAX_ASKED_TENSORS} tensors")
    if (size := _size(index, every)) <= room:
        return StandbyPart(tuple(every), size, FOR_ANY)
    chosen: set[int] = set()
    held: list[str] = []
    not_held: list[str] = []
    names = [tensor.name for tensor in index.tensors]
    for lost, plan in _after_losses(facts, standby, machines):
        if not (given := placed_tensors(plan, facts.layers, names).get(standby.node)):
            continue  # it does without this one
        part = chosen.union(given)
        fits = _size(index, part) <= room
        (held if fits else not_held).append(lost)
        chosen = part if fits else chosen
    return StandbyPart(tuple(sorted(chosen)), _size(index, chosen), _told(held, not_held))


def _size(index: WeightsIndex, numbers: Iterable[int]) -> int:
    return sum(index.tensors[number].size for number in numbers)


def _after_losses(facts: RunFacts, standby: NodeOffer, machines: Machines) -> Iterator[tuple[str, Plan]]:
    """For each worker in use, the plan without it and with this one, if there is one."""
    used = {share.device.node for share in facts.plan.shares if share.layers and not share.device.is_head}
    for lost in sorted(used):
        others = [offer for offer in machines.offers if offer.node != lost]
        offers = sorted([*others, standby], key=lambda offer: offer.node)
        try:
            split = serving_split(
                facts.layers, facts.work, replace(machines, offers=tuple(offers)), facts.options
            )
        except (UserError, Refused):
            continue
        yield lost, split.plan


def _told(held: Sequence[str], not_held: Sequence[str]) -> str:
    if not held:
        return (
            f"it has no room for what it would need after the loss of {', '.join(not_held) or 'any worker'}"
        )
    lacks = f"; for that of {', '.join(not_held)} it lacks room" if not_held else ""
    return f"for the loss of {', '.join(held)}{lacks}"
