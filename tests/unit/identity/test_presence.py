"""Signs of life: who signed them, for which mesh, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.identity.keys import MeshId
from meshd.identity.record import Presence
from meshd.wire.news import MAX_PRESENCES, PRESENCE_BYTES, PresenceNews, decode

from tests.unit.identity.cast import MESH, STRANGER, WORKER


def _sign(sequence: int = 3, count: int = 7) -> Presence:
    return Presence.sign(WORKER, mesh=MESH, sequence=sequence, count=count)


def test_it_goes_round_and_holds() -> None:
    data = _sign().to_bytes()
    assert len(data) == PRESENCE_BYTES == 108
    again = Presence.from_bytes(data)
    assert again == _sign() and again.peer == WORKER.peer and again.holds(MESH)
    assert not again.holds(MeshId(bytes(32)))


def test_order() -> None:
    assert _sign(3, 7).order < _sign(3, 8).order < _sign(4, 1).order


@given(st.integers(0, PRESENCE_BYTES - 1), st.integers(0, 7))
def test_no_flipped_bit_holds(at: int, bit: int) -> None:
    data = bytearray(_sign().to_bytes())
    data[at] ^= 1 << bit
    try:
        assert not Presence.from_bytes(bytes(data)).holds(MESH)
    except RemoteProtocolError:
        pass


def test_of_somebody_else() -> None:
    forged = Presence(STRANGER.peer, 3, 7, _sign().signature)
    assert not forged.holds(MESH)


@given(st.binary(max_size=200))
def test_other_sizes_are_refused(data: bytes) -> None:
    if len(data) != PRESENCE_BYTES:
        with pytest.raises(RemoteProtocolError):
            Presence.from_bytes(data)


def test_many_in_one_message() -> None:
    entries = tuple(_sign(count=count).to_bytes() for count in range(MAX_PRESENCES))
    message = PresenceNews(entries).encode()
    assert len(message) < 64 << 10
    assert decode(message) == PresenceNews(entries)
    with pytest.raises(RemoteProtocolError):
        decode(PresenceNews((b"x" * 107,)).encode())
