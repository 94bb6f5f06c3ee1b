"""Requests for the rest of an answer."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.begun_calls import written_calls
from meshd.gateway.continuation import continued, unwritten_calls
from meshd.gateway.echo import OtherAnswer
from meshd.gateway.rest_events import as_the_rest
from meshd.gateway.sent_text import Dialect, SentText

CHAT: Mapping[str, object] = {"messages": [{"role": "user", "content": "hi"}]}


def native(*pieces: tuple[str, int], dialect: Dialect = Dialect.NATIVE) -> SentText:
    sent = SentText(dialect)
    for number, (text, token) in enumerate(pieces):
        sent.see({"index": 0, "content": text, "tokens": [token], "tokens_predicted": number + 1})
    return sent


def chat(*pieces: str, reasoning: str = "") -> SentText:
    sent = SentText(Dialect.CHAT)
    if reasoning:
        sent.see({"choices": [{"index": 0, "delta": {"reasoning_content": reasoning}}]})
    for piece in pieces:
        sent.see({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
    return sent


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("The", ["The", 7, 8]), ([1, 2], [1, 2, 7, 8]), ([1, "x", 2], [1, "x", 2, 7, 8])],
)
def test_a_completion_goes_on_by_its_tokens(prompt: object, expected: object) -> None:
    rest = continued({"prompt": prompt, "n_predict": 9}, native((" a", 7), (" b", 8)))
    assert rest == {"prompt": expected, "n_predict": 7}


def test_by_its_text_where_not_all_tokens_were_told() -> None:
    sent = native((" a", 7))
    sent.see({"index": 0, "content": " \u00e4", "tokens": [9], "tokens_predicted": 3})
    assert continued({"prompt": "The"}, sent) == {"prompt": "The a \u00e4"}
    assert continued({"prompt": [1, 2]}, sent) == {"prompt": [1, 2, " a \u00e4"]}


@pytest.mark.parametrize("prompt", [["a", "b"], None, {"x": 1}, [[1]]])
def test_several_prompts_or_none_are_not_continued(prompt: object) -> None:
    assert continued({"prompt": prompt}, native((" a", 7))) is None


def test_a_chat_begins_with_what_was_said_and_thought() -> None:
    rest = continued(CHAT, chat("So ", "be", reasoning="hm"))
    assert rest is not None and rest["continue_final_message"] == "content"
    begun = {"role": "assistant", "content": "So be", "reasoning_content": "hm"}
    assert rest["messages"] == [{"role": "user", "content": "hi"}, begun]
    thinking = continued(CHAT, chat(reasoning="hm"))
    assert thinking is not None and thinking["continue_final_message"] == "reasoning_content"


@pytest.mark.parametrize(
    "fields",
    [
        *({name: 2} for name in ("n", "n_cmpl", "best_of")),
        *({name: "x"} for name in ("grammar", "echo", "suffix", "generation_prompt")),
        {"max_tokens": 1},
        {"messages": [{"role": "assistant", "content": "I"}]},
        {"messages": []},
        {"messages": "x"},
    ],
    ids=str,
)
def test_what_needs_more_than_the_text_is_not_continued(fields: Mapping[str, object]) -> None:
    assert continued({**CHAT, **fields}, chat("So")) is None
    assert continued({**CHAT, "tool_choice": "auto", "n": 1, "max_tokens": 2}, chat("So")) is not None


@pytest.mark.parametrize(
    "event",
    [
        {"choices": [{"index": 1, "delta": {"content": "a"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 1, "function": {}}]}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ],
    ids=["another answer", "the second call", "the end"],
)
def test_what_is_more_than_text_is_not_continued(event: Mapping[str, object]) -> None:
    sent = chat("So")
    sent.see(event)
    assert continued(CHAT, sent) is None


@pytest.mark.parametrize(
    "form", [{"response_format": {"type": "json_object"}}, {"json_schema": {}, "response_format": {"a": 1}}]
)
def test_a_chat_in_a_form_goes_on_within_it(form: Mapping[str, object]) -> None:
    """What llama-server puts before the rest it also feeds to the grammar."""
    rest = continued({**CHAT, **form}, chat('{"a'))
    assert rest is not None and rest["continue_final_message"] == "content"
    assert rest["messages"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": '{"a'}]
    assert {name: rest[name] for name in form} == form


@pytest.mark.parametrize("dialect", [Dialect.NATIVE, Dialect.COMPLETION])
def test_a_completion_in_a_form_goes_on_within_it(dialect: Dialect) -> None:
    sent = native((" a", 7), (" b", 8), dialect=Dialect.NATIVE)
    sent.dialect = dialect
    asked = {"prompt": "The", "json_schema": {"type": "object"}}
    assert continued(asked, sent) == {**asked, "prompt": "The a b", "generation_prompt": " a b"}
    asked = {"prompt": "The", "grammar": "root ::= [ab ]*"}
    more = {"prompt": "The a b", "generation_prompt": " a b", "grammar_type": "tool_calls"}
    assert continued(asked, sent) == {**asked, **more}, "of that type, else it is not fed"
    assert continued({**asked, "response_format": {"type": "json_object"}}, sent) is None


def call(number: int, arguments: str, name: str = "") -> dict[str, object]:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    one = {"index": number, **({"id": f"id-{number}", "type": "function"} if name else {})}
    return {"choices": [{"index": 0, "delta": {"tool_calls": [{**one, "function": function}]}}]}


def called(*calls: tuple[str, str], text: str = "") -> SentText:
    sent = chat(*([text] if text else []))
    for number, (name, arguments) in enumerate(calls):
        sent.see(call(number, arguments[:1], name))
        sent.see(call(number, arguments[1:]))
    return sent


TOOLS: Mapping[str, object] = {**CHAT, "tools": [{"type": "function"}], "stream": True, "max_tokens": 50}


def chatml(bodies: tuple[bytes, ...] | None, *, with_text: bool = True, thinks: bool = False) -> list[str]:
    """The prompts of these messages."""
    assert bodies is not None
    prompts = []
    for body in bodies:
        prompt = ""
        asked = json.loads(body)
        assert asked["tools"] == TOOLS["tools"] and "stream" not in asked
        assert "hi" not in str(asked["messages"]), "what was said before does not matter"
        for message in asked["messages"]:
            prompt += f"<{message['role']}>" + (
                "<think></think>" if message.get("tool_calls") and thinks else ""
            )
            prompt += message["content"] + "\n" if with_text or not message.get("tool_calls") else ""
            for one in message.get("tool_calls", ()):
                function = one["function"]
                prompt += (
                    f'<call>{{"name": "{function["name"]}", "arguments": {function["arguments"]}}}</call>'
                )
        prompts.append(prompt if asked["messages"][-1]["role"] == "tool" else prompt + "<assistant>")
    return prompts


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
    prompts = chatml(unwritten_calls(TOOLS, sent), with_text=with_text, thinks=thinks and with_text)
    sent.written = written_calls(prompts, sent.calls, after_text=bool(text))
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


@pytest.mark.parametrize(
    ("made", "before"),
    [("", ""), ("<user>other", "<user>hi"), ("meshd-content <call><arg>0</arg>", ""), ("<a>f", "<a>")],
    ids=["no answer", "another beginning", "not JSON", "no call"],
)
def test_a_template_that_cannot_be_read(made: str, before: str) -> None:
    sent = called(("f", '{"a'))
    assert written_calls([before, made, made, made], sent.calls, after_text=True) is None


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


def tool_use(number: int, name: str) -> dict[str, object]:
    block = {"type": "tool_use", "id": f"id-{number}", "name": name, "input": {}}
    return {"type": "content_block_start", "index": number, "content_block": block}


def input_json(number: int, arguments: str) -> dict[str, object]:
    delta = {"type": "input_json_delta", "partial_json": arguments}
    return {"type": "content_block_delta", "index": number, "delta": delta}


@pytest.mark.parametrize("text", ["", "So"])
def test_calls_in_messages_go_on_as_well(text: str) -> None:
    first = int(bool(text))
    said = [BEGIN, delta(text)] if text else []
    calls = [tool_use(first, "f"), input_json(first, '{"a": 1}'), tool_use(first + 1, "g")]
    sent = anthropic(*said, *calls, input_json(first + 1, '{"b'))
    asked = {**CHAT, "tools": [{"name": "f", "input_schema": {"type": "object"}}], "max_tokens": 50}
    bodies = unwritten_calls(asked, sent)
    assert bodies is not None and continued(asked, sent) is None
    shown = json.loads(bodies[1])
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
        bodies = unwritten_calls({**CHAT, "model": "qwen3"}, sent)
        assert bodies is not None
        assert [json.loads(body)["model"] for body in bodies] == ["qwen3"] * 4
        unnamed = unwritten_calls(CHAT, sent)
        assert unnamed is not None and not any("model" in json.loads(body) for body in unnamed)


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


def test_more_calls_than_are_kept_are_not_continued() -> None:
    sent = called(*[("f", "{}")] * 64)
    assert len(sent.calls) == 64
    sent.see(call(64, "{", "f"))
    assert not sent.is_text and not sent.calls


def test_nothing_was_said_yet() -> None:
    assert continued(CHAT, chat()) is None


def anthropic(*events: Mapping[str, object]) -> SentText:
    sent = SentText(Dialect.ANTHROPIC)
    for one in events:
        sent.see(one)
    return sent


BEGIN: Mapping[str, object] = {"type": "content_block_start", "index": 0, "content_block": {"type": "text"}}


def delta(text: str) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}


def test_messages_go_on_and_their_beginning_is_not_said_twice() -> None:
    sent = anthropic({"type": "message_start"}, BEGIN, delta("So be"))
    rest = continued(CHAT, sent)
    assert rest is not None and "continue_final_message" not in rest
    assert rest["messages"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "So be"}]
    sent.goes_on()
    assert as_the_rest({"type": "message_start"}, sent, 1) is None
    assert as_the_rest(dict(BEGIN), sent, 1) is None
    assert as_the_rest(delta("So"), sent, 1) is None
    assert as_the_rest(delta(" be it"), sent, 1) == delta(" it")
    assert as_the_rest(delta("So be"), sent, 1) == delta("So be"), "only the beginning"
    over: dict[str, object] = {"type": "message_delta", "usage": {"output_tokens": 4}}
    assert as_the_rest(over, sent, 1) == {"type": "message_delta", "usage": {"output_tokens": 5}}


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=8))
def test_what_comes_again_is_left_out_to_where_it_differs(before: str, pieces: list[str]) -> None:
    sent = anthropic(BEGIN, *([delta(before)] if before else []))
    sent.goes_on()
    came, told = "", []
    for piece in pieces:
        if (event := as_the_rest(delta(piece), sent, 1)) is not None:
            told.append(event)
        came += piece
        assert bool(told) == (not before.startswith(came))
    assert told[1:] == [delta(piece) for piece in pieces[len(pieces) - len(told) + 1 :]]


@pytest.mark.parametrize("kind", ["tool_use", "server_tool_use"])
def test_messages_with_more_than_text_are_not_continued(kind: str) -> None:
    other = {"type": "content_block_start", "index": 0, "content_block": {"type": kind}}
    assert continued(CHAT, anthropic(other, delta("x"))) is None


def block(kind: str, index: int) -> dict[str, object]:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, kind: ""}}


def thinks(text: str) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 0, "delta": {"type": "thinking_delta", "thinking": text}}


def says(text: str) -> dict[str, object]:
    return {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": text}}


def test_messages_go_on_in_the_middle_of_thinking() -> None:
    sent = anthropic({"type": "message_start"}, block("thinking", 0), thinks("Let "), thinks("me"))
    asked = {**CHAT, "thinking": {"type": "enabled", "budget_tokens": 9}, "max_tokens": 20}
    rest = continued(asked, sent)
    assert rest is not None and rest["thinking"] == {"type": "enabled", "budget_tokens": 7}
    assert rest["max_tokens"] == 18 and isinstance(rest["messages"], list)
    thought = {"type": "thinking", "thinking": "Let me", "signature": ""}
    assert rest["messages"][-1] == {"role": "assistant", "content": [thought]}
    sent.goes_on()
    again: list[dict[str, object]] = [{"type": "message_start"}, block("thinking", 0), thinks("Let me see")]
    told = [as_the_rest(one, sent, 2) for one in [*again, block("text", 1), says("So")]]
    assert told == [None, None, thinks(" see"), block("text", 1), says("So")]


def test_messages_go_on_behind_their_thinking() -> None:
    sent = anthropic(block("thinking", 0), thinks("hm"), block("text", 1), says("So"))
    rest = continued(CHAT, sent)
    assert rest is not None and isinstance(rest["messages"], list)
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    begun = [thought, {"type": "text", "text": "So"}]
    assert rest["messages"][-1] == {"role": "assistant", "content": begun}
    sent.goes_on()
    again = [block("thinking", 0), thinks("hm"), block("text", 1), says("So"), says(" be it")]
    assert [as_the_rest(one, sent, 2) for one in again] == [None, None, None, None, says(" be it")]
    signed = {"type": "content_block_delta", "index": 0, "delta": {"type": "signature_delta"}}
    assert as_the_rest(signed, sent, 2) == signed


@pytest.mark.parametrize("name", ["reasoning_budget_tokens", "thinking_budget_tokens"])
@pytest.mark.parametrize(("most", "left"), [(9, 8), (1, 0), (-1, -1), (0, 0)])
def test_what_was_thought_counts_in_the_rest(name: str, most: int, left: int) -> None:
    rest = continued({**CHAT, name: most}, chat(reasoning="hm"))
    assert rest is not None and rest[name] == left


def responses(*events: tuple[str, Mapping[str, object]]) -> SentText:
    sent = SentText(Dialect.RESPONSES)
    for kind, fields in events:
        sent.see(response(kind, **fields))
    return sent


def response(kind: str, **fields: object) -> dict[str, object]:
    return {"type": f"response.{kind}", **fields}


def added(kind: str, **fields: object) -> tuple[str, Mapping[str, object]]:
    return "output_item.added", {"item": {"type": kind, **fields}}


def piece(kind: str, text: str) -> tuple[str, Mapping[str, object]]:
    return f"{kind}.delta", {"delta": text}


USED_CALL: Mapping[str, object] = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
PART = ("content_part.added", {"part": {"type": "output_text", "text": ""}})


@pytest.mark.parametrize("asked", ["hi", [{"role": "user", "content": "hi"}]])
def test_a_response_goes_on(asked: object) -> None:
    sent = responses(
        ("created", {}), added("message"), PART, piece("output_text", "So "), piece("output_text", "be")
    )
    rest = continued({"input": asked, "max_output_tokens": 9}, sent)
    part = {"type": "output_text", "text": "So be"}
    begun = {"type": "message", "role": "assistant", "content": [part]}
    assert rest == {
        "input": [{"role": "user", "content": "hi"}, begun],
        "max_output_tokens": 7,
        "add_generation_prompt": False,
        "continue_final_message": "content",
    }
    sent.goes_on()
    known = [
        response("created"),
        response("in_progress"),
        response(*added("message")[:1], item={"type": "message"}),
    ]
    assert [as_the_rest(one, sent, 2) for one in [*known, response(PART[0], **PART[1])]] == [None] * 4
    more = response("output_text.delta", delta=" it")
    assert as_the_rest(more, sent, 2) == more
    usage = {"input_tokens": 20, "output_tokens": 3, "total_tokens": 23}
    end = as_the_rest(response("completed", response={"usage": usage}), sent, 2)
    assert end == response(
        "completed", response={"usage": {"input_tokens": 18, "output_tokens": 5, "total_tokens": 23}}
    )


def test_a_response_goes_on_in_the_middle_of_its_reasoning() -> None:
    sent = responses(added("reasoning"), piece("reasoning_text", "hm"))
    rest = continued({"input": "hi", "reasoning_budget_tokens": 5}, sent)
    assert rest is not None and rest["continue_final_message"] == "reasoning_content"
    assert rest["reasoning_budget_tokens"] == 4 and isinstance(rest["input"], list)
    thought = {"type": "reasoning_text", "text": "hm"}
    assert rest["input"][1:] == [{"type": "reasoning", "summary": [], "content": [thought]}]
    sent.goes_on()
    assert as_the_rest(response("output_item.added", item={"type": "reasoning"}), sent, 1) is None
    message = response("output_item.added", item={"type": "message"})
    assert as_the_rest(message, sent, 1) == message, "it is new"


def test_a_call_in_a_response_goes_on() -> None:
    begun = added("function_call", id="fc_1", call_id="call_1", name="f", arguments="")
    sent = responses(begun, piece("function_call_arguments", '{"a'))
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}}
    asked = {"input": "hi", "tools": [tool, {"type": "web_search"}], "reasoning": {"effort": "low"}}
    bodies = unwritten_calls(asked, sent)
    assert bodies is not None and continued(asked, sent) is None
    shown = json.loads(bodies[1])
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


@pytest.mark.parametrize(
    "asked", [[], None, [{"role": "assistant", "content": "I"}], [USED_CALL], [{"type": "reasoning"}], 7]
)
def test_a_response_that_goes_on_already_is_not_continued(asked: object) -> None:
    assert continued({"input": asked}, responses(piece("output_text", "So"))) is None


@pytest.mark.parametrize("last", ["output_text.done", "completed", "failed"])
def test_a_response_that_is_over_is_not_continued(last: str) -> None:
    assert continued({"input": "hi"}, responses(piece("output_text", "So"), (last, {}))) is None


@pytest.mark.parametrize("kind", ["web_search_call", "image_generation_call", None])
def test_a_response_with_more_than_text_is_not_continued(kind: str) -> None:
    assert continued({"input": "hi"}, responses(added(kind), piece("output_text", "So"))) is None


def test_the_numbers_at_the_end_count_all() -> None:
    end: dict[str, object] = {"stop": True, "tokens_predicted": 5, "tokens_evaluated": 12, "content": ""}
    counted = as_the_rest(end, native((" a", 7), (" b", 8)), 2)
    assert counted == {"stop": True, "tokens_predicted": 7, "tokens_evaluated": 10, "content": ""}


def test_more_text_than_is_kept_is_not_continued() -> None:
    sent = chat("a" * (1 << 20))
    for _ in range(4):
        sent.see({"choices": [{"index": 0, "delta": {"content": "b" * (1 << 20)}}]})
    assert (sent.is_text, sent.text) == (False, "")


def test_more_tokens_than_are_kept_are_not_continued() -> None:
    """Those of an answer that has no text: the list grows with each of its events."""
    sent = native(("a", 1))
    for _ in range(5):
        sent.see({"index": 0, "content": "", "tokens": [7] * (1 << 20)})
    assert (sent.is_text, len(sent.tokens)) == (False, 0)


@pytest.mark.parametrize("token", [-1, 1 << 31, 10**4299, True, 1.5, "1", None], ids=lambda one: str(one)[:9])
def test_what_no_token_can_be_is_not_kept(token: object) -> None:
    sent = native(("a", 1))
    sent.see({"index": 0, "content": "b", "tokens": [token], "tokens_predicted": 2})
    assert list(sent.tokens) == [1]
    assert continued({"prompt": "The"}, sent) == {"prompt": "The" + "ab"}


@pytest.mark.parametrize("number", [10**4300 - 1, 1 - 10**4300, 1 << 31], ids=lambda one: str(one)[:9])
def test_numbers_that_no_answer_has_are_not_added_to(number: int) -> None:
    """A sum of more than 4300 digits cannot be written: it would be an error that nobody expects."""
    sent = native((" a", 7))
    end: dict[str, object] = {"content": "", "tokens_predicted": number, "tokens_evaluated": number}
    counted = as_the_rest(end, sent, 1)
    assert counted == end and json.dumps(counted)
    sent.see(end)
    rest = continued({"prompt": "The", "n_predict": 10**4300 - 1}, sent)
    assert rest is not None and json.dumps(rest)
