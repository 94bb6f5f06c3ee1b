"""Ollama's API: requests become chats of llama-server, and its answers lines of JSON."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from meshd.gateway.dialects.dialect import Dialect, RequestFacts, Translation
from meshd.gateway.dialects.fields import Endpoint, judged, objects_of
from meshd.gateway.dialects.ollama import (
    GenerateAnswering,
    ListedModel,
    OllamaAnswering,
    OllamaChat,
    OllamaEmbed,
    OllamaGenerate,
    TextAnswering,
    running,
    shown,
    tags,
)
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

FACTS = RequestFacts("0123456789abcdef01234567", 1_700_000_000, "tiny")
HEAD = {"model": "tiny", "created_at": "2023-11-14T22:13:20Z"}
HI = [{"role": "user", "content": "hi"}]
PNG = "iVBORw0KGgo="
TOOL = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
TIMINGS = {"prompt_n": 3, "prompt_ms": 20.0, "predicted_n": 2, "predicted_ms": 40.5}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}
END = {
    "done": True,
    "done_reason": "stop",
    "total_duration": 60_500_000,
    "load_duration": 0,
    "prompt_eval_count": 5,
    "prompt_eval_duration": 20_000_000,
    "eval_count": 2,
    "eval_duration": 40_500_000,
}


def read(dialect: Dialect, **asked: object) -> Translation:
    return dialect.read(dict(asked), FACTS)


def chat(**asked: object) -> dict[str, object]:
    """The fields of a chat that this becomes, without those of every stream."""
    translation = read(OllamaChat(), **{"messages": HI, **asked})
    assert translation.path == "/v1/chat/completions" and translation.stream
    assert translation.fields.pop("stream") is True
    assert translation.fields.pop("stream_options") == {"include_usage": True}
    return translation.fields


def sse(*events: Mapping[str, object]) -> bytes:
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events)


def delta(**fields: object) -> dict[str, object]:
    return {"choices": [{"index": 0, "delta": fields, "finish_reason": None}]}


def ends(reason: str) -> bytes:
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return sse(last, {"choices": [], "usage": USAGE, "timings": TIMINGS}) + b"data: [DONE]\n\n"


def lines(data: bytes) -> list[dict[str, Any]]:
    assert data.endswith(b"\n") or not data
    return [json.loads(line) for line in data.splitlines()]


def test_a_chat_is_streamed_unless_told_otherwise() -> None:
    assert chat() == {"messages": HI}
    assert not read(OllamaChat(), messages=HI, stream=False).stream
    assert "stream" not in read(OllamaChat(), messages=HI, stream=False).fields


def test_options_have_llama_servers_names_and_those_of_loading_are_left_out() -> None:
    options = {
        "temperature": 0.5,
        "top_k": 20,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.7,
        "seed": 42.0,
        "num_predict": 100,
        "repeat_last_n": 33,
        "repeat_penalty": 1.2,
        "presence_penalty": 1.5,
        "frequency_penalty": 1,
        "mirostat": 1,
        "stop": ["\n", "user:"],
        "num_ctx": 1024,
        "num_gpu": 1,
        "use_mmap": True,
        "unknown": [],
        "mirostat_tau": None,
    }
    taken = {name: value for name, value in options.items() if name not in ("num_predict", "num_ctx")}
    for name in ("num_gpu", "use_mmap", "unknown", "mirostat_tau"):
        del taken[name]
    fields = chat(options=options, keep_alive="5m")
    assert fields == {"messages": HI, **taken, "max_tokens": 100}
    assert judged(fields, Endpoint.CHAT) == fields, "llama-server takes all of them"
    assert chat(options={"num_predict": -1, "repeat_last_n": -1, "stop": "x"}) == {
        "messages": HI,
        "stop": ["x"],
    }


@pytest.mark.parametrize(
    ("asked", "added"),
    [
        ({"format": "json"}, {"response_format": {"type": "json_object"}}),
        ({"format": ""}, {}),
        (
            {"format": {"type": "object"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "schema": {"type": "object"}},
                }
            },
        ),
        ({"think": False}, {"chat_template_kwargs": {"enable_thinking": False}}),
        ({"think": "high"}, {"chat_template_kwargs": {"enable_thinking": True, "reasoning_effort": "high"}}),
        ({"tools": [TOOL]}, {"tools": [TOOL]}),
        ({"tools": []}, {}),
    ],
)
def test_format_thinking_and_tools_are_asked_for(asked: dict[str, object], added: dict[str, object]) -> None:
    assert chat(**asked) == {"messages": HI, **added}


def test_calls_get_ids_by_which_their_results_are_found() -> None:
    def call(name: str, **more: object) -> dict[str, object]:
        return {"function": {"name": name, "arguments": {"a": 1}}, **more}

    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "look", "images": [PNG]},
        {"role": "assistant", "thinking": "hm", "tool_calls": [call("x"), call("y"), call("z", id="own")]},
        {"role": "tool", "tool_name": "y", "content": "of y"},
        {"role": "tool", "content": "of x"},
        {"role": "tool", "tool_call_id": "own", "content": "of z"},
    ]
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PNG}"}}
    made = chat(messages=messages)["messages"]
    assert isinstance(made, list)
    assert made[1] == {"role": "user", "content": [{"type": "text", "text": "look"}, image]}
    assert (made[2]["reasoning_content"], made[2]["content"]) == ("hm", "")
    calls = made[2]["tool_calls"]
    assert [(one["id"], one["function"]["name"]) for one in calls] == [
        ("call_1", "x"),
        ("call_2", "y"),
        ("own", "z"),
    ]
    assert calls[0]["function"]["arguments"] == '{"a": 1}'
    results = [(one["tool_call_id"], one["content"]) for one in made[3:]]
    assert results == [("call_2", "of y"), ("call_1", "of x"), ("own", "of z")]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"messages": "bad"}, "messages"),
        ({"messages": [1]}, "messages[0]"),
        ({"messages": [{"role": "bob", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "images": ["http://192.0.2.1/x.png"]}]}, "messages[0].images[0]"),
        ({"stream": "yes"}, "stream"),
        ({"format": 3}, "format"),
        ({"format": "xml"}, "format"),
        ({"think": 3}, "think"),
        ({"think": "banana"}, "think"),
        ({"think": ["low"]}, "think"),
        ({"messages": [{"role": "user", "images": [" " * 300_000 + "!"]}]}, "messages[0].images[0]"),
        ({"options": []}, "options"),
        ({"options": {"temperature": "hot"}}, "options.temperature"),
        ({"options": {"temperature": True}}, "options.temperature"),
        ({"options": {"seed": 1.5}}, "options.seed"),
        ({"options": {"stop": [1]}}, "options.stop"),
        ({"tools": "x"}, "tools"),
    ],
)
def test_what_is_wrong_is_named(asked: dict[str, object], named: str) -> None:
    with pytest.raises(HttpRefusal) as caught:
        read(OllamaChat(), **{"messages": HI, **asked})
    assert (caught.value.failure.status, caught.value.failure.param) == (400, named)
    assert OllamaChat().error(caught.value.failure) == {"error": caught.value.failure.message}


def test_a_completion_is_a_chat_unless_it_is_raw_or_has_a_suffix() -> None:
    of = OllamaGenerate()
    asked = read(of, prompt="sky?", system="be brief", images=[PNG], stream=False)
    messages = asked.fields["messages"]
    assert asked.path == "/v1/chat/completions" and isinstance(messages, list)
    assert [one["role"] for one in messages] == ["system", "user"]
    assert [part["type"] for part in messages[1]["content"]] == ["text", "image_url"]
    raw = read(of, prompt="[INST] x", raw=True, options={"num_predict": 5})
    assert (raw.path, raw.stream) == ("/v1/completions", True)
    assert (raw.fields["prompt"], raw.fields["max_tokens"]) == ("[INST] x", 5)
    held = read(of, prompt="x", raw=True, format="json")
    assert held.fields["json_schema"] == {"type": "object"}
    fill = read(of, prompt="def f(", suffix="return", options={"num_predict": 5}, stream=False)
    assert fill.path == "/infill"
    assert fill.fields == {"input_prefix": "def f(", "input_suffix": "return", "n_predict": 5}


@pytest.mark.parametrize(("dialect", "piece"), [(OllamaChat(), "message"), (OllamaGenerate(), "response")])
def test_a_request_without_a_prompt_loads_the_model(dialect: Dialect, piece: str) -> None:
    asked = read(dialect, model="tiny")
    assert (asked.path, asked.fields["max_tokens"], asked.stream) == ("/v1/completions", 1, False)
    told = asked.answering.whole({"choices": [{"text": "secret", "finish_reason": "length"}]})
    assert (told["done"], told["done_reason"]) == (True, "load")
    assert "secret" not in json.dumps(told) and piece in told


def test_a_streamed_chat_is_lines_of_json_with_figures_at_the_end() -> None:
    answering = OllamaAnswering(FACTS)
    assert answering.content_type == "application/x-ndjson"
    said = lines(answering.events(sse(delta(role="assistant", content=None), delta(reasoning_content="hm"))))
    assert said == [
        {**HEAD, "message": {"role": "assistant", "content": "", "thinking": "hm"}, "done": False}
    ]
    said = lines(answering.events(sse(delta(content="Hé")) + ends("length")))
    assert said == [
        {**HEAD, "message": {"role": "assistant", "content": "Hé"}, "done": False},
        {**HEAD, "message": {"role": "assistant", "content": ""}, **END, "done_reason": "length"},
    ]
    assert answering.events(sse(delta(content="late"))) == b""
    assert answering.comment("late") == b""


def test_calls_come_whole_with_their_arguments_as_an_object() -> None:
    answering = OllamaAnswering(FACTS)

    def piece(index: int, arguments: str, **more: object) -> bytes:
        name = {"name": f"f{index}"} if more else {}
        call = {"index": index, **more, "function": {**name, "arguments": arguments}}
        return sse(delta(tool_calls=[call]))

    out = answering.events(piece(0, '{"a": ', id="c0") + piece(0, "1}") + piece(1, '{"b": "x', id="c1"))
    assert out == b""
    called, last = lines(answering.events(ends("tool_calls")))
    assert called["message"]["tool_calls"] == [
        {"id": "c0", "function": {"index": 0, "name": "f0", "arguments": {"a": 1}}},
        {"id": "c1", "function": {"index": 1, "name": "f1", "arguments": {"b": "x"}}},
    ]
    assert (called["done"], last["done"], last["done_reason"]) == (False, True, "stop")


def test_a_whole_chat_has_all_in_one() -> None:
    call = {"id": "c0", "function": {"name": "f", "arguments": "{}"}}
    message = {"role": "assistant", "content": "hi", "reasoning_content": "hm", "tool_calls": [call]}
    answer = {"choices": [{"message": message, "finish_reason": "stop"}], "usage": USAGE, "timings": TIMINGS}
    assert OllamaAnswering(FACTS).whole(answer) == {
        **HEAD,
        "message": {
            "role": "assistant",
            "content": "hi",
            "thinking": "hm",
            "tool_calls": [{"id": "c0", "function": {"index": 0, "name": "f", "arguments": {}}}],
        },
        **END,
    }
    said = GenerateAnswering(FACTS).whole(answer)
    assert said == {**HEAD, "response": "hi", "thinking": "hm", **END}


NATIVE = {"content": "ab", "stop": True, "stop_type": "limit", "tokens_evaluated": 5, "tokens_predicted": 2}
OPENAI = {"choices": [{"text": "ab", "finish_reason": "length"}], "usage": USAGE}


@pytest.mark.parametrize("answer", [NATIVE, OPENAI], ids=["infill", "completion"])
def test_texts_without_a_chat_are_read_in_both_forms(answer: dict[str, object]) -> None:
    answer = {**answer, "timings": TIMINGS}
    expected = {**HEAD, "response": "ab", **END, "done_reason": "length"}
    assert TextAnswering(FACTS).whole(answer) == expected
    streamed = TextAnswering(FACTS).events(sse(answer) + b"data: [DONE]\n\n")
    piece, last = lines(streamed)
    assert piece == {**HEAD, "response": "ab", "done": False}
    assert last == {**expected, "response": ""}


def test_a_stream_that_breaks_off_ends_with_an_error_line() -> None:
    answering = OllamaAnswering(FACTS)
    assert lines(answering.comment("waiting")) == [
        {**HEAD, "message": {"role": "assistant", "content": ""}, "done": False}
    ]
    assert lines(answering.failed(Failure(502, "worker garage is lost"))) == [
        {"error": "worker garage is lost"}
    ]
    assert answering.events(sse(delta(content="x"))) == b""


def test_arguments_of_calls_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshd.gateway.dialects.ollama._MOST_ARGUMENTS", 10)
    answering = OllamaAnswering(FACTS)
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "x" * 8}}
    for _ in range(3):
        answering.events(sse(delta(tool_calls=[call])))
    called, _last = lines(answering.events(ends("tool_calls")))
    assert called["message"]["tool_calls"][0]["function"]["arguments"] == {"input": "x" * 8}


def test_embeddings_of_one_text_or_several() -> None:
    answer = {"data": [{"embedding": [0.5]}, {"embedding": [1.5]}], "usage": {"prompt_tokens": 4}}
    several = read(OllamaEmbed(), input=["a", "b"], truncate=True)
    assert (several.path, several.fields) == ("/v1/embeddings", {"input": ["a", "b"]})
    told = several.answering.whole(answer)
    assert told == {"model": "tiny", "embeddings": [[0.5], [1.5]], "prompt_eval_count": 4}
    one = read(OllamaEmbed(single=True), prompt="a")
    assert one.fields == {"input": "a"} and one.answering.whole(answer) == {"embedding": [0.5]}
    for bad in ({}, {"input": 3}, {"input": ["a", 3]}):
        with pytest.raises(HttpRefusal):
            read(OllamaEmbed(), **bad)


LOADED = ServedFacts(
    context=8192,
    trained_context=40960,
    created=1_700_000_000,
    size=5,
    parameters=8_030_000_000,
    embedding_length=64,
    architecture="qwen3",
    quantization="Q4_K_M",
    fingerprint="ab" * 32,
    capabilities=("completion", "tools"),
)


def test_models_are_described_as_ollama_does() -> None:
    details = {
        "parent_model": "",
        "format": "gguf",
        "family": "qwen3",
        "families": ["qwen3"],
        "parameter_size": "8.0B",
        "quantization_level": "Q4_K_M",
    }
    row = {"name": "a", "model": "a", "size": 5, "digest": "ab" * 32, "details": details}
    models = [ListedModel("a", LOADED), ListedModel("b", ServedFacts(trained_context=9), ModelState.UNLOADED)]
    listed, other = objects_of(tags(models)["models"])
    assert listed == {**row, "modified_at": "2023-11-14T22:13:20Z", "state": "ready"}
    assert (other["name"], other["state"]) == ("b", "unloaded")
    assert running(models)["models"] == [
        {**row, "size_vram": 5, "expires_at": "2318-01-01T00:00:00Z", "context_length": 8192}
    ]
    about = shown(models[0].name, models[0].facts)
    assert about["model_info"] == {
        "general.architecture": "qwen3",
        "general.basename": "a",
        "general.parameter_count": 8_030_000_000,
        "qwen3.context_length": 8192,
        "qwen3.embedding_length": 64,
    }
    assert (about["parameters"], about["capabilities"]) == ("num_ctx 8192", ["completion", "tools"])
    assert shown(models[1].name, models[1].facts)["parameters"] == "num_ctx 9"


@pytest.mark.parametrize("letter", ["\u2028", "\u2029", "\u0085", "\x0b", "\x1c"])
def test_a_line_is_one_line_for_every_client(letter: str) -> None:
    event = {"choices": [{"index": 0, "delta": {"content": f"a{letter}b"}}]}
    said = OllamaAnswering(FACTS).events(b"data: " + json.dumps(event).encode() + b"\n\n").decode()
    [line] = said.splitlines()
    assert json.loads(line)["message"]["content"] == f"a{letter}b"
