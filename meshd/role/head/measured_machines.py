"""Of all machines those that are compared: an estimate does not compare with a measurement. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_work import LayerWork
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.split_plan import HeadOptions, NodeOffer

NOT_MEASURED = "it was not measured with layers like this model's"


@dataclass(frozen=True, slots=True)
class Measured:
    """`machines`: with devices of workers excluded that have no times. `unmeasured`: their workers, and why.

    `why_not`: no split can be compared at all, as this node's own devices have none.
    """

    machines: Machines
    unmeasured: Mapping[str, str]
    why_not: str = ""

    @property
    def text(self) -> str:
        """Who was not measured, in words."""
        return "; ".join(f"`{node}`: {why}" for node, why in self.unmeasured.items())


def measured_machines(work: LayerWork, machines: Machines, options: HeadOptions) -> Measured:
    """What is known of this kind of model decides who takes part in the comparison."""
    kinds = set(work.kinds)

    def is_known(node: str, device: str) -> bool:
        speed: DeviceSpeed | None = machines.speeds.get((node, device))
        return speed is not None and all(kind in speed for kind in kinds)

    if not kinds:
        return Measured(machines, {}, "layers of this kind cannot be measured")
    own = [one.name for one in machines.own if one.name not in machines.own_excluded]
    if options.devices == ("none",):  # its processor only makes the output
        own = []
    lacking = [name for name in own if not is_known(options.node_name, name)]
    if lacking:
        return Measured(machines, {}, f"`{options.node_name} {lacking[0]}`: {NOT_MEASURED}")
    offers: list[NodeOffer] = []
    unmeasured: dict[str, str] = {}
    for offer in machines.offers:
        unknown = [one.name for one in offer.devices if not is_known(offer.node, one.name)]
        if unknown:
            unmeasured[offer.node] = why = machines.unmeasured.get(offer.node, NOT_MEASURED)
            offer = replace(offer, excluded={**offer.excluded, **dict.fromkeys(unknown, why)})
        offers.append(offer)
    return Measured(replace(machines, offers=tuple(offers)), unmeasured)
