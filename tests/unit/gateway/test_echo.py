"""What a run makes once more of the calls that a client has."""

import time
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.gateway.begun_calls import SentCall
from meshd.gateway.echo import Echo, OtherAnswer

MOST_LETTERS = 4 << 20  # of an answer that is kept


def begun(arguments: str) -> Echo:
    return Echo("", "", [SentCall("id", "f", StringIO(arguments))])


@given(st.text("ab", max_size=12), st.text("ab", max_size=12), st.data())
def test_only_what_is_behind_it_is_fresh(had: str, more: str, draw: st.DataObject) -> None:
    echo, comes, fresh = begun(had), had + more, ""
    while comes:
        at = draw.draw(st.integers(1, len(comes)))
        fresh, comes = fresh + echo.fresh_arguments(0, comes[:at]), comes[at:]
    assert fresh == more


@given(st.text("ab", min_size=1, max_size=12), st.data())
def test_what_differs_anywhere_is_another_answer(had: str, draw: st.DataObject) -> None:
    at, end = draw.draw(st.integers(0, len(had) - 1)), draw.draw(st.integers(0, 3))
    echo = begun(had)
    assert echo.fresh_arguments(0, had[:at]) == ""
    with pytest.raises(OtherAnswer):
        echo.fresh_arguments(0, "c" + had[at + 1 : at + 1 + end])


def test_the_longest_answer_is_compared_in_a_second_however_small_its_pieces() -> None:
    had, pieces = "x" * MOST_LETTERS, MOST_LETTERS // 64
    echo = begun(had)
    began = time.thread_time()  # others use the same processor
    for _ in range(pieces):
        assert echo.fresh_arguments(0, "x" * 64) == ""
    assert time.thread_time() - began < 1.0
    assert echo.fresh_arguments(0, "y") == "y"
