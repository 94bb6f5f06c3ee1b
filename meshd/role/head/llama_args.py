"""What the user gives llama-server after `--`: what is meshd's own is refused, what decides memory is read.
Pure.

llama.cpp takes `_` for `-` in long names, and each value as an argument of its own.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from meshd.base.errors import UserError
from meshd.model.cache import ContextShape
from meshd.model.layers import ModelLayers
from meshd.model.rope import MOST_TOKENS, longest_answer
from meshd.model.split_values import default_shape

CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")  # of the pin

_SPLIT = "meshd plans the split: see `--tensor-split` and `--device`"
_KEY = "use `--api-key-file FILE` of meshd"
_MODEL = "use `--model FILE` of meshd"
_PROJECTOR = "use `--mmproj FILE` of meshd, before `--`"
_RESERVED = {
    "--host": "use `--host` of meshd, before `--`",
    "--port": "use `--port` of meshd, before `--`",
    "-m": _MODEL,
    "--model": _MODEL,
    "-mu": _MODEL,
    "--model-url": _MODEL,
    "-mm": _PROJECTOR,
    "--mmproj": _PROJECTOR,
    "-mmu": _PROJECTOR,
    "--mmproj-url": _PROJECTOR,
    "-hf": _MODEL,
    "-hfr": _MODEL,
    "--hf-repo": _MODEL,
    "--rpc": "use `--rpc HOST:PORT` of meshd, before `--`",
    "-dev": "use `--device` of meshd, before `--`",
    "--device": "use `--device` of meshd, before `--`",
    "--kv-unified-per-slot": "use `--ctx-size` of meshd, before `--`: each answer has so many tokens",
    "-ngl": _SPLIT,
    "--gpu-layers": _SPLIT,
    "--n-gpu-layers": _SPLIT,
    "-ts": "use `--tensor-split` of meshd, before `--`",
    "--tensor-split": "use `--tensor-split` of meshd, before `--`",
    "-sm": _SPLIT,
    "--split-mode": _SPLIT,
    "-mg": _SPLIT,
    "--main-gpu": _SPLIT,
    "-fit": _SPLIT,
    "--fit": _SPLIT,
    "-lm": "use `--load-mode` of meshd, before `--`",
    "--load-mode": "use `--load-mode` of meshd, before `--`",
    "--api-key": _KEY,
    "--api-key-file": _KEY,
    "--api-prefix": "meshd's API is in front of llama-server",
    "--ssl-key-file": "meshd's API is in front of llama-server: put a TLS proxy in front of that",
    "--ssl-cert-file": "meshd's API is in front of llama-server: put a TLS proxy in front of that",
    "-a": "the name is always that of the model file",
    "--alias": "the name is always that of the model file",
}
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
_SAMPLING = ("-bs", "--backend-sampling")
_THREADS = ("-t", "--threads")
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
    *("--embedding", "--rerank", "--pooling"),
)
_SPECULATES_SHORT = frozenset(
    {"-md", "-hfd", "-hfrd", "-lcs", "-lcd", "-td", "-tbd", "-devd", "-ngld", "-ctkd", "-ctvd"}
)
_CHECKPOINTS = ("-ctxcp", "--ctx-checkpoints", "--swa-checkpoints")


@dataclass(frozen=True, slots=True)
class LlamaArgs:
    """What was read; `rest` is for llama-server as it stands. None: not given. `tokens` 0: as trained."""

    rest: tuple[str, ...] = ()
    tokens: int | None = None
    parallel: int | None = None
    batch: int | None = None
    micro_batch: int | None = None
    key_type: str | None = None
    value_type: str | None = None
    unified: bool | None = None
    full_windows: bool = False
    flash_attention: bool = True
    backend_sampling: bool = False  # tokens are chosen where their logits are
    checkpoints: bool = False  # how many of them is the user's choice
    threads: int | None = None  # of the head's CPU
    speculation: str = ""  # an option that decides on it, or with which there is none

    def shape(self, layers: ModelLayers, *, tokens: int | None, slots: int = 1) -> ContextShape:
        """The context that llama-server will make; what stood after `--` wins over `tokens` and `slots`.

        Each slot has that many tokens, so that no answer ends another: llama-server ends all of them when
        the context is full. They lie in one cache all the same, as divided ones make a round two where
        slots between those that are busy are not. What the user says of both is llama.cpp's: with `-kvu`
        slots share the context, and with `-c` and `-np` it is divided among them.

        A step has room for a token of each slot: with less, each round would be two.

        It is no longer than answers may be: llama-server would spend the memory, and use none of it.
        """
        asked, most = self._asked(layers, tokens, slots), self._most(layers, slots)
        one = default_shape(layers, tokens=min(asked, most) if most else asked)
        parallel = self.parallel or slots
        if self.unified:
            usual = replace(one, parallel=parallel, unified=True)
        else:
            usual = replace(one, unified=self.unified is None).of(parallel, one.tokens)
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
        """Tokens, with the prompt; 0: the model does not say."""
        return longest_answer(layers.trained_context, layers.scaling, self.rest)

    def shortened(self, layers: ModelLayers, *, tokens: int | None, slots: int = 1) -> str:
        """For people: why the context is shorter than asked for; empty where it is not."""
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
        """Tokens of each answer, or of the context that they share, as the user wants it."""
        context = self.tokens if self.tokens is not None else tokens
        if context == 0:
            context = layers.trained_context or None
        whole = default_shape(layers, tokens=context).tokens
        is_divided = self.tokens is not None and self.parallel is not None and not self.unified
        return -(-whole // (self.parallel or slots)) if is_divided else whole

    def _most(self, layers: ModelLayers, slots: int) -> int:
        """Of the same that can be used; 0: no limit is known."""
        return self.longest_answer(layers) * ((self.parallel or slots) if self.unified else 1)


def read_llama_args(llama_args: Sequence[str]) -> LlamaArgs:
    """Read what stands after `--`. Raises UserError for an option that is meshd's own, or a bad value."""
    counts: dict[str, int] = {}
    types: dict[str, str] = {}
    flags: dict[str, bool] = {}
    flash, sampling, checkpoints = True, False, False
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
            sampling = sampling or name in _SAMPLING
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
        unified=flags.get("unified"),
        full_windows=flags.get("windows", False),
        flash_attention=flash,
        backend_sampling=sampling,
        checkpoints=checkpoints,
        threads=_threads(rest),
        speculation=next((word for word in rest if _speculates(word)), ""),
    )


def _speculates(word: str) -> bool:
    name = word.replace("_", "-") if word.startswith("--") else word
    return name.startswith(_SPECULATES) or name in _SPECULATES_SHORT


def _threads(rest: Sequence[str]) -> int | None:
    """As llama-server reads them: what is no number it refuses itself."""
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
    """Whether flash attention may be counted on, and what llama-server is still to be given."""
    text = unread.pop(0) if unread and not unread[0].startswith("-") else "on"
    if text in ("off", "disabled", "false", "0"):
        return False, []  # the plan gives `-fa off` itself
    if text in ("on", "enabled", "true", "1"):
        return True, ["-fa", "on"]
    if text in ("auto", "-1"):
        return True, []
    raise UserError(f"`{option} {text}` after `--` is not valid", hint="choose on, off or auto")
