"""Make of a plan by layers one by tensors: all workers compute each layer together (docs/decisions/0092).

llama.cpp gives each worker whole groups of heads that share a KV head and blocks of the feed-forward part,
and has the workers add up their results twice a layer. Beside its share of the weights and of the cache, each
worker holds what is not divided (norms, and the output of a tied model), and all of the memory for computing.
The head keeps the embeddings, and samples. What such a plan is predicted to do: tensor_prediction.py.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations

from meshd.base.units import in_number
from meshd.model.layers import ModelLayers, compute_bound
from meshd.plan.by_memory import share_out
from meshd.plan.over_offers import MOST
from meshd.plan.reasons import (
    Answers,
    ByTensors,
    FullWindows,
    LeftOut,
    MicroBatch,
    OutputOn,
    Reason,
    UnknownArchitecture,
    Without,
    names_of,
)
from meshd.plan.split import DeviceShare, NoSplit, Plan
from meshd.plan.wishes import HeadOptions, read_llama_args

# Architectures of llama.cpp of which a test has the same answers in one process and by tensors.
ARCHITECTURES = frozenset({"gemma3", "gpt-oss", "llama", "qwen2", "qwen3", "qwen3moe"})
# Of these, those with which llama-server ends when it is given an image.
_WITHOUT_IMAGES = frozenset({"gemma3"})
MOST_WORKERS = 4  # as the refusal below words it
# What is so of a plan by layers, and of one by tensors made of it.
_KEPT = LeftOut | Without | UnknownArchitecture | FullWindows | Answers


def for_layers(options: HeadOptions) -> HeadOptions:
    """Return the options for the plan by layers that `by_tensors` starts from: all of it on workers."""
    return replace(options, devices=("none",), output="worker", min_workers=options.min_workers or 2)


def by_tensors(
    layers: ModelLayers,
    plan: Plan,
    options: HeadOptions,
    by_speed: Sequence[float] = (),
    *,
    apart: Mapping[frozenset[str], str],
) -> Plan:
    """Return the plan with each layer on all of its workers. Raises NoSplit with the reason why not.

    Shares are those of `--tensor-split`, else `by_speed`, if these are given and fit, else equal. `apart`: as
    in Machines; sums of such a pair would cross the head, or both daemons.
    """
    # 1. What is needed of the plan, the model and the options.
    if why := _why_not(layers, plan, options) or _are_apart(plan, apart):
        raise NoTensorSplit(why)
    micro_batch = read_llama_args(options.llama_args).micro_batch
    shape = plan.shape if micro_batch else replace(plan.shape, micro_batch=max(MOST, plan.shape.parallel))
    plan = replace(plan, shape=shape)
    # 2. A share of each worker, in layers. It has to fit.
    equal = [1.0] * len(plan.taking)
    given = [share for share in options.tensor_split if share]
    if given and len(given) != len(plan.taking):
        there = in_number(len(plan.taking), "worker")
        raise NoTensorSplit(f"`--tensor-split` has {in_number(len(given), 'share')} above 0, for {there}")
    ways = [given] if given else [by_speed, equal] if by_speed else [equal]
    shares: list[DeviceShare] = []
    why_not = ""
    for weights in ways:
        counts = share_out(weights, layers.count)
        shares = [
            _share(layers, plan, share, count) for share, count in zip(plan.taking, counts, strict=True)
        ]
        why_not = _too_small(shares)
        if not why_not:
            break
    if why_not:
        raise NoTensorSplit(why_not)
    idle = [replace(share, layers=0) for share in plan.shares if not share.layers]
    reasons: list[Reason] = [ByTensors(plan.nodes), OutputOn("all workers")]
    reasons += [reason for reason in plan.reasons if isinstance(reason, _KEPT)]
    if not micro_batch:
        gpus = sum(share.device.is_gpu for share in shares)
        cpus = len(shares) - gpus
        reasons.append(
            MicroBatch(shape.step_tokens, gpus, cpus, for_slots=shape.parallel > MOST, at_once=True)
        )
    return replace(
        plan,
        shares=(*idle, *shares),
        gpu_layers=layers.count + 1,
        tensor_split=tuple(share.layers for share in shares),
        override_tensor="",
        input_on_worker=False,
        by_tensors=True,
        reasons=tuple(reasons),
    )


class NoTensorSplit(NoSplit):
    """Refuse a split by tensors, and say `why`."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the model cannot be split by tensors: {why}")
        self.why = why


def _too_small(shares: Sequence[DeviceShare]) -> str:
    """Name a worker that has no room for its share; empty: all have it."""
    for share in shares:
        if share.total > share.device.free:
            need, have = share.total >> 20, share.device.free >> 20
            return (
                f"{share.device.label} has {have} MiB free, and would need {need} MiB (less with a smaller "
                "`--ctx-size` or fewer `--slots`)"
            )
    return ""


def _why_not(layers: ModelLayers, plan: Plan, options: HeadOptions) -> str:
    """Return why this cannot be split by tensors; empty if it can."""
    devices = [share.device for share in plan.taking]
    others = [share for share in plan.shares if not share.layers and not share.device.is_head]
    args = read_llama_args(options.llama_args)
    if layers.architecture not in ARCHITECTURES:
        return f"models of the architecture `{layers.architecture}` have not been tried"
    if layers.indivisible:
        return f"llama.cpp cannot divide it: {layers.indivisible}"
    if options.mmproj is not None and layers.architecture in _WITHOUT_IMAGES:
        return f"llama-server crashes when a model of the architecture `{layers.architecture}` gets an image"
    if any(device.is_head or device.is_plain for device in devices) or others:
        return "all devices of the plan must be those of workers that compute"
    if not 2 <= len(devices) <= MOST_WORKERS or len({device.node for device in devices}) < len(devices):
        there = f"{'is' if len(devices) == 1 else 'are'} {in_number(len(devices), 'device')}"
        return f"it takes two to four workers, each with one device; there {there}"
    if plan.override_tensor:
        return "the matrix that makes logits must be on the workers"
    if not args.flash_attention:
        return "it needs flash attention, and `-fa off` is given"
    if args.draft_model:
        return f"llama.cpp loads no draft model beside it, and `{args.draft_model}` names one"
    if args.undivided:
        return f"llama.cpp cannot divide it with `{args.undivided}`"
    if args.ranking:
        return f"`{args.ranking}` has not been tried with it"
    if not options.push:
        return "the workers have to reach each other, and `no_push` is set"
    return ""


def _are_apart(plan: Plan, apart: Mapping[frozenset[str], str]) -> str:
    """Name two of its workers that may not compute together now, and why; empty: all may."""
    for pair in combinations([share.device.node for share in plan.taking], 2):
        if why := apart.get(frozenset(pair)):
            return f"{names_of(pair)} {why}"
    return ""


def _share(layers: ModelLayers, plan: Plan, share: DeviceShare, count: int) -> DeviceShare:
    """Return the worker's share if it has `count` layers' worth of each layer.

    Heads and blocks are whole, so it may have more than its share of one layer, and less of another: by no
    more than a layer in all.
    """
    part = count / layers.count
    weights = layers.padded_layers if share.device.is_gpu else layers.layers
    cache = layers.cache.layer_bytes(plan.shape)
    undivided = layers.shared + layers.output + layers.output_rest
    return replace(
        share,
        layers=count,
        weights=int(part * sum(weights)) + max(weights) + undivided,
        copies=0,
        cache=int(part * sum(cache)) + max(cache),
        compute=compute_bound(
            layers,
            plan.shape,
            on_gpu=share.device.is_gpu,
            with_layers=True,
            with_output=True,
            pipelined=False,
        ),
    )
