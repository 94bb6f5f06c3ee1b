"""A card that several nodes lend is used by one of them. Pure.

Two processes take turns on a card: they compute no faster than one, and each has buffers of its own. Which
card a device is, is the word of its node, as with memory (shared_memory.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshd.role.head.plan_prediction import Machines
from meshd.role.head.split_plan import HeadOptions, NodeOffer
from meshd.role.native.devices import SHARED_MEMORY
from meshd.wire.lease import OfferedDevice

_AS_MUCH = 0.8  # of the memory that is most: what nodes of one machine see of a card is rarely the same


def one_for_each_card(
    offers: Sequence[NodeOffer], machines: Machines, options: HeadOptions, *, least: int
) -> tuple[NodeOffer, ...]:
    """The offers, without devices whose card another node has: this node, or else who has fewest cards.

    As they are where the user divides the layers, and where fewer than `least` of them had a device then.
    """
    lenders = _lenders(offers)
    own = [one for one in machines.own if one.name not in machines.own_excluded and is_card(one)]
    holders = {} if options.devices == ("none",) else {one.card: options.node_name for one in own}
    if options.tensor_split or not any(len(nodes) + (card in holders) > 1 for card, nodes in lenders.items()):
        return tuple(offers)
    held: Counter[str] = Counter()
    for card, nodes in sorted(lenders.items(), key=lambda item: len(item[1])):
        if card not in holders:
            most = max(nodes.values())
            likely = [node for node, free in nodes.items() if free >= _AS_MUCH * most]
            holders[card] = min(likely, key=lambda node: (held[node], node))
            held[holders[card]] += 1
    found = tuple(_without(item, holders) for item in offers)
    able = [sum(bool(item.devices) for item in some) for some in (offers, found)]
    return tuple(offers) if able[1] < min(least, able[0]) else found


def is_card(device: OfferedDevice) -> bool:
    """It is known which one."""
    return device.kind == "gpu" and device.card not in ("", SHARED_MEMORY)


def _lenders(offers: Sequence[NodeOffer]) -> dict[str, dict[str, int]]:
    """By card: the nodes, and what each says is free there."""
    found: dict[str, dict[str, int]] = {}
    for item in sorted(offers, key=lambda item: item.node):
        for device in item.devices:
            if is_card(device):
                nodes = found.setdefault(device.card, {})
                nodes[item.node] = max(device.free_bytes, nodes.get(item.node, 0))
    return found


def _without(item: NodeOffer, holders: Mapping[str, str]) -> NodeOffer:
    gone = {
        device.name: f"{holders[device.card]} uses the same card, as both report"
        for device in item.devices
        if is_card(device) and holders[device.card] != item.node
    }
    return replace(item, excluded={**item.excluded, **gone}) if gone else item
