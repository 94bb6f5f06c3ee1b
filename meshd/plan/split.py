"""Hold a split of a model over devices: its options, the plan, what follows from it, and the refusal."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, combinations, pairwise

from meshd.base.errors import UserError
from meshd.model.cache import ContextShape
from meshd.model.device_sampling import has_top_k
from meshd.model.layers import ModelLayers, TensorPlace, place_of
from meshd.model.output import EMBEDDING, DevicePath
from meshd.model.status import AnswersAtOnce, SplitPart
from meshd.plan.reasons import LeftOut, Reasons, in_words


@dataclass(frozen=True, slots=True)
class Device:
    """Describe a device that may take layers. `free` in bytes: what may be used of it.

    `pool` names the memory when several devices draw on the same (two nodes on one machine, two processes on
    one GPU): its `free` is counted once, the smallest that a member gives. Empty: memory of its own.
    `path`: to the head, None where nothing is known of it. `is_plain`: of an rpc-server without meshd, which
    claims to have every operation; not each device has rows of each quantized type, though.
    """

    node: str
    name: str
    free: int
    is_gpu: bool = False
    is_head: bool = False
    pool: str = ""
    path: DevicePath | None = None
    is_plain: bool = False

    @property
    def label(self) -> str:
        return f"{self.node} {self.name}"

    @property
    def memory(self) -> str:
        """Name the memory that it uses, alone or with others."""
        return self.pool or self.label

    @property
    def has_top_k(self) -> bool:
        """Tell whether it is known to choose candidates for a token."""
        return has_top_k(self.name)


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """Hold the user's wishes for a split.

    `tensor_split`: shares of the workers in order, then of the head's own devices (its GPUs, else its CPU);
    whole numbers that sum up to the number of layers (or one more, llama.cpp's way, for the output on the
    last device) are taken as they are. `counts_chosen`: they are meshd's own choice. `head_layers` False:
    `--device none`. `local_output`: the matrix that makes logits lies on the head, so that 2 KB instead of
    hundreds cross the wire for a token; None: where a token takes less time (output.py), on the head if
    nothing is known. `input_on_worker`: the embeddings may lie on the worker with the first layers, so that
    tokens cross and not their rows.
    """

    shape: ContextShape
    tensor_split: tuple[float, ...] = ()
    counts_chosen: bool = False
    head_layers: bool = True
    local_output: bool | None = None
    input_on_worker: bool = False


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """Describe the share of one device. Sizes in bytes; `compute` is an upper bound.

    `weights` counts each tensor once; `copies`: what llama.cpp may keep of them a second time.
    `place`: its number among the workers' devices, in the order in which llama-server is given these; None
    for the head's own. `kind`: what llama.cpp calls such a device before its number.
    """

    device: Device
    place: int | None
    layers: int
    weights: int
    cache: int
    compute: int
    copies: int = 0
    kind: str = "RPC"

    @property
    def total(self) -> int:
        """Add up all that it takes."""
        return self.weights + self.copies + self.cache + self.compute

    @property
    def llama_name(self) -> str:
        """Return the name as in `-dev`."""
        if self.place is not None:
            return f"{self.kind}{self.place}"
        return self.device.name if self.device.is_gpu else "CPU"


@dataclass(frozen=True, slots=True)
class Plan:
    """Hold a split that fits.

    `shares` has the head's CPU first (perhaps with no layers), then llama.cpp's order.
    `devices`, `gpu_layers`, `tensor_split`, `override_tensor` are the values of `-dev`, `-ngl`, `-ts`, `-ot`
    (empty: the option is left out). `input_on_worker`: the device with the first layers has the embeddings;
    else the head. `exact_cache` is False when the architecture is not known: the cache is an upper bound
    then. `by_tensors`: all devices that take part compute each layer together, and the `layers` of a share
    are how many it would be worth. `reasons`: what decided it, the most important first. `left_out`: all
    devices that hold no layer. `answers`: for status.
    """

    shares: tuple[DeviceShare, ...]
    gpu_layers: int
    tensor_split: tuple[int, ...]
    override_tensor: str
    shape: ContextShape
    exact_cache: bool
    left_out: tuple[LeftOut, ...]
    reasons: Reasons
    input_on_worker: bool = False
    answers: AnswersAtOnce | None = None
    by_tensors: bool = False

    @property
    def taking(self) -> list[DeviceShare]:
        """Return the shares that have layers, in the order of the layers."""
        return [share for share in self.shares if share.layers]

    @property
    def placed(self) -> list[tuple[str, str, int]]:
        """Return node, device and number of layers of each share that has some."""
        return [(share.device.node, share.device.name, share.layers) for share in self.taking]

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the nodes that hold layers, in their order."""
        return tuple(dict.fromkeys(share.device.node for share in self.taking))

    @property
    def workers(self) -> tuple[str, ...]:
        """Return those of `nodes` that are not the head."""
        return tuple(dict.fromkeys(share.device.node for share in self.taking if not share.device.is_head))

    @property
    def left(self) -> dict[str, int]:
        """Count the bytes left free in each memory, by its name; below 0 where the plan does not fit."""
        free: dict[str, int] = {}
        taken: dict[str, int] = {}
        for share in self.shares:
            memory = share.device.memory
            free[memory] = min(free.get(memory, share.device.free), share.device.free)
            taken[memory] = taken.get(memory, 0) + share.total
        return {memory: free[memory] - taken[memory] for memory in free}

    @property
    def devices(self) -> tuple[str, ...]:
        """Return the names of all devices but the head's CPU."""
        return tuple(
            share.llama_name for share in self.shares if share.device.is_gpu or not share.device.is_head
        )

    @property
    def input_device(self) -> str:
        """Return the name of the worker's device that has the embeddings; empty: the head has them."""
        return self.taking[0].llama_name if self.input_on_worker else ""

    def weights_of(self, node: str) -> int:
        """Add up the bytes of weights on all devices of a node."""
        return sum(share.weights for share in self.shares if share.device.node == node)

    @property
    def last_node(self) -> str:
        """Return the node with the last layers."""
        return self.taking[-1].device.node if self.taking else ""

    @property
    def output_worker(self) -> Device | None:
        """Return the device of another machine that makes the logits, alone; None: there is none."""
        if self.by_tensors:
            return None
        last = self.taking[-1].device if self.taking else None
        return last if last is not None and not last.is_head and not self.override_tensor else None

    @property
    def arguments(self) -> tuple[str, ...]:
        """Return the options for llama-server; model, endpoints and load mode are the caller's."""
        shape = self.shape
        given = ["-fit", "off", "-c", str(shape.tokens), "-np", str(shape.parallel)]
        given += ["-ngl", str(self.gpu_layers), "-dev", ",".join(self.devices) or "none"]
        if self.tensor_split:
            given += ["-ts", ",".join(map(str, self.tensor_split))]
        overrides = [self.override_tensor] if self.override_tensor else []
        overrides += [f"{EMBEDDING}={self.input_device}"] if self.input_device else []
        given += ["-ot", ",".join(overrides)] if overrides else []
        usual = ContextShape(shape.tokens)
        given += ["-b", str(shape.batch)] if shape.batch != usual.batch else []
        given += ["-ub", str(shape.micro_batch)] if shape.micro_batch != usual.micro_batch else []
        given += ["-ctk", shape.key_type] if shape.key_type != usual.key_type else []
        given += ["-ctv", shape.value_type] if shape.value_type != usual.value_type else []
        given += ["-kvu"] if shape.unified else []
        given += ["--swa-full"] if shape.full_windows else []
        given += [] if shape.flash_attention else ["-fa", "off"]
        given += ["-sm", "tensor", "-fa", "on"] if self.by_tensors else []
        return tuple(given)


class NoSplit(UserError):
    """Refuse a split as asked over the devices that are there; with others it may be possible."""


class NotEnoughMemory(NoSplit):
    """Refuse a model that no split fits, for these reasons.

    `largest_context` is the longest that would fit, in tokens; 0 when none does.
    """

    def __init__(self, reasons: Reasons, *, hint: str, largest_context: int) -> None:
        super().__init__(in_words(reasons), hint=hint)
        self.reasons = reasons
        self.largest_context = largest_context


def followers(plan: Plan) -> list[tuple[DeviceShare, DeviceShare]]:
    """List where activations pass from worker to worker: who has the layers before, who those behind.

    By tensors: each two workers, who add up what they compute.
    """
    if plan.by_tensors:
        return list(combinations(plan.taking, 2))
    return [
        (before, behind)
        for before, behind in pairwise(plan.taking)
        if not (before.device.is_head or behind.device.is_head) and before.device.node != behind.device.node
    ]


def split_of(plan: Plan) -> tuple[SplitPart, ...]:
    """Return the plan as status shows it: in the order of the layers, then devices that hold none."""
    shares = sorted(plan.shares, key=lambda share: not share.layers)
    return tuple(
        SplitPart(share.device.node, share.device.name, share.layers, share.weights) for share in shares
    )


def placed_tensors(plan: Plan, layers: ModelLayers, names: Sequence[str]) -> dict[str, list[int]]:
    """Return the numbers of each node's tensors among `names`, in order; of the head only of its layers.

    What every device may need counts for each node. Tensors that the user has placed (`-- -ot`) are taken for
    where they would have been: the head sends what is missing all the same.
    """
    ends = list(accumulate(share.layers for share in plan.shares))
    holders = {
        number: share.device.node
        for share, end in zip(plan.shares, ends, strict=True)
        for number in range(end - share.layers, end)
    }
    nodes = list(dict.fromkeys(holders[number] for number in sorted(holders)))
    found: dict[str, list[int]] = {node: [] for node in nodes}
    if not nodes:
        return found
    if plan.by_tensors:
        return {node: _parts_of_all(layers, names) for node in nodes}
    for number, name in enumerate(names):
        for node in _nodes_of(name, plan, layers, holders, nodes):
            found[node].append(number)
    return found


def _parts_of_all(layers: ModelLayers, names: Sequence[str]) -> list[int]:
    """Return the numbers of the tensors of which each worker of a split by tensors has a part."""
    return [
        number
        for number, name in enumerate(names)
        if place_of(name, layers.count) is not TensorPlace.INPUT or (layers.tied and name == EMBEDDING)
    ]


def _nodes_of(
    name: str, plan: Plan, layers: ModelLayers, holders: dict[int, str], nodes: Sequence[str]
) -> Sequence[str]:
    place = place_of(name, layers.count)
    last = holders[max(holders)]
    makes_logits = plan.output_worker is not None
    match place:
        case int():
            return [holders[place]] if place in holders else []
        case TensorPlace.SHARED:
            return nodes
        case TensorPlace.OUTPUT:
            return [last] if makes_logits else []
        case TensorPlace.OUTPUT_REST:
            return [last]
        case TensorPlace.INPUT if name == EMBEDDING:
            first = [holders[0]] if plan.input_on_worker else []
            also = [last] if layers.tied and makes_logits and last not in first else []
            return [*first, *also]
        case TensorPlace.INPUT:  # on the head's CPU
            return []
