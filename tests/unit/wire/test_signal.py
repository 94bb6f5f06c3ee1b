"""Signals and their payloads are read back; what breaks a limit is refused."""

from dataclasses import replace

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, pack_candidates
from meshd.wire.message import Value, pack, unpack
from meshd.wire.signal import (
    MAX_OFFERED,
    MAX_PAYLOAD_BYTES,
    MAX_PUNCH_CANDIDATES,
    MAX_SIGNAL_BYTES,
    Offer,
    OfferGone,
    OnePort,
    PunchGo,
    SignalBody,
    Terms,
    decode_offer,
    decode_punching,
    decode_search,
    is_outer,
)
from meshd.wire.stun import Endpoint

GOOD = SignalBody(
    sender=bytes(32),
    to=b"t" * 32,
    topic="webrtc",
    start=b"s" * 16,
    sequence=7,
    at=1_800_000_000,
    life=30,
    cookie=b"cookie 8",
    echo=b"",
    payload=b"offer",
    chain=b"chain",
)


def test_a_later_field_is_skipped_and_too_much_of_them_is_not() -> None:
    names = ("from", "to", "topic", "start", "seq", "at", "life", "cookie", "echo", "data", "chain")
    fields = unpack(GOOD.encode())
    assert sorted(fields.names()) == sorted(names)
    more = {name: fields._values[name] for name in names} | {"later": 1}
    assert SignalBody.decode(pack(more)) == GOOD  # type: ignore[arg-type]
    with pytest.raises(RemoteProtocolError, match=f"at most {MAX_SIGNAL_BYTES}"):
        SignalBody.decode(pack(more | {"later": bytes(MAX_SIGNAL_BYTES)}))  # type: ignore[arg-type]


def test_the_largest_of_everything_fits_with_a_signature() -> None:
    body = replace(
        GOOD,
        topic="x" * 16,
        sequence=2**63 - 1,
        at=2**40,
        echo=bytes(8),
        payload=bytes(MAX_PAYLOAD_BYTES),
        chain=bytes(1536),
    )
    assert len(body.encode()) + 80 <= MAX_SIGNAL_BYTES


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
    ("name", "value"), [("user", "ab\u00e4d"), ("user", "ab d"), ("candidates", b"\x00"), ("type", 7)]
)
def test_what_is_wrong_is_refused(name: str, value: Value) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_offer(fields(**{name: value}))


def test_a_reason_is_cut_and_made_printable() -> None:
    read = decode_offer(OfferGone(attempt=ATTEMPT, why="no\n" * 200).encode())
    assert isinstance(read, OfferGone)
    assert read.why.isprintable()
    assert len(read.why) <= 200


ID = bytes(range(16))
PUNCHED = tuple(Candidate(f"10.0.0.{n}", 1000 + n, "tcp", "srflx" if n % 2 else "host") for n in range(1, 9))


def test_more_addresses_than_are_tried_are_left_out() -> None:
    many = tuple(Candidate(f"10.0.1.{n}", 5) for n in range(1, 30))
    go = decode_punching(pack({"t": "go", "a": ID, "at": pack_candidates(many)}))
    assert isinstance(go, PunchGo)
    assert go.candidates == many[:MAX_PUNCH_CANDIDATES]


def test_a_relays_port_is_no_place_to_connect_to() -> None:
    places = (Candidate("10.0.0.1", 5, "tcp", "relay"), PUNCHED[0], PUNCHED[0])
    go = decode_punching(pack({"t": "go", "a": ID, "at": pack_candidates(places)}))
    assert isinstance(go, PunchGo)
    assert go.candidates == PUNCHED[:1]


def test_addresses_of_punching_that_are_cut_off_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="candidate"):
        decode_punching(pack({"t": "go", "a": ID, "at": b"\x00\x01"}))


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "192.168.1.7", "10.9.8.7", "172.16.0.1", "169.254.1.1", "240.0.0.1", "2001:db8::7", "::1"],
)
def test_no_search_goes_to_a_site_or_a_machine(host: str) -> None:
    assert not is_outer(Endpoint(host, 4000))
    with pytest.raises(RemoteProtocolError):
        decode_search(OnePort(attempt=ID, place=Endpoint(host, 4000)).encode())


def test_a_search_names_exactly_one_port() -> None:
    two = pack_candidates([Candidate("1.1.1.1", 1), Candidate("1.1.1.2", 1)])
    for places in (b"", b"x", two):
        with pytest.raises(RemoteProtocolError):
            decode_search(pack({"t": "here", "a": ID, "at": places}))
