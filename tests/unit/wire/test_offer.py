"""Offers and answers of the webrtc link: read back as written, or refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate
from meshd.wire.message import Value, pack
from meshd.wire.offer import (
    MAX_OFFERED,
    Answer,
    More,
    Offer,
    OfferGone,
    OfferSignal,
    Terms,
    decode_offer,
    encode_offer,
)
from meshd.wire.signal import MAX_PAYLOAD_BYTES

ATTEMPT = bytes(range(16))
PLACES = tuple(Candidate(f"2001:db8::{number}", number, "udp", "srflx") for number in range(1, 40))
TERMS = Terms(user="abcd", password="p" * 22, fingerprint=bytes(32), candidates=PLACES[:2])
LETTERS = st.text("abcXYZ019+/", min_size=22, max_size=32)
CANDIDATES = st.lists(st.sampled_from(PLACES), max_size=MAX_OFFERED, unique=True).map(tuple)


def fields(**changes: Value) -> bytes:
    """An offer, with fields changed."""
    good: dict[str, Value] = {
        "type": "offer",
        "attempt": ATTEMPT,
        "seconds": 10.0,
        "user": "abcd",
        "password": "p" * 22,
        "fingerprint": bytes(32),
        "candidates": b"",
    }
    return pack({**good, **changes})


@given(
    st.sampled_from([Offer, Answer, More, OfferGone]),
    st.binary(min_size=16, max_size=16),
    LETTERS,
    CANDIDATES,
    st.floats(0, 60),
)
def test_read_back(
    kind: type[OfferSignal], attempt: bytes, word: str, places: tuple[Candidate, ...], seconds: float
) -> None:
    terms = Terms(user=word, password=word, fingerprint=bytes(32), candidates=places)
    signal: OfferSignal
    if kind is Offer:
        signal = Offer(attempt=attempt, terms=terms, seconds=seconds)
    elif kind is Answer:
        signal = Answer(attempt=attempt, terms=terms)
    elif kind is More:
        signal = More(attempt=attempt, candidates=places)
    else:
        signal = OfferGone(attempt=attempt, why=word)
    assert decode_offer(encode_offer(signal)) == signal


def test_the_largest_fits() -> None:
    terms = Terms(user="u" * 32, password="p" * 64, fingerprint=bytes(32), candidates=PLACES)
    data = encode_offer(Offer(attempt=ATTEMPT, terms=terms, seconds=1e9))
    assert len(data) <= MAX_PAYLOAD_BYTES
    read = decode_offer(data)
    assert isinstance(read, Offer)
    assert read.terms.candidates == PLACES[:MAX_OFFERED]
    assert read.seconds == 60


def test_a_later_type_is_no_error() -> None:
    assert decode_offer(pack({"type": "restart", "attempt": ATTEMPT})) is None
    assert decode_offer(fields(colour="green")) is not None


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempt", bytes(15)),
        ("user", "abc"),
        ("user", "ab\u00e4d"),
        ("user", "ab d"),
        ("user", "u" * 33),
        ("password", "p" * 21),
        ("fingerprint", bytes(31)),
        ("candidates", b"\x00"),
        ("candidates", bytes(1000)),
        ("seconds", 61),
        ("seconds", -1),
        ("seconds", float("nan")),
        ("type", 7),
    ],
)
def test_what_is_wrong_is_refused(name: str, value: Value) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_offer(fields(**{name: value}))


@given(st.binary(max_size=300))
def test_nothing_but_the_declared_error(data: bytes) -> None:
    try:
        decode_offer(data)
    except RemoteProtocolError:
        return


def test_a_reason_is_cut_and_made_printable() -> None:
    read = decode_offer(encode_offer(OfferGone(attempt=ATTEMPT, why="no\n" * 200)))
    assert isinstance(read, OfferGone)
    assert read.why.isprintable()
    assert len(read.why) <= 200
