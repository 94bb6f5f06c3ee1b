"""Anthropic's Messages API: requests as llama-server hears them, answers as its library reads them."""

from typing import Any, get_args

import pytest
from anthropic import Anthropic
from anthropic.types import Message, RawMessageStreamEvent
from meshd.gateway.dialects.messages import MessagesAnswering, MessagesDialect, messages_error
from meshd.gateway.failure import Failure, HttpRefusal
from meshd.gateway.interface import Readiness
from meshd.gateway.request import not_ready
from meshd.model.status import ModelState
from pydantic import TypeAdapter

from tests.unit.gateway.dialects.llama_server import (
    BEGIN,
    DONE,
    FACTS,
    call,
    end,
    event,
    events_in,
    streamed,
    text,
    thought,
    transport,
    whole,
)

ASKED = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
TOOL = {"name": "ls", "description": "lists", "input_schema": {"type": "object"}}
FUNCTION = {
    "type": "function",
    "function": {"name": "ls", "description": "lists", "parameters": {"type": "object"}},
}


def read(**fields: object) -> dict[str, Any]:
    return MessagesDialect().read({**ASKED, **fields}, FACTS).fields


def why_not(**fields: object) -> Failure:
    with pytest.raises(HttpRefusal) as caught:
        MessagesDialect().read({**ASKED, **fields}, FACTS)
    return caught.value.failure


def messages_of(*messages: tuple[str, object]) -> list[dict[str, Any]]:
    said = [{"role": role, "content": content} for role, content in messages]
    found: list[dict[str, Any]] = read(messages=said)["messages"]
    return found


def test_a_request_becomes_a_chat() -> None:
    fields = read(system="Be brief.", stop_sequences=["x"], temperature=0.5, top_k=3, stream=True)
    assert fields == {
        "model": "m",
        "max_tokens": 50,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stop": ["x"],
        "temperature": 0.5,
        "top_k": 3,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_turn_with_tools_keeps_its_order() -> None:
    found = messages_of(
        ("user", [{"type": "text", "text": "look"}]),
        ("system", "a note"),
        (
            "assistant",
            [
                {"type": "thinking", "thinking": "hm", "signature": "x"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "t1", "name": "ls", "input": {"path": "ä"}},
            ],
        ),
        (
            "user",
            [
                {"type": "text", "text": "and?"},
                {"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "a.txt"}]},
            ],
        ),
    )
    assert found == [
        {"role": "user", "content": "look"},
        {"role": "system", "content": "a note"},
        {
            "role": "assistant",
            "content": "I look.",
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "t1", "type": "function", "function": {"name": "ls", "arguments": '{"path": "ä"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "t1", "content": "a.txt"},
        {"role": "user", "content": "and?"},
    ]


def test_an_image_and_a_document_reach_the_model() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    paper = {
        "type": "document",
        "title": "T",
        "source": {"type": "text", "media_type": "text/plain", "data": "x"},
    }
    (found,) = messages_of(("user", [image, paper]))
    assert found["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        {"type": "text", "text": "<document>\nT\nx\n</document>"},
    ]


def test_a_document_that_is_no_text_is_refused_by_name() -> None:
    paper = {
        "type": "document",
        "source": {"type": "base64", "media_type": "application/pdf", "data": "AAAA"},
    }
    failure = why_not(messages=[{"role": "user", "content": [paper]}])
    assert (failure.status, failure.param) == (400, "messages.0.content.0.source")
    assert "application/pdf" in failure.message


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "none"}, "none", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "tool", "name": "ls"}, "required", None),
    ],
)
def test_tools_and_the_choice_of_one(choice: object, expected: str, parallel: bool | None) -> None:
    other = {**TOOL, "name": "rm"}
    fields = read(tools=[TOOL, other], tool_choice=choice)
    assert fields["tools"][0] == FUNCTION and fields["tool_choice"] == expected
    assert len(fields["tools"]) == (1 if isinstance(choice, dict) and "name" in choice else 2)
    assert fields.get("parallel_tool_calls") is parallel


def test_tools_of_anthropic_s_servers_are_left_out_and_others_named() -> None:
    asked = {**ASKED, "tools": [{"type": "web_search_20250305", "name": "web_search"}, TOOL]}
    translation = MessagesDialect().read(asked, FACTS)
    assert translation.notes == ("tool `web_search_20250305`",)
    servers = {**asked, "mcp_servers": [{"type": "url", "url": "https://example.invalid", "name": "x"}]}
    assert MessagesDialect().read(servers, FACTS).notes[-1] == "mcp_servers"
    assert translation.fields["tools"] == [FUNCTION]
    assert "computer_20250124" in why_not(tools=[{"type": "computer_20250124", "name": "c"}]).message
    assert "`rm`" in why_not(tools=[TOOL], tool_choice={"type": "tool", "name": "rm"}).message
    assert why_not(tool_choice={"type": "any"}).param == "tool_choice"


def test_schemas_thinking_and_effort() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    fields = read(output_config={"format": {"type": "json_schema", "schema": schema}, "effort": "max"})
    assert fields["response_format"]["json_schema"]["schema"] == schema
    assert fields["reasoning_effort"] == "high"
    assert read(thinking={"type": "enabled", "budget_tokens": 99})["thinking_budget_tokens"] == 99
    assert read(thinking={"type": "disabled"})["reasoning_effort"] == "none"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"messages": "bad"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "bob", "content": "hi"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": [{"type": "x"}]}]}, "messages.0.content.0"),
        ({"top_p": 5}, "top_p"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"tools": [{"type": "custom"}]}, "tools.0.name"),
    ],
    ids=str,
)
def test_what_anthropic_s_servers_refuse_is_refused(fields: dict[str, object], param: str) -> None:
    failure = why_not(**fields)
    assert (failure.status, failure.param) == (400, param)
    error = messages_error(failure)
    assert error["type"] == "error" and error["error"]["type"] == "invalid_request_error"  # type: ignore[index]


def test_a_stamp_that_changes_each_time_does_not() -> None:
    stamp = "x-anthropic-billing-header: cc_version=2.1; cch={};"
    made = [read(system=[{"type": "text", "text": stamp.format(one)}]) for one in ("a5145", "0ffee")]
    assert made[0] == made[1]


def test_tokens_are_counted_without_a_length() -> None:
    asked = {name: value for name, value in ASKED.items() if name != "max_tokens"}
    translation = MessagesDialect(counts=True).read({**asked, "tools": [TOOL]}, FACTS)
    assert translation.path == "/v1/chat/completions/input_tokens" and translation.fields["tools"] == [
        FUNCTION
    ]
    assert translation.answering.whole({"input_tokens": 7, "object": "x"}) == {"input_tokens": 7}


def accumulated(*events: bytes) -> Message:
    """As Anthropic's library puts a stream together; each event is of a published type."""
    answering = MessagesAnswering(FACTS)
    stream = b"".join(answering.events(one) for one in events)
    kinds = get_args(get_args(RawMessageStreamEvent)[0])
    known = {name: kind for kind in kinds for name in get_args(kind.model_fields["type"].annotation)}
    for one in events_in(stream):
        TypeAdapter(known[one["type"]]).validate_python(one)
    with transport(stream) as http:
        client = Anthropic(api_key="x", base_url="http://localhost", http_client=http)
        asked: Any = [{"role": "user", "content": "hi"}]
        with client.messages.stream(model="m", max_tokens=9, messages=asked) as answer:
            return answer.get_final_message()


def test_a_stream_is_what_anthropic_s_library_reads() -> None:
    said_by_llama_server = (
        BEGIN + thought("h") + thought("m"),
        text("I ") + text("look."),
        call(0, "", "ls") + call(0, '{"path": '),
        call(0, '"a"}') + call(1, "{}", "ls"),
        end("tool_calls"),
    )
    message = accumulated(*said_by_llama_server)
    events = streamed(MessagesAnswering(FACTS), *said_by_llama_server)
    assert (message.id, message.model, message.stop_reason) == (f"msg_{FACTS.id}", "tiny", "tool_use")
    assert [one.type for one in message.content] == ["thinking", "text", "tool_use", "tool_use"]
    said = [one.model_dump() for one in message.content]
    assert (said[0]["thinking"], said[1]["text"], said[2]["input"]) == ("hm", "I look.", {"path": "a"})
    assert said[2]["id"] == "id0" and said[3]["input"] == {}
    usage = message.usage
    assert (usage.input_tokens, usage.cache_read_input_tokens, usage.output_tokens) == (12, 8, 5)
    starts = [one["index"] for one in events if one["type"] == "content_block_start"]
    stops = [one["index"] for one in events if one["type"] == "content_block_stop"]
    assert starts == stops == [0, 1, 2, 3]
    assert events[0]["type"] == "message_start" and events[-1]["type"] == "message_stop"


@pytest.mark.parametrize(("reason", "expected"), [("stop", "end_turn"), ("length", "max_tokens")])
def test_why_it_ended_is_told(reason: str, expected: str) -> None:
    assert accumulated(text("a"), end(reason)).stop_reason == expected
    assert MessagesAnswering(FACTS).whole(whole("a", reason=reason))["stop_reason"] == expected


def test_an_answer_without_text_is_a_message() -> None:
    assert accumulated(BEGIN, end()).content == []


def test_a_whole_answer_is_what_anthropic_s_library_reads() -> None:
    answer = whole("I look.", "hm", [("ls", '{"path": "a"}'), ("ls", '{"path": "b')], "length")
    message = TypeAdapter(Message).validate_python(MessagesAnswering(FACTS).whole(answer))
    said = [one.model_dump() for one in message.content]
    assert [one["type"] for one in said] == ["thinking", "text", "tool_use", "tool_use"]
    assert [one["input"] for one in said[2:]] == [{"path": "a"}, {"path": "b"}], "cut off, as far as it came"


def test_a_failure_in_a_stream_is_an_error_event() -> None:
    answering = MessagesAnswering(FACTS)
    (told,) = streamed(
        answering, event({"error": {"code": 500, "message": "Compute error.", "type": "server_error"}})
    )
    assert told["error"] == {"type": "api_error", "message": "Compute error."}
    assert answering.events(text("more") + DONE) == b"", "nothing follows it"


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, "authentication_error"),
        (404, "not_found_error"),
        (503, "api_error"),
        (429, "rate_limit_error"),
    ],
)
def test_each_status_has_its_type(status: int, kind: str) -> None:
    error: Any = messages_error(Failure(status, "no"))
    assert error["error"] == {"type": kind, "message": "no"}


@pytest.mark.parametrize("code", ["busy", "queue_timeout"])
def test_only_too_many_requests_are_an_overload(code: str) -> None:
    """Clients ask again for minutes after one, and say nothing."""
    error: Any = messages_error(Failure(503, "no", code=code))["error"]
    assert error["type"] == "overloaded_error"
    waiting: Any = messages_error(not_ready(Readiness(ModelState.WAITING, "no worker")))["error"]
    assert waiting["type"] == "api_error"
