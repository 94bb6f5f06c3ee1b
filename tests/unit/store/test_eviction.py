"""make_room: who sends most goes first, of it what was not used for longest; never more than needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.store.eviction import Held, limit_now, make_room

A1 = Held("a1", 10, "a", used=1)
A2 = Held("a2", 10, "a", used=2)
B1 = Held("b1", 15, "b", used=0)


@pytest.mark.parametrize(
    ("over", "packs_over", "gone"),
    [
        (0, 0, []),
        (1, 0, ["a1"]),  # `a` has 20 of 35, though `b1` was not used for longer
        (11, 0, ["a1", "b1"]),  # then `b` has most
        (26, 0, ["a1", "b1", "a2"]),
        (0, 1, ["a1"]),
        (36, 0, None),
        (0, 4, None),
    ],
)
def test_what_goes(over: int, packs_over: int, gone: list[str] | None) -> None:
    assert make_room([B1, A2, A1], over=over, packs_over=packs_over) == gone


def test_one_sender_loses_what_it_used_least_recently() -> None:
    packs = [Held(str(used), 5, "a", used) for used in (3, 1, 2)]
    assert make_room(packs, over=6, packs_over=0) == ["1", "2"]


@given(
    packs=st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=12
    ),
    over=st.integers(0, 300),
)
def test_it_is_enough_and_no_more(packs: list[tuple[int, str, int]], over: int) -> None:
    held = [Held(str(number), *pack) for number, pack in enumerate(packs)]
    gone = make_room(held, over=over, packs_over=0)
    sizes = {pack.name: pack.size for pack in held}
    if gone is None:
        assert sum(sizes.values()) < over
    else:
        assert sum(sizes[name] for name in gone) >= over
        assert not gone or sum(sizes[name] for name in gone[:-1]) < over


def test_the_disk_limits_it() -> None:
    assert limit_now(100, held=10, free=1000) == 100
    assert limit_now(100, held=10, free=30) == 20
    assert limit_now(100, held=10, free=-1) == 5
