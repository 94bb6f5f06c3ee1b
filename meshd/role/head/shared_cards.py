"""A card that several nodes lend is used by one of them. Pure.

Two processes take turns on a card: they compute no faster than one, and each has buffers of its own. Which
card a device is and in which machine is the word of its node, as with memory (shared_memory.py).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from meshd.role.head.plan_prediction import Machines
from meshd.role.head.split_plan import HeadOptions, NodeOffer
from meshd.role.native.devices import card_in

_AS_MUCH = 0.8  # of the memory that is most: what nodes of one machine see of a card is rarely the same


def one_for_each_card(
    offers: Sequence[NodeOffer], machines: Machines, options: HeadOptions, *, least: int
) -> tuple[NodeOffer, ...]:
    """The offers, without devices whose card another node has: this node, or else who has fewest cards.

    As they are where the user divides the layers, and where fewer than `least` of them had a device then.
    """
    lenders = _lenders(offers)
    own = [one for one in machines.own if one.name not in machines.own_excluded]
    here = {card for one in own if (card := card_in(one, options.machine))}
    holders = {} if options.devices == ("none",) else dict.fromkeys(here, options.node_name)
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


def _cards(item: NodeOffer) -> dict[str, str]:
    """Of those of its devices of which it is known: the card, by the device's name."""
    cards = {device.name: card_in(device, item.offer.machine) for device in item.devices}
    return {name: card for name, card in cards.items() if card}


def _lenders(offers: Sequence[NodeOffer]) -> dict[str, dict[str, int]]:
    """By card: the nodes, and what each says is free there."""
    found: dict[str, dict[str, int]] = {}
    for item in sorted(offers, key=lambda item: item.node):
        cards = _cards(item)
        for device in item.devices:
            if device.name in cards:
                nodes = found.setdefault(cards[device.name], {})
                free = min(device.free_bytes, device.total_bytes)
                nodes[item.node] = max(free, nodes.get(item.node, 0))
    return found


def _without(item: NodeOffer, holders: Mapping[str, str]) -> NodeOffer:
    gone = {
        name: f"{holders[card]} uses the same card, as both report"
        for name, card in _cards(item).items()
        if holders[card] != item.node
    }
    return replace(item, excluded={**item.excluded, **gone}) if gone else item
