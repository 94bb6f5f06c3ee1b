"""What the answering side of STUN says, and what it does not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.admission import Rate
from meshd.base.errors import RemoteProtocolError
from meshd.base.peer_limits import STUN_ANSWERS, STUN_ANSWERS_IN_ALL, STUN_SOURCES
from meshd.wire.stun import (
    MAX_STREAM_REQUESTS,
    AnswerRates,
    Endpoint,
    StreamAnswers,
    StunKind,
    StunMessage,
    answer_to,
    decode,
    encode,
)

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


def most_in(rate: Rate, seconds: float) -> float:
    return rate.burst + rate.per_second * seconds


FLOODS = st.lists(
    st.tuples(
        st.floats(min_value=0.0, max_value=5.0),  # seconds since the flood before
        st.integers(min_value=0, max_value=2000),  # its first address
        st.sampled_from((1, 40, 600)),  # how many addresses
        st.sampled_from((1, 8)),  # requests of each
    ),
    max_size=5,
)


@given(FLOODS)
def test_whatever_addresses_are_forged_the_total_is_bounded_and_members_are_answered(
    floods: list[tuple[float, int, int, int]],
) -> None:
    rates = AnswerRates()
    now = 0.0
    answers = 0
    for seconds, first, count, requests in floods:
        now += seconds
        for number in range(first, first + count):
            host = f"203.{number >> 8}.{number & 255}.9"
            answers += sum(rates.may_answer(host, now, is_known=False) for _ in range(requests))
        assert rates.may_answer("192.0.2.1", now, is_known=True)
    assert answers <= most_in(STUN_ANSWERS_IN_ALL, now)


@pytest.mark.parametrize("is_known", [False, True])
def test_an_address_has_its_rate_whatever_those_of_the_other_kind_ask(is_known: bool) -> None:
    rates = AnswerRates()
    tries = int(2 * STUN_ANSWERS.burst)
    assert (
        sum(rates.may_answer("192.0.2.1", 1.0, is_known=is_known) for _ in range(tries)) == STUN_ANSWERS.burst
    )
    for number in range(STUN_SOURCES.most - 1):
        rates.may_answer(f"203.{number >> 8}.{number & 255}.9", 1.0, is_known=not is_known)
    assert not rates.may_answer("192.0.2.1", 1.0, is_known=is_known)


def test_forged_addresses_of_members_are_bounded_too() -> None:
    rates = AnswerRates()
    hosts = [f"203.0.{number}.9" for number in range(20)]
    answers = sum(rates.may_answer(host, 1.0, is_known=True) for host in hosts for _ in range(500))
    assert answers == STUN_ANSWERS_IN_ALL.burst
