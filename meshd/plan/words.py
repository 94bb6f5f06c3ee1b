"""Word the reasons of a plan, once for all that show them: status, log, page, `meshd plan`, `meshd why`."""

from collections.abc import Collection, Iterable, Sequence
from typing import assert_never

from meshd.base.units import MIB, in_memory
from meshd.plan.reasons import (
    Absence,
    AdviceBasis,
    AllOn,
    Answers,
    AsGiven,
    ByMemory,
    Change,
    ChangedPart,
    ComparisonFailed,
    Divide,
    Drop,
    FullWindows,
    HalfFloats,
    HeadCpu,
    InProportion,
    LayerCounts,
    LeftOut,
    LetHeadCompute,
    MemoryUse,
    MicroBatch,
    NoFreeMemory,
    NoRoom,
    NoShare,
    NotMeasured,
    NotNeeded,
    OneAtOnce,
    OutputOn,
    RatedSplit,
    Reason,
    Reorder,
    Reported,
    RunOn,
    SameCard,
    SameMemory,
    Shortage,
    SplitChange,
    SplitComparison,
    TooFewLayers,
    TooManyDevices,
    UnknownArchitecture,
    Use,
    Without,
)

_HEAD_CPU = {
    HeadCpu.NOT_WANTED: "the head gets no layers (`--device none`)",
    HeadCpu.ALONE: "there is no other device",
    HeadCpu.AMONG_CPUS: "the head gets layers because all devices are CPUs",
    HeadCpu.BESIDE_GPUS: "the head's CPU gets no layers because there are GPUs",
    HeadCpu.GPUS_TOO_SMALL: "the head's CPU gets layers because the GPUs alone lack the memory",
}


def in_words(reasons: Iterable[Reason]) -> str:
    """Word all reasons of a plan, or of its refusal, in their order."""
    return "; ".join(map(_worded, reasons))


def brief(reasons: Sequence[Reason], *, estimated: Collection[str] = ()) -> str:
    """Word what decided the split, and what no split could use.

    `estimated`: nodes whose speed was estimated for it.
    """
    shown = [reasons[0]]
    if not isinstance(reasons[0], ByMemory | ComparisonFailed):
        shown += [one for one in reasons[1:] if _is_left_for_good(one)]
    by_estimates = f" (by estimates of {', '.join(sorted(estimated))})" if estimated else ""
    return f"{in_words(shown)}{by_estimates}"


def _is_left_for_good(reason: Reason) -> bool:
    return isinstance(reason, Without) or (isinstance(reason, LeftOut) and reason.is_unable)


def why_idle(left_out: Iterable[LeftOut], node: str) -> str:
    """Word why a worker got no layer."""
    return each_left_out(one for one in left_out if one.node == node) or f"{node}: no layer was left for it"


def each_left_out(left_out: Iterable[LeftOut]) -> str:
    """Word why each of these devices takes no part; empty without any."""
    return "; ".join(f"{one.node} {one.device}: {absent(one.why)}" for one in left_out)


def absent(why: Absence) -> str:
    """Word why a device or a node takes no part."""
    match why:
        case Reported():
            return why.text
        case NoFreeMemory():
            return "it has no free memory"
        case SameMemory():
            return f"{why.holder} has the same memory, as both report"
        case SameCard():
            return f"{why.holder} uses the same card, as both report"
        case NotMeasured():
            return "it was not measured with layers like this model's"
        case NotNeeded():
            return "the model is faster without it"
        case NoRoom():
            return f"{in_memory(max(0, why.left))} are left for layers; one layer needs {in_memory(why.need)}"
        case TooManyDevices():
            return f"llama.cpp supports at most {why.most} devices"
        case TooFewLayers():
            return f"the model has only {why.layers} layers"
        case NoShare():
            return f"it has no share in the {_source(by_user=why.by_user)}"


def change_in_words(change: Change) -> str:
    """Word an advice, with the options that follow it."""
    match change:
        case LetHeadCompute():
            return f"omit `--device none`, so that `{change.head}` also computes"
        case OneAtOnce():
            return f"one request at a time (`-- -np 1`): {_split_change(change.change)}"
        case HalfFloats():
            return "send activations as half floats (`--set serve.activations=f16`)"
        case _:
            return _split_change(change)


def basis_in_words(basis: AdviceBasis) -> str:
    """Word what an advice rests on."""
    comparison = _compared(basis.comparison) if basis.comparison is not None else "no split is faster"
    drafts = "without drafts " if basis.drafts else ""
    answer = f"a prompt of {basis.prompt} tokens and {basis.answer} generated ones, with the best layers"
    text = f"{comparison}; predicted {drafts}for {answer}"
    if basis.estimated:
        text += "; some devices were never measured (`meshd capacity` does that while nothing is served)"
    return text


def part_in_words(part: ChangedPart) -> str:
    """Word what a device or a path takes of a token now, and what it took before."""
    return f"`{part.name}` takes {part.seconds * 1000:.1f} ms of a token ({part.before * 1000:.1f} ms then)"


def faster_in_words(split: RatedSplit, times: float) -> str:
    """Word that measurements show a split to be so many times as fast as the one that runs."""
    return f"as measured, requests are {times:.1f} times as fast over {_nodes(split)}"


def _worded(reason: Reason) -> str:
    match reason:
        case SplitComparison():
            return _compared(reason)
        case ByMemory():
            return f"layers by memory, not by speed: {_uncompared(reason)}"
        case ComparisonFailed():
            return f"layers by memory, as splits could not be compared ({reason.what})"
        case Without():
            return f"without `{reason.node}`: {absent(reason.why)}"
        case AllOn():
            return f"all layers on `{reason.node}`"
        case InProportion():
            return "layers in proportion to usable memory"
        case AsGiven():
            return f"according to the {_source(by_user=reason.by_user)}"
        case HeadCpu():
            return _HEAD_CPU[reason]
        case OutputOn():
            return _output(reason)
        case LeftOut():
            return f"{reason.node} {reason.device} left out: {absent(reason.why)}"
        case UnknownArchitecture():
            return f"architecture `{reason.name}` is unknown: its cache size is an upper bound"
        case MicroBatch():
            return _micro_batch(reason)
        case FullWindows():
            return "windows keep the whole context, so no checkpoints"
        case Answers():
            return f"{reason.at_once.text}{', limited by memory' * reason.lacks_memory}"
        case Shortage():
            return _shortage(reason)
        case _:
            assert_never(reason)


def _compared(comparison: SplitComparison) -> str:
    """Word how many times as long an answer takes the other way."""
    chosen, other, faster = comparison.chosen, comparison.other, comparison.faster
    is_split, slower = len(chosen.nodes) > 1, []
    if other is not None and other != faster:
        gains = "" if other.seconds >= chosen.seconds else " (too little gain for one more)"
        slower.append(f"{_takes(comparison, other)}{gains}")
    if faster is not None:
        ruled_out = f"`--min-workers {comparison.least}` rules it out"
        slower.append(f"{_takes(comparison, faster)}, but {ruled_out}")
    text = f"{'split over' if is_split else 'not split: it runs on'} {_nodes(chosen)}"
    if slower:
        return f"{text}, while {', and '.join(slower)}"
    return f"{text}: it fits on no single machine" if is_split else text


def _takes(comparison: SplitComparison, split: RatedSplit) -> str:
    return f"{_nodes(split)} takes {comparison.times(split):.2f} times as long"


def _nodes(split: RatedSplit) -> str:
    return f"`{split.nodes[0]}` alone" if len(split.nodes) == 1 else _in_order(split.nodes)


def _in_order(nodes: Sequence[str]) -> str:
    return " → ".join(f"`{node}`" for node in nodes)


def _uncompared(reason: ByMemory) -> str:
    if not reason.unmeasured:
        return "layers of this kind cannot be measured"
    unmeasured = "; ".join(f"`{name}`: {absent(why)}" for name, why in reason.unmeasured)
    return f"{unmeasured}; and without that: {reason.refused}" if reason.refused else unmeasured


def _source(*, by_user: bool) -> str:
    return "tensor split" if by_user else "plan"


def _output(reason: OutputOn) -> str:
    text = f"output on {reason.device}"
    if reason.on_head is None or reason.on_worker is None:
        return text
    head, worker = f"{reason.on_head * 1000:.1f} ms", f"{reason.on_worker * 1000:.1f} ms"
    return f"{text} ({head} per token on the head, {worker} on the worker, estimated)"


def _micro_batch(reason: MicroBatch) -> str:
    text, stages = f"micro batches of {reason.tokens} tokens", reason.gpus + reason.cpus
    if reason.for_slots:
        return f"{text}: one for each slot"
    if stages < 2:
        return f"{text}: one device computes"
    kinds = "GPUs" if not reason.cpus else "CPUs" if not reason.gpus else "CPUs and GPUs"
    return f"{text}: fastest for {stages} {kinds} in turn, estimated"


def _shortage(reason: Shortage) -> str:
    """Word what is needed and what is there, in figures that add up."""
    needed = (
        f"`{reason.model}` does not fit: it needs {in_memory(reason.weights + reason.cache)} for its "
        f"{reason.layers} layers (weights {in_memory(reason.weights)}, "
        f"cache of {reason.shape.text} {in_memory(reason.cache)})"
    )
    return "; ".join([needed, *(text for memory in reason.memories if (text := _memory(memory)))])


def _memory(memory: MemoryUse) -> str:
    """Word what a memory has for layers; empty for one without layers that has enough for the rest."""
    left = memory.free - memory.fixed - memory.compute
    if left >= 0 and not memory.takes_layers:
        return ""
    names, shared = " and ".join(memory.devices), len(memory.devices) > 1
    has = f"{'have' if shared else 'has'} {in_memory(left)} for them"
    if left <= 0:
        has = f"{'have' if shared else 'has'} nothing for them"
    if not memory.takes_layers:
        has = f"lacks {in_memory(-left)} even without them"
    once = ", as one of them says, in the memory that they share" if shared else ""
    beside = f"{in_memory(memory.fixed)} for weights beside the layers, " if memory.fixed >= MIB else ""
    return (
        f"{names} {has} ({in_memory(memory.free)} free{once}, less {beside}"
        f"up to {in_memory(memory.compute)} for compute buffers)"
    )


def _split_change(change: SplitChange) -> str:
    match change:
        case RunOn():
            return f"do not split: run it on {'this node' if change.is_head else f'`{change.node}`'} alone"
        case Drop():
            return f"drop {_names(change.nodes)} (layers: {_layers(change.layers)})"
        case Use():
            instead = f" instead of {_names(change.instead_of)}" if change.instead_of else ""
            return f"use {_names(change.nodes)}{instead} (layers: {_layers(change.layers)})"
        case Reorder():
            return f"another order: {_in_order(change.nodes)} (layers: {_layers(change.layers)})"
        case Divide():
            return f"divide the layers differently: {_layers(change.layers)}"


def _names(nodes: Sequence[str]) -> str:
    return " and ".join(f"`{node}`" for node in nodes)


def _layers(held: LayerCounts) -> str:
    return ", ".join(f"`{node}` {layers}" for node, layers in held)
