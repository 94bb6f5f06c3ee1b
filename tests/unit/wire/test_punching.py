"""The words of punching: round trips, limits, and what is refused."""

import pytest
from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, pack_candidates
from meshd.wire.message import Value, pack
from meshd.wire.signal import MAX_PUNCH_CANDIDATES, PunchGo, decode_punching

ID = bytes(range(16))
PLACES = tuple(Candidate(f"10.0.0.{n}", 1000 + n, "tcp", "srflx" if n % 2 else "host") for n in range(1, 9))


def test_more_addresses_than_are_tried_are_left_out() -> None:
    many = tuple(Candidate(f"10.0.1.{n}", 5) for n in range(1, 30))
    go = decode_punching(pack({"t": "go", "a": ID, "at": pack_candidates(many)}))
    assert isinstance(go, PunchGo)
    assert go.candidates == many[:MAX_PUNCH_CANDIDATES]


def test_a_relays_port_is_no_place_to_connect_to() -> None:
    places = (Candidate("10.0.0.1", 5, "tcp", "relay"), PLACES[0], PLACES[0])
    go = decode_punching(pack({"t": "go", "a": ID, "at": pack_candidates(places)}))
    assert isinstance(go, PunchGo)
    assert go.candidates == PLACES[:1]


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
def test_what_is_refused(fields: dict[str, Value]) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_punching(pack(fields))
