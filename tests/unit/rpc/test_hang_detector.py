"""When a server hangs and when it only takes long: on a clock of the test's own."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from meshd.rpc.hang_detector import (
    COMPILE_SECONDS,
    LEAST_SILENT_SECONDS,
    LOOK_SECONDS,
    MOST_SILENT_SECONDS,
    READ_BYTES,
    Watch,
)
from meshd.rpc.pending_work import Owed
from meshd.rpc.push_firewall import PushFilter

from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor
from tests.unit.rpc.test_pending_work import GET, GRAPH, PUSH, TAKE, Open

STEP = (talk.set_tensor(Tensor()), GRAPH, GET)
LARGER = (talk.set_tensor(Tensor(), bytes(512)), GRAPH, GET)
ANSWER = talk.answer(bytes(16))
FOUND = 2 * LOOK_SECONDS  # one look sees the debt, another its age


@dataclass
class Scene:
    """A server with one connection, looked at once a second; `cpu` and `read` are what it uses."""

    on_cpu: bool = False
    now: float = 1000.0
    cpu: float = 0.0
    read: int = 0
    tells: bool = True
    sharers: int = 0
    watch: Watch = field(init=False)
    owed: Owed = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(on_cpu=self.on_cpu)
        self.watch.loaded = True
        self.owed = self.watch.connection(Open())

    def look(self) -> str:
        self.now += LOOK_SECONDS
        spent = (self.cpu, self.read) if self.tells else None
        return self.watch.look(self.now, spent, sharers=self.sharers)

    def ask(self, *requests: bytes) -> None:
        for request in requests:
            self.owed.from_peer(request)

    def step(self, seconds: int, *requests: bytes) -> None:
        """A whole one that takes so long."""
        self.ask(*(requests or STEP))
        for _ in range(seconds):
            assert self.look() == ""
        self.owed.to_peer(ANSWER)
        assert self.look() == ""

    def found_after(self, *, most: float = 200.0, use: Callable[[], None] = lambda: None) -> float | None:
        """Seconds until it is said to hang, from now on; None: not within `most`."""
        began = self.now
        while self.now < began + most:
            use()
            if self.look():
                return self.now - began
        return None


def test_a_server_without_work_is_left_alone() -> None:
    scene = Scene()
    assert scene.found_after() is None
    scene.step(2)
    assert scene.found_after() is None


@pytest.mark.parametrize(
    ("longest", "limit"), [(1, LEAST_SILENT_SECONDS), (4, 8.0), (10, 20.0), (20, MOST_SILENT_SECONDS)]
)
def test_a_step_like_those_before_may_take_twice_the_longest(longest: int, limit: float) -> None:
    scene = Scene()
    scene.step(longest)
    scene.step(0)
    scene.ask(*STEP)
    found = scene.found_after()
    assert found is not None
    assert limit < found <= limit + FOUND
    assert found <= 30.0


@pytest.mark.parametrize(("sharers", "limit"), [(0, 6.0), (1, 12.0), (2, 18.0), (9, MOST_SILENT_SECONDS)])
def test_whom_others_leave_a_part_of_its_gpu_has_as_much_longer(sharers: int, limit: float) -> None:
    scene = Scene()
    scene.step(3)
    scene.step(0)
    scene.ask(*STEP)
    scene.sharers = sharers
    found = scene.found_after()
    assert found is not None and limit < found <= limit + FOUND


@pytest.mark.parametrize("requests", [LARGER, (GET,), (talk.load(talk.load_entry()),)])
def test_what_was_not_seen_before_may_take_half_a_minute(requests: tuple[bytes, ...]) -> None:
    scene = Scene()
    scene.step(1)
    scene.ask(*requests)
    found = scene.found_after()
    assert found is not None
    assert MOST_SILENT_SECONDS < found <= 30.0


def test_a_server_that_computes_on_cpus_may_take_as_long_as_it_likes() -> None:
    scene = Scene(on_cpu=True)
    scene.step(1)
    scene.ask(*STEP)

    def compute() -> None:
        scene.cpu += 0.02  # of a second, on a crowded machine

    assert scene.found_after(most=600.0, use=compute) is None
    found = scene.found_after()
    assert found is not None and found <= 30.0


def test_a_gpu_is_not_excused_by_a_driver_that_spins() -> None:
    scene = Scene()
    scene.step(1)
    scene.ask(*STEP)

    def spin() -> None:
        scene.cpu += 1.0

    found = scene.found_after(use=spin)
    assert found is not None and found <= LEAST_SILENT_SECONDS + FOUND


def test_a_gpu_may_compile_while_it_loads() -> None:
    scene = Scene()
    scene.watch.loaded = False
    scene.ask(*STEP)

    def compile_it() -> None:
        scene.cpu += 1.0

    found = scene.found_after(use=compile_it)
    assert found is not None
    assert COMPILE_SECONDS < found <= COMPILE_SECONDS + 30.0


@pytest.mark.parametrize("on_cpu", [True, False])
def test_a_load_from_a_slow_disk_goes_on(on_cpu: bool) -> None:
    scene = Scene(on_cpu=on_cpu)
    scene.ask(talk.load(talk.load_entry()))
    seconds = iter(range(10_000))

    def read() -> None:
        if next(seconds) % 20 == 0:
            scene.read += READ_BYTES

    assert scene.found_after(most=600.0, use=read) is None
    found = scene.found_after()
    assert found is not None and found <= 30.0 + 20.0


def test_a_thread_that_wakes_another_is_no_sign_of_life() -> None:
    scene = Scene()
    scene.ask(GET)

    def poke() -> None:
        scene.read += 8

    assert scene.found_after(use=poke) is not None


def test_a_long_answer_over_a_slow_path_goes_on() -> None:
    scene = Scene()
    scene.ask(GET)
    scene.owed.to_peer(talk.answer(bytes(1 << 20))[:1000])

    def some() -> None:
        scene.owed.to_peer(bytes(100))

    assert scene.found_after(most=600.0, use=some) is None
    assert scene.found_after() is not None


def test_a_peer_that_takes_nothing_is_not_the_servers_fault() -> None:
    scene = Scene()
    scene.ask(GET)
    scene.owed.peer_waits(True)
    assert scene.found_after() is None
    scene.owed.peer_waits(False)
    assert scene.found_after() is not None


def test_a_neighbour_that_takes_nothing_is_not_the_servers_fault() -> None:
    scene = Scene()
    way = scene.watch.neighbour()
    scene.ask(GRAPH, PUSH)
    way.peer_waits(True)
    assert scene.found_after() is None
    way.peer_waits(False)
    assert scene.found_after() is not None


def test_a_neighbour_that_stops_within_a_tensor_is_not_the_servers_fault() -> None:
    scene = Scene()
    scene.step(1)
    push = PushFilter(scene.watch.arrived)
    push.from_peer(talk.peer_hello())
    push.to_peer(talk.answer(b"\1"))
    scene.ask(TAKE, GRAPH, GET)
    data = talk.peer_data()
    push.from_peer(data[:-1])
    assert scene.found_after() is None
    push.from_peer(data[-1:])
    assert scene.found_after() is not None, "now it has all that it waits for"


def test_the_first_of_two_workers_hangs_and_the_second_only_waits() -> None:
    first, second = Scene(), Scene()
    way = first.watch.neighbour()
    way.to_peer(talk.peer_hello())
    for _ in range(3):
        first.ask(GRAPH, PUSH)
        second.ask(TAKE, GRAPH, GET)
        data = talk.peer_data()
        way.to_peer(data)
        second.watch.arrived.add(77)
        second.watch.arrived.bytes += len(data)
        second.owed.to_peer(ANSWER)
        assert (first.look(), second.look()) == ("", "")
    first.ask(GRAPH, PUSH)
    second.ask(TAKE, GRAPH, GET)
    assert second.found_after() is None
    found = first.found_after()
    assert found is not None and found <= LEAST_SILENT_SECONDS + FOUND


def test_a_daemon_that_stood_still_accuses_nobody() -> None:
    scene = Scene()
    scene.step(1)
    scene.ask(*STEP)
    assert scene.look() == ""
    scene.now += 3600.0
    assert scene.look() == ""
    assert scene.found_after() is not None


def test_a_connection_that_waits_to_be_served_is_no_debt() -> None:
    scene = Scene()
    scene.step(1)
    second = scene.watch.connection(Open())
    second.from_peer(talk.hello())
    assert scene.found_after() is None
    scene.watch.close(scene.owed)
    assert scene.found_after() is not None, "now it is its turn"


def test_without_anybody_who_tells_a_cpu_is_not_accused() -> None:
    scene = Scene(on_cpu=True, tells=False)
    scene.ask(*STEP)
    assert scene.found_after() is None
    gpu = Scene(tells=False)
    gpu.ask(*STEP)
    assert gpu.found_after() is not None


def test_the_reason_has_numbers() -> None:
    scene = Scene()
    scene.step(3)
    scene.ask(*LARGER)
    why = ""
    while not why:
        why = scene.look()
    assert why == (
        "it hangs: requests are waiting, and for 26 s it has answered, sent and read nothing "
        "(its longest step before took 3 s at most)"
    )
