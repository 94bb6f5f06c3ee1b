"""Make one plan over given offers: how many answers at once, how long a context, how large micro batches.

Each answer has its own context, and the plan counts its cache and states. A further answer must not slow a
single one down: the plan with it uses the same devices, and leaves the output layer where it was.

llama-server keeps checkpoints of windowed and recurrent models: twice before the end of a prompt it waits
until all before is computed, and reads the windows and states from the workers. A windowed model whose layers
all keep the whole context (`--swa-full`) needs none, and the next prompt can go on anywhere in this one. So
it gets that where the memory lets it, on the same devices. For recurrent models there is no such option.

Micro batches (`-ub`) are tokens of a prompt that are computed at once. Less of them fill a pipeline of
devices better, more of them a GPU. The stages of the pipeline are the devices that have layers, one behind
the other, and the paths. A micro batch of u tokens takes

    a device:  bytes of its weights x (u + h) / rate       h: what a micro batch costs beside its tokens
    a path:    u hidden states / rate of the path

and a prompt of k micro batches the sum over the stages, and k - 1 times the slowest stage: for N devices that
are alike the law T = (k + N - 1) C / kN. Delays of paths add up once, so they decide nothing. Without pushes
nothing overlaps, and the head waits for each border k times.

llama.cpp copies activations to a GPU of the head, and to a plain rpc-server, itself: it waits until all
stages before have computed the micro batch, and only then gives out the next one. So they are one stage, with
a round trip in it, and overlap only with those behind. llama-server ends the prompts of windowed and
recurrent models early, to keep a checkpoint: their last micro batch goes through all stages alone.

Measured for a prompt of 2048: two CPU workers take 6.6, 7.7 and 8.9 s in micro batches of 128, 512 and 1024
tokens; two GPUs are fastest with 512, for one of them needs as long for 128 tokens as for 208 among many
(7500 tokens a second; 10,600 with 512).
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum, auto
from itertools import pairwise

from meshd.base.errors import Refused
from meshd.model.cache import ContextShape
from meshd.model.layers import ModelLayers
from meshd.model.output import FAR_RATE, NEAR_SECONDS, DevicePath
from meshd.model.status import AnswersAtOnce
from meshd.plan.by_memory import plan_split
from meshd.plan.machines import Machines, NodeOffer, one_for_each_pool, pool_of
from meshd.plan.reasons import Absence, Answers, FullWindows, LeftOut, MicroBatch, each_left_out
from meshd.plan.split import Device, DeviceShare, NoSplit, NotEnoughMemory, Plan, SplitOptions
from meshd.plan.wishes import HeadOptions, LlamaArgs, beside_draft, read_llama_args, shape_of
from meshd.wire.lease import OfferedDevice

# A reservation is a limit, and what lies under it an estimate: a little more, so that an estimate that is
# short by a few MiB does not fail a load that the machine could carry.
SLACK_SHARE = 1.1
SLACK_BYTES = 128 << 20
UNUSED_BYTES = 1 << 20  # keeps a device without layers in the list, so that RPC<i> stays what the plan says
LEAST, MOST = 128, 512  # MOST is llama.cpp's own, and what a single stage gets
_CHOICES = (512, 256, 128)
_PROMPT = 2048  # tokens of the prompt that it is made for
# bytes of weights times tokens a second: four threads of a Xeon, a third of an H200
_CPU_RATE, _GPU_RATE = 4e10, 1.5e13
_CPU_EXTRA, _GPU_EXTRA = 4, 80  # tokens that would take as long as a micro batch does beside its own
_GAIN = 0.97  # of the time of a larger one: less than that is not worth it, as these are estimates


@dataclass(frozen=True, slots=True)
class PromptStage:
    """Describe a device with layers: bytes of these, and what lies between the head and it (None: nothing).

    `waits`: the head waits for the stages before it, to copy what this one computes with.
    """

    weights: int
    is_gpu: bool = False
    path: DevicePath | None = None
    waits: bool = False


def plan_over(layers: ModelLayers, machines: Machines, options: HeadOptions) -> tuple[Plan, list[NodeOffer]]:
    """Plan over all offers; return the plan without idle workers, and the offers that it uses.

    Where memory is short, memory that several nodes report is taken for that of one alone. Raises as
    make_plan.
    """

    def plan(offers: Sequence[NodeOffer]) -> tuple[Plan, list[NodeOffer]]:
        return without_idle(make_plan(layers, replace(machines, offers=tuple(offers)), options), offers)

    try:
        return plan(machines.offers)
    except NotEnoughMemory:
        single = () if options.tensor_split else one_for_each_pool(machines.offers, machines.own, options)
        with suppress(NotEnoughMemory, Refused):  # then the first reason is the better one
            if single:
                again, used = plan(single)
                if len(used) >= options.least_workers:
                    return again, used
        raise


def make_plan(layers: ModelLayers, machines: Machines, options: HeadOptions) -> Plan:
    """Plan the split over workers, plain rpc-servers and this machine's devices, in this order.

    `machines.own` has the head's CPU and, unless `--device none`, the GPUs it may use. Raises
    NotEnoughMemory, UserError; Refused when devices that cannot run the model leave too few workers.
    """
    offers = machines.offers
    # Devices that cannot be used may leave too few workers.
    able_workers = sum(1 for item in offers if item.devices)
    unable = [left for item in offers for left in item.left_out]
    if able_workers < options.least_workers and unable:
        what = f"{able_workers} of {options.least_workers} workers can take part"
        raise Refused(what, code="workers", hint=each_left_out(unable))
    # All devices that can compute, in the order of the layers; the others with the reason.
    devices: list[Device] = []
    for item in offers:
        devices += [
            remote_device(item.node, device, item.offer.machine, item.path) for device in item.devices
        ]
    for server in machines.plain_rpc:
        plain = [remote_device(server.endpoint, device, "", None) for device in server.devices]
        devices += [replace(device, is_plain=True) for device in plain]
    own = beside_draft(machines.own, options.draft, shape_of(layers, options))
    able, excluded = _own(own, machines.own_excluded, options)
    devices += able
    excluded += unable
    try:
        plan = _plan(layers, devices, options)
    except NotEnoughMemory as error:
        raise NotEnoughMemory(
            (*error.reasons, *excluded), hint=error.hint, largest_context=error.largest_context
        ) from None
    return replace(plan, reasons=(*plan.reasons, *excluded), left_out=(*plan.left_out, *excluded))


def _plan(layers: ModelLayers, devices: Sequence[Device], options: HeadOptions) -> Plan:
    """Plan for as many answers as fit. Raises NotEnoughMemory: no room for one, or for what users want."""
    llama_args = read_llama_args(options.llama_args)

    def plan(given: SplitOptions) -> Plan:
        return plan_pipelined(layers, devices, given, llama_args, pushed=options.push)

    given = _split_options(layers, options)
    made = plan(given) if llama_args.parallel is not None else as_many_as_fit(plan, given)
    note = llama_args.shortened(layers, tokens=options.ctx_size or None, slots=options.slots)
    answers = answers_at_once(made.shape, llama_args.longest_answer(layers), note)
    lacks_memory = made.shape.parallel < given.shape.parallel
    return replace(made, reasons=(*made.reasons, Answers(answers, lacks_memory)), answers=answers)


def _split_options(layers: ModelLayers, options: HeadOptions) -> SplitOptions:
    return SplitOptions(
        shape=shape_of(layers, options),
        tensor_split=options.tensor_split,
        counts_chosen=options.counts_chosen,
        head_layers=options.devices != ("none",),
        local_output={"head": True, "worker": False}.get(options.output),
        input_on_worker=True,
    )


def _own(
    own: Sequence[OfferedDevice], reasons: Mapping[str, Absence], options: HeadOptions
) -> tuple[list[Device], list[LeftOut]]:
    """Part the head's own devices: those that may compute, and those that are excluded for a reason."""
    able: list[Device] = []
    excluded: list[LeftOut] = []
    for device in own:
        mine = Device(
            node=options.node_name,
            name=device.name,
            free=device.free_bytes,
            is_gpu=device.kind == "gpu",
            is_head=True,
            pool=pool_of(device, options.machine),
        )
        if (why := reasons.get(device.name)) is not None:
            excluded.append(LeftOut(mine.node, mine.name, why))
        else:
            able.append(mine)
    return able, excluded


def remote_device(node: str, device: OfferedDevice, machine: str, path: DevicePath | None) -> Device:
    """Describe a device of another node."""
    return Device(
        node=node,
        name=device.name,
        free=device.free_bytes,
        is_gpu=device.kind == "gpu",
        pool=pool_of(device, machine),
        path=path,
    )


def without_idle(plan: Plan, offers: Sequence[NodeOffer]) -> tuple[Plan, list[NodeOffer]]:
    """Return the plan without workers that hold no layer, and the offers of those that stay.

    Places count the devices of all offers, then those of plain rpc-servers, so those behind one that is left
    out move up.
    """
    busy = set(plan.workers)
    nodes = [item.node for item in offers for _ in item.devices]
    places = [place for place, node in enumerate(nodes) if node in busy]
    moved = {place: number for number, place in enumerate(places)}
    gone = len(nodes) - len(moved)
    shares = tuple(
        share if share.place is None else replace(share, place=moved.get(share.place, share.place - gone))
        for share in plan.shares
    )
    return replace(plan, shares=shares), [item for item in offers if item.node in busy]


def with_module(plan: Plan, kind: str, count: int) -> Plan:
    """Leave the first `count` of the workers' devices to a module, which calls them `kind`.

    Those behind them count from 0 then.
    """

    def moved(share: DeviceShare) -> DeviceShare:
        if share.place is None:
            return share
        return replace(share, kind=kind) if share.place < count else replace(share, place=share.place - count)

    return replace(plan, shares=tuple(map(moved, plan.shares)))


def reservations(plan: Plan, offers: Sequence[NodeOffer]) -> list[tuple[int, ...]]:
    """Count the bytes to reserve of each device of each offer."""
    wanted: list[tuple[int, ...]] = []
    for item in offers:
        counts = []
        for device in item.offer.devices:
            if item.exclusion_reason(device) is not None:
                counts.append(0)  # not even started
                continue
            total = sum(
                share.total
                for share in plan.shares
                if share.device.node == item.node and share.device.name == device.name
            )
            ask = int(total * SLACK_SHARE) + SLACK_BYTES if total else UNUSED_BYTES
            counts.append(min(ask, device.free_bytes))
        wanted.append(tuple(counts))
    return wanted


def as_many_as_fit(plan: Callable[[SplitOptions], Plan], options: SplitOptions) -> Plan:
    """Plan with as many slots as the options say, or fewer. Raises NotEnoughMemory if none fits."""
    most = options.shape.parallel
    if most == 1:
        return plan(options)
    single = plan(_with_slots(options, 1))
    for slots in range(most, 1, -1):
        with suppress(NotEnoughMemory):
            more = plan(_with_slots(options, slots))
            if _is_as_fast(more, single, options):
                return more
    return single


def _with_slots(options: SplitOptions, slots: int) -> SplitOptions:
    shape = options.shape
    tokens = shape.tokens if shape.is_shared else shape.cells
    return replace(options, shape=shape.of(slots, tokens))


def _is_as_fast(more: Plan, fewer: Plan, options: SplitOptions) -> bool:
    """Check that the devices are those of `one`, and that the output has not moved for lack of memory."""
    moved = fewer.output_worker is not None and more.output_worker is None
    return not moved and _computing(more) == _computing(fewer)


def answers_at_once(shape: ContextShape, longest: int, note: str = "") -> AnswersAtOnce:
    """Describe the answers; `longest`: tokens to which llama-server limits each, 0: none."""
    tokens = shape.cells
    if longest and not shape.is_shared:
        tokens = min(tokens, longest)
    return AnswersAtOnce(shape.parallel, tokens, shape.is_shared, note)


def plan_pipelined(
    layers: ModelLayers,
    devices: Sequence[Device],
    options: SplitOptions,
    llama_args: LlamaArgs,
    *,
    pushed: bool,
) -> Plan:
    """Plan as plan_split does, with the best micro batch; `pushed`: workers send to workers.

    What the user gave llama-server stays.
    """
    plan, options = _with_micro_batch(layers, devices, options, llama_args, pushed=pushed)
    if not _is_windowed(layers) or _is_recurrent(layers) or llama_args.checkpoints:
        return plan
    if options.shape.full_windows:  # as the user has it
        return plan
    full = replace(options, shape=replace(options.shape, full_windows=True))
    with suppress(NotEnoughMemory):
        whole, _ = _with_micro_batch(layers, devices, full, llama_args, pushed=pushed)
        if _computing(whole) == _computing(plan):
            return replace(whole, reasons=(*whole.reasons, FullWindows()))
    return plan


def _with_micro_batch(
    layers: ModelLayers,
    devices: Sequence[Device],
    options: SplitOptions,
    llama_args: LlamaArgs,
    *,
    pushed: bool,
) -> tuple[Plan, SplitOptions]:
    """Return the plan, and the options that led to it."""
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
    return replace(plan, reasons=(*plan.reasons, chosen)), options


def _of(options: SplitOptions, micro_batch: int) -> SplitOptions:
    return replace(options, shape=replace(options.shape, micro_batch=micro_batch))


def _is_windowed(layers: ModelLayers) -> bool:
    return any(layer.window for layer in layers.cache.layers)


def _is_recurrent(layers: ModelLayers) -> bool:
    return any(layer.state for layer in layers.cache.layers)


def _computing(plan: Plan) -> list[str]:
    """Name the devices that compute."""
    return [share.device.label for share in plan.taking]


def _stages(layers: ModelLayers, plan: Plan) -> list[PromptStage]:
    """List the stages of a prompt, without the output: only one token of a prompt has logits."""
    stages: list[PromptStage] = []
    begin = 0
    before: Device | None = None
    for share in plan.taking:
        device = share.device
        weights = sum(layers.layers[begin : begin + share.layers])
        waits = before is not None and _is_copied_by_head(before, device)
        stages.append(PromptStage(weights, device.is_gpu, device.path, waits=waits))
        before = device
        begin += share.layers
    return stages


def _is_copied_by_head(before: Device, behind: Device) -> bool:
    """Tell who copies: GPUs of the head do among each other; workers take from workers and the head."""
    if behind.is_head:
        return not (before.is_head and before.is_gpu)
    return behind.is_plain


def choose_micro_batch(
    stages: Sequence[PromptStage], *, embedding: int, slots: int, pushed: bool, rewound: bool
) -> MicroBatch:
    """Choose for devices in the order of their layers, and hidden states of `embedding` elements.

    From LEAST to MOST, and never below `slots`: a round of all of them is one micro batch, or it takes twice
    as long. `pushed`: hidden states go from worker to worker. `rewound`: llama-server keeps checkpoints.
    """
    tokens = _CHOICES[0]
    if len(stages) > 1:
        for fewer in _CHOICES[1:]:
            usual, faster = (
                _seconds(stages, count, embedding, pushed=pushed, rewound=rewound)
                for count in (tokens, fewer)
            )
            tokens = fewer if faster < _GAIN * usual else tokens
    gpus = sum(stage.is_gpu for stage in stages)
    return MicroBatch(max(tokens, slots), gpus, len(stages) - gpus, for_slots=slots > tokens)


def _seconds(
    stages: Sequence[PromptStage], tokens: int, embedding: int, *, pushed: bool, rewound: bool
) -> float:
    """Estimate a prompt, without delays that are the same for any number of tokens."""
    micro_batches = _PROMPT // tokens
    bytes_at_once = 4 * tokens * embedding
    times: list[float] = []  # of what overlaps
    for before, stage in pairwise([stages[0], *stages]):
        slower = max(_seconds_per_byte(before.path), _seconds_per_byte(stage.path))
        times.append(bytes_at_once * slower)
        if stage.waits:
            times = [sum(times) + (before.path.rtt if before.path is not None else 0.0)]
        times.append(_compute_seconds(stage, tokens))
    if not pushed:
        round_trips = sum(stage.path.rtt for stage in stages[1:] if stage.path is not None)
        return micro_batches * (sum(times) + round_trips)
    alone = 2 if rewound else 1
    return alone * sum(times) + (micro_batches - alone) * max(times)


def _compute_seconds(stage: PromptStage, tokens: int) -> float:
    extra, rate = (_GPU_EXTRA, _GPU_RATE) if stage.is_gpu else (_CPU_EXTRA, _CPU_RATE)
    return stage.weights * (tokens + extra) / rate


def _seconds_per_byte(path: DevicePath | None) -> float:
    """Estimate a path; a short one that was never seen full is taken for faster than what computes."""
    if path is None or (not path.rate and path.rtt < NEAR_SECONDS):
        return 0.0
    return 1 / (path.rate or FAR_RATE)


# Whether models fit.


class Fit(StrEnum):
    """Say where a model's layers would be, the fastest first."""

    GPU = auto()
    PARTLY_CPU = auto()
    CPU = auto()
    NO = auto()


@dataclass(frozen=True, slots=True)
class ModelFit:
    """Hold whether a model fits on this machine alone, and on all machines together."""

    name: str
    here: Fit
    mesh: Fit


def fits(models: Sequence[ModelLayers], machines: Machines, options: HeadOptions) -> list[ModelFit]:
    """Plan each model for one request at a time, with the head's options but without wishes for a split."""
    options = replace(options, slots=1, min_workers=0, layers=(), tensor_split=(), workers=(), draft=None)
    alone = replace(machines, offers=())
    found = []
    for model in models:
        here = _fit(model, alone, options)
        mesh = here if here is Fit.GPU or not machines.offers else _fit(model, machines, options)
        found.append(ModelFit(model.name, here, min(here, mesh, key=list(Fit).index)))
    return found


def _fit(model: ModelLayers, machines: Machines, options: HeadOptions) -> Fit:
    """Try the GPUs first, then CPUs beside them."""
    found = Fit.NO
    for some in (_gpus_of(machines), machines):
        try:
            plan, _ = plan_over(model, some, options)
        except (NoSplit, Refused):
            continue
        found = _where(plan)
        if found is Fit.GPU:
            break
    return found


def _gpus_of(machines: Machines) -> Machines:
    """Return the machines without other machines' CPUs; the head's own always takes part."""
    offers = (
        replace(
            offer,
            offer=replace(offer.offer, devices=tuple(d for d in offer.offer.devices if d.kind == "gpu")),
        )
        for offer in machines.offers
    )
    return replace(machines, offers=tuple(offers))


def _where(plan: Plan) -> Fit:
    on_gpu = [share.device.is_gpu for share in plan.taking]
    return Fit.GPU if all(on_gpu) else Fit.PARTLY_CPU if any(on_gpu) else Fit.CPU
