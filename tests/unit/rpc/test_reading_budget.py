"""How long a peer waits that has this node read along all the time."""

import gc
from collections.abc import Callable

import pytest
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.mesh_head_view import MeshHeadView
from meshd.rpc.mesh_keeping import MeshKeeping
from meshd.rpc.mesh_lease_view import MeshLeaseView
from meshd.rpc.mesh_push_filter import MeshPushFilter
from meshd.rpc.reading_budget import (
    ENTRY_SECONDS,
    LITTLE_SECONDS,
    MESSAGE_SECONDS,
    PROGRESS_WEIGHT,
    SECONDS_AT_ONCE,
    SHARE,
    NodeReading,
    ReadingBudget,
)

from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.test_mesh_keeping import FakeSink

CHUNK = 0.05  # seconds of reading: about what one compressed frame can bring


def test_the_messages_of_tokens_need_not_wait() -> None:
    budget, now = ReadingBudget(), 1000.0
    for _ in range(5000):  # on the fastest devices, for 32 answers
        now += 0.001
        budget.spend(60 * MESSAGE_SECONDS)
        assert not budget.pause(now)


def test_one_that_has_much_read_has_a_share_of_the_time() -> None:
    budget, now, read = ReadingBudget(), 1000.0, 0.0
    while now < 1010.0:
        budget.spend(CHUNK)
        read += CHUNK
        pause = budget.pause(now)
        assert pause < 2 * CHUNK / SHARE, "it is never kept for long"
        now += pause
    assert SECONDS_AT_ONCE <= read <= SECONDS_AT_ONCE + 10 * SHARE + 2 * CHUNK


def test_several_leases_have_no_more_read_than_one() -> None:
    node = NodeReading()
    budgets = [ReadingBudget(node) for _ in range(3)]
    due = [1000.0] * 3
    read = [0.0] * 3
    while (now := min(due)) < 1010.0:
        at = due.index(now)
        if pause := budgets[at].pause(now):
            due[at] = now + max(pause, 1e-6)  # a clock has steps
            continue
        budgets[at].spend(CHUNK)
        read[at] += CHUNK
        due[at] = now + 1e-4  # the next chunk of this one comes at once
    # what each can always have comes on top of the node's share at most
    assert SECONDS_AT_ONCE <= sum(read) <= SECONDS_AT_ONCE + 2 * 10 * SHARE
    assert min(read) > 0.5 * max(read), "each has its turn"


def test_a_connection_that_has_little_read_never_waits_for_others() -> None:
    node = NodeReading()
    flood, calm = ReadingBudget(node), ReadingBudget(node)
    now = 1000.0
    for _ in range(200):
        flood.pause(now)
        flood.spend(CHUNK)
        assert calm.pause(now) == 0
        calm.spend(MESSAGE_SECONDS)
        now += 0.01
    assert flood.pause(now) > 0 and calm.pause(now) == 0
    calm.spend(LITTLE_SECONDS * 2)
    assert calm.pause(now) > 0


def test_connections_that_are_gone_have_no_share() -> None:
    """At once: a view is in no cycle, so its connection's end is its own."""
    node = NodeReading()
    gc.disable()
    try:
        views = [MeshLeaseView(keeping=MeshKeeping(FakeSink()), reading=node) for _ in range(4)]
        assert node.share_of_one == SHARE / 4
        del views[1:]
        assert node.share_of_one == SHARE
    finally:
        gc.enable()


def test_all_connections_of_a_node_share_its_budget() -> None:
    node = NodeReading()
    leases = [MeshLeaseView(reading=node) for _ in range(2)]
    view, pushes = MeshHeadView(lambda *_: None, reading=node), MeshPushFilter(reading=node)
    assert node.share_of_one == SHARE / 4
    assert leases[0].pause(50.0) == view.pause(50.0) == pushes.pause(50.0) == 0
    while not pushes.pause(50.0):
        pushes.from_peer(talk.pushed(0) * 10_000)
    view.from_peer(talk.progress() * 4)
    assert view.pause(50.0) > 0 and leases[0].pause(50.0) == 0


def flood(pause: Callable[[float], float], take: Callable[[bytes], object], message: bytes) -> None:
    """Whoever sends nothing else has a share as well."""
    assert pause(50.0) == 0
    sent, many = 0, message * 10_000
    while not pause(50.0):
        assert sent < SECONDS_AT_ONCE / MESSAGE_SECONDS
        take(many)
        sent += 10_000
    assert pause(60.0) == 0


@pytest.mark.parametrize(
    "message",
    [talk.message(wire.FILL, talk.BUFFER, 0, 0, 0), talk.message(wire.FREE, 9)],
    ids=["fill", "free"],
)
def test_requests_that_do_nothing_count(message: bytes) -> None:
    view = MeshLeaseView()
    flood(view.pause, view.from_peer, message)


def test_a_message_counts_once_in_whatever_parts_it_comes() -> None:
    node = NodeReading()
    view = MeshLeaseView(reading=node)
    assert view.pause(50.0) == 0
    count = int(SECONDS_AT_ONCE / MESSAGE_SECONDS)
    for _ in range(count // 1000):
        data = talk.write(data=bytes(100)) * 1000
        view.from_peer(data[:50_005])
        view.from_peer(data[50_005:])
    assert view.pause(50.0) == 0
    view.from_peer(talk.write() * 2000)
    assert view.pause(50.0) == pytest.approx(
        ((count // 1000 + 2) * 1000 * MESSAGE_SECONDS - SECONDS_AT_ONCE) / SHARE
    )


def test_a_worker_that_says_how_far_it_is_all_the_time_waits_longer_than_for_what_it_costs_us() -> None:
    """llama-server has to take each: one is due in five seconds."""
    view = MeshHeadView(lambda _digest, _size, _why: None)
    assert view.pause(50.0) == 0
    passed, now = 0, 50.0
    while now < 60.0:
        view.from_peer(talk.progress())
        passed += 1
        now += view.pause(now)
    assert passed <= (SECONDS_AT_ONCE + 10 * SHARE) / PROGRESS_WEIGHT + 1
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
    view = MeshLeaseView(keeping=MeshKeeping(FakeSink()))
    assert view.pause(50.0) == 0
    entries = talk.load(*[talk.load_entry()] * wire.LOAD_ENTRIES)
    asked = 0
    while not view.pause(50.0):
        assert asked * ENTRY_SECONDS <= SECONDS_AT_ONCE
        view.from_peer(entries)
        view.to_peer(talk.message(wire.LOADED, rest=bytes(wire.LOAD_ENTRIES), identity=4))
        asked += wire.LOAD_ENTRIES
