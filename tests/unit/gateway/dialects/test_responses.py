"""OpenAI's Responses API: requests as llama-server hears them, and answers as OpenAI's library reads them."""

import json
from typing import Any, get_args

import pytest
from meshd.gateway.dialects.dialect import Translation
from meshd.gateway.dialects.responses import ResponsesDialect
from meshd.gateway.failure import Failure, HttpRefusal, context_exceeded
from openai import OpenAI
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from tests.unit.gateway.dialects.llama_server import (
    BEGIN,
    DONE,
    FACTS,
    call,
    end,
    events_in,
    streamed,
    text,
    thought,
    transport,
    whole,
)

TOOL = {"type": "function", "name": "ls", "parameters": {"type": "object"}, "strict": False}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "patches",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: X"},
}
SPACE = {"type": "namespace", "name": "files", "description": "of files", "tools": [TOOL]}
SEARCH = {"type": "web_search", "external_web_access": True}


def translated(given: object = "hi", **fields: object) -> Translation:
    return ResponsesDialect().read({"model": "m", "input": given, **fields}, FACTS)


def why_not(given: object = "hi", **fields: object) -> Failure:
    with pytest.raises(HttpRefusal) as caught:
        translated(given, **fields)
    return caught.value.failure


def messages_of(*items: object) -> Any:
    return translated(list(items)).fields["messages"]


def test_a_request_becomes_a_chat() -> None:
    fields = translated(
        instructions="Be brief.",
        max_output_tokens=9,
        stream=True,
        store=False,
        include=["x"],
        metadata={"a": "b"},
    ).fields
    assert fields == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "max_tokens": 9,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_items_become_messages_in_their_order() -> None:
    found = messages_of(
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
        {"role": "user", "content": "look"},
        {"type": "reasoning", "id": "r", "summary": [{"type": "summary_text", "text": "s"}], "content": None},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
        {"type": "function_call", "call_id": "c1", "name": "ls", "arguments": '{"a": 1}'},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "+x"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "a.txt"}],
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "done"},
    )
    assert found == [
        {"role": "developer", "content": "rules"},
        {"role": "user", "content": "look"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "ls", "arguments": '{"a": 1}'}},
                {
                    "id": "c2",
                    "type": "function",
                    "function": {"name": "patch", "arguments": '{"input": "+x"}'},
                },
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "a.txt"},
        {"role": "tool", "tool_call_id": "c2", "content": "done"},
    ]


KNOWN = [
    *("message", "file_search_call", "computer_call", "computer_call_output", "web_search_call"),
    *("function_call", "function_call_output", "tool_search_call", "tool_search_output", "reasoning"),
    *("image_generation_call", "code_interpreter_call", "local_shell_call", "local_shell_call_output"),
    *("shell_call", "shell_call_output", "apply_patch_call", "apply_patch_call_output", "mcp_list_tools"),
    *("mcp_approval_request", "mcp_approval_response", "mcp_call", "custom_tool_call_output"),
    *("custom_tool_call", "item_reference", "compaction"),
]


def published() -> set[str]:
    from openai.types.responses.response_input_item import ResponseInputItem

    kinds = get_args(get_args(ResponseInputItem)[0])
    named = (kind.model_fields["type"].annotation for kind in kinds if "type" in kind.model_fields)
    return {
        name
        for annotation in named
        for name in get_args(annotation) + sum((get_args(one) for one in get_args(annotation)), ())
        if isinstance(name, str)
    }


@pytest.mark.parametrize("kind", sorted(published() | set(KNOWN)))
def test_every_published_item_is_taken(kind: str) -> None:
    item = {"type": kind, "id": "i", "call_id": "c", "name": "f", "role": "user", "content": []}
    fields = translated([{"role": "user", "content": "hi"}, item, {"role": "user", "content": "so?"}]).fields
    assert len(fields["messages"]) >= 2  # type: ignore[arg-type]


def test_what_is_left_out_is_noted_and_what_is_not_known_named() -> None:
    translation = translated([{"role": "user", "content": "hi"}, {"type": "web_search_call", "id": "w"}])
    assert translation.notes == ("items of type `web_search_call`",)
    failure = why_not([{"type": "no_such_item"}])
    assert failure.param == "input[0].type" and "no_such_item" in failure.message


def test_tools_of_namespaces_and_with_free_input_are_offered() -> None:
    translation = translated(tools=[TOOL, SPACE, PATCH, SEARCH], parallel_tool_calls=True)
    offered: Any = translation.fields["tools"]
    assert [one["function"]["name"] for one in offered] == ["ls", "files__ls", "patch"]
    assert offered[0]["function"]["parameters"] == {"type": "object"}
    assert "start: X" in offered[2]["function"]["description"]
    assert translation.notes == ("tool `web_search`",)


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ("required", "required", ["ls", "files__ls", "patch"]),
        ({"type": "function", "name": "ls"}, "required", ["ls"]),
        ({"type": "custom", "name": "patch"}, "required", ["patch"]),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "ls"}]},
            "auto",
            ["ls"],
        ),
    ],
)
def test_one_of_them_can_be_chosen(choice: object, expected: str, names: list[str]) -> None:
    fields: Any = translated(tools=[TOOL, SPACE, PATCH], tool_choice=choice).fields
    assert fields["tool_choice"] == expected
    assert [one["function"]["name"] for one in fields["tools"]] == names


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{"type": "local_shell"}]}, "tools[0].type"),
        ({"tools": [SEARCH], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "web_search"}}, "tool_choice"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "rm"}}, "tool_choice"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"background": True}, "background"),
        ({"temperature": 9}, "temperature"),
        ({"text": {"format": {"type": "x"}}}, "text.format.type"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
    ],
    ids=str,
)
def test_what_cannot_be_done_is_named(fields: dict[str, object], param: str) -> None:
    failure = why_not(**fields)
    assert (failure.status, failure.param) == (400, param)


def test_a_schema_holds_the_answer() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    made = translated(text={"format": {"type": "json_schema", "name": "n", "schema": schema, "strict": True}})
    wanted = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    assert made.fields["response_format"] == wanted
    assert translated(text={"format": {"type": "json_object"}}).fields["response_format"] == {
        "type": "json_object"
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('{"a": 1, "b": "two', {"a": 1, "b": "two"}),
        ('{"a": [1, 2', {"a": "[1, 2"}),
        ('{"a', {}),
        ("no JSON", {"input": "no JSON"}),
        ("", {}),
        ("[1]", {"input": [1]}),
        ('{"a": NaN}', {"a": "NaN"}),
    ],
)
def test_calls_that_were_cut_off_can_be_sent_back(arguments: str, expected: object) -> None:
    (message,) = messages_of({"type": "function_call", "call_id": "c", "name": "f", "arguments": arguments})
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == expected


def answered(translation: Translation, *events: bytes) -> Response:
    """As OpenAI's library puts a stream together; each event is of a published type, numbered in order."""
    stream = b"".join(translation.answering.events(one) for one in events)
    kinds = get_args(get_args(ResponseStreamEvent)[0])
    known = {name: kind for kind in kinds for name in get_args(kind.model_fields["type"].annotation)}
    for number, one in enumerate(events_in(stream)):
        TypeAdapter(known[one["type"]]).validate_python(one)
        assert one["sequence_number"] == number
    with transport(stream) as http:
        client = OpenAI(api_key="x", base_url="http://localhost/v1", http_client=http)
        with client.responses.stream(model="m", input="hi") as answer:
            found: Response = answer.get_final_response()
            return found


def test_a_stream_is_what_openai_s_library_reads() -> None:
    translation = translated(tools=[TOOL, SPACE, PATCH])
    response = answered(
        translation,
        BEGIN + thought("h") + thought("m"),
        text("I ") + text("look."),
        call(0, "", "files__ls") + call(0, '{"path": ') + call(0, '"a"}'),
        call(1, '{"input": "+', "patch") + call(1, 'x"}'),
        end("tool_calls"),
    )
    assert (response.id, response.status) == (f"resp_{FACTS.id}", "completed")
    reasoning, message, listed, patched = (one.model_dump() for one in response.output)
    assert reasoning["content"] == [{"type": "reasoning_text", "text": "hm"}]
    assert message["content"][0]["text"] == "I look." and response.output_text == "I look."
    assert (listed["name"], listed["namespace"], listed["call_id"]) == ("ls", "files", "id0")
    assert listed["arguments"] == '{"path": "a"}'
    assert (patched["type"], patched["name"], patched["input"]) == ("custom_tool_call", "patch", "+x")
    assert response.usage is not None and response.usage.total_tokens == 25
    assert response.usage.input_tokens_details.cached_tokens == 8


def test_events_say_where_they_belong() -> None:
    events = streamed(translated().answering, thought("h"), text("a"), end())
    places = [
        (one["output_index"], one.get("content_index")) for one in events if one["type"].endswith(".delta")
    ]
    assert places == [(0, 0), (1, 0)]
    assert len({one["item_id"] for one in events if "item_id" in one}) == 2


@pytest.mark.parametrize("streams", [True, False])
def test_an_answer_that_is_cut_off_says_so(streams: bool) -> None:
    answering = translated().answering
    if streams:
        last = streamed(answering, text("a"), end("length"))[-1]
        assert last["type"] == "response.incomplete"
        found = last["response"]
    else:
        found = answering.whole(whole("a", reason="length"))
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert found["output"][0]["status"] == "incomplete"


def test_a_whole_answer_is_what_openai_s_library_reads() -> None:
    translation = translated(tools=[SPACE], metadata={"a": "b"}, temperature=0.5)
    answer = translation.answering.whole(whole("So", "hm", [("files__ls", "{}")], "tool_calls"))
    response = TypeAdapter(Response).validate_python(answer)
    assert [one.type for one in response.output] == ["reasoning", "message", "function_call"]
    assert response.temperature == 0.5 and response.metadata == {"a": "b"}
    assert response.output_text == "So" and response.created_at == FACTS.created


def test_a_failure_in_a_stream_is_what_openai_s_library_raises() -> None:
    answering = translated().answering
    events = events_in(answering.events(text("a")) + answering.failed(context_exceeded(9, 4)))
    assert [one["type"] for one in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["code"] == events[-1]["response"]["error"]["code"] == "context_length_exceeded"
    assert events[-2]["error"]["message"] == events[-2]["message"]
    assert answering.events(text("more") + DONE) == b"", "nothing follows it"


@pytest.mark.parametrize("begun", [b"", text("a")])
def test_what_is_not_the_request_s_fault_ends_a_stream_that_has_output(begun: bytes) -> None:
    """The AI SDK repeats the request if the stream begins with such an error, or if `error` comes first."""
    answering = translated().answering
    failure = Failure(503, "no worker", type="not_ready_error", code="model_waiting")
    events = events_in(answering.events(begun) + answering.failed(failure))
    kinds = [one["type"] for one in events]
    assert kinds.count("response.output_item.added") == 1
    assert kinds[-2:] == ["response.failed", "error"]
    assert events[-2]["response"]["status"] == "failed"
    assert events[-2]["response"]["error"] == {"code": "model_waiting", "message": "no worker"}
    assert events[-1]["error"] == failure.error(), "OpenAI's library for Python raises this"
    assert [one["sequence_number"] for one in events] == list(range(len(events)))
