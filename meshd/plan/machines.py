"""Describe the machines between which a plan chooses, and the memory and the cards that they share.

A card that several nodes lend is used by one of them: two processes take turns on it, compute no faster than
one, and each has buffers of its own. Memory that several lend counts once.

Which machine a node is on and which card it lends are its own word. One that names another's and says that
little is free there takes that from the plan; so where the plan fails for it, each such memory is taken to be
one node's alone: the head's own before all, else of the one that says that most is free. Nodes that do share
it lose nothing by that, for it is there once; and one that lies has to lend what it says.

What cannot be measured does not compare with a measurement. What is only not measured yet is compared by an
estimate: whoever loads the model now replans later.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshd.base.errors import UserError
from meshd.base.units import in_number
from meshd.model.device_speed import DeviceSpeed
from meshd.model.layer_range import LayerRange
from meshd.model.layer_work import LayerWork
from meshd.model.output import DevicePath
from meshd.plan.by_memory import share_out
from meshd.plan.reasons import (
    Absence,
    ByMemory,
    LeftOut,
    NoFreeMemory,
    NotMeasured,
    Reported,
    SameCard,
    SameMemory,
)
from meshd.plan.split import NoSplit
from meshd.plan.wishes import HeadOptions
from meshd.wire.lease import SHARED_MEMORY, OfferedDevice, WorkerOffer

_AS_MUCH = 0.8  # of the memory that is most: what nodes of one machine see of a card is rarely the same
IN_DOUBT = "do not exchange data directly for an hour: one of them failed, and it is unknown which"
INDIRECT = "could not connect past both daemons when they last tried"
Held = Mapping[tuple[str, str], int]
"""Bytes by node and device."""


@dataclass(frozen=True, slots=True)
class PlainRpc:
    """Describe an rpc-server of the LAN without meshd (`--rpc HOST:PORT`), with its devices' memory."""

    endpoint: str
    devices: tuple[OfferedDevice, ...]


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """Hold a worker's offer, under the name of its node, and what lies between.

    `excluded`: devices that cannot run the model, and why. They are not started, nor are those without
    memory.
    """

    node: str
    offer: WorkerOffer
    path: DevicePath | None = None
    excluded: Mapping[str, Absence] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[OfferedDevice, ...]:
        """Return those that may take part, in their order."""
        return tuple(device for device in self.offer.devices if self.exclusion_reason(device) is None)

    @property
    def left_out(self) -> list[LeftOut]:
        """Return those that take no part, each with the reason."""
        reasons = ((device.name, self.exclusion_reason(device)) for device in self.offer.devices)
        return [LeftOut(self.node, name, why) for name, why in reasons if why is not None]

    def exclusion_reason(self, device: OfferedDevice) -> Absence | None:
        """Return why a device of the offer takes no part; None when it may."""
        return self.excluded.get(device.name) or (None if device.free_bytes else NoFreeMemory())


@dataclass(frozen=True, slots=True)
class Machines:
    """Hold all machines of a plan. `speeds` by node and device, `paths` from node to node.

    `unmeasured`: why a node does not tell the speed of a device.
    `lacking`: the share of the model's layers that a node has not, by node, where that is known.
    `to_measure`: nodes with devices whose speed is estimated, until they are measured.
    `apart`: pairs of nodes that may not compute together any more, and why.
    """

    offers: tuple[NodeOffer, ...]
    own: tuple[OfferedDevice, ...]
    speeds: Mapping[tuple[str, str], DeviceSpeed] = field(default_factory=dict)
    paths: Mapping[tuple[str, str], DevicePath] = field(default_factory=dict)
    plain_rpc: tuple[PlainRpc, ...] = ()
    own_excluded: Mapping[str, Absence] = field(default_factory=dict)
    unmeasured: Mapping[str, str] = field(default_factory=dict)
    lacking: Mapping[str, float] = field(default_factory=dict)
    to_measure: frozenset[str] = frozenset()
    apart: Mapping[frozenset[str], str] = field(default_factory=dict)

    @property
    def own_able(self) -> list[OfferedDevice]:
        """Return the head's own devices that may compute."""
        return [device for device in self.own if device.name not in self.own_excluded]

    def own_taking(self, options: HeadOptions) -> list[OfferedDevice]:
        """Return the head's own devices that a tensor split counts: its GPUs, else its CPU."""
        if options.devices == ("none",):
            return []
        return [device for device in self.own_able if device.kind == "gpu"] or self.own_able[:1]


@dataclass(frozen=True, slots=True)
class Measured:
    """Hold what can be compared.

    `machines`: with devices of workers excluded that have no times. `unmeasured`: their workers, and why.
    `why_not`: no split can be compared at all, as this node's own devices have none.
    """

    machines: Machines
    unmeasured: Mapping[str, Absence]
    why_not: ByMemory | None = None


def card_in(device: OfferedDevice, machine: str) -> str:
    """Name the card of a device among all that nodes name; empty if it is not known.

    One of another machine is another card: a node takes nothing from it by its name alone.
    """
    is_known = device.kind == "gpu" and device.card not in ("", SHARED_MEMORY)
    return f"card {device.card} of {machine}" if is_known else ""


def pool_of(device: OfferedDevice, machine: str) -> str:
    """Name the memory: nodes on one machine share its RAM, and a card that several lend counts once."""
    if device.kind == "cpu" or device.card == SHARED_MEMORY:
        return f"{machine} memory" if machine else ""
    return card_in(device, machine)


def measured_machines(work: LayerWork, machines: Machines, options: HeadOptions) -> Measured:
    """Keep in the comparison what was measured with this kind of model; cards of one kind are as fast."""
    kinds = set(work.kinds)

    def is_known(node: str, device: str) -> bool:
        if node in machines.to_measure:
            return True
        speed: DeviceSpeed | None = machines.speeds.get((node, device))
        return speed is not None and all(kind in speed for kind in kinds)

    if not kinds:
        return Measured(machines, {}, ByMemory())
    own = [] if options.devices == ("none",) else machines.own_able  # its processor only makes the output
    lacking = [device.name for device in own if not is_known(options.node_name, device.name)]
    if lacking:
        return Measured(machines, {}, ByMemory(((f"{options.node_name} {lacking[0]}", NotMeasured()),)))
    offers: list[NodeOffer] = []
    unmeasured: dict[str, Absence] = {}
    for offer in machines.offers:
        unknown = [known.name for known in offer.devices if not is_known(offer.node, known.name)]
        if unknown:
            reason = machines.unmeasured.get(offer.node)
            unmeasured[offer.node] = why = NotMeasured() if reason is None else Reported(reason)
            offer = replace(offer, excluded={**offer.excluded, **dict.fromkeys(unknown, why)})
        offers.append(offer)
    speeds = _alike_speeds(machines, options.node_name)
    return Measured(replace(machines, offers=tuple(offers), speeds=speeds), unmeasured)


def _alike_speeds(machines: Machines, me: str) -> dict[tuple[str, str], DeviceSpeed]:
    """Return all speeds, those of cards of one kind alike: a trial is off by more than such cards differ.

    Otherwise the one that was lucky gets a layer more, and all others wait for it.
    """
    speeds = dict(machines.speeds)
    lent = [(offer.node, device) for offer in machines.offers for device in offer.devices]
    groups: dict[tuple[str, int], list[tuple[str, str]]] = {}
    for node, device in [*lent, *((me, device) for device in machines.own)]:
        if device.kind == "gpu" and device.description and (node, device.name) in speeds:
            groups.setdefault((device.description, device.total_bytes), []).append((node, device.name))
    for places in groups.values():
        alike = [machines.speeds[place] for place in places]
        speeds.update((place, machines.speeds[place].as_shortest(alike)) for place in places)
    return speeds


def one_for_each_pool(
    offers: Sequence[NodeOffer], own: Sequence[OfferedDevice], options: HeadOptions
) -> list[NodeOffer]:
    """Return the offers without devices whose memory is another node's as well; empty if there are none."""
    holder = {pool_of(device, options.machine): options.node_name for device in own}
    most: dict[str, int] = {}
    for item in offers:
        for device in item.devices:
            pool = pool_of(device, item.offer.machine)
            if pool not in holder or (pool in most and device.free_bytes > most[pool]):
                holder[pool], most[pool] = item.node, device.free_bytes
    found = [_without_others(item, holder, pool_of, SameMemory) for item in offers]
    return found if found != list(offers) else []


def one_for_each_card(
    offers: Sequence[NodeOffer], machines: Machines, options: HeadOptions, *, least: int
) -> tuple[NodeOffer, ...]:
    """Return the offers without devices whose card another node has: the head, else who has fewest cards.

    They stay as they are where the user divides the layers, and where fewer than `least` of them had a device
    then.
    """
    lenders = _lenders(offers)
    here = {card for device in machines.own_able if (card := card_in(device, options.machine))}
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
    found = tuple(_without_others(item, holders, card_in, SameCard) for item in offers)
    able = [sum(bool(item.devices) for item in some) for some in (offers, found)]
    return tuple(offers) if able[1] < min(least, able[0]) else found


def _lenders(offers: Sequence[NodeOffer]) -> dict[str, dict[str, int]]:
    """Return by card the nodes that lend it, and what each says is free there."""
    found: dict[str, dict[str, int]] = {}
    for item in sorted(offers, key=lambda item: item.node):
        for device in item.devices:
            if card := card_in(device, item.offer.machine):
                nodes = found.setdefault(card, {})
                free = min(device.free_bytes, device.total_bytes)
                nodes[item.node] = max(free, nodes.get(item.node, 0))
    return found


def _without_others(
    item: NodeOffer,
    holders: Mapping[str, str],
    shared: Callable[[OfferedDevice, str], str],
    why: Callable[[str], Absence],
) -> NodeOffer:
    """Return the offer without devices of which another node holds what `shared` names."""
    names = {device.name: shared(device, item.offer.machine) for device in item.devices}
    gone = {name: why(holders[held]) for name, held in names.items() if held and holders[held] != item.node}
    return replace(item, excluded={**item.excluded, **gone}) if gone else item


def with_given_back(machines: Machines, held: Held, me: str) -> Machines:
    """Return the machines with this memory free, but never more than a device has. `me`: the head."""

    def free(node: str, device: OfferedDevice) -> int:
        return min(device.total_bytes, device.free_bytes + held.get((node, device.name), 0))

    return _with_free(machines, me, free) if held else machines


def with_memory_limits(machines: Machines, limits: Mapping[str, int], me: str) -> Machines:
    """Return the machines with at most so many bytes free on each device.

    `limits` by node; under "" that of all nodes that are not named. `me`: the head. Raises UserError for a
    node that is not there.
    """
    there = [me, *(offer.node for offer in machines.offers)]
    if unknown := sorted(set(limits) - {"", *there}):
        known = ", ".join(f"`{name}`" for name in there)
        raise UserError(
            f"`--memory {unknown[0]}=…` names a node that cannot take part", hint=f"there are {known}"
        )

    def free(node: str, device: OfferedDevice) -> int:
        return min(device.free_bytes, limits.get(node, limits.get("", device.free_bytes)))

    return _with_free(machines, me, free) if limits else machines


def _with_free(machines: Machines, me: str, free: Callable[[str, OfferedDevice], int]) -> Machines:
    def changed(node: str, devices: tuple[OfferedDevice, ...]) -> tuple[OfferedDevice, ...]:
        return tuple(replace(device, free_bytes=free(node, device)) for device in devices)

    offers = tuple(
        replace(offer, offer=replace(offer.offer, devices=changed(offer.node, offer.offer.devices)))
        for offer in machines.offers
    )
    return replace(machines, offers=offers, own=changed(me, machines.own))


def with_fixed_layers(machines: Machines, options: HeadOptions, layers: int) -> tuple[Machines, HeadOptions]:
    """Return the workers in the order of their layers, and a tensor split; as they were without `--layers`.

    A node with several devices divides its layers over them by their free memory. Raises UserError where
    the ranges are not all of the model's layers, NoSplit where they name a node that is not there.
    """
    if not options.layers:
        return machines, options
    check_ranges(options.layers, layers)
    ranges = sorted(options.layers, key=lambda given: given.first)
    me = options.node_name
    offers = {offer.node: offer for offer in machines.offers}
    for layer_range in ranges:
        if layer_range.node != me and (
            layer_range.node not in offers or not offers[layer_range.node].devices
        ):
            there = ", ".join(f"`{name}`" for name in [me, *offers])
            raise NoSplit(
                f"`--layers {layer_range}` names a node that cannot take part", hint=f"there are {there}"
            )
    ordered = [offers[layer_range.node] for layer_range in ranges if layer_range.node != me]
    counts: list[int] = []
    for layer_range in ranges:
        if layer_range.node != me:
            counts += _over(layer_range.count, offers[layer_range.node].devices)
    own = next((layer_range for layer_range in ranges if layer_range.node == me), None)
    if own is not None:
        counts += _own_counts(own, machines, options, layers)
    fixed = replace(options, layers=(), tensor_split=tuple(map(float, counts)))
    return replace(machines, offers=tuple(ordered)), fixed


def check_ranges(given: Sequence[LayerRange], layers: int) -> None:
    """Check that these ranges are all layers of a model, each once. Raises UserError."""
    ranges = sorted(given, key=lambda held: held.first)
    if twice := {
        layer_range.node for layer_range in ranges if sum(two.node == layer_range.node for two in ranges) > 1
    }:
        raise UserError(
            f"`--layers` names `{min(twice)}` twice",
            hint="a node holds one range of layers",
        )
    expected = 0
    for layer_range in ranges:
        if layer_range.first < expected:
            raise UserError(
                f"`--layers {layer_range}` overlaps another range",
                hint=f"layers up to {expected - 1} are taken",
            )
        if layer_range.first > expected:
            raise UserError(
                f"no node holds layers {expected} to {layer_range.first - 1}",
                hint=f"give all {layers} layers of the model, 0 to {layers - 1}, with `--layers`",
            )
        expected = layer_range.last + 1
    if expected != layers:
        lacking = expected < layers
        raise UserError(
            f"no node holds layers {expected} to {layers - 1}"
            if lacking
            else f"`--layers {ranges[-1]}` names a layer that the model does not have",
            hint=f"the model has {in_number(layers, 'layer')}, 0 to {layers - 1}",
        )


def _over(count: int, devices: Sequence[OfferedDevice]) -> list[int]:
    """Divide layers over devices by their free memory."""
    if len(devices) < 2:
        return [count] * len(devices)
    return list(share_out([float(device.free_bytes) for device in devices], count))


def _own_counts(own: LayerRange, machines: Machines, options: HeadOptions, layers: int) -> list[int]:
    """Count the layers of the head's devices: llama.cpp computes its CPU's first, and its GPUs' last."""
    if options.devices == ("none",):
        raise UserError(
            f"`--layers {own}` gives layers to this node",
            hint="omit `--device none`, which keeps all layers off this node",
        )
    gpus = [device for device in machines.own_able if device.kind == "gpu"]
    if gpus and own.last != layers - 1:
        raise UserError(
            f"`--layers {own}`: the GPUs of the serving node compute the last layers",
            hint=f"give `{own.node}` the layers to {layers - 1}",
        )
    if not gpus and own.first != 0:
        raise UserError(
            f"`--layers {own}`: the CPU of the serving node computes the first layers",
            hint=f"give `{own.node}` the layers from 0 on",
        )
    return _over(own.count, gpus) if gpus else [own.count]
