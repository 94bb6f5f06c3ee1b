"""Offers and answers of the webrtc link: read back as written, or refused."""

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate
from meshd.wire.message import Value, pack
from meshd.wire.signal import MAX_OFFERED, MAX_PAYLOAD_BYTES, Offer, OfferGone, Terms, decode_offer

ATTEMPT = bytes(range(16))
PLACES = tuple(Candidate(f"2001:db8::{number}", number, "udp", "srflx") for number in range(1, 40))
TERMS = Terms(user="abcd", password="p" * 22, fingerprint=bytes(32), candidates=PLACES[:2])


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


def test_the_largest_fits() -> None:
    terms = Terms(user="u" * 32, password="p" * 64, fingerprint=bytes(32), candidates=PLACES)
    data = Offer(attempt=ATTEMPT, terms=terms, seconds=1e9).encode()
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


def test_a_reason_is_cut_and_made_printable() -> None:
    read = decode_offer(OfferGone(attempt=ATTEMPT, why="no\n" * 200).encode())
    assert isinstance(read, OfferGone)
    assert read.why.isprintable()
    assert len(read.why) <= 200
