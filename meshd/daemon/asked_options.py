"""Combine the options of a request for a plan with the settings for serving, which they override. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from meshd.admin.plan_api import PlanRequest
from meshd.base.errors import UserError
from meshd.model.layer_range import parse_layer_range
from meshd.plan.wishes import HeadOptions, nodes_of


def asked_options(request: PlanRequest, served: HeadOptions) -> HeadOptions:
    """Return the options for a plan. Raises UserError for contradictory ones."""
    options = replace(served, slots=request.streams or served.slots)
    if request.largest_context or request.ctx_size:
        options = replace(options, ctx_size=0 if request.largest_context else request.ctx_size)
    if request.layers and request.tensor_split:
        raise UserError("`--layers` cannot be combined with `--tensor-split`", hint="give one of them")
    if request.devices:
        if "none" in request.devices and len(request.devices) > 1:
            raise UserError(
                "`--device none` cannot be combined with other devices", hint="give either `none` or devices"
            )
        options = replace(options, devices=request.devices)
    if request.tensor_split or request.layers or request.workers:
        options = _without_layers(options)
    if request.tensor_split:
        options = replace(options, tensor_split=request.tensor_split)
    if request.layers:
        options = _with_layers(options, request)
    if request.workers:
        options = replace(options, workers=request.workers, min_workers=None)  # of the head's workers
    return options


def _without_layers(served: HeadOptions) -> HeadOptions:
    """Remove `--layers` and what follows from it: the workers, and that all of them take part."""
    if not served.layers:
        return served
    named = nodes_of(served.layers, served.node_name)
    by_layers = served.workers == named
    least = served.min_workers if (served.min_workers or 0) > len(named) else None
    return replace(served, layers=(), workers=() if by_layers else served.workers, min_workers=least)


def _with_layers(options: HeadOptions, request: PlanRequest) -> HeadOptions:
    try:
        ranges = tuple(parse_layer_range(text) for text in request.layers)
    except ValueError as error:
        raise UserError(f"`--layers`: {error}", hint="give NODE=FIRST-LAST") from None
    workers = nodes_of(ranges, options.node_name)
    if request.workers and (others := [node for node in workers if node not in request.workers]):
        raise UserError(
            f"`--layers` gives layers to `{others[0]}`, which `--workers` does not name",
            hint="name it there as well, or leave out `--workers`: `--layers` already names the workers",
        )
    return replace(options, layers=ranges, tensor_split=(), workers=workers)


def asked_memory(request: PlanRequest) -> Mapping[str, int]:
    """Return the bytes per device, by node. Raises UserError for a node that is named twice."""
    found: dict[str, int] = {}
    for limit in request.memory:
        if limit.node in found:
            whose = f"of `{limit.node}`" if limit.node else "of all nodes"
            raise UserError(f"`--memory` says the memory {whose} twice", hint="give one size for each node")
        found[limit.node] = limit.bytes
    return found
