"""Statements of absence: who signed them, against which sign of life, and what is none."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.identity.keys import MeshId
from meshd.identity.record import Away
from meshd.wire.news import AWAY_BYTES, AwayNews, decode

from tests.unit.identity.cast import GUEST, MESH, STRANGER, WORKER


def _sign() -> Away:
    return Away.sign(WORKER, mesh=MESH, peer=GUEST.peer, order=(3, 7))


def test_it_goes_round_and_holds() -> None:
    data = _sign().to_bytes()
    assert len(data) == AWAY_BYTES == 140
    again = Away.from_bytes(data)
    assert again == _sign() and again.holds(MESH)
    assert (again.peer, again.reporter, again.order) == (GUEST.peer, WORKER.peer, (3, 7))
    assert not again.holds(MeshId(bytes(32)))
    assert decode(AwayNews(data).encode()) == AwayNews(data)


@given(st.integers(0, AWAY_BYTES - 1), st.integers(0, 7))
def test_no_flipped_bit_holds(at: int, bit: int) -> None:
    data = bytearray(_sign().to_bytes())
    data[at] ^= 1 << bit
    try:
        assert not Away.from_bytes(bytes(data)).holds(MESH)
    except RemoteProtocolError:
        pass


def test_by_somebody_else() -> None:
    forged = Away(GUEST.peer, 3, 7, STRANGER.peer, _sign().signature)
    assert not forged.holds(MESH)


@pytest.mark.parametrize("size", [0, AWAY_BYTES - 1, AWAY_BYTES + 1])
def test_of_another_size(size: int) -> None:
    with pytest.raises(RemoteProtocolError):
        Away.from_bytes(bytes(size))
