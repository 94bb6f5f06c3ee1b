"""The exchange's framing: the budget, the magic, refusals, order of messages, the end."""

import pytest
from meshd.base.errors import LocalProtocolError, Refused
from meshd.identity.exchange import MAGIC, frame
from meshd.identity.proof import ProofFailed
from meshd.wire.limits import MAX_UNPROVEN_BYTES

from tests.unit.identity.ends import converse, dialler, listener, message


@pytest.mark.parametrize("start", [b"GET / HTTP/1.1\r\n", b"\x16\x03\x01", b"MESHX", b"M\0"])
def test_a_stranger_is_told_nothing(start: bytes) -> None:
    with pytest.raises(ProofFailed) as caught:
        listener().receive(start)
    assert caught.value.code == "magic"
    assert caught.value.farewell == b""


def test_the_magic_may_come_in_pieces() -> None:
    listen = listener()
    for at in range(len(MAGIC)):
        assert listen.receive(MAGIC[at : at + 1]) == b""
    assert listen.receive(dialler().start()[len(MAGIC) :])


def test_a_message_over_the_budget_is_refused_at_its_header() -> None:
    listen = listener()
    with pytest.raises(ProofFailed) as caught:
        listen.receive(MAGIC + (MAX_UNPROVEN_BYTES + 1).to_bytes(2, "big"))
    assert caught.value.code == "too_long"
    assert caught.value.farewell


def test_the_budget_counts_all_messages_together() -> None:
    dial = dialler()
    talk = converse(dialler(), listener())
    padding = bytes(2500)
    first = message(t="answer", version=1, nonce=b"l" * 32, padding=padding)
    dial.receive(first)
    second = message(t="proof", sig=bytes(64), padding=padding)
    assert talk.listened
    with pytest.raises(ProofFailed) as caught:
        dial.receive(second)
    assert caught.value.code == "too_long"


def test_messages_out_of_order_are_refused() -> None:
    with pytest.raises(ProofFailed) as caught:
        listener().receive(MAGIC + message(t="done"))
    assert caught.value.code == "proof"
    with pytest.raises(ProofFailed) as caught:
        dialler().receive(message(t="proof", sig=bytes(64)))
    assert caught.value.code == "proof"


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x90", b"\x80"])
def test_a_message_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(ProofFailed) as caught:
        dialler().receive(len(body).to_bytes(2, "big") + body)
    assert caught.value.code == "message"


def test_a_refusal_is_handed_on_with_code_text_and_hint() -> None:
    with pytest.raises(Refused) as caught:
        dialler().receive(message(t="refused", code="later", text="not today", hint="come back"))
    assert (caught.value.code, caught.value.what, caught.value.hint) == ("later", "not today", "come back")


@pytest.mark.parametrize("text", ["x" * 2000, "two\nlines", "\x1b[31m"])
def test_a_refusal_with_an_unfit_text_is_refused_itself(text: str) -> None:
    with pytest.raises(ProofFailed) as caught:
        dialler().receive(message(t="refused", code="later", text=text, hint=""))
    assert caught.value.code == "message"


def test_a_long_reason_is_cut_so_that_the_other_side_can_read_it() -> None:
    dial, listen = dialler(), listener(why_banned=lambda chain: "ä\n" * 2000)
    with pytest.raises(ProofFailed) as caught:
        converse(dial, listen)
    with pytest.raises(Refused) as heard:
        dial.receive(caught.value.farewell)
    assert heard.value.what.startswith("ä?ä?")


def test_after_the_end_nothing_is_taken() -> None:
    dial, listen = dialler(), listener()
    converse(dial, listen)
    for end in (dial, listen):
        with pytest.raises(LocalProtocolError):
            end.receive(b"more")


def test_after_a_failure_nothing_is_taken() -> None:
    refused, failed = dialler(), listener()
    with pytest.raises(Refused):
        refused.receive(message(t="refused", code="c", text="t", hint=""))
    with pytest.raises(ProofFailed):
        failed.receive(b"GET")
    for end in (refused, failed):
        with pytest.raises(LocalProtocolError):
            end.receive(b"more")


def test_our_own_messages_are_bounded() -> None:
    with pytest.raises(LocalProtocolError):
        frame({"x": bytes(MAX_UNPROVEN_BYTES)})
