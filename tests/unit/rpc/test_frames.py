"""Messages: any split gives the same; what is not looked at yet is held, the rest flows."""

import gc
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.errors import RemoteProtocolError
from meshd.rpc import mesh_protocol as wire
from meshd.rpc.frames import (
    ENTRY_SECONDS,
    HEAD,
    LITTLE_SECONDS,
    MESSAGE_SECONDS,
    PROGRESS_WEIGHT,
    SECONDS_AT_ONCE,
    SHARE,
    WHOLE,
    Kinds,
    Look,
    Messages,
    NodeReading,
    ReadingBudget,
    refused,
)
from meshd.rpc.mesh_head_view import MeshHeadView
from meshd.rpc.mesh_keeping import MeshKeeping
from meshd.rpc.mesh_lease_view import MeshLeaseView, MeshPushFilter

from tests.unit.rpc import mesh_talk as talk
from tests.unit.rpc.test_mesh_keeping import FakeSink

NEEDED = 20  # bytes of a WRITE that `Reader` wants to see: its fields, and four of the data
REFUSED = 99  # a buffer


class Reader:
    """Looks at ALLOCATE, LOAD and WRITE, and refuses a WRITE to one buffer; SYNC and READ are noted."""

    def __init__(self) -> None:
        self.looked: list[tuple[int, int, bytes]] = []
        self.noted: list[int] = []
        self.messages = Messages(KINDS, self.noted.append)

    def feed(self, data: bytes | memoryview) -> bytes | memoryview:
        return self.messages.feed(data, self)

    def write(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        buffer, _row, _offset = wire.MESSAGES[wire.WRITE].body.unpack_from(data, at)
        if buffer == REFUSED:
            raise refused("not this one")
        self.looked.append((identity, size, bytes(data[at : at + min(size, NEEDED)])))

    def whole(self, data: bytes | memoryview, at: int, size: int, identity: int) -> None:
        self.looked.append((identity, size, bytes(data[at : at + size])))


KINDS = Kinds(
    HEAD,
    {
        wire.WRITE: Look(NEEDED, Reader.write),
        wire.LOAD: Look(WHOLE, Reader.whole),
        wire.ALLOCATE: Look(wire.MESSAGES[wire.ALLOCATE].body.size, Reader.whole),
    },
    noted=(wire.SYNC, wire.READ),
)
MESSAGES = st.one_of(
    st.builds(lambda data: talk.write(data=data), st.binary(max_size=40)),
    st.builds(lambda count: talk.load(*[talk.load_entry()] * count), st.integers(0, 3)),
    st.sampled_from((talk.allocate(), talk.message(wire.SYNC), talk.read(), talk.graph(), talk.hello())),
)


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[begin:end] for begin, end in pairwise(edges)]


def expected(row: list[bytes]) -> tuple[list[tuple[int, int, bytes]], list[int]]:
    looked, noted = [], []
    for message in row:
        size, number, _zero, identity = wire.HEADER.unpack_from(message)
        body = message[wire.HEADER.size :]
        if number in (wire.WRITE, wire.LOAD, wire.ALLOCATE):
            looked.append((identity, size, body[:NEEDED] if number == wire.WRITE else body))
        elif number in (wire.SYNC, wire.READ):
            noted.append(number)
    return looked, noted


@given(st.lists(MESSAGES, max_size=8), st.lists(st.integers(0, 2000), max_size=12), st.booleans())
def test_any_split_gives_the_same_messages_and_the_same_bytes(
    row: list[bytes], cuts: list[int], views: bool
) -> None:
    it, passed, began = Reader(), b"", 0
    most = wire.HEADER.size + max(NEEDED, 3 * wire.LOAD_ENTRY.size)
    for piece in pieces(b"".join(row), cuts):
        passed += it.feed(memoryview(piece) if views else piece)
        began += it.messages.began
        assert it.messages.held_bytes < most
    assert (it.looked, it.noted) == expected(row)
    assert passed == b"".join(row)
    assert began == len(row)
    assert it.messages.held_bytes == 0


@given(st.lists(st.binary(max_size=60), max_size=8))
def test_garbage_is_refused_or_held_and_never_more_than_came(chunks: list[bytes]) -> None:
    it, passed = Reader(), b""
    for number, chunk in enumerate(chunks):
        try:
            passed += it.feed(chunk)
        except RemoteProtocolError:
            break
        assert len(passed) + it.messages.held_bytes == sum(map(len, chunks[: number + 1]))
    assert b"".join(chunks).startswith(passed)


def testwhole_messages_go_on_as_they_came() -> None:
    data = talk.write(data=b"abc") + talk.graph() + talk.message(wire.SYNC)
    assert Reader().feed(data) is data


def test_the_rest_of_a_long_message_goes_on_as_it_came() -> None:
    it, long = Reader(), talk.write(data=bytes(100))
    assert it.feed(long[:50]) == long[:50]
    rest = long[50:]
    assert it.feed(rest) is rest and it.messages.began == 0
    assert it.messages.held_bytes == 0


def test_what_nobody_looks_at_is_held_only_until_its_header_is_there() -> None:
    it, graph = Reader(), talk.graph()
    assert it.feed(graph[:15]) == b"" and it.messages.held_bytes == 15
    assert it.feed(graph[15:17]) == graph[:17]
    assert it.messages.held_bytes == 0


def test_what_is_to_be_looked_at_is_held_back() -> None:
    it, first, second = Reader(), talk.message(wire.SYNC), talk.write(data=b"abcdef")
    assert it.feed(first + second[:30]) == first
    assert it.messages.held_bytes == 30
    assert it.feed(second[30:]) == second


def test_nothing_of_a_chunk_with_a_refused_message_goes_on() -> None:
    with pytest.raises(RemoteProtocolError, match="not this one"):
        Reader().feed(talk.write() + talk.write(REFUSED))


def test_who_has_refused_refuses_all_that_comes() -> None:
    it = Reader()
    for data in (talk.write(REFUSED), talk.write(REFUSED), talk.write()):
        with pytest.raises(RemoteProtocolError) as caught:
            it.feed(data)
        assert caught.value.what == "the head's llama-server broke the protocol: not this one"
        assert caught.value.hint == HEAD.hint
    assert it.looked == []


@pytest.mark.parametrize(
    ("why", "data"),
    [
        ("message 0", wire.HEADER.pack(0, 0, 0, 1)),
        ("message 99", wire.HEADER.pack(0, 99, 0, 1)),
        ("message 129", talk.welcome()),
        ("message 192", talk.pushed()),
        ("message 255", talk.failed()),
        ("SYNC: a reserved field is not 0", talk.message(wire.SYNC, zero=1)),
        ("SYNC of 1 bytes", wire.HEADER.pack(1, wire.SYNC, 0, 1)),
        ("FREE of 3 bytes", wire.HEADER.pack(3, wire.FREE, 0, 1)),
        ("WRITE of 4294967295 bytes", wire.HEADER.pack(2**32 - 1, wire.WRITE, 0, 1)),
        ("GRAPH of 8519705 bytes", wire.HEADER.pack(8519705, wire.GRAPH, 0, 1)),
    ],
)
def test_what_is_no_message_of_its_sender_is_refused(why: str, data: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match=f"broke the protocol: {why}"):
        Reader().feed(data)


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
