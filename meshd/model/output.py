"""Choose the place of the output matrix: on the head, or with the last layers on a worker.

Besides the round trip, which it takes either way, a token costs

    on the head:    the matrix read once by its CPU,              the hidden state over the network,
    on the worker:  the matrix read once by the worker's device,  the logits over the network, or their
                    candidates (device_sampling.py), or a token chosen there (`-- -bs`), which is as small.

Each transfer happens once per slot. Making logits is bound by memory: the time is that of reading the matrix.
A transfer takes its bytes by the path's rate, and a round trip for each doubling beyond what is sent at once.
"""

import math
from dataclasses import dataclass

from meshd.model.layers import ModelLayers

# Bytes of weights per second on small machines: 13e9 on two cores of an EPYC.
CPU_RATE, GPU_RATE = 10e9, 200e9
AT_ONCE = 64 << 10  # bytes in flight on a path without measurements (mux/pacing.py)
NEAR_SECONDS = 0.002  # a path with a shorter round trip is a wired network, and assumed to be fast
NEAR_RATE, FAR_RATE = 100e6, 5e6  # bytes per second of a path that was never full
LOCAL_RATE = 2.5e9  # between two nodes of one machine, past their link (tests/bench/push_hop.py)
EMBEDDING = "token_embd.weight"
SAMPLED_BYTES = 400  # per token: 40 candidates with their logits, the headers of two requests and answers
_GAIN = 0.8  # share of the head's time that makes the worker worth it, as these are estimates


@dataclass(frozen=True, slots=True)
class DevicePath:
    """The path from the head to a device: round trip in seconds, bytes per second (None: unknown).

    `is_loopback`: its node is on the head's machine. `seals`: from worker to worker, as the
    first one sees it, sums could cross sealed, past both daemons. `is_wireless`: it leaves the first one over
    Wi-Fi.
    """

    rtt: float
    rate: float | None = None
    is_loopback: bool = False
    seals: bool = False
    is_wireless: bool = False

    def seconds(self, count: int) -> float:
        """Return the seconds for `count` bytes after a pause, without the round trip."""
        return self.carrying(count) + self.rtt * math.log2(max(1.0, count / AT_ONCE))

    def carrying(self, count: int) -> float:
        """Return the seconds for `count` bytes behind others."""
        return count / (self.rate or (NEAR_RATE if self.rtt < NEAR_SECONDS else FAR_RATE))


@dataclass(frozen=True, slots=True)
class OutputChoice:
    """The choice of the head for the output, and the seconds per token here and there, if these decided."""

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
    """Choose between the head and the worker with the last layers; `wanted` forces the head or the worker.

    Costs are those of one token in each of `slots` at the same time. The worker must be clearly faster.
    `sampled`: the worker would also choose the token.
    """
    if wanted is not None or path is None:
        return OutputChoice(wanted is not False)
    widths = model.widths
    head = model.output / CPU_RATE + path.seconds(4 * slots * widths.embedding)
    worker = model.output / (GPU_RATE if worker_is_gpu else CPU_RATE)
    worker += path.seconds(slots * (SAMPLED_BYTES if sampled else 4 * widths.vocabulary))
    return OutputChoice(worker >= _GAIN * head, head, worker)


def output_on_cpu(model: ModelLayers) -> str:
    """Return the value of `--override-tensor` that keeps the matrix on the head's CPU."""
    return f"{EMBEDDING}=CPU" if model.tied else r"^output\.weight=CPU"
