"""From the workers' offers and this machine's devices to a plan, and from the plan to reservations. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from meshd.base.errors import Refused
from meshd.model.cache import ContextShape
from meshd.model.drafts import MOST_FREE
from meshd.model.layer_range import LayerRange
from meshd.model.layers import ModelLayers
from meshd.model.output import DevicePath
from meshd.model.split_values import Device as PlanDevice
from meshd.model.split_values import DeviceShare, LeftOut, NotEnoughMemory, Plan, SplitOptions
from meshd.model.status import SplitPart
from meshd.peer.interface import PathStatus
from meshd.role.head.answer_slots import answers_at_once, as_many_as_fit
from meshd.role.head.draft_model import DraftModel, beside_draft
from meshd.role.head.llama_args import read_llama_args
from meshd.role.head.pipelined_plan import plan_pipelined
from meshd.role.head.speculation import MayDraft
from meshd.role.native.devices import SHARED_MEMORY, card_in
from meshd.wire.lease import OfferedDevice, WorkerOffer

# A reservation is a limit, and what lies under it an estimate: a little more, so that an estimate that is
# short by a few MiB does not fail a load that the machine could carry.
SLACK_SHARE = 1.1
SLACK_BYTES = 128 << 20
UNUSED_BYTES = 1 << 20  # keeps a device without layers in the list, so that RPC<i> stays what the plan says


@dataclass(frozen=True, slots=True)
class PlainRpc:
    """An rpc-server of the LAN without meshd (`--rpc HOST:PORT`), with its devices' memory."""

    endpoint: str
    devices: tuple[OfferedDevice, ...]


@dataclass(frozen=True, slots=True)
class HeadOptions:
    """What the user decided for a serving node."""

    min_workers: int = 1
    workers: tuple[str, ...] = ()  # names or beginnings of ids; empty: whoever is there
    standby: tuple[str, ...] = ()  # the same, of those that only take the place of lost ones
    tensor_split: tuple[float, ...] = ()
    counts_chosen: bool = False  # `tensor_split` is meshd's own choice, not the user's
    layers: tuple[LayerRange, ...] = ()  # which node holds which: all of them, or none is said
    ctx_size: int | None = None
    largest_context: bool = False  # the longest that fits, up to the trained one
    devices: tuple[str, ...] = ()
    rpc: tuple[str, ...] = ()
    load_mode: str = "mmap"
    split: str = "always"  # "auto": the fastest workers, as predicted
    push: bool = True
    activations: str = "f32"
    output: str = "auto"
    sample_on_worker: bool = False  # as far as texts stay the same, where the output is on a worker
    slots: int = 1  # answers at once, each with its context, unless `llama_args` say it; fewer to fit
    llama_args: tuple[str, ...] = ()
    mmproj: str = ""  # path of the part of a multimodal model that this node computes
    machine: str = ""
    node_name: str = "head"
    node_id: str = ""
    incarnation: bytes = b""
    grace: float = 120.0  # how long answers wait for a worker out of reach
    name: str = ""  # of the model, in requests; empty: its file's
    child: str = "llama-server"  # what its llama-server is called in status and logs
    socket: str = "llama.sock"
    speculate: bool = False  # drafts by what they gain, unless `llama_args` decide on them
    draft_model: DraftModel | None = None

    @property
    def picks_by_speed(self) -> bool:
        """Which workers take part, and with how many layers, is not decided by the user."""
        return self.split == "auto" and not (self.tensor_split or self.layers or self.rpc)


@dataclass(frozen=True, slots=True)
class NodeOffer:
    """A worker's offer, under the name of its node, and what lies between.

    `excluded`: devices that cannot run the model, and why. They are not started, nor are those without
    memory.
    """

    node: str
    offer: WorkerOffer
    path: DevicePath | None = None
    excluded: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> tuple[OfferedDevice, ...]:
        """Those that may take part, in their order."""
        return tuple(device for device in self.offer.devices if not self.exclusion_reason(device))

    def exclusion_reason(self, device: OfferedDevice) -> str:
        """Why a device of the offer takes no part; empty when it may."""
        return self.excluded.get(device.name, "") or ("" if device.free_bytes else "it has no free memory")


def make_plan(
    layers: ModelLayers,
    *,
    offers: Sequence[NodeOffer],
    plain_rpc: Sequence[PlainRpc],
    own: Sequence[OfferedDevice],
    options: HeadOptions,
    own_excluded: Mapping[str, str] | None = None,
) -> Plan:
    """The split over workers, plain rpc-servers and this machine's devices, in this order.

    `own` has the head's CPU and, unless `--device none`, the GPUs it may use; `own_excluded` those of them
    that cannot run the model, and why. Raises NotEnoughMemory, UserError; Refused when devices that cannot
    run the model leave too few workers.
    """
    _check_able(offers, options.min_workers)
    devices: list[PlanDevice] = []
    for item in offers:
        devices += [
            remote_device(item.node, device, item.offer.machine, item.path) for device in item.devices
        ]
    for server in plain_rpc:
        plain = [remote_device(server.endpoint, device, "", None) for device in server.devices]
        devices += [replace(device, is_plain=True) for device in plain]
    own = beside_draft(own, options.draft_model, shape_of(layers, options))
    able, excluded = _own(own, own_excluded or {}, options)
    devices += able
    excluded += [
        LeftOut(remote_device(item.node, device, "", None), why)
        for item in offers
        for device in item.offer.devices
        if (why := item.exclusion_reason(device))
    ]
    left_out = "".join(f"; {item.device.label} left out: {item.why}" for item in excluded)
    try:
        plan = _plan(layers, devices, options)
    except NotEnoughMemory as error:
        raise NotEnoughMemory(
            f"{error.what}{left_out}", hint=error.hint, largest_context=error.largest_context
        ) from None
    plan = replace(plan, why=f"{plan.why}{left_out}", short=f"{plan.short}{left_out}")
    return replace(plan, left_out=(*plan.left_out, *excluded))


def shape_of(layers: ModelLayers, options: HeadOptions) -> ContextShape:
    """The context that is asked for."""
    llama_args = read_llama_args(options.llama_args)
    shape = llama_args.shape(layers, tokens=options.ctx_size, slots=options.slots)
    may = may_draft(layers, options)
    return replace(shape, drafted=MOST_FREE if may.free or may.model else 0)


def may_draft(layers: ModelLayers, options: HeadOptions) -> MayDraft:
    """What the model and its user allow."""
    if not options.speculate:
        return MayDraft(why="off: `--speculate off`, or a llama.cpp of the user's own")
    if decides := read_llama_args(options.llama_args).speculation:
        return MayDraft(why=f"left to llama-server's own options: `{decides}`")
    if any(layer.state for layer in layers.cache.layers):
        return MayDraft(why="off: a recurrent model would be read back from the workers with each draft")
    if options.mmproj:
        return MayDraft(why="off: llama-server drafts nothing for a model with images")
    return MayDraft(free=True, model=options.draft_model is not None)


def _plan(layers: ModelLayers, devices: Sequence[PlanDevice], options: HeadOptions) -> Plan:
    """Raises NotEnoughMemory where not even one answer has room, or the user wants more of them."""
    llama_args = read_llama_args(options.llama_args)

    def plan(given: SplitOptions) -> Plan:
        return plan_pipelined(layers, devices, given, llama_args, pushed=options.push)

    given = _split_options(layers, options)
    made = plan(given) if llama_args.parallel is not None else as_many_as_fit(plan, given)
    lacking = ", for more of them memory is short" if made.shape.parallel < given.shape.parallel else ""
    note = llama_args.shortened(layers, tokens=options.ctx_size, slots=options.slots)
    answers = answers_at_once(made.shape, llama_args.longest_answer(layers), note)
    return replace(made, why=f"{made.why}; {answers.text}{lacking}", answers=answers)


def _split_options(layers: ModelLayers, options: HeadOptions) -> SplitOptions:
    llama_args = read_llama_args(options.llama_args)
    return SplitOptions(
        shape=shape_of(layers, options),
        tensor_split=options.tensor_split,
        counts_chosen=options.counts_chosen,
        head_layers=options.devices != ("none",),
        local_output={"head": True, "worker": False}.get(options.output),
        sampled_with_output=options.sample_on_worker or llama_args.backend_sampling,
        input_on_worker=True,
    )


def _own(
    own: Sequence[OfferedDevice], reasons: Mapping[str, str], options: HeadOptions
) -> tuple[list[PlanDevice], list[LeftOut]]:
    """The head's own devices: those that may compute, and those that are excluded, by the reasons given."""
    able: list[PlanDevice] = []
    excluded: list[LeftOut] = []
    for device in own:
        mine = PlanDevice(
            node=options.node_name,
            name=device.name,
            free=device.free_bytes,
            is_gpu=device.kind == "gpu",
            is_head=True,
            pool=pool_of(device, options.machine),
        )
        if why := reasons.get(device.name):
            excluded.append(LeftOut(mine, why))
        else:
            able.append(mine)
    return able, excluded


def _check_able(offers: Sequence[NodeOffer], least: int) -> None:
    able = sum(1 for item in offers if item.devices)
    reasons = [
        f"{item.node} {device.name}: {why}"
        for item in offers
        for device in item.offer.devices
        if (why := item.exclusion_reason(device))
    ]
    if able < least and reasons:
        raise Refused(f"{able} of {least} workers can take part", code="workers", hint="; ".join(reasons))


def remote_device(node: str, device: OfferedDevice, machine: str, path: DevicePath | None) -> PlanDevice:
    """A device of another node, as plans have it."""
    return PlanDevice(
        node=node,
        name=device.name,
        free=device.free_bytes,
        is_gpu=device.kind == "gpu",
        pool=pool_of(device, machine),
        path=path,
    )


def path_to(paths: Sequence[PathStatus]) -> DevicePath | None:
    """By the path that carries data; None where it was never measured."""
    path = next((path for path in paths if path.selected), None)
    rtt = None if path is None else path.idle_rtt
    return None if path is None or rtt is None else DevicePath(rtt, path.rate)


def pool_of(device: OfferedDevice, machine: str) -> str:
    """Nodes on one machine share its main memory, and a card that several lend has its memory once."""
    if device.kind == "cpu" or device.card == SHARED_MEMORY:
        return f"{machine} memory" if machine else ""
    return card_in(device, machine)


def without_idle(plan: Plan, offers: Sequence[NodeOffer]) -> tuple[Plan, list[NodeOffer]]:
    """The plan without workers that hold no layer, and those that stay.

    `RPC<i>` counts the devices behind `--rpc`, so those that come after one that is left out move up.
    """
    busy = {share.device.node for share in plan.shares if share.layers and not share.device.is_head}
    renamed: dict[str, str] = {}
    before = 0
    for item in offers:
        for _ in item.devices:
            if item.node in busy:
                renamed[f"RPC{before}"] = f"RPC{len(renamed)}"
            before += 1
    gone = before - len(renamed)
    return (
        replace(
            plan,
            shares=tuple(
                replace(share, llama_name=_moved(share.llama_name, renamed, before, gone))
                for share in plan.shares
            ),
            devices=tuple(_moved(name, renamed, before, gone) for name in plan.devices),
            input_device=_moved(plan.input_device, renamed, before, gone),
        ),
        [item for item in offers if item.node in busy],
    )


def renamed(plan: Plan, prefix: str, count: int) -> Plan:
    """The plan where the first `count` of `RPC<i>` are called otherwise; those behind them count from 0."""

    def name_of(name: str) -> str:
        number = name.removeprefix("RPC")
        if name == number or not number.isdigit():
            return name
        return f"{prefix}{number}" if int(number) < count else f"RPC{int(number) - count}"

    return replace(
        plan,
        shares=tuple(replace(share, llama_name=name_of(share.llama_name)) for share in plan.shares),
        devices=tuple(name_of(name) for name in plan.devices),
        input_device=name_of(plan.input_device),
    )


def _moved(name: str, renamed: dict[str, str], offers: int, gone: int) -> str:
    number = name.removeprefix("RPC")
    if name in renamed or not name.startswith("RPC") or not number.isdigit():
        return renamed.get(name, name)
    return f"RPC{int(number) - gone}" if int(number) >= offers else name  # a plain rpc-server of the LAN


def why_idle(plan: Plan, node: str) -> str:
    """Why a worker got no layer."""
    reasons = [f"{item.device.label}: {item.why}" for item in plan.left_out if item.device.node == node]
    return "; ".join(reasons) or f"{node}: no layer was left for it"


def reservations(plan: Plan, offers: Sequence[NodeOffer]) -> list[tuple[int, ...]]:
    """Bytes to reserve of each device of each offer."""
    wanted: list[tuple[int, ...]] = []
    for item in offers:
        counts = []
        for device in item.offer.devices:
            if item.exclusion_reason(device):
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


def followers(plan: Plan) -> list[tuple[DeviceShare, DeviceShare]]:
    """Where activations pass from another machine to another: who has the layers before, who those behind."""
    shares = [share for share in plan.shares if share.layers]
    return [
        (before, behind)
        for before, behind in pairwise(shares)
        if not (before.device.is_head or behind.device.is_head) and before.device.node != behind.device.node
    ]


def split_of(plan: Plan) -> tuple[SplitPart, ...]:
    """The plan as status shows it: in the order of the layers, then devices that hold none."""
    shares = sorted(plan.shares, key=lambda share: not share.layers)
    return tuple(
        SplitPart(share.device.node, share.device.name, share.layers, share.weights) for share in shares
    )
