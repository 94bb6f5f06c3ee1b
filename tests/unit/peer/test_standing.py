"""With whom to keep a session: the same from both ends, few, and the whole mesh hangs together."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.identity.keys import PeerId
from meshd.peer.standing import BESIDE, DEGREE, HEAD_WORKERS, neighbours, wanted, workers_of


def _members(count: int, seed: int = 0) -> list[PeerId]:
    chance = random.Random(seed)
    return [PeerId(chance.randbytes(32)) for _ in range(count)]


@given(st.integers(2, 120), st.integers(0, 1000))
def test_neighbours_are_few_and_mutual(count: int, seed: int) -> None:
    members = _members(count, seed)
    near = {me: neighbours(me, members) for me in members}
    for me, found in near.items():
        assert me not in found and len(found) <= DEGREE
        assert len(found) >= min(2 * BESIDE, count - 1)
        assert all(me in near[other] for other in found)


@pytest.mark.parametrize(("count", "hops"), [(9, 1), (20, 3), (50, 4), (120, 5), (256, 6)])
def test_news_reach_everybody_in_a_few_steps(count: int, hops: int) -> None:
    members = _members(count)
    near = {me: neighbours(me, members) for me in members}
    reached = {members[0]}
    for _ in range(hops):
        reached |= {other for one in reached for other in near[one]}
    assert len(reached) == count


@pytest.mark.parametrize("count", [20, 50, 256])
def test_whoever_comes_changes_the_sessions_of_few(count: int) -> None:
    *members, newcomer = _members(count + 1)
    changed = 0
    for me in members:
        before, after = neighbours(me, members), neighbours(me, [*members, newcomer])
        changed += len(before ^ after - {newcomer})
    assert changed <= 16, "each of a pair counts"


ROLES = st.sampled_from(["serve", "worker", "client", ""])


@given(st.lists(ROLES, min_size=2, max_size=60), st.integers(0, 1000))
def test_both_ends_want_the_same(roles: list[str], seed: int) -> None:
    members = dict(zip(_members(len(roles), seed), roles, strict=True))
    wishes = {
        me: wanted(me, role, {other: theirs for other, theirs in members.items() if other != me})
        for me, role in members.items()
    }
    for me, found in wishes.items():
        assert me not in found
        assert all(me in wishes[other] for other in found)


def test_a_head_keeps_its_workers() -> None:
    head, *workers = _members(40)
    found = wanted(head, "serve", dict.fromkeys(workers, "worker"))
    assert set(workers_of(head, workers)) <= found
    assert len(workers_of(head, workers)) == HEAD_WORKERS
    assert len(found) <= HEAD_WORKERS + DEGREE
    assert set(workers_of(head, workers[:5])) == set(workers[:5])
