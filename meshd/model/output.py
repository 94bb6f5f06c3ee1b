"""Where the output matrix is placed: on the head, or with the last layers on a worker.

A token costs, beside the round trip that it takes either way,

    on the head:    the matrix read once by its CPU,              the hidden state over the wire,
    on the worker:  the matrix read once by the worker's device,  the logits over the wire, or the candidates
                    among them (device_sampling.py), or of a token chosen there (`-- -bs`) as little,

and what crosses once for each slot. Making logits is bound by memory: the time is that of reading the matrix.
What crosses takes its bytes by the path's rate, and a round trip for each doubling beyond what goes out at
once.
"""

import math
from dataclasses import dataclass

from meshd.model.layers import ModelLayers

CPU_RATE, GPU_RATE = 10e9, 200e9  # bytes a second of weights, of small machines: 13e9 on two cores of an EPYC
AT_ONCE = 64 << 10  # bytes in flight on a path of which nothing was measured (mux/pacing.py)
NEAR_SECONDS = 0.002  # a shorter round trip is a wired network, and taken for fast
NEAR_RATE, FAR_RATE = 100e6, 5e6  # bytes a second of a path that was never seen full
EMBEDDING = "token_embd.weight"
SAMPLED_BYTES = 400  # of a token: 40 candidates with their logits, the headers of two questions and answers
_GAIN = 0.8  # of the head's time: less than that makes the worker worth it, as these are estimates


@dataclass(frozen=True, slots=True)
class DevicePath:
    """What lies between the head and a device: round trip in seconds, bytes a second (None: not measured)."""

    rtt: float
    rate: float | None = None

    def seconds(self, count: int) -> float:
        """For `count` bytes after a pause, beyond the round trip."""
        return self.carrying(count) + self.rtt * math.log2(max(1.0, count / AT_ONCE))

    def carrying(self, count: int) -> float:
        """For `count` bytes behind others."""
        return count / (self.rate or (NEAR_RATE if self.rtt < NEAR_SECONDS else FAR_RATE))


@dataclass(frozen=True, slots=True)
class OutputChoice:
    """Whether the head has the output, and the seconds of a token here and there, if these decided."""

    on_head: bool
    head_seconds: float | None = None
    worker_seconds: float | None = None


def choose_output(
    model: ModelLayers,
    path: DevicePath | None,
    *,
    slots: int,
    worker_is_gpu: bool,
    sampled: bool = False,
    wanted: bool | None = None,
) -> OutputChoice:
    """For the worker that has the last layers; `wanted` on the head, or not, leaves no choice.

    Costs are those of a token in each of `slots` at the same time. The worker must be clearly faster.
    `sampled`: it would choose the token as well.
    """
    if wanted is not None or path is None:
        return OutputChoice(wanted is not False)
    widths = model.widths
    head = model.output / CPU_RATE + path.seconds(4 * slots * widths.embedding)
    worker = model.output / (GPU_RATE if worker_is_gpu else CPU_RATE)
    worker += path.seconds(slots * (SAMPLED_BYTES if sampled else 4 * widths.vocabulary))
    return OutputChoice(worker >= _GAIN * head, head, worker)


def output_on_cpu(model: ModelLayers) -> str:
    """What `--override-tensor` takes to keep the matrix on the head's CPU."""
    return f"{EMBEDDING}=CPU" if model.tied else r"^output\.weight=CPU"
