"""A plan as if devices had less free memory than they have. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from meshd.base.errors import UserError
from meshd.role.head.plan_prediction import Machines
from meshd.wire.lease import OfferedDevice


def with_memory_limits(machines: Machines, limits: Mapping[str, int], me: str) -> Machines:
    """`limits` in bytes of each device, by node; under "" those of all that are not named. `me`: the head.

    Raises UserError for a node that is not there.
    """
    if not limits:
        return machines
    there = [me, *(one.node for one in machines.offers)]
    if unknown := sorted(set(limits) - {"", *there}):
        known = ", ".join(f"`{name}`" for name in there)
        raise UserError(
            f"`--memory {unknown[0]}=…` names a node that cannot take part", hint=f"there are {known}"
        )
    rest = limits.get("")

    def limited(device: OfferedDevice, node: str) -> OfferedDevice:
        limit = limits.get(node, rest)
        return device if limit is None else replace(device, free_bytes=min(device.free_bytes, limit))

    offers = tuple(
        replace(
            one,
            offer=replace(
                one.offer, devices=tuple(limited(device, one.node) for device in one.offer.devices)
            ),
        )
        for one in machines.offers
    )
    return replace(machines, offers=offers, own=tuple(limited(device, me) for device in machines.own))
