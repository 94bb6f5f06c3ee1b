"""Requests for the rest of Anthropic's messages."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.continuation import continued
from meshd.gateway.echo import OtherAnswer
from meshd.gateway.rest_events import as_the_rest

from tests.unit.gateway.sent_texts import BEGIN, CHAT, anthropic, block, delta, says, thinks, tool_use


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


def test_messages_go_on_in_the_middle_of_thinking() -> None:
    sent = anthropic({"type": "message_start"}, block("thinking", 0), thinks("Let "), thinks("me"))
    asked = {**CHAT, "thinking": {"type": "enabled", "budget_tokens": 9}, "max_tokens": 20}
    rest = continued(asked, sent)
    assert rest is not None and rest["thinking"] == asked["thinking"], "llama-server counts what was thought"
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


def test_messages_go_on_where_their_text_is_about_to_begin() -> None:
    """Its block has begun, and no letter has come: the thinking is over."""
    sent = anthropic(block("thinking", 0), thinks("hm"), block("text", 1))
    rest = continued(CHAT, sent)
    assert rest is not None and isinstance(rest["messages"], list)
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    assert rest["messages"][-1]["content"] == [thought, {"type": "text", "text": ""}]
    sent.goes_on()
    again = [block("thinking", 0), thinks("hm"), block("text", 1), says("So")]
    assert [as_the_rest(one, sent, 1) for one in again] == [None, None, None, says("So")]
    assert sent.call_of({"index": 2}) == 0


def test_a_rest_with_other_blocks_is_another_answer() -> None:
    sent = anthropic(block("thinking", 0), thinks("hm"), block("text", 1))
    sent.goes_on()
    assert as_the_rest(block("thinking", 0), sent, 1) is None
    with pytest.raises(OtherAnswer, match="blocks"):
        as_the_rest(tool_use(1, "f"), sent, 1)
    end: dict[str, object] = {"type": "message_delta", "usage": {"output_tokens": 1}}
    with pytest.raises(OtherAnswer, match="no text"):
        as_the_rest(end, sent, 1)
    assert as_the_rest(block("text", 1), sent, 1) is None
    assert as_the_rest(end, sent, 1) is not None
