"""Decide which requests take token candidates from the device that made the logits, instead of all logits.

llama-server computes a chain of samplers on that device as far as each has a device form, and the rest itself
from the results. The device forms of top-p, min-p, temperature and the final draw round differently from its
own, and top-k returns its results in another order; so a request would get another text. Here the device
computes only what is exact, which is penalties to some extent, and top-k:

    penalties, dry (off), top_k    on the device: the `top_k` largest logits and their tokens come back
    top_n_sigma                    so wide that it excludes nothing; it has no device form
    top_k                          sorts the candidates, as usual
    everything behind top-k        as in the request or llama-server's options

A request that speculates gets candidates for each token of a round. Penalties have no device form for that:
the chain omits them if they are off; if they are on, all logits are transferred.

Where llama-server does not support this after all, as with tools and a grammar, it computes the same chain
from all logits, and produces the same text.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

# For a chain of samplers llama-server reserves its graphs anew: with the request and, if the next one has
# none, after it (decision 0038). Past the link, on one machine, that takes as long as so many tokens save.
FEW_TOKENS = 24
MOST_CANDIDATES = 256  # 2 kB per token; with more candidates, all logits may be smaller
MOST_PENALIZED = 256  # tokens that penalties look back at: their ids are sent for each token
EXCLUDES_NOTHING = 1e30  # deviations below the largest logit
_WITH_TOP_K = frozenset({"CPU", "CUDA", "ROCm"})
_CUT = "top_n_sigma"
_BEFORE = frozenset({"penalties", "dry", _CUT})  # samplers allowed before top-k
_OFF = frozenset({"penalties", "dry"})  # the same, if `_penalizes` says that they are off
# These answers depend on more than the candidates, or llama-server uses no device for them.
_ALL_LOGITS = (
    "grammar",
    "json_schema",
    "logit_bias",
    "logprobs",
    "reasoning_budget_tokens",
    "response_format",
    "tools",
    "top_logprobs",
)
_COPIES = ("n", "n_cmpl")  # several answers to one prompt
_LENGTHS = ("max_completion_tokens", "max_tokens", "n_predict")
_NUMBERS = (
    "dry_multiplier",
    "frequency_penalty",
    "mirostat",
    "n_probs",
    "presence_penalty",
    "repeat_last_n",
    "repeat_penalty",
    "top_k",
    _CUT,
)
_MOST_SAMPLERS = 32


def has_top_k(device: str) -> bool:
    """Say whether this device, by its ggml name, computes top-k of a whole vocabulary.

    Other devices must not be asked: a device that cannot would be lost with the first request.
    """
    return device.rstrip("0123456789") in _WITH_TOP_K


def sampling_fields(request: Mapping[str, object]) -> dict[str, object]:
    """Return the fields that `DeviceSampling` needs of this request: a few hundred bytes for any request."""
    looked_at = ("backend_sampling", "samplers", *_COPIES, *_LENGTHS, *_NUMBERS)
    found = {name: _small(request[name]) for name in looked_at if name in request}
    return found | {name: _is_on(request[name]) for name in _ALL_LOGITS if name in request}


def _small(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if (
        isinstance(value, list)
        and len(value) <= _MOST_SAMPLERS
        and all(isinstance(item, str) for item in value)
    ):
        return value
    return "other" if value else ""


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """The choice for one llama-server.

    `settings`: llama-server's own, named as in a request. `adds`: make requests take candidates; otherwise
    only clients' own fields are checked. `drafts`: meshd told llama-server to speculate. `least`: requests
    for fewer tokens take all logits, as candidates would not pay.
    """

    settings: Mapping[str, object]
    vocabulary: int
    adds: bool = True
    drafts: bool = False
    least: int = 0

    def is_refused(self, request: Mapping[str, object]) -> bool:
        """Say whether to refuse a client's own chain of samplers.

        A worker would compute the chain, and would end if its values are not numbers.
        """
        return bool(request.get("backend_sampling")) and self.settings.get("backend_sampling") is not True

    def added_to(self, request: Mapping[str, object]) -> dict[str, object]:
        """Return the fields that make this request take candidates; empty if it needs all logits."""
        # The client or the user has decided, or the answer needs all logits.
        own = self.settings
        if not self.adds or "backend_sampling" in request or own.get("backend_sampling") is not False:
            return {}  # the request or the options decide
        values = {**own, **request}
        lengths = request if any(request.get(name) is not None for name in _LENGTHS) else own
        if any(0 <= _number(lengths, name) < self.least for name in _LENGTHS):
            return {}
        # Its properties say "none" whatever it was started with: only a release that says more is believed.
        speculates = self.drafts or own.get("speculative.types") != "none"
        if (speculates and not self.drafts) or any(_is_on(request.get(name)) for name in _ALL_LOGITS):
            return {}
        if any(request.get(name, 1) not in (1, None) for name in _COPIES):
            return {}
        # The values must be exact on a device.
        if not _is_exact(values) or (speculates and _penalizes(values)):
            return {}
        if not 1 <= _number(values, "top_k") <= min(MOST_CANDIDATES, self.vocabulary):
            return {}
        # The chain.
        samplers = _cut_behind_top_k(request.get("samplers", own.get("samplers")))
        if speculates:
            samplers = [name for name in samplers if name not in _OFF]
        return {"backend_sampling": True, _CUT: EXCLUDES_NOTHING, "samplers": samplers} if samplers else {}


def _number(values: Mapping[str, object], name: str) -> int | float:
    """Return the number, or NaN, which equals nothing, for anything else."""
    value = values.get(name)
    return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _is_on(value: object) -> bool:
    return bool(value) and value != {"type": "text"}


def _is_exact(values: Mapping[str, object]) -> bool:
    """Say whether everything before top-k is exact on a device."""
    if _number(values, "mirostat") != 0 or _number(values, "n_probs") != 0:
        return False
    if _number(values, "dry_multiplier") != 0 or not _number(values, _CUT) <= 0:
        return False
    if _number(values, "repeat_last_n") == 0:
        return True
    penalties = _number(values, "frequency_penalty"), _number(values, "presence_penalty")
    if _number(values, "repeat_penalty") != 1 or 0 not in penalties:
        return False  # a device multiplies by the inverse, and subtracts one penalty after the other
    return penalties == (0, 0) or 0 < _number(values, "repeat_last_n") <= MOST_PENALIZED


def _penalizes(values: Mapping[str, object]) -> bool:
    """Say whether recent tokens are penalised; dry is off wherever values are exact."""
    if _number(values, "repeat_last_n") == 0:
        return False
    return (
        _number(values, "repeat_penalty") != 1
        or _number(values, "frequency_penalty") != 0
        or _number(values, "presence_penalty") != 0
    )


def _cut_behind_top_k(chain: object) -> list[str]:
    """Return the chain with the cut behind its top-k; empty if that is impossible."""
    if not isinstance(chain, list) or not all(isinstance(name, str) for name in chain):
        return []  # letters instead of names, or no names
    if "top_k" not in chain:
        return []
    at = chain.index("top_k")
    before = [name for name in chain[:at] if name != _CUT]
    behind = [name for name in chain[at + 1 :] if name != _CUT]
    if not _BEFORE.issuperset(before):
        return []
    return [*before, "top_k", _CUT, "top_k", *behind]
