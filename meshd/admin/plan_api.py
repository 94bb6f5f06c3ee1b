"""Requests of `meshd capacity`, `plan` and `why`, and their replies; see api.py for the rules."""

from dataclasses import dataclass
from typing import Annotated

from meshd.admin.request import Request
from meshd.admin.status import LeftOutView, StorageCapacity, StoredFile
from meshd.model.time_account import TimeAccount
from meshd.wire.limits import As


def _rounded(digits: int) -> As:
    """Write a number without what is below these digits."""
    return As(float, lambda value: round(value, digits), float)


LARGEST_CONTEXT = 1 << 24  # of a plan, in tokens
MOST_STREAMS = 64  # of a plan
Rate = Annotated[float, _rounded(2)]  # tokens a second
Seconds = Annotated[float, _rounded(4)]
Share = Annotated[float, _rounded(4)]
PartSeconds = Annotated[float, _rounded(6)]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCapacity:
    """A device that could be lent. `weight_bytes_s`: how fast a token reads weights there; `flops`: of a
    prompt; both null where nobody has measured it."""

    node: str
    device: str
    free_bytes: int
    total_bytes: int
    weight_bytes_s: float | None
    flops: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PathCapacity:
    """A path between two nodes as one of them sees it. `bytes_s`: null until it was seen full."""

    # `from` is a word of Python
    source: str
    to: str
    rtt_ms: Seconds
    bytes_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReply:
    """The capacity found. `storage`: of this node first, and of all connected members."""

    devices: tuple[DeviceCapacity, ...]
    paths: tuple[PathCapacity, ...]
    left_out: tuple[LeftOutView, ...] = ()
    unmeasured: tuple[LeftOutView, ...] = ()
    storage: tuple[StorageCapacity, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityRequest(Request[CapacityReply], name="capacity"):
    """Measured now, where it was not before. `again`: no time of this machine's devices counts any more."""

    again: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortModelFit:
    """Say where a model fits, on this machine alone and in the mesh: `gpu`, `partly_cpu`, `cpu` or `no`."""

    name: str
    here: str
    mesh: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FitsReply:
    """The models with short names, in the order of their size. `workers`: those that were counted."""

    models: tuple[ShortModelFit, ...]
    workers: tuple[str, ...] = ()
    left_out: tuple[LeftOutView, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FitsRequest(Request[FitsReply], name="fits"):
    """Ask where models fit in what devices have free now; nothing is measured. `known`: their real sizes."""

    known: tuple[StoredFile, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedNode:
    """The share of one device in a plan. `memory_bytes`: weights, KV cache and compute buffers (a bound)."""

    node: str
    device: str
    layers: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpeculation:
    """The effect of drafts on a split: tokens a second of text that repeats itself, and of prose.

    Tokens of a draft, at most: `free_tokens` that the text repeats, `model_tokens` of the draft model. Where
    both are 0, `why` says why; `why_no_model`: a draft model is not used. The shares that are accepted:
    `measured` in requests, or assumed.
    """

    free_tokens: int
    model_tokens: int
    free_acceptance: Share
    model_acceptance: Share
    measured: bool
    repetitive_tok_s: Rate
    prose_tok_s: Rate
    why: str = ""
    why_no_model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPart:
    """A device, a path or the rest, and the predicted seconds of a token and of a prompt that it takes."""

    part: str
    token_s: PartSeconds
    prompt_s: PartSeconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A split and what it is predicted to do. `why` of the first one says why it was chosen.

    `load_bytes` of weights cross the network for a load, which is in `load_s`; null where it is not known
    what nodes have: then all is read from their own files. `answer_s`: of a prompt of `prompt_tokens` and an
    answer of `answer_tokens`, by which splits are compared.
    `parts`: what a token and a prompt are the sums of. `ctx_note`: why `ctx_size` is less than asked for.
    `by_tensors`: each device has its share of every layer, as large as so many `layers`.
    """

    nodes: tuple[PlannedNode, ...]
    prompt_tok_s: Rate
    generate_tok_s: Rate
    streams_tok_s: Rate
    first_token_s: Seconds
    load_s: Seconds
    load_bytes: int | None
    bytes_per_token: int
    ctx_size: int
    slots: int
    ubatch: int
    output_on: str
    measured: bool
    why: str
    answer_s: Seconds = 0.0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    parts: tuple[PlanPart, ...] = ()
    speculation: PlanSpeculation | None = None
    ctx_note: str = ""
    by_tensors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WaysView:
    """A split by layers beside one by tensors: tokens a second, null where that is impossible.

    `text` says with what paths, whether it is worth it, or why there is none by tensors.
    """

    layers_tok_s: Rate | None
    tensors_tok_s: Rate | None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReply:
    """`head`: the node that would serve the model. `choice` is the place of the chosen one in `plans`.

    `ways`: by layers and by tensors; null without a worker.
    """

    model: str
    head: str
    choice: int
    plans: tuple[PlanView, ...]
    left_out: tuple[LeftOutView, ...] = ()
    ways: WaysView | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryLimit:
    """As if no device of `node` had more free memory; `node` empty: of any node."""

    node: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest(Request[PlanReply], name="plan"):
    """`model`: path of a GGUF file that this daemon can read. `ctx_size` and `streams`: 0 for the usual.

    `largest_context`: the longest that fits. `layers`, `workers`, `tensor_split`, `devices`: as the options
    of `meshd serve`; empty: as this node serves.
    `draft_model`: path of a GGUF file as well; empty: that with which this node serves the model, if it does.
    """

    model: str
    ctx_size: int = 0
    streams: int = 0
    largest_context: bool = False
    layers: tuple[str, ...] = ()
    draft_model: str = ""
    workers: tuple[str, ...] = ()
    tensor_split: tuple[float, ...] = ()
    devices: tuple[str, ...] = ()
    memory: tuple[MemoryLimit, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerTime:
    """An answer. `queue_s`: from its request to the slot that took it; `alone`: no other was under way.

    One that is `running` has no times of its prompt, and only those tokens that were streamed.
    """

    running: bool
    alone: bool
    ended_s_ago: Seconds
    queue_s: Seconds
    prompt_tokens: int
    prompt_s: float
    generated_tokens: int
    generated_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceView:
    """The change that would gain most. `gain`: the share of an answer's time that it is predicted to save.

    `change` is empty where nothing is worth it, and `why` says so. Rates in tokens a second, predicted now as
    `meshd plan` does: as it runs, and with the change.
    """

    change: str
    gain: Share
    why: str
    generate_tok_s: Rate
    generate_tok_s_then: Rate
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyReply:
    """`token` is one of the running answer, or of the last that was alone; `prompt` the last one's.

    Null where no answer had the machines to itself. `round`: of the newest time in which answers were
    streamed, several at once or with drafts: a mean over the rounds in which llama-server computed for all of
    them; null where `token` is of that time, or `why_no_round` says why. `requests`: under way now. `split`:
    as it runs. `generate_tok_s_at_load`: what was predicted of it then, null where a device was not measured;
    `since_load`: which inputs of the prediction have changed, in words. `ways`: as in a plan.
    `by_tensors`: `token`, `prompt` and `round` are null, as `why_no_round` says.
    """

    model: str
    split: str
    requests: int
    answers: tuple[AnswerTime, ...]
    token: TimeAccount | None
    prompt: TimeAccount | None
    advice: AdviceView
    round: TimeAccount | None = None
    why_no_round: str = ""
    generate_tok_s_at_load: Rate | None = None
    since_load: tuple[str, ...] = ()
    ways: WaysView | None = None
    by_tensors: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WhyRequest(Request[WhyReply], name="why"):
    """A request for the token times of the model that this node serves."""
