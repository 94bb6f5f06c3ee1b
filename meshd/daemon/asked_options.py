"""What a question for a plan says goes before what the user decided for serving. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from meshd.admin.plan_api import PlanRequest
from meshd.base.errors import UserError
from meshd.model.layer_range import parse_layer_range
from meshd.role.head.fixed_layers import nodes_of
from meshd.role.head.split_plan import HeadOptions


def asked_options(request: PlanRequest, served: HeadOptions) -> HeadOptions:
    """Raises UserError for what contradicts itself."""
    options = replace(served, slots=request.streams or served.slots)
    if request.largest_context or request.ctx_size:
        options = replace(options, ctx_size=request.ctx_size or None, largest_context=request.largest_context)
    if request.layers and request.tensor_split:
        raise UserError("`--layers` cannot be combined with `--tensor-split`", hint="give one of them")
    if request.devices:
        if "none" in request.devices and len(request.devices) > 1:
            raise UserError(
                "`--device none` cannot be combined with other devices", hint="give either `none` or devices"
            )
        options = replace(options, devices=request.devices)
    if request.tensor_split:
        options = replace(options, tensor_split=request.tensor_split, layers=())
    if request.layers:
        try:
            ranges = tuple(parse_layer_range(one) for one in request.layers)
        except ValueError as error:
            raise UserError(f"`--layers`: {error}", hint="give NODE=FIRST-LAST") from None
        workers = nodes_of(ranges, options.node_name)
        options = replace(options, layers=ranges, tensor_split=(), workers=workers)
    if request.workers:
        options = replace(options, workers=request.workers)
    return options


def asked_memory(request: PlanRequest) -> Mapping[str, int]:
    """Bytes of each device, by node. Raises UserError for a node that is named twice."""
    found: dict[str, int] = {}
    for one in request.memory:
        if one.node in found:
            whose = f"of `{one.node}`" if one.node else "of all nodes"
            raise UserError(f"`--memory` says the memory {whose} twice", hint="give one size for each node")
        found[one.node] = one.bytes
    return found
