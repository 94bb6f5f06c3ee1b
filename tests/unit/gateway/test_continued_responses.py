"""Requests for the rest of an answer of the Responses API."""

from collections.abc import Mapping

import pytest
from meshd.gateway.continuation import continued
from meshd.gateway.rest_events import as_the_rest

from tests.unit.gateway.sent_texts import added, piece, response, responses

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
    assert rest["reasoning_budget_tokens"] == 5 and isinstance(rest["input"], list)
    thought = {"type": "reasoning_text", "text": "hm"}
    assert rest["input"][1:] == [{"type": "reasoning", "summary": [], "content": [thought]}]
    sent.goes_on()
    assert as_the_rest(response("output_item.added", item={"type": "reasoning"}), sent, 1) is None
    message = response("output_item.added", item={"type": "message"})
    assert as_the_rest(message, sent, 1) == message, "it is new"


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


@pytest.mark.parametrize("has_part", [False, True])
def test_a_response_goes_on_where_its_text_is_about_to_begin(has_part: bool) -> None:
    begun = [
        added("reasoning"),
        piece("reasoning_text", "hm"),
        added("message"),
        *([PART] if has_part else []),
    ]
    sent = responses(*begun)
    rest = continued({"input": "hi"}, sent)
    assert rest is not None and rest["continue_final_message"] == "content"
    assert isinstance(rest["input"], list) and [one.get("type") for one in rest["input"]] == [
        None,
        "reasoning",
    ]
    sent.goes_on()
    message, part = response("output_item.added", item={"type": "message"}), response(PART[0], **PART[1])
    more = response("output_text.delta", delta="So")
    told = [as_the_rest(one, sent, 1) for one in (message, part, more)]
    assert told == [None, None if has_part else part, more]
