"""How many answers llama-server generates at a time: the usual number, or as many as fit. Pure.

Each answer has its own context, and the plan counts its cache and states. A further answer must not slow a
single one down: the plan with it uses the same devices, and leaves the output layer where it was.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from meshd.model.cache import ContextShape
from meshd.model.split_values import NotEnoughMemory, Plan, SplitOptions
from meshd.model.status import AnswersAtOnce


def as_many_as_fit(plan: Callable[[SplitOptions], Plan], options: SplitOptions) -> Plan:
    """The plan with as many slots as the options say, or fewer. Raises NotEnoughMemory if none fits."""
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
    """It uses the same devices as `one`, and the output layer has not moved for lack of memory."""
    moved = options.sampled_with_output and one.output_worker is not None and more.output_worker is None
    return not moved and _computing(more) == _computing(one)


def _computing(plan: Plan) -> list[tuple[str, str]]:
    return [(share.device.node, share.device.name) for share in plan.shares if share.layers]


def answers_at_once(shape: ContextShape, longest: int, note: str = "") -> AnswersAtOnce:
    """For status. `longest`: tokens to which llama-server limits each answer (model/rope.py); 0: none."""
    tokens = shape.answer_tokens
    if longest and not shape.is_shared:
        tokens = min(tokens, longest)
    return AnswersAtOnce(shape.parallel, tokens, shape.is_shared, note)
