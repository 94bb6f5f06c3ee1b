"""Memory that several nodes say they share: counted once, and no way to make a plan fail. Pure.

Which machine a node is on and which card it lends are its own word. One that names another's and says that
little is free there takes that from the plan; so where the plan fails for it, each such memory is taken to be
one node's alone: the head's own before all, else of the one that says that most is free. Nodes that do share
it lose nothing by that, for it is there once; and one that lies has to lend what it says.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace

from meshd.base.errors import Refused
from meshd.model.layers import ModelLayers
from meshd.model.split_values import NotEnoughMemory, Plan
from meshd.role.head.split_plan import HeadOptions, NodeOffer, PlainRpc, make_plan, pool_of, without_idle
from meshd.wire.lease import OfferedDevice

Planned = tuple[Plan, list[NodeOffer]]


def plan_over(
    layers: ModelLayers,
    *,
    offers: Sequence[NodeOffer],
    plain_rpc: Sequence[PlainRpc],
    own: Sequence[OfferedDevice],
    options: HeadOptions,
    own_excluded: Mapping[str, str],
) -> Planned:
    """As make_plan, and the offers as they are used: without some devices, perhaps."""

    def plan(offers: Sequence[NodeOffer]) -> Planned:
        made = make_plan(
            layers, offers=offers, plain_rpc=plain_rpc, own=own, options=options, own_excluded=own_excluded
        )
        return made, list(offers)

    try:
        return plan(offers)
    except NotEnoughMemory:
        single = () if options.tensor_split else one_for_each_pool(offers, own, options)
        with suppress(NotEnoughMemory, Refused):  # then the first reason is the better one
            if single:
                again = plan(single)
                if len(without_idle(*again)[1]) >= options.min_workers:
                    return again
        raise


def one_for_each_pool(
    offers: Sequence[NodeOffer], own: Sequence[OfferedDevice], options: HeadOptions
) -> list[NodeOffer]:
    """The offers, without devices whose memory is another node's as well; empty when there are none."""
    holder = {pool_of(device, options.machine): options.node_name for device in own}
    most: dict[str, int] = {}
    for item in offers:
        for device in item.devices:
            pool = pool_of(device, item.offer.machine)
            if pool not in holder or (pool in most and device.free_bytes > most[pool]):
                holder[pool], most[pool] = item.node, device.free_bytes
    found = [_alone(item, holder) for item in offers]
    return found if found != list(offers) else []


def _alone(item: NodeOffer, holder: Mapping[str, str]) -> NodeOffer:
    excluded = dict(item.excluded)
    for device in item.devices:
        pool = pool_of(device, item.offer.machine)
        if pool and holder[pool] != item.node:
            excluded[device.name] = f"{holder[pool]} has the same memory, as both report"
    return replace(item, excluded=excluded)
