"""Which requests take candidates for a token from the device that made the logits, not all logits.

llama-server computes a chain of samplers on that device as far as each has a form for it, and the rest
itself on what comes back. Its forms for top-p, min-p, temperature and the draw round otherwise than its own,
and top-k gives its results in another order; so a request would get another text. Here only what is exact is
left to the device, which are penalties as far as they are, and top-k:

    penalties, dry (off), top_k    on the device: the `top_k` largest logits and their tokens come back
    top_n_sigma                    so wide that it excludes nothing; it has no form for devices
    top_k                          sorts them, as it does otherwise
    all that comes behind top-k    as the request or llama-server's options have it

A request that speculates gets candidates for each token of a round. Penalties have no form for that: they are
left out of its chain where they are off, and where they are not, all logits come.

Where llama-server does not offer this after all, as with tools and a grammar, the same chain is computed from
all logits, and gives the same text as well.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

MOST_CANDIDATES = 256  # 2 kB of a token; of more, all logits may be less
MOST_PENALIZED = 256  # tokens that penalties look back at: their numbers are sent for each token
EXCLUDES_NOTHING = 1e30  # deviations below the largest logit
_WITH_TOP_K = frozenset({"CPU", "CUDA", "ROCm"})
_CUT = "top_n_sigma"
_BEFORE = frozenset({"penalties", "dry", _CUT})  # that may stand before top-k
_OFF = frozenset({"penalties", "dry"})  # where `_penalizes` says so
# Their answers depend on more than the candidates, or llama-server uses no device for them.
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
    """Whether this device, by ggml's name of it, computes top-k of a whole vocabulary.

    No other can be asked: one that does not would be lost with the first request.
    """
    return device.rstrip("0123456789") in _WITH_TOP_K


def sampling_fields(request: Mapping[str, object]) -> dict[str, object]:
    """What a `DeviceSampling` looks at in this request: a few hundred bytes, whatever the request is."""
    looked_at = ("backend_sampling", "samplers", *_COPIES, *_NUMBERS)
    found = {name: _small(request[name]) for name in looked_at if name in request}
    return found | {name: _is_on(request[name]) for name in _ALL_LOGITS if name in request}


def _small(value: object) -> object:
    if value is None or isinstance(value, int | float):
        return value
    if (
        isinstance(value, list)
        and len(value) <= _MOST_SAMPLERS
        and all(isinstance(one, str) for one in value)
    ):
        return value
    return "other" if value else ""


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """`settings`: llama-server's own, by the names that they have in a request. `adds`: requests are made to
    take candidates; else clients alone are looked at. `drafts`: llama-server was told by meshd to speculate;
    where its user has, of a release that may not be able to, requests take all logits.
    """

    settings: Mapping[str, object]
    vocabulary: int
    adds: bool = True
    drafts: bool = False

    def is_refused(self, request: Mapping[str, object]) -> bool:
        """A client's chain would be computed by a worker, which ends where values of it are not numbers."""
        return bool(request.get("backend_sampling")) and self.settings.get("backend_sampling") is not True

    def added_to(self, request: Mapping[str, object]) -> dict[str, object]:
        """Fields that make this request take candidates; none where it is to have all logits."""
        own = self.settings
        if not self.adds or "backend_sampling" in request or own.get("backend_sampling") is not False:
            return {}  # decided by others
        speculates = own.get("speculative.types") != "none"
        if (speculates and not self.drafts) or any(_is_on(request.get(name)) for name in _ALL_LOGITS):
            return {}
        if any(request.get(name, 1) not in (1, None) for name in _COPIES):
            return {}
        values = _Values(own, request)
        if not _is_exact(values) or (speculates and _penalizes(values)):
            return {}
        if not 1 <= values.number("top_k") <= min(MOST_CANDIDATES, self.vocabulary):
            return {}
        samplers = _cut_behind_top_k(request.get("samplers", own.get("samplers")))
        if speculates:
            samplers = [name for name in samplers if name not in _OFF]
        return {"backend_sampling": True, _CUT: EXCLUDES_NOTHING, "samplers": samplers} if samplers else {}


class _Values:
    """What a request asks for, or llama-server's options where it says nothing."""

    def __init__(self, own: Mapping[str, object], request: Mapping[str, object]) -> None:
        self._own = own
        self._request = request

    def number(self, name: str) -> int | float:
        """NaN, which equals nothing, for anything else."""
        value = self._request.get(name, self._own.get(name))
        return value if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _is_on(value: object) -> bool:
    return bool(value) and value != {"type": "text"}


def _is_exact(values: _Values) -> bool:
    """Nothing before top-k computes otherwise on a device."""
    if values.number("mirostat") != 0 or values.number("n_probs") != 0:
        return False
    if values.number("dry_multiplier") != 0 or not values.number(_CUT) <= 0:
        return False
    if values.number("repeat_last_n") == 0:
        return True
    penalties = values.number("frequency_penalty"), values.number("presence_penalty")
    if values.number("repeat_penalty") != 1 or 0 not in penalties:
        return False  # a device multiplies by the inverse, and subtracts one after the other
    return penalties == (0, 0) or 0 < values.number("repeat_last_n") <= MOST_PENALIZED


def _penalizes(values: _Values) -> bool:
    """Tokens that came lately; dry is off wherever values are exact."""
    if values.number("repeat_last_n") == 0:
        return False
    return (
        values.number("repeat_penalty") != 1
        or values.number("frequency_penalty") != 0
        or values.number("presence_penalty") != 0
    )


def _cut_behind_top_k(chain: object) -> list[str]:
    """The chain with the cut behind its top-k; empty where it cannot be."""
    if not isinstance(chain, list) or not all(isinstance(name, str) for name in chain):
        return []  # letters for names, or none
    if "top_k" not in chain:
        return []
    at = chain.index("top_k")
    before = [name for name in chain[:at] if name != _CUT]
    behind = [name for name in chain[at + 1 :] if name != _CUT]
    if not _BEFORE.issuperset(before):
        return []
    return [*before, "top_k", _CUT, "top_k", *behind]
