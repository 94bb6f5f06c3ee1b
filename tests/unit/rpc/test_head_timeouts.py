"""How long a head waits for what a worker owes it: on a clock of the test's own."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from meshd.identity.keys import PeerId
from meshd.rpc import protocol as rpc
from meshd.rpc.hang_detector import LOOK_SECONDS
from meshd.rpc.head_timeouts import (
    LEAST_STEP_SECONDS,
    MOST_STEP_SECONDS,
    PASSING_RATE,
    READING_RATE,
    TAKE_SECONDS,
    TIMES_LARGER,
    HeadEnd,
    HeadPatience,
    HeadTimeouts,
)

from tests.unit.rpc import talk
from tests.unit.rpc.talk import Tensor
from tests.unit.rpc.test_pending_work import GET, GRAPH, PUSH, TAKE

INPUT = talk.set_tensor(Tensor(), bytes(1000))
STEP = (INPUT, GRAPH, GET)
ANSWER = talk.answer(bytes(16))
LOAD = talk.load(talk.load_entry())
FOUND = 2 * LOOK_SECONDS
LARGEST = 100 << 20
LOAD_SECONDS = MOST_STEP_SECONDS + LARGEST / READING_RATE


class Scene:
    """A head's workers, each with one connection; they are looked at once a second."""

    def __init__(self, names: str = "a") -> None:
        self.now = 1000.0
        self.timeouts = HeadTimeouts(lambda: self.now, largest=LARGEST)
        self.peers = {name: PeerId(name.encode() * 32) for name in names}
        self.workers: dict[str, HeadPatience] = {
            n: self.timeouts.patience(peer) for n, peer in self.peers.items()
        }
        self.ends: dict[str, HeadEnd] = {}
        self.reachable = True

    def look(self) -> dict[str, str]:
        self.now += LOOK_SECONDS
        whys = {name: worker.look(reachable=self.reachable) for name, worker in self.workers.items()}
        return {name: why for name, why in whys.items() if why}

    def ask(self, *requests: bytes, of: str = "a") -> None:
        for request in requests:
            self.ends[of].to_peer(request)

    def answer(self, data: bytes = ANSWER, *, of: str = "a") -> None:
        self.ends[of].from_peer(data)

    def step(self, seconds: int, *requests: bytes) -> None:
        """A whole one that takes so long."""
        self.ask(*(requests or STEP))
        for _ in range(seconds):
            assert self.look() == {}
        self.answer()
        assert self.look() == {}

    def found_after(
        self, *, most: float = 100_000.0, use: Callable[[], None] = lambda: None
    ) -> tuple[float, set[str]] | None:
        """Seconds until somebody is given up, from now on, and who; None: nobody within `most`."""
        began = self.now
        while self.now < began + most:
            use()
            if found := self.look():
                return self.now - began, set(found)
        return None


@contextmanager
def scene(names: str = "a", *, loaded: bool = True) -> Iterator[Scene]:
    made = Scene(names)
    with ExitStack() as stack:
        for name, worker in made.workers.items():
            worker.loaded = loaded
            made.ends[name] = stack.enter_context(worker.connection())
        yield made


def is_about(found: tuple[float, set[str]] | None, limit: float, who: str = "a") -> bool:
    return found is not None and limit < found[0] <= limit + FOUND and found[1] == {who}


def test_a_worker_without_work_is_left_alone() -> None:
    with scene() as it:
        assert it.found_after(most=5000.0) is None
        it.step(2)
        assert it.found_after(most=5000.0) is None


@pytest.mark.parametrize(
    ("longest", "limit"), [(1, LEAST_STEP_SECONDS), (29, LEAST_STEP_SECONDS), (100, 200.0)]
)
def test_a_step_like_those_before_may_take_twice_the_longest(longest: int, limit: float) -> None:
    with scene() as it:
        it.step(longest)
        it.step(0)
        it.ask(*STEP)
        assert is_about(it.found_after(), limit)


def test_a_larger_step_may_take_as_long_for_each_byte_as_the_slowest_and_more() -> None:
    """The first prompt after the first token: thousands of them, on a slow processor."""
    with scene() as it:
        it.step(1)
        inputs = len(INPUT) + len(GET) - 2 * 9
        prompt = talk.set_tensor(Tensor(), bytes(400_000))
        it.ask(prompt, GRAPH, GET)
        limit = TIMES_LARGER * (len(prompt) + len(GET) - 2 * 9) / inputs
        assert limit > MOST_STEP_SECONDS
        found = it.found_after()
        assert found is not None and limit < found[0] <= limit + 400_000 / PASSING_RATE + FOUND


def test_a_larger_step_may_take_ten_minutes_whatever_was_before() -> None:
    with scene() as it:
        it.step(0)
        it.ask(INPUT, *STEP)
        assert is_about(it.found_after(), MOST_STEP_SECONDS)


def test_what_needs_no_graph_takes_no_time() -> None:
    with scene() as it:
        it.step(1)
        it.ask(GET)
        assert is_about(it.found_after(), LEAST_STEP_SECONDS)


def test_an_answer_that_drips_is_none_and_one_over_a_slow_path_is() -> None:
    for passes, borne in ((1, False), (2 * PASSING_RATE, True)):
        with scene() as it:
            it.step(1)
            it.ask(*STEP)
            it.answer(talk.answer(bytes(1 << 30))[:100])

            def more(it: Scene = it, passes: int = passes) -> None:
                it.answer(bytes(passes))

            found = it.found_after(most=1000.0, use=more)
            assert (found is None) == borne, found
            if found is not None:
                assert found[0] <= LEAST_STEP_SECONDS + FOUND + 1.0


def test_a_worker_that_takes_no_requests_is_given_up() -> None:
    with scene() as it:
        it.step(1)
        it.ask(INPUT)
        it.ends["a"].peer_waits(True)
        assert is_about(it.found_after(), LEAST_STEP_SECONDS)


def test_a_head_that_takes_nothing_accuses_nobody() -> None:
    with scene() as it:
        it.step(1)
        it.ask(*STEP)
        it.ends["a"].target_waits(True)
        assert it.found_after(most=1000.0) is None
        it.ends["a"].target_waits(False)
        assert it.found_after() is not None


def test_time_without_a_path_does_not_count_and_does_not_wipe() -> None:
    with scene() as it:
        it.step(1)
        it.ask(*STEP)
        assert it.found_after(most=40.0) is None
        it.reachable = False
        assert it.found_after(most=1000.0) is None
        it.reachable = True
        found = it.found_after()
        assert found is not None and found[0] <= LEAST_STEP_SECONDS - 40.0 + FOUND


def test_a_head_that_stood_still_accuses_nobody() -> None:
    with scene() as it:
        it.step(1)
        it.ask(*STEP)
        assert it.look() == {}
        it.now += 3600.0
        assert it.look() == {}


# Loading.


def test_a_load_that_comes_to_nothing_is_ended_whatever_is_answered_besides() -> None:
    with scene(loaded=False) as it:

        def chat() -> None:
            it.ask(GET)
            it.look()
            it.answer()
            it.ask(GET)

        found = it.found_after(use=chat)
        assert found is not None
        assert LOAD_SECONDS < found[0] <= 1.05 * LOAD_SECONDS


def test_a_load_from_a_slow_disk_goes_on() -> None:
    """Half a GiB is asked for at once, and answered when all of it has been read."""
    with scene(loaded=False) as it:
        for _ in range(50):
            it.ask(LOAD)
            assert it.found_after(most=512.0) is None
            it.answer()
        it.ask(LOAD)
        found = it.found_after()
        assert found is not None and LOAD_SECONDS < found[0] <= LOAD_SECONDS + FOUND


def test_a_load_over_a_slow_path_goes_on_and_a_byte_a_second_is_none() -> None:
    for passes, borne in ((1, False), (PASSING_RATE, True)):
        with scene(loaded=False) as it:
            it.ask(talk.request(rpc.SET_TENSOR)[:1] + (1 << 40).to_bytes(8, "little") + bytes(305))
            it.ends["a"].peer_waits(True)

            def more(it: Scene = it, passes: int = passes) -> None:
                it.ask(bytes(passes))

            found = it.found_after(most=20_000.0, use=more)
            assert (found is None) == borne, found
            assert borne or (found is not None and found[0] <= LOAD_SECONDS + FOUND + 1.0)


def test_a_worker_whose_turn_has_not_come_is_not_accused() -> None:
    with scene("ab", loaded=False) as it:
        it.ask(LOAD, of="b")
        it.answer(of="b")
        it.ask(LOAD, of="a")
        assert is_about(it.found_after(), LOAD_SECONDS)


def test_what_the_load_took_is_forgotten_with_the_first_token() -> None:
    with scene(loaded=False) as it:
        it.ask(GET)
        assert it.found_after(most=MOST_STEP_SECONDS) is None
        it.answer()
        assert it.look() == {}
        it.workers["a"].loaded = True
        it.ask(*STEP)
        assert is_about(it.found_after(), MOST_STEP_SECONDS)


# Workers that send to one another.


def test_the_last_is_accused_once_it_should_have_given_up_itself() -> None:
    """The head cannot see what goes between the two. An rpc-server that waits says so after 150 s."""
    with scene("ab") as it:
        for _ in range(3):
            it.ask(INPUT, GRAPH, PUSH, of="a")
            it.ask(TAKE, *STEP[1:], of="b")
            assert it.look() == {}
            it.answer(of="b")
            assert it.look() == {}
        it.ask(INPUT, GRAPH, PUSH, of="a")
        it.ask(TAKE, *STEP[1:], of="b")
        assert is_about(it.found_after(), LEAST_STEP_SECONDS + TAKE_SECONDS, "b")


def test_whose_push_an_answer_shows_owes_it_no_more() -> None:
    with scene("ab") as it:
        it.ask(GRAPH, PUSH, GET, of="a")
        it.ask(TAKE, GRAPH, GET, of="b")
        debt = it.ends["a"].owed.debt
        assert debt is not None and debt.is_push
        it.answer(of="b")
        debt = it.ends["a"].owed.debt
        assert debt is not None and not debt.is_push
        assert is_about(it.found_after(), LEAST_STEP_SECONDS)


def test_one_that_ends_while_it_waits_for_another_names_it() -> None:
    it = Scene("ab")
    with it.workers["a"].connection() as a:
        with it.workers["b"].connection() as b:
            a.to_peer(GRAPH + PUSH)
            b.to_peer(TAKE + GRAPH + GET)
        before = it.workers["b"].waited_for
        with it.workers["b"].connection() as b:
            b.to_peer(GET)
        after = it.workers["b"].waited_for
    assert (before, after, it.workers["a"].waited_for) == (it.peers["a"], None, None)
