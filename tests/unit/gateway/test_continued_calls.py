"""Requests for the rest of an answer with calls of tools."""

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pytest
from meshd.gateway.begun_calls import CallTemplate
from meshd.gateway.continuation import continued, unwritten_calls
from meshd.gateway.echo import OtherAnswer
from meshd.gateway.rest_events import as_the_rest

from tests.unit.gateway.sent_texts import (
    BEGIN,
    CHAT,
    added,
    anthropic,
    call,
    called,
    delta,
    input_json,
    piece,
    response,
    responses,
    tool_use,
)

TOOLS: Mapping[str, object] = {**CHAT, "tools": [{"type": "function"}], "stream": True, "max_tokens": 50}


def ask_all(template: CallTemplate | None, chat: Callable[[bytes], str]) -> list[dict[str, Any]]:
    """Ask it, until it knows; returns its questions."""
    assert template is not None
    asked = []
    while (question := template.question()) is not None:
        asked.append(json.loads(question))
        template.answer(chat(question))
    return asked


def chatml(body: bytes, *, with_text: bool = True, thinks: bool = False) -> str:
    """The prompt of these messages."""
    prompt, asked = "", json.loads(body)
    assert asked["tools"] == TOOLS["tools"] and "stream" not in asked
    assert "hi" not in str(asked["messages"]), "what was said before does not matter"
    for message in asked["messages"]:
        prompt += f"<{message['role']}>" + ("<think></think>" if message.get("tool_calls") and thinks else "")
        prompt += message["content"] + "\n" if with_text or not message.get("tool_calls") else ""
        for one in message.get("tool_calls", ()):
            function = one["function"]
            prompt += f'<call>{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}</call>'
    return prompt if asked["messages"][-1]["role"] == "tool" else prompt + "<assistant>"


def tagged(body: bytes) -> str:
    """Of a template that writes each argument in a tag."""
    prompt = ""
    for message in json.loads(body)["messages"]:
        prompt += f"<{message['role']}>" + message["content"]
        for one in message.get("tool_calls", ()):
            function = one["function"]
            said = "".join(f"<{name}>{v}</{name}>" for name, v in json.loads(function["arguments"]).items())
            prompt += f"<{function['name']}>{said}</{function['name']}>"
    return prompt


@pytest.mark.parametrize("with_text", [True, False])
@pytest.mark.parametrize("thinks", [True, False])
@pytest.mark.parametrize(
    "calls", [[("f", '{"a": [1, ')], [("f", '{"a": 1}'), ("g", '{"b": "c')], [("f", "{")]]
)
@pytest.mark.parametrize("text", ["", "Let me see."])
def test_a_call_goes_on_as_its_template_writes_it(
    calls: list[tuple[str, str]], with_text: bool, thinks: bool, text: str
) -> None:
    sent = called(*calls, text=text)
    assert continued(TOOLS, sent) is None, "not before the template is known"
    template = unwritten_calls(TOOLS, sent)
    write = partial(chatml, with_text=with_text, thinks=thinks and with_text)
    assert len(ask_all(template, write)) == 2, "it writes JSON"
    assert template is not None
    sent.written = template.written
    rest = continued(TOOLS, sent)
    assert rest is not None
    wrote = "".join(f'<call>{{"name": "{name}", "arguments": {said}}}</call>' for name, said in calls)
    messages = rest["messages"]
    assert isinstance(messages, list)
    line = "\n" if text and with_text else ""
    assert messages[-1] == {"role": "assistant", "content": text + line + wrote.removesuffix("}</call>")}
    assert (rest["echo"], rest["tool_choice"], rest["continue_final_message"]) == (
        True,
        "required",
        "content",
    )
    assert rest["max_tokens"] == 50 - 2 * len(calls) - bool(text)


def test_whoever_has_to_call_still_has_to() -> None:
    sent = called(("f", '{"a'))
    sent.written = "<call>"
    chosen = {"type": "function", "function": {"name": "f"}}
    for choice in ("required", chosen):
        rest = continued({**TOOLS, "tool_choice": choice}, sent)
        assert rest is not None and rest["tool_choice"] == choice


@pytest.mark.parametrize("text", ["", "So"])
def test_a_call_goes_on_in_the_tags_of_its_template(text: str) -> None:
    sent = called(("f", '{"a": 1}'), ("g", '{"b": "x", "c": [1, '), text=text)
    template = unwritten_calls(TOOLS, sent)
    assert len(ask_all(template, tagged)) == 4
    assert template is not None and template.written == "<f><a>1</a></f><g><b>x</b><c>[1, "


@pytest.mark.parametrize(
    ("prompts", "questions"),
    [
        (["", "-"], 1),
        (["<a>", ""], 2),
        (["<user>hi", "<user>other"], 2),
        (["<a>", "meshd-content <call><arg>0</arg>", "", "-"], 3),
        (["<a>", "<a>f", "meshd-content", "meshd-content"], 4),
    ],
    ids=["no answer", "no second answer", "another beginning", "no third answer", "no call"],
)
def test_a_template_that_cannot_be_read(prompts: list[str], questions: int) -> None:
    template = unwritten_calls(TOOLS, called(("f", '{"a')))
    left = list(prompts)
    assert len(ask_all(template, lambda _: left.pop(0))) == questions, "and no more"
    assert template is not None and template.written is None


@pytest.mark.parametrize(
    ("arguments", "written"),
    [
        (r'{"a": "\x', "<f><a>"),
        ('{"a": [1}', "<f><a>[1}"),
        (r'{"\q', "<f><"),
        ("[", None),
        ('{"a": 1 2', None),
    ],
)
def test_arguments_that_are_no_json_are_written_as_far_as_they_are(
    arguments: str, written: str | None
) -> None:
    """Whoever answers may be another node, and send anything: what it goes on with is compared."""
    template = unwritten_calls(TOOLS, called(("f", arguments)))
    ask_all(template, tagged)
    assert template is not None and template.written == written


def test_calls_come_again_and_only_their_rest_is_told() -> None:
    sent = called(("f", '{"a": 1}'), ("g", '{"b'), text="So")
    sent.written = "-"
    sent.goes_on()
    events: list[dict[str, object]] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": None}}]},
        {"choices": [{"index": 0, "delta": {"content": "So"}}]},
        call(0, '{"a": 1}', "f"),
        call(1, '{"', "g"),
        call(1, 'b": 2'),
        call(2, "{", "h"),
    ]
    told = [as_the_rest(event, sent, 5) for event in events]
    assert told[:4] == [None] * 4
    assert told[4:] == [call(1, '": 2'), call(2, "{", "h")]
    end: dict[str, object] = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    assert as_the_rest(end, sent, 5) == end


@pytest.mark.parametrize("text", ["", "So"])
def test_calls_in_messages_go_on_as_well(text: str) -> None:
    first = int(bool(text))
    said = [BEGIN, delta(text)] if text else []
    calls = [tool_use(first, "f"), input_json(first, '{"a": 1}'), tool_use(first + 1, "g")]
    sent = anthropic(*said, *calls, input_json(first + 1, '{"b'))
    asked = {**CHAT, "tools": [{"name": "f", "input_schema": {"type": "object"}}], "max_tokens": 50}
    assert continued(asked, sent) is None
    _, shown, *_ = ask_all(unwritten_calls(asked, sent), tagged)
    function = {"name": "f", "description": "", "parameters": {"type": "object"}}
    assert shown["tools"] == [{"type": "function", "function": function}]
    assert [one["id"] for one in shown["messages"][1]["tool_calls"]] == [f"id-{first}", f"id-{first + 1}"]
    sent.written = "<call>"
    rest = continued(asked, sent)
    assert rest is not None and rest["tool_choice"] == {"type": "any"} and "echo" not in rest
    assert isinstance(rest["messages"], list)
    assert rest["messages"][-1] == {"role": "assistant", "content": text + "<call>"}
    sent.goes_on()
    again = [{"type": "message_start"}, *said, *calls, input_json(first + 1, '{"b": 2')]
    told = [as_the_rest(dict(event), sent, 5) for event in [*again, tool_use(first + 2, "h")]]
    assert told[:-2] == [None] * (len(again) - 1)
    assert told[-2:] == [input_json(first + 1, '": 2'), tool_use(first + 2, "h")]


def test_the_template_that_is_asked_is_the_one_of_the_same_model() -> None:
    """A head may serve several: without a name its default would answer, and be loaded for that."""
    messages = anthropic(tool_use(0, "f"), input_json(0, "{"))
    for sent in (called(("f", '{"a')), messages):
        bodies = ask_all(unwritten_calls({**CHAT, "model": "qwen3"}, sent), tagged)
        assert [body["model"] for body in bodies] == ["qwen3"] * 4
        unnamed = ask_all(unwritten_calls(CHAT, sent), tagged)
        assert len(unnamed) == 4 and not any("model" in body for body in unnamed)


def test_a_tool_that_messages_must_use_stays_chosen() -> None:
    sent = anthropic(tool_use(0, "f"), input_json(0, "{"))
    sent.written = "<call>"
    chosen = {"type": "tool", "name": "f"}
    rest = continued({**CHAT, "tool_choice": chosen}, sent)
    assert rest is not None and rest["tool_choice"] == chosen


def test_calls_that_come_otherwise_are_another_answer() -> None:
    sent = called(("f", '{"a": 1'))
    sent.goes_on()
    with pytest.raises(OtherAnswer):
        as_the_rest(call(0, '{"b', "f"), sent, 1)


def test_a_call_in_a_response_goes_on() -> None:
    begun = added("function_call", id="fc_1", call_id="call_1", name="f", arguments="")
    sent = responses(begun, piece("function_call_arguments", '{"a'))
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    asked = {"input": "hi", "tools": [tool, {"type": "web_search"}], "reasoning": {"effort": "low"}}
    assert continued(asked, sent) is None
    _, shown, *_ = ask_all(unwritten_calls(asked, sent), tagged)
    function = {"name": "f", "parameters": {"type": "object"}}
    assert shown["tools"] == [{"type": "function", "function": function}]
    assert shown["reasoning_effort"] == "low"
    sent.written = '<call>{"a'
    rest = continued(asked, sent)
    assert rest is not None and (rest["echo"], rest["tool_choice"]) == (True, "required")
    sent.goes_on()
    again = [response(begun[0], **begun[1]), response("function_call_arguments.delta", delta='{"a": 1')]
    second = response("output_item.added", item={"type": "function_call", "name": "g"})
    more = response("function_call_arguments.delta", delta="{")
    told = [as_the_rest(one, sent, 2) for one in [*again, second, more]]
    assert told == [None, response("function_call_arguments.delta", delta='": 1'), second, more]
