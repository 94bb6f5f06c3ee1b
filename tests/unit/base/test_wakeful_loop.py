"""When the loop sleeps until shortly before a message, when it polls, and when it stops.

Names are looked up beside the loop, each once at a time, and a lookup that hangs keeps no program.
"""

import asyncio
import itertools
import math
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base import wakeful_loop
from meshd.base.wakeful_loop import (
    AUTO,
    LEAD_SECONDS,
    LEAST_FOR_CHILDREN,
    LEAST_PROCESSORS,
    LONGEST_POLL_SECONDS,
    LONGEST_TIMED_SECONDS,
    MOST_LOOKUPS,
    MOST_REST_SECONDS,
    REST_SECONDS,
    Conversation,
    LookupLoop,
    Rhythm,
    Waiting,
    WakefulLoop,
    Wakefulness,
    WakefulSelector,
    children_waiting,
    loop_waiting,
)

TOKEN = 0.0034  # seconds


def rhythm_of(waited: float) -> Rhythm:
    """After many waits of nearly this length."""
    rhythm = Rhythm()
    for number in range(32):
        rhythm.passed(waited + (5e-6 if number % 2 else -5e-6))
    return rhythm


def close_messages(now: float) -> Wakefulness:
    """Return a loop that polls: two messages have passed, the second one at `now`."""
    wakefulness = Wakefulness(polls=True)
    wakefulness.passed(now - LONGEST_POLL_SECONDS / 2, Rhythm())
    wakefulness.passed(now, Rhythm())
    return wakefulness


def even_messages(now: float) -> Wakefulness:
    """Return a loop that sleeps until shortly before a message: one each TOKEN, the last one at `now`."""
    wakefulness, rhythm = Wakefulness(), Rhythm()
    for number in range(40, -1, -1):
        wakefulness.passed(now - number * TOKEN, rhythm)
    return wakefulness


def test_an_even_rhythm_is_slept_through_in_steps_and_polled_for_when_it_is_due() -> None:
    rhythm = rhythm_of(TOKEN)
    waited, naps = 0.0, 0
    while rest := rhythm.rest(waited):
        assert rest < TOKEN
        waited += rest
        naps += 1
    assert 4 <= naps <= 8
    assert TOKEN - 3 * LEAD_SECONDS < waited < TOKEN - LEAD_SECONDS
    assert rhythm.rest(TOKEN) == rhythm.rest(TOKEN + LEAD_SECONDS) == 0
    assert rhythm.rest(TOKEN + 3 * LEAD_SECONDS) == math.inf


def test_nothing_is_polled_for_before_anything_is_known() -> None:
    assert Rhythm().rest(0.0) == math.inf
    assert Wakefulness().rest(1.0) == math.inf


def test_short_and_single_odd_waits_change_no_rhythm() -> None:
    rhythm, same = rhythm_of(0.004), rhythm_of(0.004)
    for waited in (0.0, 0.00002, 0.000099, 0.012, 0.0003, 0.0008):
        rhythm.passed(waited)
    assert [rhythm.rest(at / 1e4) for at in range(200)] == [same.rest(at / 1e4) for at in range(200)]
    for _ in range(20):
        for waited in (0.004, 0.004, 0.004, 0.009, 0.0005):
            rhythm.passed(waited)
    assert rhythm.rest(0.004) == 0


@pytest.mark.parametrize("between", [0.0002, 0.0006])
def test_the_long_waits_count_where_short_ones_are_between_them(between: float) -> None:
    rhythm = Rhythm()
    for number in range(60):
        rhythm.passed(between if number % 3 else 0.005)
    assert rhythm.rest(0.005) == 0
    assert 0.002 < rhythm.rest(0.0) < math.inf


def test_a_new_rhythm_is_learnt_and_none_is_not_polled_for() -> None:
    rhythm = rhythm_of(0.004)
    for waited in (0.012, 0.003):
        for _ in range(32):
            rhythm.passed(waited)
        assert rhythm.rest(waited) == 0
    dice = random.Random(1)
    for _ in range(200):
        rhythm.passed(dice.uniform(0.008, 0.012))
    assert {rhythm.rest(at / 1e4) for at in range(1, 400)} == {math.inf}


@given(st.lists(st.floats(0, LONGEST_TIMED_SECONDS), max_size=60), st.floats(0, LONGEST_TIMED_SECONDS))
def test_whatever_was_waited_for_polling_takes_an_eighth_of_the_time(
    waits: list[float], waited: float
) -> None:
    rhythm = Rhythm()
    for each in waits:
        rhythm.passed(each)
    rest = rhythm.rest(waited)
    assert rest >= 0
    step = LONGEST_TIMED_SECONDS / 500
    polled = sum(step for number in range(1000) if rhythm.rest(number * step) == 0)
    assert polled <= 2 * max(waits, default=0.0) / 8 + 10 * LEAD_SECONDS


def test_only_messages_that_follow_each_other_closely_are_polled_for() -> None:
    wakefulness = Wakefulness(polls=True)
    for now in (100.0, 100.0 + 1.5 * LONGEST_POLL_SECONDS, 101.0):
        wakefulness.passed(now, Rhythm())
        assert not wakefulness.expects
        assert wakefulness.rest(now) == math.inf
    wakefulness.passed(now := 101.0 + LONGEST_POLL_SECONDS / 2, Rhythm())
    assert wakefulness.rest(now + 0.99 * LONGEST_POLL_SECONDS) == 0
    assert wakefulness.rest(now + 1.01 * LONGEST_POLL_SECONDS) == math.inf


def test_what_comes_after_a_message_is_learnt_for_each_kind() -> None:
    wakefulness, now = Wakefulness(), 100.0
    asked, computed, answered = Rhythm(), Rhythm(), Rhythm()
    gaps = ((asked, 0.0016), (computed, 0.0017), (answered, 0.0004))
    for _ in range(40):
        for rhythm, gap in gaps:
            wakefulness.passed(now, rhythm)
            now += gap
    for rhythm, gap in gaps:
        wakefulness.passed(now, rhythm)
        assert wakefulness.rest(now + gap) == 0
        assert 0 < wakefulness.rest(now) < gap
        assert wakefulness.rest(now + 2 * gap) == math.inf
        now += gap


def test_a_pause_is_no_part_of_a_rhythm() -> None:
    wakefulness = even_messages(100.0)
    rhythm = Rhythm()
    wakefulness.passed(200.0, rhythm)
    assert wakefulness.rest(200.0) == math.inf


def test_what_was_in_vain_is_not_tried_again_for_longer_and_longer() -> None:
    wakefulness, now, rests = Wakefulness(polls=True), 0.0, []
    for _ in range(12):
        wakefulness.was_late(now)
        ended = now
        while not wakefulness.expects:
            now += LONGEST_POLL_SECONDS / 4
            wakefulness.passed(now, Rhythm())
        rests.append(now - ended)
    near = LONGEST_POLL_SECONDS
    assert rests[:3] == pytest.approx([REST_SECONDS, 2 * REST_SECONDS, 4 * REST_SECONDS], abs=near)
    assert rests[-2:] == pytest.approx([MOST_REST_SECONDS] * 2, abs=near)
    wakefulness.paid()
    wakefulness.was_in_vain(now)
    wakefulness.passed(now + REST_SECONDS + LONGEST_POLL_SECONDS / 4, Rhythm())
    wakefulness.passed(now + REST_SECONDS + LONGEST_POLL_SECONDS / 2, Rhythm())
    assert wakefulness.expects


class Talk:
    """Conversations of one loop at a time that is set."""

    def __init__(self, *, polls: bool) -> None:
        self.now = 100.0
        self.wakefulness = Wakefulness(polls=polls)

    def with_peer(self, *, asks: bool = False) -> Conversation:
        return Conversation(self.wakefulness, lambda: self.now, asks=asks)

    def drips(self, peer: Conversation, seconds: float = 1.0) -> int:
        """Return the milliseconds that the loop is awake for what this peer sends: a byte each 15 ms."""
        awake = 0
        for _ in range(round(seconds / 0.015)):
            peer.received()
            for _ in range(15):
                awake += self.wakefulness.rest(self.now) < math.inf
                self.now += 0.001
        return awake


@pytest.mark.parametrize("polls", [False, True])
@pytest.mark.parametrize("asks", [False, True])
def test_what_a_peer_drips_keeps_nobody_awake(asks: bool, polls: bool) -> None:
    talk = Talk(polls=polls)
    peer, other = talk.with_peer(asks=asks), talk.with_peer()
    assert not talk.drips(peer)
    peer.sent()
    assert talk.drips(peer) <= 2000 * talk.wakefulness.longest
    talk.now += 1
    other.sent()
    assert not talk.drips(peer) or asks, "what went to somebody else counts for a head alone"


def test_answers_that_follow_keep_the_loop_awake_whoever_asked() -> None:
    talk = Talk(polls=True)
    head, worker, next_worker = talk.with_peer(asks=True), talk.with_peer(), talk.with_peer()
    for _ in range(5):
        worker.sent()
        talk.now += LONGEST_POLL_SECONDS / 2
        worker.received()
        assert talk.wakefulness.rest(talk.now) == 0
        talk.now += LONGEST_POLL_SECONDS / 2
    talk.now += 1
    for turn in range(5):
        head.received()
        assert not turn or talk.wakefulness.rest(talk.now) == 0
        talk.now += LONGEST_POLL_SECONDS / 2
        next_worker.sent()
        talk.now += LONGEST_POLL_SECONDS / 2


def test_a_second_worker_expects_what_the_first_one_pushes() -> None:
    talk = Talk(polls=False)
    head, neighbour = talk.with_peer(asks=True), talk.with_peer(asks=True)
    for _ in range(40):
        head.received()
        talk.now += 0.0016
        assert talk.wakefulness.rest(talk.now) in (0, math.inf)
        neighbour.received()
        talk.now += 0.0017
        head.sent()
        talk.now += 0.0004
    head.received()
    assert talk.wakefulness.rest(talk.now + 0.0016) == 0
    assert 0 < talk.wakefulness.rest(talk.now) <= 0.0008
    talk.now += 0.0016
    neighbour.received()
    assert talk.wakefulness.rest(talk.now + 0.0017) == 0


class Clock:
    """Each look takes a `step`, in seconds; `at` has what happens then."""

    def __init__(self, step: float = 0.001) -> None:
        self.now = 10.0
        self.step = step
        self.at: dict[int, socket.socket] = {}
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += self.step
        if self.looks in self.at:
            self.at[self.looks].send(b"x")
        return self.now


class Napping(WakefulSelector):
    """Sleeps on its clock."""

    def __init__(self, wakefulness: Wakefulness, clock: Clock) -> None:
        super().__init__(wakefulness, clock=clock, displaced=lambda: 0)
        self.clock = clock
        self.naps: list[float] = []

    def _sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.clock.now += seconds


def test_it_polls_until_something_comes_and_then_again() -> None:
    ours, theirs = socket.socketpair()
    clock = Clock()
    wakefulness = close_messages(clock.now)
    clock.at = {5: theirs}
    with ours, theirs, WakefulSelector(wakefulness, clock=clock, displaced=lambda: 0) as selector:
        selector.register(ours, 1)
        [(key, _)] = selector.select(None)
        assert key.fileobj is ours
        assert clock.looks >= 5, "it has not slept"
        assert wakefulness.expects


def test_it_sleeps_when_nothing_came_in_time() -> None:
    clock = Clock()
    wakefulness = close_messages(clock.now)
    with WakefulSelector(wakefulness, clock=clock, displaced=lambda: 0) as selector:
        assert selector.select(LONGEST_POLL_SECONDS * 1.5) == []
        assert clock.looks >= 20
        assert not wakefulness.expects
        looks = clock.looks
        assert selector.select(0.001) == []
        assert clock.looks == looks, "it has not polled"


def test_it_naps_until_shortly_before_and_polls_then() -> None:
    ours, theirs = socket.socketpair()
    clock = Clock(step=1e-5)
    wakefulness = even_messages(clock.now)
    began = clock.now
    with ours, theirs, Napping(wakefulness, clock) as selector:
        selector.register(ours, 1)
        clock.at = {15: theirs}
        assert selector.select(None)
        assert len(selector.naps) >= 4
        assert selector.naps == sorted(selector.naps, reverse=True)
        assert TOKEN - 4 * LEAD_SECONDS < clock.now - began < TOKEN
        assert wakefulness.expects


def test_what_is_late_is_slept_for_and_expected_again_the_next_time() -> None:
    clock = Clock(step=1e-5)
    wakefulness = even_messages(clock.now)
    began = clock.now
    with Napping(wakefulness, clock) as selector:
        assert selector.select(0.01) == []
        assert clock.now - began < TOKEN + 4 * LEAD_SECONDS
        assert wakefulness.expects


def test_it_stops_where_another_process_needs_the_processor() -> None:
    ours, theirs = socket.socketpair()
    clock = Clock()
    wakefulness = close_messages(clock.now)
    clock.at = {5: theirs}
    with (
        ours,
        theirs,
        WakefulSelector(wakefulness, clock=clock, displaced=itertools.count().__next__) as selector,
    ):
        selector.register(ours, 1)
        assert selector.select(None)
        assert not wakefulness.expects


def test_a_timer_is_not_kept_waiting() -> None:
    clock = Clock()
    wakefulness = close_messages(clock.now)
    with WakefulSelector(wakefulness, clock=clock, displaced=lambda: 0) as selector:
        assert selector.select(0.003) == []
        assert clock.looks < 8
        assert wakefulness.expects, "that something else came first says nothing"


@pytest.mark.parametrize("waiting", list(Waiting))
def test_a_loop_that_sleeps_is_told_nothing(waiting: Waiting) -> None:
    loop = WakefulLoop(waiting)
    try:
        talk = loop.conversation(asks=False)
        assert (talk is None) == (waiting is Waiting.SLEEP)
        assert not loop.is_wakeful
        if talk is not None:
            talk.sent()
            talk.received()
            assert loop.is_wakeful == (waiting is Waiting.POLL), "there is no rhythm yet"
    finally:
        loop.close()


@pytest.mark.parametrize("waiting", list(Waiting))
def test_a_loop_works_as_any(waiting: Waiting) -> None:
    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WakefulLoop)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            talk = loop.conversation(asks=False)
            for _ in range(20):
                if talk is not None:
                    talk.sent()
                loop.call_later(0.001, theirs.send, b"x")
                got = await loop.sock_recv(ours, 1)
                if talk is not None:
                    talk.received()
            return got

    with asyncio.Runner(loop_factory=lambda: WakefulLoop(waiting)) as runner:
        assert runner.run(main()) == b"x"


def test_timers_of_a_wakeful_loop_are_precise() -> None:
    slack = Path("/proc/self/timerslack_ns")
    if not slack.exists():
        pytest.skip("this system has no timer slack to set")
    WakefulLoop(Waiting.TIMED).close()
    assert slack.read_text("ascii").strip() == "1000"


def test_few_processors_are_left_to_others_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for processors in (
        1,
        LEAST_PROCESSORS - 1,
        LEAST_PROCESSORS,
        LEAST_FOR_CHILDREN - 1,
        LEAST_FOR_CHILDREN,
        64,
    ):
        monkeypatch.setattr(wakeful_loop, "usable_processors", lambda processors=processors: processors)
        assert (loop_waiting(AUTO) is Waiting.TIMED) == (processors >= LEAST_PROCESSORS)
        has_enough = processors >= LEAST_FOR_CHILDREN
        assert (children_waiting(AUTO, computes=False) is Waiting.TIMED) == has_enough
        assert children_waiting(AUTO, computes=True) is Waiting.SLEEP
        for waiting in Waiting:
            assert loop_waiting(waiting.value) is waiting
            assert children_waiting(waiting.value, computes=True) is waiting


HANG = """
import asyncio, socket, sys, time
from meshd.base.wakeful_loop import LookupLoop
socket.getaddrinfo = lambda *question: time.sleep(600)
async def main():
    try:
        async with asyncio.timeout(0.1):
            await asyncio.get_running_loop().getaddrinfo("a.example", 1)
    except TimeoutError:
        print("given up")
with asyncio.Runner(loop_factory=LookupLoop) as runner:
    runner.run(main())
"""


class Resolver:
    """Stands in for the system's: answers once `goes_on`, with the question as the address."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.goes_on = threading.Event()

    def getaddrinfo(self, host: Any, port: Any, *_rest: int) -> list[Any]:
        self.asked.append(host)
        assert self.goes_on.wait(60)
        if host == "none.example":
            raise socket.gaierror(socket.EAI_NONAME, "no such name")
        return [(socket.AF_INET, socket.SOCK_STREAM, 0, "", (host, port))]


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    made = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", made.getaddrinfo)
    yield made
    made.goes_on.set()


def test_one_question_is_asked_once_at_a_time(resolver: Resolver) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asking = [asyncio.ensure_future(loop.getaddrinfo("a.example", 1)) for _ in range(3)]
        failing = asyncio.ensure_future(loop.getaddrinfo("none.example", 1))
        await asyncio.sleep(0)
        asking[0].cancel()
        resolver.goes_on.set()
        _, *found = await asyncio.gather(*asking, return_exceptions=True)
        assert [one[0][4] for one in found if isinstance(one, list)] == [("a.example", 1)] * 2
        with pytest.raises(socket.gaierror):
            await failing
        assert sorted(resolver.asked) == ["a.example", "none.example"]
        await loop.getaddrinfo("a.example", 1)
        assert len(resolver.asked) == 3

    with asyncio.Runner(loop_factory=LookupLoop) as runner:
        runner.run(main())


def test_there_are_no_more_threads_than_that(resolver: Resolver) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        asking = [loop.getaddrinfo(f"{number}.example", 1) for number in range(MOST_LOOKUPS)]
        waiting = asyncio.gather(*asking)
        await asyncio.sleep(0)
        with pytest.raises(socket.gaierror):
            await loop.getaddrinfo("more.example", 1)
        resolver.goes_on.set()
        assert len(await waiting) == MOST_LOOKUPS
        assert await loop.getaddrinfo("more.example", 1)

    with asyncio.Runner(loop_factory=LookupLoop) as runner:
        runner.run(main())


def test_a_lookup_that_hangs_does_not_keep_the_program() -> None:
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", HANG], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "given up\n", "")
    assert time.monotonic() - began < 60
