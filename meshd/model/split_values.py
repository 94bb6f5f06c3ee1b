"""Input and output of a split: devices, options, the plan and the refusal."""

from dataclasses import dataclass

from meshd.base.errors import UserError
from meshd.model.cache import ContextShape
from meshd.model.device_sampling import has_top_k
from meshd.model.layers import ModelLayers
from meshd.model.output import EMBEDDING, DevicePath
from meshd.model.status import AnswersAtOnce


@dataclass(frozen=True, slots=True)
class Device:
    """A device that may take layers. `free` in bytes: what may be used of it.

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
    def has_top_k(self) -> bool:
        """It is known to choose candidates for a token."""
        return has_top_k(self.name)


@dataclass(frozen=True, slots=True)
class SplitOptions:
    """What the user may decide.

    `tensor_split`: shares of the workers in order, then of the head's own devices (its GPUs, else its CPU);
    whole numbers that sum up to the number of layers (or one more, llama.cpp's way, for the output on the
    last device) are taken as they are. `counts_chosen`: they are meshd's own choice. `head_layers` False:
    `--device none`. `local_output`: the matrix that makes logits lies on the head, so that 2 KB instead of
    hundreds cross the wire for a token; None: where a token takes less time (output.py), on the head if
    nothing is known. `sampled_with_output`: a token is chosen where its logits are made, so that they do not
    cross. `input_on_worker`: the embeddings may lie on the worker with the first layers, so that tokens cross
    and not their rows.
    """

    shape: ContextShape
    tensor_split: tuple[float, ...] = ()
    counts_chosen: bool = False
    head_layers: bool = True
    local_output: bool | None = None
    sampled_with_output: bool = False
    input_on_worker: bool = False


@dataclass(frozen=True, slots=True)
class DeviceShare:
    """What one device gets. Sizes in bytes; `compute` is an upper bound. `llama_name` as in `-dev`."""

    device: Device
    llama_name: str
    layers: int
    weights: int
    cache: int
    compute: int

    @property
    def total(self) -> int:
        return self.weights + self.cache + self.compute


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A device that takes no part, and why."""

    device: Device
    why: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A split that fits. `shares` has the head's CPU first (perhaps with no layers), then llama.cpp's order.

    `devices`, `gpu_layers`, `tensor_split`, `override_tensor` are the values of `-dev`, `-ngl`, `-ts`, `-ot`
    (empty: the option is left out). Device i of the workers is `RPC<i>` here, in the order in which they must
    be given; those that the module has are called `MESH<i>` in the end. `input_device`: the worker's that has
    the embeddings; empty: the head has them. `exact_cache` is False when the architecture is not known: the
    cache is an upper bound then. `answers`: for status. `short`: of all the reasons in `why` the first, and
    devices that cannot be used.
    """

    shares: tuple[DeviceShare, ...]
    devices: tuple[str, ...]
    gpu_layers: int
    tensor_split: tuple[int, ...]
    override_tensor: str
    shape: ContextShape
    exact_cache: bool
    left_out: tuple[LeftOut, ...]
    why: str
    input_device: str = ""
    answers: AnswersAtOnce | None = None
    short: str = ""

    def weights_of(self, node: str) -> int:
        """Bytes of weights on all devices of a node."""
        return sum(share.weights for share in self.shares if share.device.node == node)

    @property
    def last_node(self) -> str:
        """Who has the last layers."""
        return next((share.device.node for share in reversed(self.shares) if share.layers), "")

    @property
    def output_worker(self) -> Device | None:
        """The device of another machine that makes the logits, with the last layers; None: the head does."""
        taking = [share.device for share in self.shares if share.layers]
        return taking[-1] if taking and not taking[-1].is_head and not self.override_tensor else None

    @property
    def arguments(self) -> tuple[str, ...]:
        """The options for llama-server; model, endpoints and load mode are the caller's."""
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
        given += ["--kv-unified-per-slot", str(shape.each)] if shape.each is not None else []
        given += ["--swa-full"] if shape.full_windows else []
        given += [] if shape.flash_attention else ["-fa", "off"]
        return tuple(given)


class NoSplit(UserError):
    """The model cannot be split as asked over the devices that are there; with others it may be possible."""


class NotEnoughMemory(NoSplit):
    """No split fits. `largest_context` is the longest that would, in tokens; 0 when none does."""

    def __init__(self, what: str, *, hint: str, largest_context: int) -> None:
        super().__init__(what, hint=hint)
        self.largest_context = largest_context


def default_shape(model: ModelLayers, *, tokens: int | None = None) -> ContextShape:
    """One slot, a context of min(trained, 8192) unless `tokens` says otherwise."""
    return ContextShape(tokens if tokens is not None else model.default_context)
