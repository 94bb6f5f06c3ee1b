"""Statements: one encoding, the body kept as it came."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.identity.signed import Statement
from meshd.wire.message import pack

from tests.unit.identity.cast import FOUNDER, GUEST, damaged, thorough

GOOD = Statement.make(FOUNDER, "test", pack({"a": 1, "from a later version": [2]}))


def test_a_statement_is_read_back_with_fields_it_does_not_know() -> None:
    found = Statement.decode(GOOD.encode(), limit=1000)
    assert found == GOOD
    assert found.holds(FOUNDER.peer, "test")
    assert found.fields().number("a", low=0, high=9) == 1


def test_it_holds_for_its_signer_and_context_only() -> None:
    assert not GOOD.holds(GUEST.peer, "test")
    assert not GOOD.holds(FOUNDER.peer, "other")


def test_a_second_encoding_is_refused() -> None:
    other = pack({"s": GOOD.signature, "b": GOOD.body})
    with pytest.raises(RemoteProtocolError, match="canonical encoding"):
        Statement.decode(other, limit=1000)


def test_the_limit_holds() -> None:
    with pytest.raises(RemoteProtocolError):
        Statement.decode(GOOD.encode(), limit=len(GOOD.encode()) - 1)


@given(st.data())
@thorough
def test_a_damaged_statement_is_refused_or_does_not_hold(data: st.DataObject) -> None:
    raw = data.draw(damaged(GOOD.encode()))
    try:
        found = Statement.decode(raw, limit=1000)
    except RemoteProtocolError:
        return
    assert not found.holds(FOUNDER.peer, "test")
