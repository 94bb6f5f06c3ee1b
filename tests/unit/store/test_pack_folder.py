"""make_room: who sends most goes first, of it what was not used for longest; never more than needed."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.store.pack_folder import EvictablePack, limit_now, packs_to_evict

A1 = EvictablePack("a1", 10, "a", last_used=1)
A2 = EvictablePack("a2", 10, "a", last_used=2)
B1 = EvictablePack("b1", 15, "b", last_used=0)


@pytest.mark.parametrize(
    ("excess_bytes", "excess_packs", "gone"),
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
def test_what_goes(excess_bytes: int, excess_packs: int, gone: list[str] | None) -> None:
    assert packs_to_evict([B1, A2, A1], excess_bytes=excess_bytes, excess_packs=excess_packs) == gone


def test_one_sender_loses_what_it_used_least_recently() -> None:
    packs = [EvictablePack(str(used), 5, "a", used) for used in (3, 1, 2)]
    assert packs_to_evict(packs, excess_bytes=6, excess_packs=0) == ["1", "2"]


@given(
    packs=st.lists(
        st.tuples(st.integers(1, 50), st.sampled_from("abc"), st.integers(0, 9)), min_size=1, max_size=12
    ),
    excess_bytes=st.integers(0, 300),
)
def test_it_is_enough_and_no_more(packs: list[tuple[int, str, int]], excess_bytes: int) -> None:
    packs_here = [EvictablePack(str(number), *pack) for number, pack in enumerate(packs)]
    gone = packs_to_evict(packs_here, excess_bytes=excess_bytes, excess_packs=0)
    sizes = {pack.name: pack.size for pack in packs_here}
    if gone is None:
        assert sum(sizes.values()) < excess_bytes
    else:
        assert sum(sizes[name] for name in gone) >= excess_bytes
        assert not gone or sum(sizes[name] for name in gone[:-1]) < excess_bytes


def test_the_disk_limits_it() -> None:
    assert limit_now(100, store_bytes=10, free_bytes=1000) == 100
    assert limit_now(100, store_bytes=10, free_bytes=30) == 20
    assert limit_now(100, store_bytes=10, free_bytes=-1) == 5
