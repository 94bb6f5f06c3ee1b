"""How long a peer waits that has this node judge messages all the time."""

from collections.abc import Callable

import pytest
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.judging_budget import (
    MESSAGE_TENSORS,
    PROGRESS_TENSORS,
    SHAPE_TENSORS,
    TENSORS_AT_ONCE,
    TENSORS_PER_SECOND,
    JudgingBudget,
)
from meshd.rpc.mesh_head_view import MeshHeadView
from meshd.rpc.mesh_push_firewall import MeshPushFilter

from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.mesh_talk import ADD, LEAVES, MeshTalk, Tensor


def test_graphs_of_a_load_and_of_prompts_need_not_wait() -> None:
    budget, now = JudgingBudget(), 1000.0
    for _ in range(8):  # of the largest models, while one loads
        budget.spend(10_000)
        assert not budget.pause(now)
    for _ in range(500):  # a prompt in micro batches on a fast device
        now += 0.01
        budget.spend(700)
        assert not budget.pause(now)


def test_one_that_sends_the_largest_graphs_has_a_share_of_the_time() -> None:
    budget, now, judged = JudgingBudget(), 1000.0, 0
    while now < 1010.0:
        budget.spend(wire.GRAPH_TENSORS)
        judged += wire.GRAPH_TENSORS
        pause = budget.pause(now)
        assert pause < 2 * wire.GRAPH_TENSORS / TENSORS_PER_SECOND, "it is never kept for long"
        now += pause
    assert TENSORS_AT_ONCE <= judged <= TENSORS_AT_ONCE + 10 * TENSORS_PER_SECOND + 2 * wire.GRAPH_TENSORS


def test_the_firewall_counts_the_tensors_of_graphs() -> None:
    it = MeshTalk()
    nothing = LEAVES[0]
    large = talk.graph((*LEAVES, ADD, *([nothing] * (wire.GRAPH_TENSORS - 3))), (2,))
    assert it.firewall.pause(50.0) == 0
    for _ in range(4):
        it.firewall.from_peer(large)
        it.firewall.from_peer(talk.write(data=bytes(4096)))
    assert it.firewall.pause(50.001) == 0
    it.firewall.from_peer(large)
    more = wire.GRAPH_TENSORS + 5 * SHAPE_TENSORS + 9 * MESSAGE_TENSORS - 0.001 * TENSORS_PER_SECOND
    assert it.firewall.pause(50.001) == pytest.approx(more / TENSORS_PER_SECOND, rel=1e-9)
    assert it.firewall.pause(51.0) == 0


def test_shapes_that_differ_count_for_more_than_those_that_do_not() -> None:
    def pause(strides: int) -> float:
        """After the largest graphs whose leaves have so many."""
        it = MeshTalk()
        leaves = [Tensor(nb=(4, 4 * (at % strides), 0, 0)) for at in range(wire.GRAPH_TENSORS - 3)]
        graph = talk.graph((*LEAVES, ADD, *leaves), (2,))
        assert it.firewall.pause(50.0) == 0
        for _ in range(5):
            it.firewall.from_peer(graph)
        return it.firewall.pause(50.0)

    more = 5 * SHAPE_TENSORS * (20_000 - 1) / TENSORS_PER_SECOND
    assert pause(20_000) - pause(1) == pytest.approx(more)


def test_the_firewall_counts_requests_that_do_nothing() -> None:
    it = MeshTalk()
    many = talk.message(wire.FILL, talk.BUFFER, 0, 0, 0) * 10_000
    assert it.firewall.pause(50.0) == 0
    sent = 0
    while not it.firewall.pause(50.0):
        assert sent < TENSORS_AT_ONCE / MESSAGE_TENSORS, "whoever sends nothing else has a share as well"
        it.firewall.from_peer(many)
        sent += 10_000


def flood(pause: Callable[[float], float], take: Callable[[bytes], object], message: bytes) -> None:
    """Whoever sends nothing else has a share as well."""
    assert pause(50.0) == 0
    sent, many = 0, message * 10_000
    while not pause(50.0):
        assert sent < TENSORS_AT_ONCE / MESSAGE_TENSORS
        take(many)
        sent += 10_000
    assert pause(60.0) == 0


def test_a_worker_that_says_how_far_it_is_all_the_time_waits_longer_than_for_what_it_costs_us() -> None:
    """llama-server has to take each: one is due in five seconds."""
    view = MeshHeadView(lambda _digest, _size, _why: None)
    assert view.pause(50.0) == 0
    passed, now = 0, 50.0
    while now < 60.0:
        view.from_peer(talk.progress())
        passed += 1
        now += view.pause(now)
    assert passed <= (TENSORS_AT_ONCE + 10 * TENSORS_PER_SECOND) / PROGRESS_TENSORS + 1
    assert view.pause(70.0) == 0


def test_a_worker_that_waits_for_a_long_answer_may_say_so() -> None:
    view, now = MeshHeadView(lambda _digest, _size, _why: None), 50.0
    for _ in range(100):  # all that a line of ten minutes without a word held up
        view.from_peer(talk.progress())
    for _ in range(1000):
        assert view.pause(now) == 0
        view.from_peer(talk.progress())
        now += wire.PROGRESS_SECONDS


def test_a_neighbour_that_pushes_nothing_all_the_time_has_a_share() -> None:
    it = MeshPushFilter()
    flood(it.pause, it.from_peer, talk.pushed(0))


def test_entries_of_loads_count_as_well() -> None:
    it = MeshTalk()
    assert it.firewall.pause(50.0) == 0
    entries = talk.load(*[talk.load_entry()] * wire.LOAD_ENTRIES)
    asked = 0
    while not it.firewall.pause(50.0):
        assert asked <= TENSORS_AT_ONCE
        it.firewall.from_peer(entries)
        it.firewall.to_peer(talk.message(wire.LOADED, rest=bytes(wire.LOAD_ENTRIES), identity=4))
        asked += wire.LOAD_ENTRIES
