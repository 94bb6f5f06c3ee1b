"""What the answering side of STUN says, and what it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.stun import Endpoint, StunKind, StunMessage, decode, encode
from meshd.wire.stun_answer import MAX_STREAM_REQUESTS, StreamAnswers, answer_to

SEEN = Endpoint("2001:db8::1", 4711)
TRANSACTION = b"transaction!"
REQUEST = encode(StunMessage(kind=StunKind.REQUEST, transaction=TRANSACTION))


def test_a_request_is_told_where_it_came_from() -> None:
    answer = answer_to(REQUEST, SEEN)
    assert answer is not None
    assert decode(answer) == StunMessage(kind=StunKind.SUCCESS, transaction=TRANSACTION, mapped=SEEN)
    assert len(answer) <= 3 * len(REQUEST)


@pytest.mark.parametrize("change", [(True, False), (False, True), (True, True)])
def test_a_change_that_cannot_be_made_is_refused(change: tuple[bool, bool]) -> None:
    ip, port = change
    request = StunMessage(kind=StunKind.REQUEST, transaction=TRANSACTION, change_ip=ip, change_port=port)
    answer = decode(answer_to(encode(request), SEEN) or b"")
    assert (answer.kind, answer.error, answer.transaction) == (StunKind.ERROR, 420, TRANSACTION)


@pytest.mark.parametrize("kind", [StunKind.INDICATION, StunKind.SUCCESS, StunKind.ERROR])
def test_answers_are_not_answered(kind: StunKind) -> None:
    mapped = SEEN if kind is StunKind.SUCCESS else None
    error = 400 if kind is StunKind.ERROR else 0
    message = StunMessage(kind=kind, transaction=TRANSACTION, mapped=mapped, error=error)
    assert answer_to(encode(message), SEEN) is None


@given(st.binary(max_size=100))
def test_noise_is_not_answered(noise: bytes) -> None:
    assert answer_to(noise, SEEN) is None


@given(cuts=st.lists(st.integers(1, 40), max_size=20))
def test_a_stream_may_be_cut_anywhere(cuts: list[int]) -> None:
    data, answers, desk = REQUEST * 5, bytearray(), StreamAnswers(SEEN)
    for cut in [*cuts, len(data)]:
        answers += desk.feed(data[:cut])
        data = data[cut:]
    assert bytes(answers) == (answer_to(REQUEST, SEEN) or b"") * 5


def test_a_stream_of_something_else_ends() -> None:
    for data in (bytes(20), b"GET / HTTP/1.1\r\nHost: a\r\n", REQUEST[:2] + b"\xff\xfc" + REQUEST[4:]):
        with pytest.raises(RemoteProtocolError):
            StreamAnswers(SEEN).feed(data)
    with pytest.raises(RemoteProtocolError):
        StreamAnswers(SEEN).feed(encode(StunMessage(kind=StunKind.INDICATION, transaction=TRANSACTION)))


def test_nobody_asks_for_ever() -> None:
    desk = StreamAnswers(SEEN)
    desk.feed(REQUEST * MAX_STREAM_REQUESTS)
    with pytest.raises(RemoteProtocolError):
        desk.feed(REQUEST)
