"""Hold the wishes of a user for a model, with the facts of the node that serves it.

A draft model is computed by llama-server on the head's CPU, with a cache for each answer. llama-server goes
on without a draft model whose vocabulary is another, so that is refused here, before anything is loaded.

Of what the user gives llama-server after `--`, options that are meshd's own are refused, and those that
decide memory are read. llama.cpp takes `_` for `-` in long names, and each value as an argument of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from meshd.base.errors import UserError
from meshd.config.forms import HostPort
from meshd.config.serve_settings import ModelSettings
from meshd.model.cache import ContextShape
from meshd.model.drafts import MOST_FREE
from meshd.model.gguf import Header
from meshd.model.layer_range import LayerRange
from meshd.model.layers import MOST_TOKENS, ModelLayers, longest_answer, read_layers
from meshd.wire.lease import OfferedDevice

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")  # of the pin
_RESERVED = {
    option: hint
    for hint, options in (
        ("use `--host` of meshd, before `--`", "--host"),
        ("use `--port` of meshd, before `--`", "--port"),
        ("use `--model FILE` of meshd", "-m --model -mu --model-url -hf -hfr --hf-repo"),
        ("use `--mmproj FILE` of meshd, before `--`", "-mm --mmproj -mmu --mmproj-url"),
        ("use `--rpc HOST:PORT` of meshd, before `--`", "--rpc"),
        ("use `--device` of meshd, before `--`", "-dev --device"),
        (
            "use `--ctx-size` of meshd, before `--`: each request has so many tokens",
            "--kv-unified-per-slot",
        ),
        (
            "meshd plans the split: see `--tensor-split` and `--device`",
            "-ngl --gpu-layers --n-gpu-layers -sm --split-mode -mg --main-gpu -fit --fit",
        ),
        ("use `--tensor-split` of meshd, before `--`", "-ts --tensor-split"),
        ("use `--load-mode` of meshd, before `--`", "-lm --load-mode"),
        ("use `--api-key-file FILE` of meshd", "--api-key --api-key-file"),
        ("put the token into HF_TOKEN: other users can read a command line", "-hft --hf-token"),
        ("meshd's API is in front of llama-server", "--api-prefix"),
        (
            "meshd's API is in front of llama-server: put a TLS proxy in front of that",
            "--ssl-key-file --ssl-cert-file",
        ),
        ("the name is always that of the model file", "-a --alias"),
    )
    for option in options.split()
}
"""Options that are meshd's own, with what to do instead."""
_COUNTS = {
    "-c": "tokens",
    "--ctx-size": "tokens",
    "-np": "parallel",
    "--parallel": "parallel",
    "-b": "batch",
    "--batch-size": "batch",
    "-ub": "micro_batch",
    "--ubatch-size": "micro_batch",
}
_TYPES = {"-ctk": "key", "--cache-type-k": "key", "-ctv": "value", "--cache-type-v": "value"}
_FLAGS = {
    "-kvu": ("unified", True),
    "--kv-unified": ("unified", True),
    "-no-kvu": ("unified", False),
    "--no-kv-unified": ("unified", False),
    "--swa-full": ("windows", True),
}
_FLASH = ("-fa", "--flash-attn")
_THREADS = ("-t", "--threads")
_POOLS = ("--embedding", "--rerank", "--pooling")  # one vector of all tokens of a text
# Options by which the user decides how llama-server speculates, or with which it cannot.
_SPECULATES = (
    *("--spec-", "--draft", "--model-draft", "--lookup-cache", "--hf-repo-draft"),
    *(
        "--threads-draft",
        "--threads-batch-draft",
        "--device-draft",
        "--gpu-layers-draft",
        "--n-gpu-layers-draft",
    ),
    *("--cache-type-k-draft", "--cache-type-v-draft", "--override-tensor-draft", "--cpu-moe-draft"),
    *_POOLS,
)
_SPECULATES_SHORT = frozenset(
    {"-md", "-hfd", "-hfrd", "-lcs", "-lcd", "-td", "-tbd", "-devd", "-ngld", "-ctkd", "-ctvd"}
)
# Of these, those that name a draft model; and those with which a text is compared, not continued.
_DRAFT_MODELS = (
    "-md",
    "--model-draft",
    "--spec-draft-model",
    "-hfd",
    "-hfrd",
    "--hf-repo-draft",
    "--spec-draft-hf",
)
_RANKS = ("--rerank", "--reranking")
# Those with which llama.cpp cannot divide a layer: adapters are not divided with it, and what computes
# elsewhere needs all of it.
_UNDIVIDED = (
    *("--lora", "--lora-scaled", "-ot", "--override-tensor"),
    *("-nkvo", "--no-kv-offload"),
)
_CHECKPOINTS = ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints")


@dataclass(frozen=True, slots=True)
class LlamaArgs:
    """Hold the options that were read. `rest` goes to llama-server. None: not given. `tokens` 0: trained."""

    rest: tuple[str, ...] = ()
    tokens: int | None = None
    parallel: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    key_type: str | None = None
    value_type: str | None = None
    unified: bool = False
    full_windows: bool = False
    flash_attention: bool = True
    checkpoints: bool = False  # how many of them is the user's choice
    threads: int | None = None  # of the head's CPU
    speculation: str = ""  # an option that decides on it, or with which there is none
    draft_model: str = ""  # an option that names one
    ranking: str = ""  # an option with which texts are ranked
    undivided: str = ""  # an option with which no layer can be divided among workers

    def shape(self, layers: ModelLayers, *, tokens: int | None, slots: int = 1) -> ContextShape:
        """Return the context that llama-server will make; options after `--` win over `tokens` and `slots`.

        Each slot has that many tokens, in its own cache. They share one with `-kvu`, and for embeddings:
        every answer attends to what finished ones have left, and all end when it is full.

        A step has room for a token of each slot: with less, each round would be two.

        It is no longer than answers may be: llama-server would spend the memory, and use none of it.
        """
        asked, most = self._asked(layers, tokens, slots), self._most(layers, slots)
        single = default_shape(layers, tokens=min(asked, most) if most else asked)
        parallel = self.parallel or slots
        if self.unified:
            usual = replace(single, parallel=parallel, unified=True)
        else:
            usual = single.of(parallel, single.tokens)
        return replace(
            usual,
            batch=max(self.batch or usual.batch, parallel),
            micro_batch=max(self.micro_batch or usual.micro_batch, parallel),
            key_type=self.key_type or usual.key_type,
            value_type=self.value_type or usual.value_type,
            full_windows=self.full_windows,
            flash_attention=self.flash_attention,
        )

    def longest_answer(self, layers: ModelLayers) -> int:
        """Return the most tokens of an answer, with the prompt; 0: the model does not say."""
        return longest_answer(layers.trained_context, layers.scaling, self.rest)

    def shortened(self, layers: ModelLayers, *, tokens: int | None, slots: int = 1) -> str:
        """Tell people why the context is shorter than asked for; empty where it is not."""
        asked, most = self._asked(layers, tokens, slots), self._most(layers, slots)
        if not most or asked <= most:
            return ""
        trained, longest = layers.trained_context, self.longest_answer(layers)
        why = f"the model was trained for {trained} tokens"
        advice = "to stretch it, add `-- --rope-scaling yarn --rope-scale N`"
        if longest > trained:
            why += f" and is stretched to {longest}"
            advice = "a larger `--rope-scale` stretches it further"
        return f"context shortened from {asked} to {most} tokens: {why}; {advice}"

    def _asked(self, layers: ModelLayers, tokens: int | None, slots: int) -> int:
        """Return tokens of each answer, or of the context that they share, as the user wants it."""
        context = self.tokens if self.tokens is not None else tokens
        if context == 0:
            context = layers.trained_context or None
        whole = default_shape(layers, tokens=context).tokens
        is_divided = self.tokens is not None and self.parallel is not None and not self.unified
        return -(-whole // (self.parallel or slots)) if is_divided else whole

    def _most(self, layers: ModelLayers, slots: int) -> int:
        """Return how many of these can be used; 0: no limit is known."""
        return self.longest_answer(layers) * ((self.parallel or slots) if self.unified else 1)


def read_llama_args(llama_args: Sequence[str]) -> LlamaArgs:
    """Read what stands after `--`. Raises UserError for an option that is meshd's own, or a bad value."""
    counts: dict[str, int] = {}
    types: dict[str, str] = {}
    flags: dict[str, bool] = {}
    flash, checkpoints = True, False
    rest: list[str] = []
    unread = list(llama_args)
    while unread:
        option = unread.pop(0)
        name = option.replace("_", "-") if option.startswith("--") else option
        if (instead := _RESERVED.get(name)) is not None:
            raise UserError(f"`{option}` cannot be given after `--`", hint=instead)
        if name in _COUNTS:
            what = _COUNTS[name]
            counts[what] = _count(option, unread, low=0 if what == "tokens" else 1)
        elif name in _TYPES:
            types[_TYPES[name]] = _one_of(option, unread, CACHE_TYPES)
        elif name in _FLAGS:
            flag, value = _FLAGS[name]
            flags[flag] = value
        elif name in _FLASH:
            flash, kept = _flash(option, unread)
            rest += kept
        else:
            checkpoints = checkpoints or name in _CHECKPOINTS
            rest.append(option)
    return LlamaArgs(
        rest=tuple(rest),
        tokens=counts.get("tokens"),
        parallel=counts.get("parallel"),
        batch=counts.get("batch"),
        micro_batch=counts.get("micro_batch"),
        key_type=types.get("key"),
        value_type=types.get("value"),
        # with a cache each, texts of different lengths take several steps, and llama.cpp pools only the last
        unified=flags.get("unified", any(word.replace("_", "-").startswith(_POOLS) for word in rest)),
        full_windows=flags.get("windows", False),
        flash_attention=flash,
        checkpoints=checkpoints,
        threads=_threads(rest),
        speculation=next((word for word in rest if _speculates(word)), ""),
        draft_model=next((word for word in rest if _long(word) in _DRAFT_MODELS), ""),
        ranking=next((word for word in rest if _long(word) in _RANKS), ""),
        undivided=next((word for word in rest if _long(word) in _UNDIVIDED), ""),
    )


def _long(word: str) -> str:
    """Return an option as llama.cpp takes it, without a value."""
    return word.partition("=")[0].replace("_", "-") if word.startswith("--") else word


def _speculates(word: str) -> bool:
    name = _long(word)
    return name.startswith(_SPECULATES) or name in _SPECULATES_SHORT


def _threads(rest: Sequence[str]) -> int | None:
    """Read threads as llama-server does, which refuses what is no number."""
    given = [value for name, value in pairwise(rest) if name in _THREADS]
    return int(given[-1]) if given and given[-1].isdigit() and 0 < len(given[-1]) < 5 else None


def _value(option: str, unread: list[str]) -> str:
    if not unread:
        raise UserError(f"`{option}` after `--` has no value")
    return unread.pop(0)


def _count(option: str, unread: list[str], *, low: int) -> int:
    text = _value(option, unread)
    if not (text.isascii() and text.isdigit() and len(text) < 12 and low <= int(text) < MOST_TOKENS):
        raise UserError(
            f"`{option} {text}` after `--` is not a valid number",
            hint=f"give a whole number of at least {low}: meshd plans the memory with it",
        )
    return int(text)


def _one_of(option: str, unread: list[str], allowed: Sequence[str]) -> str:
    text = _value(option, unread)
    if text not in allowed:
        raise UserError(
            f"`{option} {text}` after `--` is not valid", hint=f"choose from {', '.join(allowed)}"
        )
    return text


def _flash(option: str, unread: list[str]) -> tuple[bool, list[str]]:
    """Tell whether flash attention may be counted on, and what llama-server is still to be given."""
    text = unread.pop(0) if unread and not unread[0].startswith("-") else "on"
    if text in ("off", "disabled", "false", "0"):
        return False, []  # the plan gives `-fa off` itself
    if text in ("on", "enabled", "true", "1"):
        return True, ["-fa", "on"]
    if text in ("auto", "-1"):
        return True, []
    raise UserError(f"`{option} {text}` after `--` is not valid", hint="choose on, off or auto")


def default_shape(model: ModelLayers, *, tokens: int | None = None) -> ContextShape:
    """Make the shape of one slot; None: a context of min(trained, 8192) tokens."""
    return ContextShape(tokens if tokens is not None else model.default_context)


_MOST_TOKENS_APART = 128  # of vocabularies that llama-server takes for the same
_TOKENS = "tokenizer.ggml.tokens"
_KIND = "tokenizer.ggml.model"


@dataclass(frozen=True, slots=True)
class DraftModel:
    """Name its first file, and hold its sizes."""

    path: str
    layers: ModelLayers

    def memory(self, shape: ContextShape) -> int:
        """Count the bytes of the head's memory: the weights, and a cache as long as that of the model."""
        return self.layers.weight_bytes + sum(self.layers.cache.layer_bytes(shape))


def draft_model(path: str, name: str, headers: Sequence[Header], served: Header) -> DraftModel:
    """Read a draft model for the model with the header `served`. Raises UserError if they do not fit."""
    layers, header = read_layers(headers, name=name), headers[0]
    kinds = header.text(_KIND), served.text(_KIND)
    counts = header.length(_TOKENS), served.length(_TOKENS)
    if kinds[0] != kinds[1] or abs(counts[0] - counts[1]) > _MOST_TOKENS_APART:
        raise UserError(
            f"`{name}` cannot draft for the model: it has another vocabulary ({counts[0]} tokens of "
            f"`{kinds[0]}`, not {counts[1]} of `{kinds[1]}`)",
            hint="give a smaller model of the same family with `--draft-model`",
        )
    return DraftModel(path, layers)


def beside_draft(
    own: Sequence[OfferedDevice], draft: DraftModel | None, shape: ContextShape
) -> tuple[OfferedDevice, ...]:
    """Return the head's devices, less what the draft model takes of its CPU's memory."""
    taken = draft.memory(shape) if draft is not None else 0
    return tuple(
        replace(device, free_bytes=max(0, device.free_bytes - taken)) if device.name == "CPU" else device
        for device in own
    )


@dataclass(frozen=True, slots=True)
class MayDraft:
    """Name the kinds of drafts that a model and its user allow; `why` not, if none."""

    free: bool = False
    model: bool = False
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOptions(ModelSettings):
    """Hold the user's settings for a model, and the facts of the node that serves it.

    `min_workers` None: see `least_workers`. `rpc` is that of `[serve]`. `counts_chosen`: `tensor_split` is
    meshd's own choice, not the user's. `draft` is the model that `draft_model` names. `grace` is how many
    seconds answers wait for a worker out of reach. `is_local`: nodes on one machine exchange bytes past their
    link. `name` is the model's in requests (empty: its file's), `child` that of its llama-server in status
    and logs.
    """

    rpc: tuple[HostPort, ...] = ()
    counts_chosen: bool = False
    draft: DraftModel | None = None
    machine: str = ""
    node_name: str = "head"
    node_id: str = ""
    incarnation: bytes = b""
    grace: float = 120.0
    is_local: bool = False
    name: str = ""
    child: str = "llama-server"
    socket: str = "llama.sock"

    @property
    def wants_largest_context(self) -> bool:
        """Tell whether the context is the longest that fits, up to the trained one."""
        return self.ctx_size == 0

    @property
    def push(self) -> bool:
        """Tell whether results may go straight from worker to worker."""
        return not self.no_push

    @property
    def picks_by_speed(self) -> bool:
        """Tell whether meshd decides which workers take part, and with how many layers."""
        return self.split in ("auto", "layers") and not (self.tensor_split or self.layers or self.rpc)

    @property
    def least_workers(self) -> int:
        """Return the fewest workers with which the model is loaded.

        Unless the user says it, none where the comparison of splits may choose this node alone: it uses
        workers where they help, and a model that does not fit without them waits. Otherwise one.
        """
        if self.min_workers is not None:
            return self.min_workers
        return 0 if self.picks_by_speed and self.devices != ("none",) else 1

    @property
    def hoped_for_workers(self) -> int:
        """Return how many workers are worth a moment's wait, known or not: by tensors it takes two."""
        return 2 if self.split == "tensor" and self.min_workers is None else 0

    @property
    def workers_demanded_by(self) -> str:
        """Return, for people, the option that demands `least_workers`."""
        if self.layers:
            return "`--layers`"
        if self.min_workers is not None:
            return f"`--min-workers {self.min_workers}`"
        if self.tensor_split:
            return "`--tensor-split`"
        if self.devices == ("none",):
            return "`--device none`"
        return f"{'`--rpc`' if self.rpc else f'`--split {self.split}`'} without `--min-workers 0`"


def shape_of(layers: ModelLayers, options: HeadOptions) -> ContextShape:
    """Return the context that is asked for."""
    llama_args = read_llama_args(options.llama_args)
    shape = llama_args.shape(layers, tokens=options.ctx_size or None, slots=options.slots)
    may = may_draft(layers, options)
    return replace(shape, drafted=MOST_FREE if may.free or may.model else 0)


def may_draft(layers: ModelLayers, options: HeadOptions) -> MayDraft:
    """Tell which drafts the model and its user allow."""
    if options.speculate == "off":
        return MayDraft(why="off: `--speculate off`, or a llama.cpp of the user's own")
    if decides := read_llama_args(options.llama_args).speculation:
        return MayDraft(why=f"left to llama-server's own options: `{decides}`")
    if any(layer.state for layer in layers.cache.layers):
        return MayDraft(why="off: a recurrent model would be read back from the workers with each draft")
    if options.mmproj is not None:
        return MayDraft(why="off: llama-server drafts nothing for a model with images")
    return MayDraft(free=True, model=options.draft is not None)


def nodes_of(ranges: Sequence[LayerRange], me: str) -> tuple[str, ...]:
    """Return the workers that ranges of layers name."""
    return tuple(layer_range.node for layer_range in ranges if layer_range.node != me)


def named_by(options: HeadOptions) -> str:
    """Return the option that names the workers."""
    by_layers = bool(options.layers) and options.workers == nodes_of(options.layers, options.node_name)
    return "--layers" if by_layers else "--workers"
