"""How long a context may be: as asked for, the longest that fits, or one that leaves others enough. Pure.

Without `--ctx-size` it grows from the usual 8192 tokens towards what the model was trained for, as long as
nothing else of the plan changes (devices, layers, answers at once, where the output is), and no memory gives
more than half of what the plan leaves free: others want to use it as well. What it costs is that memory on
the head, which llama-server clears with each load; a CPU worker's is taken as it is used.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TypeVar

from meshd.base.errors import Refused, UserError
from meshd.model.layers import ModelLayers
from meshd.model.split_values import NotEnoughMemory, Plan
from meshd.role.head.llama_args import read_llama_args
from meshd.role.head.plan_prediction import Machines
from meshd.role.head.shared_memory import plan_over
from meshd.role.head.split_plan import HeadOptions, NodeOffer, without_idle

T = TypeVar("T")
_MOST_TAKEN = 0.5  # of the memory that a plan leaves free


def with_largest(solve: Callable[[HeadOptions], T], layers: ModelLayers, options: HeadOptions) -> T:
    """What `solve` makes of the options; with `--ctx-size max` for the longest context that fits.

    That comes before answers at once. Raises what `solve` does.
    """
    if not options.largest_context:
        return solve(options)
    try:
        longest = read_llama_args(options.llama_args).longest_answer(layers)
        return solve(replace(options, ctx_size=longest or layers.default_context))
    except NotEnoughMemory as error:
        if not error.largest_context:
            raise
        return solve(replace(options, ctx_size=error.largest_context))


def lengthened(
    layers: ModelLayers, machines: Machines, options: HeadOptions, plan: Plan, offers: Sequence[NodeOffer]
) -> Plan:
    """The plan, which uses these offers, with a longer context where nobody asked for one."""
    asked = options.largest_context or options.ctx_size is not None
    if asked or read_llama_args(options.llama_args).tokens is not None:
        return plan
    counts = _counts(plan, machines, options, offers)
    options = replace(
        options,
        tensor_split=counts,
        counts_chosen=True,
        output="head" if plan.output_worker is None else "worker",
        min_workers=0,
        layers=(),
    )
    tokens = layers.trained_context
    while counts and tokens > plan.shape.answer_tokens:
        given = replace(options, ctx_size=tokens)
        with suppress(NotEnoughMemory, UserError, Refused):
            longer, _ = without_idle(
                *plan_over(
                    layers,
                    offers=offers,
                    plain_rpc=machines.plain_rpc,
                    own=machines.own,
                    options=given,
                    own_excluded=machines.own_excluded,
                )
            )
            if _is_same(plan, longer) and _leaves_enough(plan, longer):
                return _as_before(plan, longer)
        tokens //= 2
    return plan


def _counts(
    plan: Plan, machines: Machines, options: HeadOptions, offers: Sequence[NodeOffer]
) -> tuple[float, ...]:
    """As `--tensor-split` counts the devices; empty where that cannot say it."""
    held = {(share.device.node, share.device.name): share.layers for share in plan.shares}
    own = [one for one in machines.own if one.name not in machines.own_excluded]
    own = [one for one in own if one.kind == "gpu"] or own[:1]
    names = [(offer.node, device.name) for offer in offers for device in offer.devices]
    names += [(server.endpoint, device.name) for server in machines.plain_rpc for device in server.devices]
    if options.devices != ("none",):
        names += [(options.node_name, device.name) for device in own]
    counts = tuple(float(held.get(name, 0)) for name in names)
    return counts if sum(counts) == sum(held.values()) else ()


def _is_same(plan: Plan, longer: Plan) -> bool:
    """But for the length of its context."""
    return _placed(plan) == _placed(longer)


def _placed(plan: Plan) -> tuple[object, ...]:
    shares = [(share.device.node, share.device.name, share.layers) for share in plan.shares if share.layers]
    shape = plan.shape
    return (
        shares,
        plan.devices,
        plan.tensor_split,
        plan.override_tensor,
        plan.input_device,
        (shape.parallel, shape.micro_batch, shape.batch, shape.unified, shape.full_windows),
    )


def _leaves_enough(plan: Plan, longer: Plan) -> bool:
    """In each memory that devices have, or share."""
    before, after = _left(plan), _left(longer)
    return all(after[pool] >= (1 - _MOST_TAKEN) * before[pool] for pool in after)


def _left(plan: Plan) -> dict[str, int]:
    """Bytes that it leaves free in each memory; a draft model's are not among those that devices offer."""
    free: dict[str, int] = {}
    taken: dict[str, int] = {}
    for share in plan.shares:
        pool = share.device.pool or share.device.label
        free[pool] = min(free.get(pool, share.device.free), share.device.free)
        taken[pool] = taken.get(pool, 0) + share.total
    return {pool: free[pool] - taken[pool] for pool in free}


def _as_before(plan: Plan, longer: Plan) -> Plan:
    """With the reasons of the plan, which is the one that was chosen."""
    why = plan.why
    if plan.answers is not None and longer.answers is not None:
        why = why.replace(plan.answers.text, longer.answers.text)
    return replace(longer, why=why, short=plan.short, left_out=plan.left_out)
