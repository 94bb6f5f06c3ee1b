"""The words of punching: round trips, limits, and what is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.wire.address import Candidate, pack_candidates
from meshd.wire.message import Value, pack
from meshd.wire.punching import (
    MAX_PUNCH_CANDIDATES,
    Knock,
    No,
    PunchGo,
    Punching,
    PunchReady,
    decode,
    encode,
)
from meshd.wire.signal import MAX_PAYLOAD_BYTES

ID = bytes(range(16))
PLACES = tuple(Candidate(f"10.0.0.{n}", 1000 + n, "tcp", "srflx" if n % 2 else "host") for n in range(1, 9))


def words() -> st.SearchStrategy[Punching]:
    ids = st.binary(min_size=16, max_size=16)
    places = st.lists(st.sampled_from(PLACES), unique=True, max_size=8).map(tuple)
    return st.one_of(
        st.builds(Knock, attempt=ids),
        st.builds(PunchReady, attempt=ids, candidates=places, waited_ms=st.integers(0, 10_000)),
        st.builds(PunchGo, attempt=ids, candidates=places),
        st.builds(No, attempt=ids, code=st.sampled_from(["busy", "glare", "ended"]), text=st.just("why")),
    )


@given(words())
def test_what_was_written_is_read(word: Punching) -> None:
    data = encode(word)
    assert len(data) <= MAX_PAYLOAD_BYTES
    assert decode(data) == word


@given(st.binary(max_size=100))
def test_anything_is_read_or_refused(data: bytes) -> None:
    try:
        decode(data)
    except RemoteProtocolError as error:
        assert error.code == "message"


def test_more_addresses_than_are_tried_are_left_out() -> None:
    many = tuple(Candidate(f"10.0.1.{n}", 5) for n in range(1, 30))
    go = decode(pack({"t": "go", "a": ID, "at": pack_candidates(many)}))
    assert isinstance(go, PunchGo)
    assert go.candidates == many[:MAX_PUNCH_CANDIDATES]


def test_a_relays_port_is_no_place_to_connect_to() -> None:
    places = (Candidate("10.0.0.1", 5, "tcp", "relay"), PLACES[0], PLACES[0])
    go = decode(pack({"t": "go", "a": ID, "at": pack_candidates(places)}))
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
        decode(pack(fields))
