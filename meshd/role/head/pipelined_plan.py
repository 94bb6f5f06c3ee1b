"""A split over workers that compute parts of a prompt at the same time, and do not wait for each other. Pure.

The micro batch suits the devices that got layers (model/micro_batch.py).

llama-server keeps checkpoints of windowed and recurrent models: twice before the end of a prompt it waits
until all before is computed, and reads the windows and states from the workers. A windowed model whose layers
all keep the whole context (`--swa-full`) needs none, and the next prompt can go on anywhere in this one. So
it gets that where the memory lets it, on the same devices. For recurrent models there is no such option.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from meshd.model.layers import ModelLayers
from meshd.model.micro_batch import MOST, PromptStage, choose_micro_batch
from meshd.model.split_planner import plan_split
from meshd.model.split_values import Device, NotEnoughMemory, Plan, SplitOptions
from meshd.role.head.llama_args import LlamaArgs


def plan_pipelined(
    layers: ModelLayers,
    devices: Sequence[Device],
    options: SplitOptions,
    llama_args: LlamaArgs,
    *,
    pushed: bool,
) -> Plan:
    """As plan_split; what the user gave llama-server stays. `pushed`: workers send to workers."""
    plan, options = _with_micro_batch(layers, devices, options, llama_args, pushed=pushed)
    if not _is_windowed(layers) or _is_recurrent(layers) or llama_args.checkpoints:
        return plan
    if options.shape.full_windows:  # as the user has it
        return plan
    full = replace(options, shape=replace(options.shape, full_windows=True))
    with suppress(NotEnoughMemory):
        whole, _ = _with_micro_batch(layers, devices, full, llama_args, pushed=pushed)
        if _placed(whole) == _placed(plan):
            return replace(whole, why=f"{whole.why}; windows keep the whole context, so no checkpoints")
    return plan


def _with_micro_batch(
    layers: ModelLayers,
    devices: Sequence[Device],
    options: SplitOptions,
    llama_args: LlamaArgs,
    *,
    pushed: bool,
) -> tuple[Plan, SplitOptions]:
    """The plan, and the options that led to it."""
    if llama_args.batch is not None or llama_args.micro_batch is not None:
        return plan_split(layers, devices, options), options
    slots = options.shape.parallel
    options = _of(options, max(MOST, slots))
    plan = plan_split(layers, devices, options)
    windowed = _is_windowed(layers) and not options.shape.full_windows
    chosen = choose_micro_batch(
        _stages(layers, plan),
        embedding=layers.widths.embedding,
        slots=slots,
        pushed=pushed,
        rewound=windowed or _is_recurrent(layers),
    )
    if chosen.tokens != options.shape.micro_batch:  # with smaller buffers
        options = _of(options, chosen.tokens)
        plan = plan_split(layers, devices, options)
    return replace(plan, why=f"{plan.why}; {chosen.why}"), options


def _of(options: SplitOptions, micro_batch: int) -> SplitOptions:
    return replace(options, shape=replace(options.shape, micro_batch=micro_batch))


def _is_windowed(layers: ModelLayers) -> bool:
    return any(layer.window for layer in layers.cache.layers)


def _is_recurrent(layers: ModelLayers) -> bool:
    return any(layer.state for layer in layers.cache.layers)


def _placed(plan: Plan) -> list[tuple[str, str]]:
    """The devices that compute."""
    return [(share.device.node, share.device.name) for share in plan.shares if share.layers]


def _stages(layers: ModelLayers, plan: Plan) -> list[PromptStage]:
    """The output is none of a prompt's work: one token in all of it has logits."""
    stages: list[PromptStage] = []
    begin = 0
    before: Device | None = None
    for share in plan.shares:
        if share.layers:
            device = share.device
            weights = sum(layers.layers[begin : begin + share.layers])
            waits = before is not None and _is_copied_by_head(before, device)
            stages.append(PromptStage(weights, device.is_gpu, device.path, waits=waits))
            before = device
        begin += share.layers
    return stages


def _is_copied_by_head(before: Device, behind: Device) -> bool:
    """GPUs of the head copy between each other; workers take from workers, and from the head."""
    if behind.is_head:
        return not (before.is_head and before.is_gpu)
    return behind.is_plain
