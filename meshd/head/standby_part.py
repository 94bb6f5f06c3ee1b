"""Which weights a standby worker holds: what the plan after the loss of a worker would give it. Pure.

Where the whole model fits into what it lends it holds that, and no plan has to be foreseen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from meshd.base.errors import Refused, UserError
from meshd.head.explain import RunFacts
from meshd.model.weights_index import WeightsIndex
from meshd.plan.choice import plan_model
from meshd.plan.machines import Machines, NodeOffer
from meshd.plan.over_offers import SLACK_BYTES
from meshd.plan.split import placed_tensors
from meshd.wire.limits import MAX_ASKED_TENSORS

FOR_ANY = "for the loss of any worker"


@dataclass(frozen=True, slots=True)
class StandbyPart:
    """`numbers` of tensors in the index; `why`: for which losses."""

    numbers: tuple[int, ...]
    size: int
    why: str


class PartChoice:
    """`add` each of `losses`, then take the `part`. Each is a plan, and takes up to some tenths of a second.

    `machines`: `facts.machines`, with what is known of the speed of this worker. `whole`: it may hold all.
    """

    def __init__(
        self,
        facts: RunFacts,
        index: WeightsIndex,
        standby: NodeOffer,
        machines: Machines,
        *,
        whole: bool = True,
    ) -> None:
        self._facts = facts
        self._index = index
        self._standby = standby
        self._machines = machines
        self._names = [tensor.name for tensor in index.tensors]
        self._room = sum(device.free_bytes for device in standby.devices) - SLACK_BYTES
        self._chosen: set[int] = set()
        self._held: list[str] = []
        self._not_held: list[str] = []
        self._every = self._once(range(len(index.tensors)))
        self._fits = whole and self._size(self._every) <= self._room
        self._too_many = len(index.tensors) > MAX_ASKED_TENSORS

    @property
    def losses(self) -> list[str]:
        """Workers in use, after the loss of which this one would get something; none where all of it fits."""
        if self._fits or self._too_many:
            return []
        shares = self._facts.plan.shares
        return sorted({one.device.node for one in shares if one.layers and not one.device.is_head})

    def add(self, lost: str) -> None:
        """What it would need without that worker, if there is room for it."""
        facts, me = self._facts, self._standby
        others = [offer for offer in self._machines.offers if offer.node != lost]
        offers = tuple(sorted([*others, me], key=lambda offer: offer.node))
        try:
            split = plan_model(
                facts.layers, facts.work, replace(self._machines, offers=offers), facts.options
            )
        except (UserError, Refused):
            return  # nothing fits then
        given = placed_tensors(split.plan, facts.layers, self._names).get(me.node)
        if not given:
            return  # that plan does without this one
        part = self._once([*self._chosen, *given])
        if self._size(part) > self._room:
            self._not_held.append(lost)
            return
        self._held.append(lost)
        self._chosen = part

    @property
    def part(self) -> StandbyPart:
        """What it is asked to hold."""
        if self._too_many:
            return StandbyPart((), 0, f"the model has more than {MAX_ASKED_TENSORS} tensors")
        if self._fits:
            return StandbyPart(tuple(sorted(self._every)), self._size(self._every), FOR_ANY)
        return StandbyPart(
            tuple(sorted(self._chosen)), self._size(self._chosen), _told(self._held, self._not_held)
        )

    def _once(self, numbers: Iterable[int]) -> set[int]:
        """Of each content one: a worker holds it once."""
        return set({self._index.tensors[number].digest: number for number in numbers}.values())

    def _size(self, numbers: Iterable[int]) -> int:
        return sum(self._index.tensors[number].size for number in numbers)


def _told(held: Sequence[str], not_held: Sequence[str]) -> str:
    if not held:
        return (
            f"it has no room for what it would need after the loss of {', '.join(not_held) or 'any worker'}"
        )
    lacks = f"; for that of {', '.join(not_held)} it lacks room" if not_held else ""
    return f"for the loss of {', '.join(held)}{lacks}"
