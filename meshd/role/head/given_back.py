"""Memory that a head's own model takes counts as free for another plan: it is given back first. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from meshd.role.head.plan_prediction import Machines
from meshd.wire.lease import OfferedDevice

Held = Mapping[tuple[str, str], int]
"""Bytes by node and device."""


def with_given_back(machines: Machines, held: Held, me: str) -> Machines:
    """The machines with this memory free, but never more than a device has. `me`: the head."""
    if not held:
        return machines
    offers = tuple(
        replace(
            one,
            offer=replace(
                one.offer, devices=tuple(_freed(device, held, one.node) for device in one.offer.devices)
            ),
        )
        for one in machines.offers
    )
    return replace(machines, offers=offers, own=tuple(_freed(device, held, me) for device in machines.own))


def _freed(device: OfferedDevice, held: Held, node: str) -> OfferedDevice:
    count = held.get((node, device.name), 0)
    return replace(device, free_bytes=min(device.total_bytes, device.free_bytes + count))
