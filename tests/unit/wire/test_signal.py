"""Signals and their payloads are read back; what breaks a limit is refused."""

from dataclasses import replace

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, pack_candidates
from meshd.wire.message import Value, pack, unpack
from meshd.wire.netfacts import Mapping, NetFacts
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


@pytest.mark.parametrize(
    "wrong",
    [
        {"sender": bytes(31)},
        {"to": bytes(33)},
        {"topic": "x" * 17},
        {"start": b""},
        {"sequence": -1},
        {"life": 0},
        {"life": 121},
        {"cookie": b""},
        {"echo": b"1234567"},
        {"payload": bytes(MAX_PAYLOAD_BYTES + 1)},
        {"chain": bytes(1537)},
    ],
    ids=lambda wrong: str(wrong)[:20],
)
def test_a_field_beyond_its_limit_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError, match="field"):
        SignalBody.decode(replace(GOOD, **wrong).encode())  # type: ignore[arg-type]


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


@pytest.mark.parametrize(
    "fields",
    [
        {"t": "knock"},
        {"t": "knock", "a": ID + b"x"},
        {"t": "hello", "a": ID},
        {"a": ID},
        {"t": "ready", "a": ID, "at": b""},
        {"t": "ready", "a": ID, "at": b"", "ms": -1},
        {"t": "ready", "a": ID, "at": b"", "ms": 10_001},
        {"t": "go", "a": ID},
        {"t": "go", "a": ID, "at": bytes(609)},
        {"t": "go", "a": ID, "at": b"\x00\x01"},
        {"t": "no", "a": ID},
        {"t": "no", "a": ID, "code": "x" * 17},
        {"t": "no", "a": ID, "code": "busy", "text": "x\n"},
    ],
)
def test_what_is_no_word_of_punching_is_refused(fields: dict[str, Value]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_punching(pack(fields))


SEARCH_ID, KEY = bytes(range(16)), bytes(32)
FACTS = NetFacts(mapping=Mapping.ADDRESS_PORT, public_v4="20.1.0.2")


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "192.168.1.7", "10.9.8.7", "172.16.0.1", "169.254.1.1", "240.0.0.1", "2001:db8::7", "::1"],
)
def test_no_search_goes_to_a_site_or_a_machine(host: str) -> None:
    assert not is_outer(Endpoint(host, 4000))
    with pytest.raises(RemoteProtocolError):
        decode_search(OnePort(attempt=SEARCH_ID, place=Endpoint(host, 4000)).encode())


@pytest.mark.parametrize(
    "fields",
    [
        {"t": "ask", "a": SEARCH_ID, "net": FACTS.to_bytes()},
        {"t": "ask", "a": SEARCH_ID, "net": FACTS.to_bytes(), "key": b"short"},
        {"t": "ask", "a": SEARCH_ID, "key": KEY},
        {"t": "ask", "a": SEARCH_ID, "key": KEY, "net": bytes(17)},
        {"t": "ask", "a": SEARCH_ID, "key": KEY, "net": FACTS.to_bytes(), "at": b"x"},
        {"t": "here", "a": SEARCH_ID},
        {"t": "here", "a": SEARCH_ID, "at": b""},
        {
            "t": "here",
            "a": SEARCH_ID,
            "at": pack_candidates([Candidate("1.1.1.1", 1), Candidate("1.1.1.2", 1)]),
        },
        {"t": "opened", "a": SEARCH_ID, "at": Candidate("1.1.1.1", 1).to_bytes(), "step": 128, "n": 1},
        {"t": "opened", "a": SEARCH_ID, "at": Candidate("1.1.1.1", 1).to_bytes(), "step": 0, "n": 0},
        {"t": "opened", "a": SEARCH_ID, "at": Candidate("1.1.1.1", 1).to_bytes(), "step": 0, "n": 257},
        {"t": "here", "a": b"x", "at": Candidate("1.1.1.1", 1).to_bytes()},
        {"t": "there", "a": SEARCH_ID},
    ],
)
def test_what_is_no_word_of_a_search_is_refused(fields: dict[str, Value]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_search(pack(fields))
