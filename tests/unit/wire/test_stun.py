"""STUN messages: the RFC's own examples, round trips, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.admission import Rate
from meshd.base.errors import LocalProtocolError, RemoteProtocolError
from meshd.base.peer_limits import STUN_ANSWERS, STUN_ANSWERS_IN_ALL, STUN_SOURCES
from meshd.wire.stun import (
    MAX_REASON_BYTES,
    MAX_STREAM_REQUESTS,
    MAX_STUN_BYTES,
    AnswerRates,
    Endpoint,
    StreamAnswers,
    StunKind,
    StunMessage,
    answer_to,
    decode,
    encode,
    looks_like_stun,
    message_bytes,
)

TRANSACTION = bytes(range(12))
KEY = b"VOkJxbRl1RmTxUk/WvJxBt"

# RFC 5769 2.2 and 2.3: answers for 192.0.2.1:32853 and [2001:db8:1234:5678:11:2233:4455:6677]:32853
SAMPLE_V4 = bytes.fromhex(
    "0101003c2112a442b7e7a701bc34d686fa87dfae"
    "8022000b7465737420766563746f7220"
    "002000080001a147e112a643"
    "000800142b91f599fd9e90c38c7489f92af9ba53f06be7d7"
    "80280004c07d4c96"
)
SAMPLE_V6 = bytes.fromhex(
    "010100482112a442b7e7a701bc34d686fa87dfae"
    "8022000b7465737420766563746f7220"
    "002000140002a1470113a9faa5d3f179bc25f4b5bed2b9d9"
    "00080014a382954e4be67bf11784c97c8292c275bfe3ed41"
    "80280004c8fb0b4c"
)


def endpoints() -> st.SearchStrategy[Endpoint]:
    hosts = st.one_of(
        st.integers(0x01000000, 0xDFFFFFFF).map(lambda n: ".".join(str(b) for b in n.to_bytes(4, "big"))),
        st.integers(0x20, 0x3FFF).map(lambda n: f"2001:db8::{n:x}"),
    )
    return st.builds(Endpoint, hosts, st.integers(1, 65535))


def messages() -> st.SearchStrategy[StunMessage]:
    transactions = st.binary(min_size=12, max_size=12)
    maybe = st.none() | endpoints()
    return st.one_of(
        st.builds(
            StunMessage,
            kind=st.just(StunKind.REQUEST),
            transaction=transactions,
            change_ip=st.booleans(),
            change_port=st.booleans(),
            username=st.binary(max_size=508),
        ),
        st.builds(
            StunMessage,
            kind=st.just(StunKind.SUCCESS),
            transaction=transactions,
            mapped=endpoints(),
            other=maybe,
            origin=maybe,
        ),
        st.builds(
            StunMessage,
            kind=st.just(StunKind.ERROR),
            transaction=transactions,
            error=st.integers(300, 699),
            reason=st.text("abc dé", max_size=300),
        ),
    )


@given(message=messages(), key=st.binary(max_size=40))
def test_what_was_written_is_read(message: StunMessage, key: bytes) -> None:
    data = encode(message, key=key)
    assert looks_like_stun(data)
    assert message_bytes(data) == len(data) <= MAX_STUN_BYTES
    assert decode(data, key=key) == decode(data) == message


@given(message=messages(), at=st.integers(0), bit=st.integers(0, 7))
def test_no_bit_of_what_is_sealed_may_flip(message: StunMessage, at: int, bit: int) -> None:
    data = bytearray(encode(message, key=KEY))
    data[at % (len(data) - 8)] ^= 1 << bit  # the fingerprint behind it may as well not be there
    with pytest.raises(RemoteProtocolError) as raised:
        decode(bytes(data), key=KEY)
    assert raised.value.code == "stun"


@given(data=st.binary(max_size=200))
def test_anything_is_read_or_refused(data: bytes) -> None:
    head = b"\x01\x01" + len(data).to_bytes(2, "big") + b"\x21\x12\xa4\x42" + TRANSACTION
    for whole in (data, head + data):
        try:
            decode(whole)
        except RemoteProtocolError as error:
            assert error.code == "stun"


def test_the_examples_of_the_rfc() -> None:
    four, six = decode(SAMPLE_V4), decode(SAMPLE_V6)
    assert four.mapped == Endpoint("192.0.2.1", 32853)
    assert six.mapped == Endpoint("2001:db8:1234:5678:11:2233:4455:6677", 32853)
    assert four.kind is six.kind is StunKind.SUCCESS
    assert str(four.mapped) == "192.0.2.1:32853"
    assert str(six.mapped) == "[2001:db8:1234:5678:11:2233:4455:6677]:32853"


def _answer(attributes: bytes, kind: int = 0x0101) -> bytes:
    head = kind.to_bytes(2, "big") + len(attributes).to_bytes(2, "big") + b"\x21\x12\xa4\x42"
    return head + TRANSACTION + attributes


def test_an_old_server_gives_the_address_as_it_is() -> None:
    plain = bytes.fromhex("0001000800010050c0000201")
    assert decode(_answer(plain)).mapped == Endpoint("192.0.2.1", 80)


def test_the_xored_address_is_believed_over_the_plain_one() -> None:
    good = encode(StunMessage(kind=StunKind.SUCCESS, transaction=TRANSACTION, mapped=Endpoint("9.8.7.6", 5)))
    plain = bytes.fromhex("0001000800010050c0000201")
    assert decode(_answer(plain + good[20:-8])).mapped == Endpoint("9.8.7.6", 5)


@pytest.mark.parametrize(
    ("attributes", "kind"),
    [
        (b"", 0x0101),  # no address
        (bytes.fromhex("0001000800010000c0000201"), 0x0101),  # port 0
        (bytes.fromhex("000100080001005000000000"), 0x0101),  # 0.0.0.0
        (bytes.fromhex("0001000800010050ffffffff"), 0x0101),
        (bytes.fromhex("0001000800030050c0000201"), 0x0101),  # family 3
        (bytes.fromhex("00010004000100500000"), 0x0101),  # too short
        (bytes.fromhex("000100ff00010050c0000201"), 0x0101),  # beyond the end
        (bytes.fromhex("0003000200000000"), 0x0001),  # CHANGE-REQUEST
        (bytes.fromhex("0009000400000200"), 0x0111),  # error 200
        (bytes.fromhex("0009000400000464"), 0x0111),  # error 4 and 100
        (b"", 0x0111),  # an error without a code
        (bytes.fromhex("8028000412345678"), 0x0001),  # fingerprint
        (bytes.fromhex("80220000") * 33, 0x0001),  # too many
        (b"", 0x0003),  # another method (allocate)
        (b"\x80\x22", 0x0001),
    ],
)
def test_what_is_refused(attributes: bytes, kind: int) -> None:
    with pytest.raises(RemoteProtocolError):
        decode(_answer(attributes, kind))


def test_a_message_of_another_length_is_refused() -> None:
    good = encode(StunMessage(kind=StunKind.REQUEST, transaction=TRANSACTION))
    for data in (good + bytes(4), good[:-4], good[:19], b""):
        with pytest.raises(RemoteProtocolError):
            decode(data)


def test_what_must_be_understood_is_told() -> None:
    assert decode(_answer(bytes.fromhex("00240004 00000001 8022000461626364"), 0x0001)).unknown == (0x0024,)


def test_what_follows_the_integrity_is_not_believed() -> None:
    good = encode(StunMessage(kind=StunKind.REQUEST, transaction=TRANSACTION), key=KEY)[:-8]
    forged = good[20:] + bytes.fromhex("0003000400000006")
    read = decode(_answer(forged, 0x0001), key=KEY)
    assert not read.change_ip
    assert not read.change_port


def test_integrity_is_asked_for_and_checked() -> None:
    request = StunMessage(kind=StunKind.REQUEST, transaction=TRANSACTION, username=b"me")
    assert decode(encode(request, key=KEY)) == request
    for data, key in ((encode(request), KEY), (encode(request, key=KEY), KEY + b"x")):
        with pytest.raises(RemoteProtocolError):
            decode(data, key=key)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01" + bytes(20),  # TLS
        b"\x16\xfe\xfd" + bytes(30),  # DTLS
        b"\xc3\x00\x00\x00\x01" + bytes(30),  # QUIC, long header
        b"\x40" + bytes(30),  # QUIC, short header
        b"GET / HTTP/1.1\r\nHost: x\r\n",
        bytes(19),
        b"\x00\x01\x00\x03\x21\x12\xa4\x42" + bytes(20),  # lengths are multiples of 4
    ],
)
def test_other_protocols_are_told_apart(data: bytes) -> None:
    assert not looks_like_stun(data)


def test_a_stream_tells_how_much_to_read() -> None:
    data = encode(StunMessage(kind=StunKind.REQUEST, transaction=TRANSACTION))
    assert message_bytes(data[:19]) is None
    assert message_bytes(data + b"more") == len(data)
    with pytest.raises(RemoteProtocolError):
        message_bytes(b"\x00\x01\xff\x00" + data[4:])
    with pytest.raises(RemoteProtocolError):
        message_bytes(b"\x16\x03\x01\x00" + bytes(40))


def test_what_cannot_be_written() -> None:
    with pytest.raises(LocalProtocolError):
        encode(StunMessage(kind=StunKind.REQUEST, transaction=b"short"))
    with pytest.raises(LocalProtocolError):
        encode(StunMessage(kind=StunKind.REQUEST, transaction=TRANSACTION, username=bytes(509)))
    long = StunMessage(kind=StunKind.ERROR, transaction=TRANSACTION, error=420, reason="é" * 900)
    assert len(decode(encode(long)).reason.encode()) <= MAX_REASON_BYTES


SEEN = Endpoint("2001:db8::1", 4711)
ASKED = b"transaction!"
REQUEST = encode(StunMessage(kind=StunKind.REQUEST, transaction=ASKED))


def test_a_request_is_told_where_it_came_from() -> None:
    answer = answer_to(REQUEST, SEEN)
    assert answer is not None
    assert decode(answer) == StunMessage(kind=StunKind.SUCCESS, transaction=ASKED, mapped=SEEN)
    assert len(answer) <= 3 * len(REQUEST)


@pytest.mark.parametrize("change", [(True, False), (False, True), (True, True)])
def test_a_change_that_cannot_be_made_is_refused(change: tuple[bool, bool]) -> None:
    ip, port = change
    request = StunMessage(kind=StunKind.REQUEST, transaction=ASKED, change_ip=ip, change_port=port)
    answer = decode(answer_to(encode(request), SEEN) or b"")
    assert (answer.kind, answer.error, answer.transaction) == (StunKind.ERROR, 420, ASKED)


@pytest.mark.parametrize("kind", [StunKind.INDICATION, StunKind.SUCCESS, StunKind.ERROR])
def test_answers_are_not_answered(kind: StunKind) -> None:
    mapped = SEEN if kind is StunKind.SUCCESS else None
    error = 400 if kind is StunKind.ERROR else 0
    message = StunMessage(kind=kind, transaction=ASKED, mapped=mapped, error=error)
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
        StreamAnswers(SEEN).feed(encode(StunMessage(kind=StunKind.INDICATION, transaction=ASKED)))


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
