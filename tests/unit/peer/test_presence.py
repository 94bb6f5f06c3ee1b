"""With whom to keep a session: the same from both ends, few, and the whole mesh hangs together."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.identity.keys import PeerId
from meshd.identity.membership import Admitter
from meshd.peer.presence import BESIDE, DEGREE, HEAD_WORKERS, Seat, neighbours, wanted, workers_of


def _members(count: int, seed: int = 0) -> dict[PeerId, Seat]:
    rng = random.Random(seed)
    return {PeerId(rng.randbytes(32)): Seat(rng.randbytes(32)) for _ in range(count)}


def _token(name: bytes) -> Admitter:
    return Admitter(PeerId(bytes(32)), name, True)


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
    reached = {next(iter(members))}
    for _ in range(hops):
        reached |= {other for one in reached for other in near[one]}
    assert len(reached) == count


@pytest.mark.parametrize("count", [20, 50, 256])
def test_a_new_node_changes_the_sessions_of_few(count: int) -> None:
    later = _members(count + 1)
    *members, newcomer = later
    changed = 0
    for me in members:
        before, after = neighbours(me, {one: later[one] for one in members}), neighbours(me, later)
        changed += len(before ^ after - {newcomer})
    assert changed <= 16, "each of a pair counts"


ROLES = st.sampled_from(["serve", "worker", "client", ""])


@given(st.lists(ROLES, min_size=2, max_size=60), st.integers(0, 1000))
def test_both_ends_want_the_same(roles: list[str], seed: int) -> None:
    drawn = _members(len(roles), seed).items()
    members = {
        one: replace(seat, role=role, admitter=_token(bytes([at % 3])))
        for at, ((one, seat), role) in enumerate(zip(drawn, roles, strict=True))
    }
    wishes = {me: wanted(me, members) for me in members}
    for me, found in wishes.items():
        assert me not in found
        assert all(me in wishes[other] for other in found)


def _with_workers(count: int) -> tuple[PeerId, dict[PeerId, Seat], dict[PeerId, Seat]]:
    """A head, everybody, and the workers."""
    drawn = _members(count + 1)
    head = next(iter(drawn))
    workers = {one: replace(seat, role="worker") for one, seat in drawn.items() if one != head}
    return head, {head: replace(drawn[head], role="serve"), **workers}, workers


def test_a_head_keeps_its_workers() -> None:
    head, seats, workers = _with_workers(39)
    found = wanted(head, seats)
    assert set(workers_of(seats[head], workers)) <= found
    assert len(workers_of(seats[head], workers)) == HEAD_WORKERS
    assert len(found) <= HEAD_WORKERS + DEGREE
    few = dict(list(workers.items())[:5])
    assert set(workers_of(seats[head], few)) == set(few)


def test_keys_made_to_lie_beside_another_one_are_not_next_to_it() -> None:
    """Neither on the ring nor among the workers of a head."""
    head, seats, workers = _with_workers(80)
    rng = random.Random(1)
    own = int.from_bytes(head.raw)
    hostile = {
        PeerId((own ^ number).to_bytes(32)): Seat(rng.randbytes(32), "worker") for number in range(1, 21)
    }
    assert len(neighbours(head, seats | hostile) & hostile.keys()) <= 4
    taken = set(workers_of(seats[head], workers | hostile))
    assert len(taken & hostile.keys()) <= HEAD_WORKERS / 2


def test_many_workers_that_one_token_let_in_do_not_push_out_the_others() -> None:
    head, seats, workers = _with_workers(10)
    hostile = {
        one: replace(seat, role="worker", admitter=_token(b"token")) for one, seat in _members(900, 7).items()
    }
    taken = set(workers_of(seats[head], workers | hostile))
    assert len(taken & workers.keys()) == HEAD_WORKERS / 2
