"""The table of fields that llama-server gets, and what its bounds keep from it."""

import contextlib
import json
import math
import random
import re
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.dialects.fields import ENDPOINTS, Endpoint, fields_of, judged
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.paths import ROUTES, SHOW_PATH
from meshd.gateway.request import has_remote_media

from tests.hostile_dialects import DIALECTS, FACTS, Many, hostile, is_admitted, small
from tests.hostile_requests import hostile_fields
from tests.pinned_source import pinned_source

_REGISTERED = re.compile(r'\(new field_\w+\("([a-z_]+)"|->add_alias\("([a-z_]+)"\)')
# Fields of llama-server's own table that are not passed on, and why.
DROPPED = {
    "verbose": "shows internals",
    "reasoning_budget_start_tag": "llama-server fills it in for a chat",
    "reasoning_budget_end_tags": "llama-server fills it in for a chat",
    "reasoning_budget_end_tag": "llama-server fills it in for a chat",
}


def why_not(endpoint: Endpoint, asked: Mapping[str, object]) -> tuple[str | None, str]:
    with pytest.raises(HttpRefusal) as caught:
        judged(asked, endpoint)
    failure = caught.value.failure
    assert (failure.status, failure.code) == (400, "invalid_value")
    assert failure.error()["param"] == failure.param
    return failure.param or "", failure.message


def test_each_path_with_a_json_body_has_a_table_or_is_translated_to_one_that_has() -> None:
    posted = {path for path, route in ROUTES.items() if route.method == "POST" and not route.is_form}
    assert ENDPOINTS.keys() | DIALECTS.keys() == posted - {SHOW_PATH}
    assert not ENDPOINTS.keys() & DIALECTS.keys(), "nobody would look at such a table"
    for path in posted - {SHOW_PATH}:
        assert ROUTES[path].dialect.read(small(path), FACTS).path in ENDPOINTS
        assert is_admitted(path, small(path))


class Read(dict[str, object]):
    """An object of a body that notes which fields are read, anywhere in it."""

    def __init__(self, fields: Mapping[str, object], names: set[str], depth: int = 8) -> None:
        super().__init__({name: watched(value, names, depth) for name, value in fields.items()})
        self._names = names

    def get(self, name: str, otherwise: object = None) -> object:
        """Note the name, and return what dict does."""
        self._names.add(name)
        return super().get(name, otherwise)


def watched(value: object, names: set[str], depth: int) -> object:
    """Return the same, with each object as a Read; no dialect looks deeper than `depth`."""
    if isinstance(value, list) and depth:
        return [watched(one, names, depth - 1) for one in value]
    return Read(value, names, depth - 1) if isinstance(value, dict) and depth else value


def names_in(form: object) -> set[str]:
    """All names of fields in a form of hostile_dialects.py; a function may have others."""
    if isinstance(form, dict):
        return {*form, *(name for one in form.values() for name in names_in(one))}
    if isinstance(form, Many):
        return names_in(form.form)
    parts = form if isinstance(form, list | tuple) else ()
    return {name for one in parts for name in names_in(one)}


@pytest.mark.parametrize("path", sorted(DIALECTS))
def test_hostile_requests_have_each_field_that_a_dialect_reads(path: str) -> None:
    """A dialect that reads another one from now on needs a form for it."""
    read: set[str] = set()
    form, _ = DIALECTS[path]
    for seed in range(300):
        asked = Read({**small(path), **hostile(random.Random(seed), path)}, read)
        with contextlib.suppress(HttpRefusal):
            ROUTES[path].dialect.read(asked, FACTS)
    assert read - names_in(form) - fields_of(Endpoint.CHAT).keys() == set()


@given(st.sampled_from(sorted(ENDPOINTS.keys() | DIALECTS.keys())), st.integers(0, 1 << 32))
def test_a_hostile_request_is_passed_on_or_refused_as_its_own_fault(path: str, seed: int) -> None:
    is_admitted(path, {**small(path), **hostile(random.Random(seed), path)})


def test_each_field_of_the_pinned_llama_server_is_in_the_table_or_dropped_for_a_reason() -> None:
    source = pinned_source("tools/server/server-schema.cpp")
    source = re.sub(r"(?s)#if 0.*?#endif|//[^\n]*", "", source)
    registered = {name or alias for name, alias in _REGISTERED.findall(source)} - {"include_usage"}
    assert len(registered) > 60, "they are written otherwise now"
    known = {*fields_of(Endpoint.COMPLETION), *fields_of(Endpoint.CHAT)}
    assert registered - known == DROPPED.keys()


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ({"repeat_last_n": 2**31 - 1}, "a whole number from 0 to 131072"),
        ({"dry_penalty_last_n": 2**31 - 1}, "a whole number from 0 to 131072"),
        ({"n_probs": 49152}, "a whole number from 0 to 20"),
        ({"top_logprobs": 21}, "a whole number from 0 to 20"),
        ({"n": 0}, "a whole number from 1 to 64"),
        ({"temperature": math.nan}, "finite numbers"),
        ({"response_format": {"x": [math.inf]}}, "finite numbers"),
        ({"temperature": True}, "a number from 0 to 100"),
        ({"max_tokens": "100"}, "a whole number from -1 to 2147483647"),
        ({"max_tokens": 1.5}, "a whole number from -1 to 2147483647"),
        ({"repeat_penalty": 0}, "a number from 0.01 to 100"),
        ({"stop": ["a"] * 65}, "at most 64 strings of at most 1024 characters"),
        ({"stop": "a" * 1025}, "a string of at most 1024 characters"),
        ({"response_fields": ["a"] * 65}, "a list of at most 64 names"),
        ({"logit_bias": {str(one): 1 for one in range(1025)}}, "at most 1024 tokens"),
        ({"logit_bias": {"a" * 65: 1}}, "strings of at most 64 characters"),
        ({"logit_bias": [[1, 1e39]]}, "a number from -1000 to 1000"),
        ({"samplers": ["top_k"] * 1000}, "at most 32 names of samplers, without duplicates"),
        ({"samplers": ["top_k", "top-k"]}, "without duplicates"),
        ({"dry_sequence_breakers": ["a"] * 33}, "at most 32 strings"),
        ({"grammar_triggers": [{"type": 99, "value": "a"}]}, "omit the field"),
        ({"grammar_lazy": True}, "omit the field"),
        ({"preserved_tokens": ["a"]}, "omit the field"),
        ({"chat_parser": '{"parsers":[]}'}, "omit the field"),
        ({"lora": [{"id": 0, "scale": 1.0}]}, "omit the field"),
        ({"n_discard": 5000}, "omit the field"),
        ({"response_format": {"type": "json_object", "schema": {"enum": [0] * 1025}}}, "at most 1024"),
        ({"chat_template_kwargs": json.loads('{"a":' * 70 + "1" + "}" * 70)}, "nested at most 64 deep"),
        ({"messages": None}, "a list of at most"),
    ],
)
def test_what_hurts_is_refused_with_the_field_and_what_is_allowed(
    asked: dict[str, object], allowed: str
) -> None:
    param, message = why_not(Endpoint.CHAT, asked)
    assert [param] == list(asked)
    assert allowed in message
    assert f"`{param}`" in message
    assert len(message) < 400


def test_tools_of_all_dialects_are_bounded_together() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(250)}}
    function = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    assert judged({"tools": function * 20}, Endpoint.CHAT)["tools"] == function * 20
    assert why_not(Endpoint.CHAT, {"tools": function * 40}) == (
        "tools",
        "`tools`: the schemas together have more than 8192 subschemas",
    )
    for path, tools in (
        ("/v1/messages", [{"name": f"f{n}", "input_schema": schema} for n in range(40)]),
        (
            "/v1/responses",
            [
                {
                    "type": "namespace",
                    "name": "n",
                    "tools": [{"type": "function", "name": f"f{n}", "parameters": schema} for n in range(40)],
                }
            ],
        ),
    ):
        translated = ROUTES[path].dialect.read({**small(path), "tools": tools}, FACTS)
        with pytest.raises(HttpRefusal, match="8192 subschemas"):
            judged(translated.fields, ENDPOINTS[translated.path])


@pytest.mark.parametrize("samplers", [["top_k", "infill", "penalties"], "ki"])
def test_a_sampler_that_heeds_no_grammar_is_used_without_one(samplers: object) -> None:
    """With one it ended llama-server: the token that it chose was not in the grammar."""
    alone = {"samplers": samplers, "input_prefix": "a"}
    assert judged(alone, Endpoint.INFILL) == alone
    for endpoint, form in (
        (Endpoint.INFILL, {"grammar": 'root ::= "a"'}),
        (Endpoint.COMPLETION, {"json_schema": {"type": "object"}}),
        (Endpoint.CHAT, {}),  # calls of tools have a grammar
    ):
        assert why_not(endpoint, {"samplers": samplers, **form})[0] == "samplers"


@pytest.mark.parametrize(
    ("samplers", "top_k", "fits"),
    [
        (["top_k", "infill"], 40, True),
        (["top-k", "temperature", "infill"], 256, True),
        (["top_k", "infill"], None, True),  # 40, then
        (["infill", "top_k"], 40, False),
        (["infill"], 40, False),
        ("i", 40, False),
        ("ik", 40, False),
        (["penalties", "xtc", "dry", "adaptive_p", "infill"], None, False),
        (["top_k", "infill"], 257, False),
        (["top_k", "infill"], 0, False),  # all tokens
        (["top_k", "infill"], -1, False),
    ],
)
def test_a_sampler_that_compares_all_tokens_gets_few(
    samplers: object, top_k: int | None, *, fits: bool
) -> None:
    """Behind nothing that drops tokens, a vocabulary of 50,000 took half a minute for one token."""
    for endpoint in (Endpoint.COMPLETION, Endpoint.INFILL):
        asked = {"samplers": samplers, "prompt": "a", "input_prefix": "a", "top_k": top_k}
        if fits:
            assert judged(asked, endpoint)["samplers"] == samplers
        else:
            assert why_not(endpoint, asked)[0] == "samplers"


@pytest.mark.parametrize(
    ("prompt", "fits"),
    [
        ("text", True),
        ([1, 2, 3], True),
        ([1, "a"], True),
        (["a", [1, 2], {"prompt_string": "b"}], True),
        (["a"] * 2048, True),
        (["a"] * 2049, False),
        ([1] * 100_000, True),
        ([-1], False),
        ([2**31], False),
        ([[1], [-1]], False),
        ([], False),
        ({"no": 1}, False),
        (None, False),
        ([1.5], False),
        ([True], False),
    ],
)
def test_a_prompt_is_text_tokens_or_a_list_of_those(prompt: object, fits: bool) -> None:
    if fits:
        assert judged({"prompt": prompt}, Endpoint.COMPLETION) == {"prompt": prompt}
    else:
        assert why_not(Endpoint.COMPLETION, {"prompt": prompt})[0] == "prompt"


def test_unknown_fields_and_defaults_are_left_out() -> None:
    asked = {"messages": [], "store": True, "temperature": None, "__verbose": 1, "id_slot": 3}
    assert judged(asked, Endpoint.CHAT) == {"messages": []}


def test_what_clients_send_is_kept() -> None:
    llama_vim = {
        "input_prefix": "a",
        "input_suffix": "b",
        "input_extra": [{"filename": "f", "text": "t"}],
        "prompt": "p",
        "n_predict": 128,
        "stop": [],
        "n_indent": 4,
        "top_k": 40,
        "top_p": 0.99,
        "stream": False,
        "samplers": ["top_k", "top_p", "infill"],
        "cache_prompt": True,
        "t_max_predict_ms": 1000,
        "response_fields": ["content", "timings/prompt_n"],
    }
    sent = judged(llama_vim, Endpoint.INFILL)
    assert sent.pop("response_fields") == [
        *("content", "timings/prompt_n"),
        *("tokens_predicted", "tokens_evaluated"),  # for quotas
    ]
    assert sent == {name: one for name, one in llama_vim.items() if name != "response_fields"}
    chat = {
        "model": "gpt-4",
        "messages": [{"role": "user", "content": "hi"}],
        "temperature": 1,
        "top_p": 1,
        "n": 1,
        "stream": True,
        "stream_options": {"include_usage": True},
        "stop": None,
        "max_tokens": 100.0,
        "presence_penalty": 0,
        "frequency_penalty": 0,
        "logit_bias": {"50256": -100},
        "seed": 2**40,
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "reasoning_effort": "low",
    }
    assert judged(chat, Endpoint.CHAT) == {name: one for name, one in chat.items() if name != "stop"}


@given(st.sampled_from(Endpoint), st.integers(0, 1 << 32))
def test_any_value_is_kept_as_it_is_or_refused_by_its_name(endpoint: Endpoint, seed: int) -> None:
    asked = hostile_fields(random.Random(seed), endpoint)
    try:
        sent = judged(asked, endpoint)
    except HttpRefusal as refusal:
        assert refusal.failure.param in asked
        assert refusal.failure.status == 400
        json.dumps(refusal.failure.error()).encode()
        return
    fields = asked.get("response_fields") or []
    shaped = sent.get("response_fields", fields)
    assert isinstance(fields, list) and isinstance(shaped, list) and shaped[: len(fields)] == fields
    assert all(sent[name] == asked[name] for name in sent if name != "response_fields")
    json.loads(json.dumps(sent), parse_constant=_no_number)


def _no_number(name: str) -> object:
    raise AssertionError(f"{name} would go to llama-server")


def test_depth_is_measured_without_recursion() -> None:
    deep: object = 1
    for _ in range(100_000):
        deep = [deep]
    assert "nested at most 64 deep" in why_not(Endpoint.CHAT, {"metadata": 1, "messages": deep})[1]


def test_what_meshd_decides_is_not_passed_on_where_it_is_the_default() -> None:
    """llama-server refuses some of its own defaults, such as an empty parser, and 0 for false."""
    defaults = {"chat_parser": "", "grammar_lazy": 0, "lora": [], "n_discard": False, "suffix": ""}
    assert judged({"prompt": "a", **defaults}, Endpoint.COMPLETION) == {"prompt": "a"}


def test_short_fields_are_judged_before_long_ones() -> None:
    assert why_not(Endpoint.EMBEDDINGS, {"input": [[-1]], "embd_normalize": -9})[0] == "embd_normalize"


def test_a_number_larger_than_any_double_is_refused() -> None:
    assert why_not(Endpoint.TOKENIZE, {"content": "a", "model": 10**400})[0] == "model"


URL = "http://192.0.2.1/secret.png"
DATA = "data:image/png;base64,iVBORw0KGgo="


def parts(url: str) -> list[dict[str, object]]:
    return [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "input_image", "image_url": url},
        {"type": "input_audio", "input_audio": {"data": url, "format": "wav"}},
        {"type": "input_audio", "input_audio": {"url": url}},
        {"type": "input_video", "input_video": {"data": url}},
        {"type": "video_url", "video_url": {"url": url}},
        {"type": "image", "source": {"type": "url", "url": url}},
    ]


@pytest.mark.parametrize("url", [URL, "https://192.0.2.1/x", "file:///etc/passwd", "httpfoo:x", "HTTP://x"])
@pytest.mark.parametrize("number", range(len(parts(URL))))
def test_addresses_are_found_in_every_dialect(number: int, url: str) -> None:
    part = parts(url)[number]
    in_result = {"type": "tool_result", "content": [part]}
    for body in (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, part]}]},
        {"messages": [{"role": "user", "content": [in_result]}]},
        {"input": [{"role": "user", "content": [part]}]},
        {"input": {"content": [part]}},
    ):
        assert has_remote_media(body)


@pytest.mark.parametrize("number", range(len(parts(DATA))))
def test_data_and_base64_pass(number: int) -> None:
    for data in (DATA, "iVBORw0KGgo="):
        assert not has_remote_media({"messages": [{"content": [parts(data)[number]]}]})


def test_addresses_in_text_and_tools_pass() -> None:
    schema = {"type": "object", "properties": {"url": {"type": "string"}, "image_url": {"type": "string"}}}
    assert not has_remote_media(
        {
            "messages": [
                {"role": "user", "content": f"what is at {URL}?"},
                {"role": "user", "content": [{"type": "text", "text": URL}]},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "name": "fetch", "input": {"url": URL}}],
                },
                {"role": "assistant", "tool_calls": [{"function": {"arguments": json.dumps({"url": URL})}}]},
            ],
            "tools": [{"type": "function", "function": {"name": "fetch", "parameters": schema}}],
        }
    )


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["type", "image_url", "url"]), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), VALUES))
def test_any_object_can_be_looked_at(body: dict[str, object]) -> None:
    assert has_remote_media({**body, "messages": [parts(URL)[0]]})
    has_remote_media(body)
