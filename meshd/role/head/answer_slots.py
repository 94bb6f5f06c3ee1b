"""How many answers at once: as many as usual, or as memory allows on the devices that one needs. Pure.

Each has a context of its own, whose cache and states the plan counts. More of them must not cost a single
answer its speed: they bring no slower device in, and do not take the output off a worker.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from meshd.model.cache import ContextShape
from meshd.model.layers import ModelLayers
from meshd.model.split_values import NotEnoughMemory, Plan, SplitOptions
from meshd.model.status import AnswersAtOnce


def as_many_as_fit(plan: Callable[[SplitOptions], Plan], options: SplitOptions) -> Plan:
    """By `plan`, with the slots of the options or fewer. Raises NotEnoughMemory if one is too many."""
    most = options.shape.parallel
    if most == 1:
        return plan(options)
    one = plan(_with_slots(options, 1))
    for slots in range(most, 1, -1):
        with suppress(NotEnoughMemory):
            more = plan(_with_slots(options, slots))
            if _is_as_fast(more, one, options):
                return more
    return one


def _with_slots(options: SplitOptions, slots: int) -> SplitOptions:
    shape = options.shape
    tokens = shape.tokens if shape.is_shared else shape.answer_tokens
    return replace(options, shape=shape.of(slots, tokens))


def _is_as_fast(more: Plan, one: Plan, options: SplitOptions) -> bool:
    """Nothing of it lies elsewhere for lack of memory."""
    moved = options.sampled_with_output and one.output_worker is not None and more.output_worker is None
    return not moved and _computing(more) == _computing(one)


def _computing(plan: Plan) -> list[tuple[str, str]]:
    return [(share.device.node, share.device.name) for share in plan.shares if share.layers]


def answers_at_once(shape: ContextShape, layers: ModelLayers) -> AnswersAtOnce:
    """As llama-server has them: it gives no answer more than the model was trained for."""
    tokens = shape.answer_tokens
    return AnswersAtOnce(shape.parallel, min(tokens, layers.trained_context or tokens), shape.is_shared)
