"""Requests for the rest of an answer, with calls of tools as a template writes them."""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from io import StringIO
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.continuation import (
    Asking,
    BegunArgument,
    BegunArguments,
    Echo,
    OtherAnswer,
    SentCall,
    SentForm,
    SentText,
    begun_arguments,
    continued,
    tagged_arguments,
    written_calls,
    written_tagged,
)
from meshd.gateway.events import as_the_rest

T = TypeVar("T")
CHAT: Mapping[str, object] = {"messages": [{"role": "user", "content": "hi"}]}


def rest_of(
    asked: Mapping[str, object], sent: SentText, chat: Callable[[bytes], str] = lambda _: ""
) -> dict[str, object] | None:
    return ask_all(continued(asked, sent), chat)[0]


def native(*pieces: tuple[str, int], form: SentForm = SentForm.NATIVE) -> SentText:
    sent = SentText(form)
    for number, (text, token) in enumerate(pieces):
        sent.see({"index": 0, "content": text, "tokens": [token], "tokens_predicted": number + 1})
    return sent


def chat(*pieces: str, reasoning: str = "") -> SentText:
    sent = SentText(SentForm.CHAT)
    if reasoning:
        sent.see({"choices": [{"index": 0, "delta": {"reasoning_content": reasoning}}]})
    for piece in pieces:
        sent.see({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]})
    return sent


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


ARGUMENT_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(max_size=6), ARGUMENT_VALUES, max_size=4)


@given(OBJECTS, st.data(), st.sampled_from([None, 1]), st.booleans())
def test_what_came_so_far_is_read(
    whole: dict[str, object], draw: st.DataObject, indent: int, ascii: bool
) -> None:
    text = json.dumps(whole, indent=indent, ensure_ascii=ascii)
    begun = begun_arguments(text[: draw.draw(st.integers(0, len(text)))])
    assert begun is not None
    names = list(whole)
    assert [one.name for one in begun.arguments] == names[: len(begun.arguments)]
    for one in begun.arguments[:-1]:
        assert json.loads(one.value) == whole[one.name]
    if begun.arguments:
        last = begun.arguments[-1]
        value = whole[last.name]
        if last.is_text and last.value:
            assert isinstance(value, str) and json.loads(json.dumps(value)).startswith(
                last.text.rstrip("\ud800")
            )
        if begun.is_closed:
            assert json.loads(last.value) == value
    if begun.next_name is not None:
        assert names[len(begun.arguments)].startswith(begun.next_name)


@given(OBJECTS)
def test_all_of_it_is_closed(whole: dict[str, object]) -> None:
    begun = begun_arguments(json.dumps(whole))
    assert begun is not None and begun.is_closed and begun.next_name is None
    assert {one.name: json.loads(one.value) for one in begun.arguments} == whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", BegunArguments()),
        ("{", BegunArguments()),
        ('{"ci', BegunArguments(next_name="ci")),
        ('{"city"', BegunArguments(next_name="city")),
        ('{"city": ', BegunArguments(next_name="city")),
        ('{"city": "Ro', BegunArguments([BegunArgument("city", '"Ro')], is_closed=False)),
        ('{"city": "Rome"', BegunArguments([BegunArgument("city", '"Rome"')])),
        ('{"n": 12', BegunArguments([BegunArgument("n", "12")], is_closed=False)),
        ('{"n": 12,', BegunArguments([BegunArgument("n", "12")], next_name="")),
        ('{"n": [1, {"a', BegunArguments([BegunArgument("n", '[1, {"a')], is_closed=False)),
        ('{"n": 12}', BegunArguments([BegunArgument("n", "12")])),
    ],
)
def test_where_it_ends(text: str, expected: BegunArguments) -> None:
    assert begun_arguments(text) == expected


@pytest.mark.parametrize("text", ["[", "x", "{x", '{"a" 1', '{"a": 1 2', '{"a": 1,, "b": 2}'])
def test_what_is_no_object_is_not_read(text: str) -> None:
    assert begun_arguments(text) is None


def test_what_is_nested_too_deeply_is_not_read() -> None:
    begun = begun_arguments('{"a": ' + "[" * 100_000)
    assert begun is None


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    for one in (text, '{"' + text):
        begun = begun_arguments(one)
        assert begun is None or all(argument.value in one for argument in begun.arguments)


def test_half_an_escape_sequence_is_not_yet_a_letter() -> None:
    for said, text in (
        (r'"a\n', "a\n"),
        ('"a\\', "a"),
        (r'"a\u00', "a"),
        (r'"a\u00e4', "aä"),
        ('"', ""),
        ("", ""),
    ):
        assert BegunArgument("x", said).text == text


Call = Mapping[str, object]


def _plain(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _keys(call: Call) -> str:
    said = "".join(
        f"<arg_key>{name}</arg_key>\n<arg_value>{_plain(value)}</arg_value>\n" for name, value in call.items()
    )
    return f"<tool_call>f\n{said}</tool_call>"


def _parameters(call: Call) -> str:
    said = "".join(f"<parameter={name}>\n{_plain(value)}\n</parameter>\n" for name, value in call.items())
    return f"\n<tool_call>\n<function=f>\n{said}</function>\n</tool_call>"


def _kinds(call: Call) -> str:
    said = "".join(
        f'<p name="{name}" string="{str(isinstance(value, str)).lower()}">{_plain(value)}</p>'
        for name, value in call.items()
    )
    return f'<invoke name="f">{said}</invoke>'


def _quoted(call: Call) -> str:
    said = "".join(
        f'<arg name="{name}">{json.dumps(value, ensure_ascii=False)}</arg>\n' for name, value in call.items()
    )
    return f"<call f>\n{said}</call>"


TEMPLATES: Sequence[Callable[[Call], str]] = (_keys, _parameters, _kinds, _quoted)
NAMES = st.text("abcdef_", min_size=1, max_size=6)
TEXTS = st.text(
    st.characters(codec="utf-8", exclude_characters="<>", exclude_categories=["Cc"]), min_size=1, max_size=9
)
VALUES = TEXTS | st.integers() | st.booleans() | st.lists(st.integers(0, 99) | TEXTS, max_size=3)
CALLS = st.lists(st.dictionaries(NAMES, VALUES, max_size=3), min_size=1, max_size=3)


def _shown(template: Callable[[Call], str], arguments: Sequence[str]) -> str:
    return "".join(template(json.loads(one)) for one in arguments)


def _written(template: Callable[[Call], str], calls: Sequence[str]) -> str | None:
    begun = [begun_arguments(one) for one in calls]
    known: list[BegunArguments] = [one for one in begun if one is not None]
    assert len(known) == len(calls)
    shown, longer = tagged_arguments(known)
    return written_tagged(_shown(template, shown), _shown(template, longer), known)


@given(CALLS, st.sampled_from(TEMPLATES), st.data())
def test_it_is_the_beginning_of_what_the_model_would_write(
    calls: list[dict[str, object]], template: Callable[[Call], str], draw: st.DataObject
) -> None:
    told = [json.dumps(one, ensure_ascii=False) for one in calls]
    end = draw.draw(st.integers(0, len(told[-1])))
    written = _written(template, [*told[:-1], told[-1][:end]])
    whole = "".join(map(template, calls))
    before = "".join(map(template, calls[:-1]))
    assert written is not None
    assert whole.startswith(written)
    assert written.startswith(before.rstrip("\n")) or len(calls) == 1


@pytest.mark.parametrize(
    ("came", "written"),
    [
        ("", "<tool_call>f\n"),
        ('{"ci', "<tool_call>f\n<arg_key>ci"),
        ('{"city": "Ro', "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Ro"),
        ('{"city": "Rome"', "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Rome</arg_value>\n"),
        ('{"n": 12', "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>12"),
        ('{"n": 12, "c', "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>12</arg_value>\n<arg_key>c"),
        (r'{"t": "a\"b', '<tool_call>f\n<arg_key>t</arg_key>\n<arg_value>a"b'),
    ],
)
def test_where_it_goes_on(came: str, written: str) -> None:
    assert _written(_keys, [came]) == written


@pytest.mark.parametrize(
    ("shown", "longer"),
    [("", ""), ("<a>", "<a>"), ("<a>meshd-value-0.", "<b>meshd-value-0."), ("<a>meshd-value-0.", "<a>")],
)
def test_a_template_that_shows_no_values_is_not_read(shown: str, longer: str) -> None:
    begun = begun_arguments('{"a": "b')
    assert begun is not None
    assert written_tagged(shown, longer, [begun]) is None


def test_a_template_that_shows_no_next_name_is_not_read() -> None:
    begun = begun_arguments('{"a')
    assert begun is not None
    assert written_tagged("<f>", "<f>", [begun]) is None


def test_very_many_arguments_take_a_second() -> None:
    """Whoever answers may be another node. Each argument must not cost a copy of all that follow."""
    begun = begun_arguments("{" + ", ".join(f'"{number}": "x"' for number in range(50_000)))
    assert begun is not None
    shown, longer = tagged_arguments([begun])
    prompts = _shown(_quoted, shown), _shown(_quoted, longer)
    began = time.thread_time()  # others use the same processor
    assert written_tagged(*prompts, [begun]) is not None
    assert time.thread_time() - began < 1.0


TOOLS: Mapping[str, object] = {**CHAT, "tools": [{"type": "function"}], "stream": True, "max_tokens": 50}


def ask_all(asking: Asking[T], chat: Callable[[bytes], str]) -> tuple[T, list[dict[str, Any]]]:
    """Answer its questions; returns its result, and them."""
    asked: list[dict[str, Any]] = []
    try:
        question = next(asking)
        while True:
            asked.append(json.loads(question))
            question = asking.send(chat(question))
    except StopIteration as end:
        return end.value, asked


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
    """Render a body as a template does that writes each argument in a tag."""
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
    assert rest_of(TOOLS, sent) is None, "not if the template is unknown"
    write = partial(chatml, with_text=with_text, thinks=thinks and with_text)
    rest, questions = ask_all(continued(TOOLS, sent), write)
    assert rest is not None and len(questions) == 2, "it writes JSON"
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
    chosen = {"type": "function", "function": {"name": "f"}}
    for choice in ("required", chosen):
        rest = rest_of({**TOOLS, "tool_choice": choice}, sent, chatml)
        assert rest is not None and rest["tool_choice"] == choice


@pytest.mark.parametrize("text", ["", "So"])
def test_a_call_goes_on_in_the_tags_of_its_template(text: str) -> None:
    sent = called(("f", '{"a": 1}'), ("g", '{"b": "x", "c": [1, '), text=text)
    written, questions = ask_all(written_calls(TOOLS, sent.calls, after_text=bool(text)), tagged)
    assert len(questions) == 4 and written == "<f><a>1</a></f><g><b>x</b><c>[1, "


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
    sent, left = called(("f", '{"a')), list(prompts)
    written, asked = ask_all(written_calls(TOOLS, sent.calls, after_text=False), lambda _: left.pop(0))
    assert (written, len(asked)) == (None, questions), "and no more"


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
    sent = called(("f", arguments))
    assert ask_all(written_calls(TOOLS, sent.calls, after_text=False), tagged)[0] == written


def test_calls_come_again_and_only_their_rest_is_told() -> None:
    sent = called(("f", '{"a": 1}'), ("g", '{"b'), text="So")
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


def test_the_template_that_is_asked_is_the_one_of_the_same_model() -> None:
    """A head may serve several: without a name its default would answer, and be loaded for that."""
    for sent in (called(("f", '{"a')), called(("f", "{"))):
        named, unnamed = {**CHAT, "model": "qwen3"}, CHAT
        _, bodies = ask_all(written_calls(named, sent.calls, after_text=False), tagged)
        assert [body["model"] for body in bodies] == ["qwen3"] * 4
        _, bodies = ask_all(written_calls(unnamed, sent.calls, after_text=False), tagged)
        assert len(bodies) == 4 and not any("model" in body for body in bodies)


def test_calls_that_come_otherwise_are_another_answer() -> None:
    sent = called(("f", '{"a": 1'))
    sent.goes_on()
    with pytest.raises(OtherAnswer):
        as_the_rest(call(0, '{"b', "f"), sent, 1)


MOST_LETTERS = 4 << 20  # of an answer that is kept


def begun(arguments: str) -> Echo:
    return Echo("", "", [SentCall("id", "f", StringIO(arguments))])


def fresh_arguments(echo: Echo, added: str) -> str:
    """Return what of more arguments the client lacks."""
    fresh: Any = echo.fresh({"tool_calls": [{"index": 0, "function": {"arguments": added}}]})
    return "".join(call["function"]["arguments"] for call in fresh.get("tool_calls", ()))


@given(st.text("ab", max_size=12), st.text("ab", max_size=12), st.data())
def test_only_what_is_behind_it_is_fresh(had: str, more: str, draw: st.DataObject) -> None:
    echo, comes, fresh = begun(had), had + more, ""
    while comes:
        at = draw.draw(st.integers(1, len(comes)))
        fresh, comes = fresh + fresh_arguments(echo, comes[:at]), comes[at:]
    assert fresh == more


@given(st.text("ab", min_size=1, max_size=12), st.data())
def test_what_differs_anywhere_is_another_answer(had: str, draw: st.DataObject) -> None:
    at, end = draw.draw(st.integers(0, len(had) - 1)), draw.draw(st.integers(0, 3))
    echo = begun(had)
    assert fresh_arguments(echo, had[:at]) == ""
    with pytest.raises(OtherAnswer):
        fresh_arguments(echo, "c" + had[at + 1 : at + 1 + end])


def test_the_longest_answer_is_compared_in_a_second_however_small_its_pieces() -> None:
    had, pieces = "x" * MOST_LETTERS, MOST_LETTERS // 64
    echo = begun(had)
    began = time.thread_time()  # others use the same processor
    for _ in range(pieces):
        assert fresh_arguments(echo, "x" * 64) == ""
    assert time.thread_time() - began < 1.0
    assert fresh_arguments(echo, "y") == "y"


def test_more_calls_than_are_kept_are_not_continued() -> None:
    sent = called(*[("f", "{}")] * 64)
    assert len(sent.calls) == 64
    sent.see(call(64, "{", "f"))
    assert not sent.is_text and not sent.calls


def test_more_text_than_is_kept_is_not_continued() -> None:
    sent = chat("a" * (1 << 20))
    for _ in range(4):
        sent.see({"choices": [{"index": 0, "delta": {"content": "b" * (1 << 20)}}]})
    assert (sent.is_text, sent.text) == (False, "")


def test_more_tokens_than_are_kept_are_not_continued() -> None:
    """Test an answer without text: the list of tokens grows with each of its events."""
    sent = native(("a", 1))
    for _ in range(5):
        sent.see({"index": 0, "content": "", "tokens": [7] * (1 << 20)})
    assert (sent.is_text, len(sent.tokens)) == (False, 0)


@pytest.mark.parametrize("token", [-1, 1 << 31, 10**4299, True, 1.5, "1", None], ids=lambda one: str(one)[:9])
def test_what_no_token_can_be_is_not_kept(token: object) -> None:
    sent = native(("a", 1))
    sent.see({"index": 0, "content": "b", "tokens": [token], "tokens_predicted": 2})
    assert list(sent.tokens) == [1]
    assert rest_of({"prompt": "The"}, sent) == {"prompt": "The" + "ab"}


@pytest.mark.parametrize("field", ["id", "name"])
@pytest.mark.parametrize(("letters", "is_kept"), [(256, True), (257, False)])
def test_what_calls_are_called_has_a_limit(field: str, letters: int, is_kept: bool) -> None:
    """Each is in several questions about the template."""
    sent = chat()
    function = {"name": "f" * (letters if field == "name" else 1), "arguments": "{"}
    one = {"index": 0, "id": "i" * (letters if field == "id" else 1), "function": function}
    sent.see({"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]})
    assert (sent.is_text, bool(sent.calls)) == (is_kept, is_kept)


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [("The", ["The", 7, 8]), ([1, 2], [1, 2, 7, 8]), ([1, "x", 2], [1, "x", 2, 7, 8])],
)
def test_a_completion_goes_on_by_its_tokens(prompt: object, expected: object) -> None:
    rest = rest_of({"prompt": prompt, "n_predict": 9}, native((" a", 7), (" b", 8)))
    assert rest == {"prompt": expected, "n_predict": 7}


def test_by_its_text_where_not_all_tokens_were_told() -> None:
    sent = native((" a", 7))
    sent.see({"index": 0, "content": " \u00e4", "tokens": [9], "tokens_predicted": 3})
    assert rest_of({"prompt": "The"}, sent) == {"prompt": "The a \u00e4"}
    assert rest_of({"prompt": [1, 2]}, sent) == {"prompt": [1, 2, " a \u00e4"]}


@pytest.mark.parametrize("prompt", [["a", "b"], None, {"x": 1}, [[1]]])
def test_several_prompts_or_none_are_not_continued(prompt: object) -> None:
    assert rest_of({"prompt": prompt}, native((" a", 7))) is None


def test_a_chat_begins_with_what_was_said_and_thought() -> None:
    rest = rest_of(CHAT, chat("So ", "be", reasoning="hm"))
    assert rest is not None and rest["continue_final_message"] == "content"
    begun = {"role": "assistant", "content": "So be", "reasoning_content": "hm"}
    assert rest["messages"] == [{"role": "user", "content": "hi"}, begun]
    thinking = rest_of(CHAT, chat(reasoning="hm"))
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
    assert rest_of({**CHAT, **fields}, chat("So")) is None
    assert rest_of({**CHAT, "tool_choice": "auto", "n": 1, "max_tokens": 2}, chat("So")) is not None


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
    assert rest_of(CHAT, sent) is None


@pytest.mark.parametrize(
    "form", [{"response_format": {"type": "json_object"}}, {"json_schema": {}, "response_format": {"a": 1}}]
)
def test_a_chat_in_a_form_goes_on_within_it(form: Mapping[str, object]) -> None:
    """Test that the beginning stays in the chat: llama-server also feeds it to the grammar."""
    rest = rest_of({**CHAT, **form}, chat('{"a'))
    assert rest is not None and rest["continue_final_message"] == "content"
    assert rest["messages"] == [{"role": "user", "content": "hi"}, {"role": "assistant", "content": '{"a'}]
    assert {name: rest[name] for name in form} == form


@pytest.mark.parametrize("form", [SentForm.NATIVE, SentForm.COMPLETION])
def test_a_completion_in_a_form_goes_on_within_it(form: SentForm) -> None:
    sent = native((" a", 7), (" b", 8), form=SentForm.NATIVE)
    sent.form = form
    asked = {"prompt": "The", "json_schema": {"type": "object"}}
    assert rest_of(asked, sent) == {**asked, "prompt": "The a b", "generation_prompt": " a b"}
    asked = {"prompt": "The", "grammar": "root ::= [ab ]*"}
    more = {"prompt": "The a b", "generation_prompt": " a b", "grammar_type": "tool_calls"}
    assert rest_of(asked, sent) == {**asked, **more}, "of that type, else it is not fed"
    assert rest_of({**asked, "response_format": {"type": "json_object"}}, sent) is None


def test_nothing_was_said_yet() -> None:
    assert rest_of(CHAT, chat()) is None


def test_the_numbers_at_the_end_count_all() -> None:
    end: dict[str, object] = {"stop": True, "tokens_predicted": 5, "tokens_evaluated": 12, "content": ""}
    counted = as_the_rest(end, native((" a", 7), (" b", 8)), 2)
    assert counted == {"stop": True, "tokens_predicted": 7, "tokens_evaluated": 10, "content": ""}


@pytest.mark.parametrize("number", [10**4300 - 1, 1 - 10**4300, 1 << 31], ids=lambda one: str(one)[:9])
def test_numbers_that_no_answer_has_are_not_added_to(number: int) -> None:
    """A sum of more than 4300 digits cannot be written: it would be an error that nobody expects."""
    sent = native((" a", 7))
    end: dict[str, object] = {"content": "", "tokens_predicted": number, "tokens_evaluated": number}
    counted = as_the_rest(end, sent, 1)
    assert counted == end and json.dumps(counted)
    sent.see(end)
    rest = rest_of({"prompt": "The", "n_predict": 10**4300 - 1}, sent)
    assert rest is not None and json.dumps(rest)
