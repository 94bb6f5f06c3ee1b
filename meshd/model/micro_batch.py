"""How many tokens of a prompt are computed at once (`-ub`), by the devices and the paths between them.

Less of them fill a pipeline of devices better, more of them a GPU. With native/mesh a prompt is a pipeline:
its stages are the devices that have layers, one behind the other, and the paths. A micro batch of u tokens
takes

    a device:  bytes of its weights x (u + h) / rate       h: what a micro batch costs beside its tokens
    a path:    u hidden states / rate of the path

and a prompt of k micro batches the sum over the stages, and k - 1 times the slowest stage: for N devices that
are alike the law T = (k + N - 1) C / kN. Delays of paths add up once, so they decide nothing. Without pushes
nothing overlaps, and the head waits for each border k times.

llama.cpp copies activations to a GPU of the head, and to a plain rpc-server, itself: it waits until all
stages before have computed the micro batch, and only then gives out the next one. So they are one stage, with
a round trip in it, and overlap only with those behind.

llama-server ends the prompts of windowed and recurrent models early, to keep a checkpoint: their last micro
batch goes through all stages alone.

Measured for a prompt of 2048: two CPU workers take 6.6, 7.7 and 8.9 s in micro batches of 128, 512 and 1024
tokens; two GPUs are fastest with 512, for one of them needs as long for 128 tokens as for 208 among many
(7500 tokens a second; 10,600 with 512).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from meshd.model.output import FAR_RATE, NEAR_SECONDS, DevicePath

LEAST, MOST = 128, 512  # MOST is llama.cpp's own, and what a single stage gets
_CHOICES = (512, 256, 128)
_PROMPT = 2048  # tokens of the prompt that it is made for
# bytes of weights times tokens a second: four threads of a Xeon, a third of an H200
_CPU_RATE, _GPU_RATE = 4e10, 1.5e13
_CPU_EXTRA, _GPU_EXTRA = 4, 80  # tokens that would take as long as a micro batch does beside its own
_GAIN = 0.97  # of the time of a larger one: less than that is not worth it, as these are estimates


@dataclass(frozen=True, slots=True)
class PromptStage:
    """A device with layers: bytes of these, and what lies between the head and it (None: nothing).

    `waits`: the head waits for the stages before it, to copy what this one computes with.
    """

    weights: int
    is_gpu: bool = False
    path: DevicePath | None = None
    waits: bool = False


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """Tokens at once, and one short line about it."""

    tokens: int
    why: str


def choose_micro_batch(
    stages: Sequence[PromptStage], *, embedding: int, slots: int, pushed: bool, rewound: bool
) -> MicroBatch:
    """For devices in the order of their layers, and hidden states of `embedding` elements.

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
    why = f"micro batches of {max(tokens, slots)} tokens"
    if slots > tokens:
        return MicroBatch(slots, f"{why}: one for each slot")
    if len(stages) < 2:
        return MicroBatch(tokens, f"{why}: one device computes")
    return MicroBatch(tokens, f"{why}: fastest for {len(stages)} {_kinds(stages)} in turn, estimated")


def _kinds(stages: Sequence[PromptStage]) -> str:
    gpus = sum(stage.is_gpu for stage in stages)
    return "GPUs" if gpus == len(stages) else "CPUs" if not gpus else "CPUs and GPUs"


def _seconds(
    stages: Sequence[PromptStage], tokens: int, embedding: int, *, pushed: bool, rewound: bool
) -> float:
    """Of a prompt, without delays that are the same for any number of tokens."""
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
    """A short path that was never seen full is taken for faster than what computes."""
    if path is None or (not path.rate and path.rtt < NEAR_SECONDS):
        return 0.0
    return 1 / (path.rate or FAR_RATE)
