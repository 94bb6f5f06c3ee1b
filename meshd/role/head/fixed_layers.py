"""The split that `--layers` asks for: which nodes, in which order, with how many layers. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from meshd.base.byte_format import in_number
from meshd.base.errors import UserError
from meshd.model.layer_range import LayerRange
from meshd.model.partition import share_out
from meshd.model.split_values import NoSplit
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.split_plan import HeadOptions
from meshd.wire.lease import OfferedDevice


def with_fixed_layers(machines: Machines, options: HeadOptions, layers: int) -> tuple[Machines, HeadOptions]:
    """The workers in the order of their layers, and a tensor split; both as they were without `--layers`.

    A node with several devices divides its layers over them by their free memory. Raises UserError where
    the ranges are not all of the model's layers, NoSplit where they name a node that is not there.
    """
    if not options.layers:
        return machines, options
    ranges = sorted(options.layers, key=lambda one: one.first)
    _check_whole(ranges, layers)
    me = options.node_name
    offers = {offer.node: offer for offer in machines.offers}
    for one in ranges:
        if one.node != me and (one.node not in offers or not offers[one.node].devices):
            there = ", ".join(f"`{name}`" for name in [me, *offers])
            raise NoSplit(f"`--layers {one}` names a node that cannot take part", hint=f"there are {there}")
    ordered = [offers[one.node] for one in ranges if one.node != me]
    counts: list[int] = []
    for one in ranges:
        if one.node != me:
            counts += _over(one.count, offers[one.node].devices)
    own = next((one for one in ranges if one.node == me), None)
    if own is not None:
        counts += _own_counts(own, machines, options, layers)
    fixed = replace(options, layers=(), tensor_split=tuple(map(float, counts)))
    return replace(machines, offers=tuple(ordered)), fixed


def nodes_of(ranges: Sequence[LayerRange], me: str) -> tuple[str, ...]:
    """The workers that they name."""
    return tuple(one.node for one in ranges if one.node != me)


def named_by(options: HeadOptions) -> str:
    """The option that names the workers."""
    by_layers = bool(options.layers) and options.workers == nodes_of(options.layers, options.node_name)
    return "--layers" if by_layers else "--workers"


def _check_whole(ranges: Sequence[LayerRange], layers: int) -> None:
    if twice := {one.node for one in ranges if sum(two.node == one.node for two in ranges) > 1}:
        raise UserError(
            f"`--layers` names `{min(twice)}` twice",
            hint="a node holds one range of layers",
        )
    expected = 0
    for one in ranges:
        if one.first < expected:
            raise UserError(
                f"`--layers {one}` overlaps another range", hint=f"layers up to {expected - 1} are taken"
            )
        if one.first > expected:
            raise UserError(
                f"no node holds layers {expected} to {one.first - 1}",
                hint=f"give all {layers} layers of the model, 0 to {layers - 1}, with `--layers`",
            )
        expected = one.last + 1
    if expected != layers:
        lacking = expected < layers
        raise UserError(
            f"no node holds layers {expected} to {layers - 1}"
            if lacking
            else f"`--layers {ranges[-1]}` names a layer that the model does not have",
            hint=f"the model has {in_number(layers, 'layer')}, 0 to {layers - 1}",
        )


def _over(count: int, devices: Sequence[OfferedDevice]) -> list[int]:
    """For each device."""
    if len(devices) < 2:
        return [count] * len(devices)
    return list(share_out([float(device.free_bytes) for device in devices], count))


def _own_counts(own: LayerRange, machines: Machines, options: HeadOptions, layers: int) -> list[int]:
    """llama.cpp computes the layers of the head's CPU first, and those of its GPUs last."""
    if options.devices == ("none",):
        raise UserError(
            f"`--layers {own}` gives layers to this node", hint="omit `--device none`, which keeps all away"
        )
    able = [one for one in machines.own if one.name not in machines.own_excluded]
    gpus = [one for one in able if one.kind == "gpu"]
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
