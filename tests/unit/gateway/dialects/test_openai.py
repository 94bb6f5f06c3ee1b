"""OpenAI's chats: what its servers refuse is refused, and the rest reaches llama-server."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.dialects.chat import ChatDialect, PassedOn
from meshd.gateway.dialects.dialect import Translation
from meshd.gateway.failure import Failure, HttpRefusal

from tests.unit.gateway.dialects.llama_server import FACTS, JSON, event, text

HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": name}} for name in ("ls", "rm")]
PATH = "/v1/chat/completions"


def translated(**fields: object) -> Translation:
    return ChatDialect(PATH).read({"messages": HI, **fields}, FACTS)


def test_a_chat_stays_as_it_is() -> None:
    asked = {"messages": HI, "model": "m", "stream": True, "tools": TOOLS, "temperature": 2, "min_p": 0.1}
    translation = translated(**asked)
    assert (translation.path, translation.stream) == (PATH, True)
    assert translation.fields == asked
    said = text("a") + text("b")
    assert translation.answering.events(said) == said


def test_calls_that_were_cut_off_can_be_sent_back() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "ls", "arguments": '{"path": "a'}}
    fields: Any = translated(
        messages=[*HI, {"role": "assistant", "content": None, "tool_calls": [call]}]
    ).fields
    message = fields["messages"][1]
    assert json.loads(message["tool_calls"][0]["function"]["arguments"]) == {"path": "a"}
    assert message["content"] == ""


@pytest.mark.parametrize(
    ("choice", "expected", "names"),
    [
        ("required", "required", ["ls", "rm"]),
        ({"type": "function", "function": {"name": "rm"}}, "required", ["rm"]),
        ({"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [TOOLS[0]]}}, "auto", ["ls"]),
    ],
)
def test_a_tool_can_be_chosen(choice: object, expected: str, names: list[str]) -> None:
    """llama-server takes no choice by name: it would call any tool, or none."""
    fields: Any = translated(tools=TOOLS, tool_choice=choice).fields
    assert fields["tool_choice"] == expected
    assert [one["function"]["name"] for one in fields["tools"]] == names


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": "bad"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "bob", "content": "hi"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": [{"type": "file"}]}]}, "messages[0].content[0].type"),
        ({"temperature": 9}, "temperature"),
        ({"top_p": 5}, "top_p"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "no"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"functions": [{"name": "ls"}]}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"temperature": float("nan")}, "temperature"),
        ({"response_format": {"type": "x"}}, "response_format.type"),
        ({"stream": "yes"}, "stream"),
    ],
    ids=str,
)
def test_what_openai_s_servers_refuse_is_refused(fields: dict[str, object], param: str) -> None:
    with pytest.raises(HttpRefusal) as caught:
        translated(**fields)
    assert (caught.value.failure.status, caught.value.failure.param) == (400, param)


def test_a_call_in_the_older_form_reaches_the_template() -> None:
    said = {"role": "assistant", "content": None, "function_call": {"name": "ls", "arguments": "{}"}}
    fields: Any = translated(messages=[*HI, said, {"role": "function", "name": "ls", "content": "a"}]).fields
    [call] = fields["messages"][1]["tool_calls"]
    assert call["function"] == {"name": "ls", "arguments": "{}"}
    assert "function_call" not in fields["messages"][1]
    assert fields["messages"][2]["role"] == "tool"


def test_a_number_that_is_none_is_told_as_such() -> None:
    with pytest.raises(HttpRefusal, match="finite"):
        translated(temperature=float("nan"))


def test_a_search_that_only_openai_has_is_left_out_by_name() -> None:
    assert translated(web_search_options={}).notes == ("web_search_options",)


def test_an_error_of_llama_server_in_a_stream_is_openai_s() -> None:
    said = PassedOn().events(
        event({"error": {"code": 500, "message": "Compute error.", "type": "server_error"}})
    )
    error = json.loads(said.removeprefix(b"data: "))["error"]
    assert error == {
        "message": "Compute error.",
        "type": "server_error",
        "param": None,
        "code": "upstream_error",
    }
    quoted = text('"error"')
    assert PassedOn().events(quoted) == quoted


@given(
    st.dictionaries(st.sampled_from(["messages", "tools", "tool_choice", "response_format", "stream"]), JSON)
)
def test_whatever_is_asked_is_read_or_refused(fields: dict[str, object]) -> None:
    for asked in (fields, {"messages": HI, **fields}):
        try:
            json.dumps(ChatDialect(PATH).read(asked, FACTS).fields)
        except HttpRefusal as refusal:
            assert refusal.failure.status == 400


@given(st.text())
def test_a_failure_is_one_event_whatever_the_message(message: str) -> None:
    event = PassedOn().failed(Failure(502, message))
    assert event.count(b"\n\n") == 1 and b"\r" not in event
