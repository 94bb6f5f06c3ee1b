"""What is kept of what a client was sent."""

import pytest
from meshd.gateway.continuation import continued

from tests.unit.gateway.sent_texts import call, called, chat, native


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


@pytest.mark.parametrize("field", ["id", "name"])
@pytest.mark.parametrize(("letters", "is_kept"), [(256, True), (257, False)])
def test_what_calls_are_called_has_a_limit(field: str, letters: int, is_kept: bool) -> None:
    """Each is in several questions about the template."""
    sent = chat()
    function = {"name": "f" * (letters if field == "name" else 1), "arguments": "{"}
    one = {"index": 0, "id": "i" * (letters if field == "id" else 1), "function": function}
    sent.see({"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]})
    assert (sent.is_text, bool(sent.calls)) == (is_kept, is_kept)
