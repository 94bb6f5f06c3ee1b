"""Requests for the rest of an answer."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.continuation import Dialect, SentText, as_the_rest, continued

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
        *(
            {name: "x"}
            for name in ("grammar", "json_schema", "response_format", "echo", "suffix", "thinking")
        ),
        {"tool_choice": "required"},
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
        {"choices": [{"index": 0, "delta": {"tool_calls": []}}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
    ],
    ids=["another answer", "a call", "the end"],
)
def test_what_is_more_than_text_is_not_continued(event: Mapping[str, object]) -> None:
    sent = chat("So")
    sent.see(event)
    assert continued(CHAT, sent) is None


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
    echo, came, told = sent.echo, "", []
    for piece in pieces:
        if (event := as_the_rest(delta(piece), sent, 1)) is not None:
            told.append(event)
        came += piece
        assert sent.echo is echo, "it is not copied for each event"
        assert bool(told) == (not before.startswith(came))
    assert told[1:] == [delta(piece) for piece in pieces[len(pieces) - len(told) + 1 :]]


@pytest.mark.parametrize("kind", ["thinking", "tool_use"])
def test_messages_with_more_than_text_are_not_continued(kind: str) -> None:
    other = {"type": "content_block_start", "index": 0, "content_block": {"type": kind}}
    assert continued(CHAT, anthropic(other, delta("x"))) is None


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
