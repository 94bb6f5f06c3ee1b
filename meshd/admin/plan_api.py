"""Requests about machines and splits, and their replies; see api.py for the rules."""

from dataclasses import dataclass

from meshd.admin.request import Request


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
    rtt_ms: float
    bytes_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A model that a node has. `fingerprint`: of its content; null until that node has hashed it."""

    name: str
    bytes: int
    fingerprint: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCapacity:
    """What a node has on the disk of its cache. Null: it does not tell.

    `cache_room_bytes`: of weights that come over the network, it would keep so many more; null also where its
    role keeps none. `models`: the largest ones; `more_models` are not listed. `why_not` it tells nothing.
    """

    node: str
    free_bytes: int | None
    cache_room_bytes: int | None
    models: tuple[StoredFile, ...] = ()
    more_models: int = 0
    why_not: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOutView:
    """A node that takes no part, or was not measured, and why."""

    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacityReply:
    """What there is. `storage`: of this node first, and of all members that are there."""

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
class PlannedNode:
    """What one device of a plan holds. `memory_bytes`: weights, KV cache and compute buffers (a bound)."""

    node: str
    device: str
    layers: int
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSpeculation:
    """What drafts make of a split: tokens a second of text that repeats itself, and of prose.

    Tokens of a draft, at most: `free_tokens` that the text repeats, `model_tokens` of the draft model. Where
    both are 0, `why` says why; `why_no_model`: a draft model is not used. The shares that are accepted:
    `measured` in answers, or assumed.
    """

    free_tokens: int
    model_tokens: int
    free_acceptance: float
    model_acceptance: float
    measured: bool
    repetitive_tok_s: float
    prose_tok_s: float
    why: str = ""
    why_no_model: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPart:
    """A device, a path or the rest in the time of a split, as predicted without its factors.

    The factors are those of rates, learned from all answers of the model: above 1 it was faster.
    """

    part: str
    token_s: float
    prompt_s: float
    generate_factor: float
    prompt_factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanView:
    """A split and what it is predicted to do. `why` of the first one says why it was chosen.

    `load_bytes` of weights cross the network for a load, which is in `load_s`; null where it is not known
    what nodes have: then all is read from their own files. `answer_s`: of a prompt of `prompt_tokens` and an
    answer of `answer_tokens`, by which splits are compared.
    The factors are in the rates: what answers took, against what was predicted. `corrected_by`: whose,
    `this split` or `splits like it`, which share devices or paths with it; empty where there were none.
    `parts`: what a token and a prompt are the sums of. `ctx_note`: why `ctx_size` is less than asked for.
    """

    nodes: tuple[PlannedNode, ...]
    prompt_tok_s: float
    generate_tok_s: float
    streams_tok_s: float
    first_token_s: float
    load_s: float
    load_bytes: int | None
    bytes_per_token: int
    ctx_size: int
    slots: int
    ubatch: int
    output_on: str
    measured: bool
    why: str
    answer_s: float = 0.0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    generate_factor: float = 1.0
    prompt_factor: float = 1.0
    corrected_by: str = ""
    parts: tuple[PlanPart, ...] = ()
    speculation: PlanSpeculation | None = None
    ctx_note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReply:
    """`choice` is the place of the chosen one in `plans`."""

    model: str
    choice: int
    plans: tuple[PlanView, ...]
    left_out: tuple[LeftOutView, ...] = ()


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
