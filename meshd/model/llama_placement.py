"""Where llama.cpp places each layer for given `-ngl` and `-ts`: its own rule, in its own arithmetic.

`llama_model_base::load_tensors` of the pinned commit: the split is summed and divided in 32-bit floats, the
first `n_layer + 1 - ngl` layers stay on the CPU, and layer i of the rest goes to the first device whose
cumulated share is greater than i / rest. The output counts as one more layer behind the last.
"""

import struct
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence

from meshd.base.errors import LocalProtocolError, UserError
from meshd.model.split_values import Device, Plan

ON_CPU = -1
MAX_SPLIT_DEVICES = 15  # llama_max_devices() is 16, and -ts wants fewer values than that
_F32 = struct.Struct("<f")


def _f32(value: float) -> float:
    return float(_F32.unpack(_F32.pack(value))[0])


def place(layers: int, *, gpu_layers: int, tensor_split: Sequence[float]) -> tuple[int, ...]:
    """Index into `-dev` of each of the `layers` blocks and, last, of the output; ON_CPU for the CPU.

    `tensor_split` has one positive or zero share for each device, not all zero; empty means no device.
    """
    start = max(layers + 1 - gpu_layers, 0)
    active = min(gpu_layers, layers + 1) if tensor_split else 0
    cumulated: list[float] = []
    total = 0.0
    for share in tensor_split:
        total = _f32(total + _f32(share))
        cumulated.append(total)
    points = [_f32(point / total) for point in cumulated]
    placed: list[int] = []
    for layer in range(layers + 1):
        if layer < start or layer - start >= active:
            placed.append(ON_CPU)
        else:
            placed.append(bisect_right(points, _f32(_f32(layer - start) / active)))
    return tuple(placed)


def check_placed(plan: Plan) -> None:
    """The options must lead llama.cpp to this very plan. Raises LocalProtocolError when they do not."""
    layers = sum(share.layers for share in plan.shares)
    placed = place(layers, gpu_layers=plan.gpu_layers, tensor_split=plan.tensor_split)
    expected: list[int] = []
    for number, share in enumerate(plan.shares, start=ON_CPU):
        expected += [number] * share.layers
    expected.append(len(plan.devices) - 1 if plan.devices else ON_CPU)
    if list(placed) != expected:
        raise LocalProtocolError(f"planned {expected}, llama.cpp would place {placed}")


def check_split(devices: int) -> None:
    """Of a split by hand. Raises UserError."""
    if devices > MAX_SPLIT_DEVICES:
        raise UserError(
            f"`--tensor-split` gives layers to {devices} devices, llama.cpp supports {MAX_SPLIT_DEVICES}",
            hint="give some of them 0",
        )


def one_to_spare(devices: Sequence[Device]) -> Device:
    """When there are too many: the last one of the node that has most.

    The order is by names, which nodes give themselves: none can push the others out with many devices.
    """
    of_node = Counter(device.node for device in devices)
    most = max(of_node.values())
    return next(device for device in reversed(devices) if of_node[device.node] == most)
