"""Requests for the rest of an answer."""

import json
from collections.abc import Mapping

import pytest
from meshd.gateway.continuation import continued
from meshd.gateway.rest_events import as_the_rest
from meshd.gateway.sent_text import Dialect

from tests.unit.gateway.sent_texts import CHAT, chat, native


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


def test_nothing_was_said_yet() -> None:
    assert continued(CHAT, chat()) is None


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
    rest = continued({"prompt": "The", "n_predict": 10**4300 - 1}, sent)
    assert rest is not None and json.dumps(rest)
