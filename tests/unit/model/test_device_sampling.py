"""Which requests take candidates from the device that makes logits, and with which chain."""

from collections.abc import Mapping
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.model.device_sampling import (
    EXCLUDES_NOTHING,
    MOST_CANDIDATES,
    MOST_PENALIZED,
    DeviceSampling,
    has_top_k,
    sampling_fields,
)

USUAL = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
CUT = ["penalties", "dry", "top_k", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"]
# What llama-server of the pin says of itself, as far as it is looked at.
SETTINGS: dict[str, object] = {
    "backend_sampling": False,
    "dry_multiplier": 0.0,
    "frequency_penalty": 0.0,
    "mirostat": 0,
    "n_probs": 0,
    "presence_penalty": 0.0,
    "repeat_last_n": 64,
    "repeat_penalty": 1.0,
    "samplers": USUAL,
    "speculative.types": "none",
    "temperature": 0.8,
    "top_k": 40,
    "top_n_sigma": -1.0,
}
CANDIDATES = {"backend_sampling": True, "top_n_sigma": EXCLUDES_NOTHING, "samplers": CUT}


def added(
    request: dict[str, object], own: Mapping[str, object] = MappingProxyType({}), *, vocabulary: int = 50_000
) -> dict[str, object]:
    sampling, asked = DeviceSampling({**SETTINGS, **own}, vocabulary), {"prompt": "Hello", **request}
    found = sampling.added_to(asked)
    looked_at = sampling_fields(asked)
    assert sampling.added_to(looked_at) == found, "the fields that are looked at are enough"
    assert sampling.is_refused(looked_at) == sampling.is_refused(asked)
    return found


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"temperature": 0},
        {"temperature": 1.3, "seed": 5, "top_p": 1.0, "min_p": 0, "xtc_probability": 0.5, "typical_p": 0.9},
        {"top_k": 1},
        {"top_k": MOST_CANDIDATES},
        {"top_n_sigma": -1, "samplers": USUAL},
        {"presence_penalty": 0.6},
        {"frequency_penalty": 0.6, "repeat_last_n": MOST_PENALIZED},
        {"frequency_penalty": 1, "presence_penalty": 1, "repeat_last_n": 0},
        {"repeat_last_n": 100_000},
        {"n": 1, "tools": [], "response_format": {"type": "text"}, "logprobs": False, "grammar": ""},
    ],
)  # fmt: skip
def test_requests_whose_texts_stay_the_same_take_candidates(request_: dict[str, object]) -> None:
    assert added(request_) == CANDIDATES


@pytest.mark.parametrize(
    "request_",
    [
        {"backend_sampling": True},
        {"backend_sampling": False},
        {"top_k": 0},
        {"top_k": -1},
        {"top_k": MOST_CANDIDATES + 1},
        {"top_k": 10**400},
        {"top_k": None},
        {"top_k": True},
        {"top_k": "40"},
        {"top_n_sigma": 2},
        {"mirostat": 2},
        {"dry_multiplier": 0.8},
        {"repeat_penalty": 1.1},
        {"frequency_penalty": 0.1, "presence_penalty": 0.1},
        {"frequency_penalty": 0.1, "repeat_last_n": MOST_PENALIZED + 1},
        {"grammar": "root ::= [a-z]"},
        {"json_schema": {"type": "object"}},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "function"}]},
        {"logprobs": True},
        {"logprobs": 3},
        {"n_probs": 1},
        {"logit_bias": [[5, 1.0]]},
        {"reasoning_budget_tokens": 100},
        {"n": 2},
        {"samplers": ["temperature", "top_k"]},
        {"samplers": ["top_p", "temperature"]},
        {"samplers": "kpt"},
        {"samplers": ["top_k", ["top_p"]]},
        {"samplers": []},
    ],
)  # fmt: skip
def test_all_others_take_all_logits(request_: dict[str, object]) -> None:
    assert added(request_) == {}


def test_what_a_request_does_not_say_is_as_the_server_was_started() -> None:
    assert added({}, {"top_k": 0}) == {}
    assert added({"top_k": 20}, {"top_k": 0}) == CANDIDATES
    assert added({}, {"repeat_penalty": 1.1}) == {}
    assert added({}, {"backend_sampling": True}) == {}, "`-- -bs` keeps its meaning"
    assert added({}, {"speculative.types": "ngram-simple"}) == {}
    assert added({}, {"speculative.types": None}) == {}
    samplers = added({}, {"samplers": ["top_k", "temperature"]})["samplers"]
    assert samplers == ["top_k", "top_n_sigma", "top_k", "temperature"]


def test_requests_that_speculate_take_candidates_without_penalties() -> None:
    """llama-server's properties say "none" whatever it was started with."""
    sampling = DeviceSampling(SETTINGS, 50_000, drafts=True)
    chain = [name for name in CUT if name not in ("penalties", "dry")]
    assert sampling.added_to({"prompt": "Hello"}) == {**CANDIDATES, "samplers": chain}
    assert sampling.added_to({"repeat_last_n": 0, "presence_penalty": 1})["samplers"] == chain
    for penalty in ("presence_penalty", "frequency_penalty"):
        assert sampling.added_to({penalty: 0.5}) == {}
    assert sampling.added_to({"tools": [{"type": "function"}]}) == {}


@pytest.mark.parametrize("name", ["max_completion_tokens", "max_tokens", "n_predict"])
def test_short_answers_take_all_logits_where_candidates_would_not_pay(name: str) -> None:
    sampling = DeviceSampling(SETTINGS, 50_000, least=24)
    for length, taken in ((0, False), (1, False), (23, False), (24, True), (4000, True), (-1, True)):
        asked = {"prompt": "Hello", name: length}
        assert bool(sampling.added_to(asked)) is taken
        assert sampling.added_to(sampling_fields(asked)) == sampling.added_to(asked)
        assert DeviceSampling(SETTINGS, 50_000).added_to(asked)
    assert sampling.added_to({"prompt": "Hello", name: None})
    assert sampling.added_to({"prompt": "Hello"})
    short = DeviceSampling({**SETTINGS, "n_predict": 10}, 50_000, least=24)  # as after `-- -n 10`
    assert not short.added_to({"prompt": "Hello"})
    assert short.added_to({"prompt": "Hello", name: 1000}), "a request's own length counts first"


def test_only_devices_that_are_known_to_sort_a_vocabulary_are_asked() -> None:
    assert all(map(has_top_k, ("CPU", "CUDA0", "CUDA12", "ROCm1")))
    assert not any(map(has_top_k, ("Vulkan0", "Metal", "SYCL0", "BLAS", "CUDA0x", "")))


def test_never_more_candidates_than_there_are_tokens() -> None:
    """llama-server would end."""
    assert added({}, vocabulary=39) == {}
    assert added({}, vocabulary=40) == CANDIDATES


def test_a_server_that_says_nothing_of_itself_gets_requests_as_they_are() -> None:
    assert DeviceSampling({}, 50_000).added_to({"prompt": "Hello", "top_k": 40, "samplers": USUAL}) == {}


VALUES = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.text() | st.none())


@given(st.dictionaries(st.sampled_from([*SETTINGS, "grammar", "tools", "n"]), VALUES))
def test_whatever_a_request_says_the_device_sorts_before_all_else(request_: dict[str, object]) -> None:
    fields = added(request_)
    if not fields:
        return
    samplers = fields["samplers"]
    assert isinstance(samplers, list)
    at = samplers.index("top_k")
    assert set(samplers[:at]) <= {"penalties", "dry"}
    assert samplers[at : at + 3] == ["top_k", "top_n_sigma", "top_k"]


def test_what_is_looked_at_is_small() -> None:
    long: list[object] = ["x"] * 100_000
    names = ("backend_sampling", "samplers", "n", "top_k", "tools", "grammar", "messages")
    assert len(repr(sampling_fields(dict.fromkeys(names, long)))) < 300
    assert len(repr(sampling_fields(dict.fromkeys(names, "x" * 100_000)))) < 300
