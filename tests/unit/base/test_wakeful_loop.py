"""When the loop polls instead of sleeping, and when it stops."""

import asyncio
import itertools
import socket
from pathlib import Path

import pytest
from meshd.base import wakeful_loop
from meshd.base.wakeful_loop import (
    FOLLOW_SECONDS,
    LEAST_FOR_CHILDREN,
    LEAST_PROCESSORS,
    MOST_REST_SECONDS,
    REST_SECONDS,
    Conversation,
    WakefulLoop,
    Wakefulness,
    WakefulSelector,
    children_may_poll,
    usable_processors,
)


def close_messages(now: float) -> Wakefulness:
    """Two have passed, the second one at `now`."""
    wakefulness = Wakefulness()
    wakefulness.passed(now - FOLLOW_SECONDS / 2)
    wakefulness.passed(now)
    return wakefulness


def test_only_messages_that_follow_each_other_closely_make_it_wait_for_the_next() -> None:
    wakefulness = Wakefulness()
    for now in (100.0, 100.0 + 1.5 * FOLLOW_SECONDS, 101.0):
        wakefulness.passed(now)
        assert not wakefulness.until()
    wakefulness.passed(101.0 + FOLLOW_SECONDS / 2)
    assert wakefulness.until() == pytest.approx(101.0 + 1.5 * FOLLOW_SECONDS)


def test_what_was_in_vain_is_not_tried_again_for_longer_and_longer() -> None:
    wakefulness, now, rests = Wakefulness(), 0.0, []
    for _ in range(12):
        wakefulness.was_in_vain(now)
        ended = now
        while not wakefulness.until():
            now += FOLLOW_SECONDS / 4
            wakefulness.passed(now)
        rests.append(now - ended)
    assert rests[:3] == pytest.approx([REST_SECONDS, 2 * REST_SECONDS, 4 * REST_SECONDS], abs=FOLLOW_SECONDS)
    assert rests[-2:] == pytest.approx([MOST_REST_SECONDS] * 2, abs=FOLLOW_SECONDS)
    wakefulness.paid()
    wakefulness.was_in_vain(now)
    wakefulness.passed(now + REST_SECONDS + FOLLOW_SECONDS / 4)
    wakefulness.passed(now + REST_SECONDS + FOLLOW_SECONDS / 2)
    assert wakefulness.until()


class Talk:
    """Conversations of one loop at a time that is set."""

    def __init__(self) -> None:
        self.now = 100.0
        self.wakefulness = Wakefulness()

    def with_peer(self, *, asks: bool = False) -> Conversation:
        return Conversation(self.wakefulness, lambda: self.now, asks=asks)

    def drips(self, peer: Conversation, seconds: float = 1.0) -> float:
        """How much of this time the loop polls for what this peer sends: a byte each 15 ms."""
        awake = 0.0
        for _ in range(round(seconds / 0.015)):
            peer.received()
            awake += min(0.015, max(0.0, self.wakefulness.until() - self.now))
            self.now += 0.015
        return awake


@pytest.mark.parametrize("asks", [False, True])
def test_what_a_peer_drips_keeps_nobody_awake(asks: bool) -> None:
    talk = Talk()
    peer, other = talk.with_peer(asks=asks), talk.with_peer()
    assert not talk.drips(peer)
    peer.sent()
    assert talk.drips(peer) <= 2 * FOLLOW_SECONDS
    other.sent()
    assert bool(talk.drips(peer)) is asks, "what went to somebody else counts for a head"


def test_answers_that_follow_keep_the_loop_awake_whoever_asked() -> None:
    talk = Talk()
    head, worker, next_worker = talk.with_peer(asks=True), talk.with_peer(), talk.with_peer()
    for _ in range(5):
        worker.sent()
        talk.now += FOLLOW_SECONDS / 2
        worker.received()
        assert talk.wakefulness.until() == talk.now + FOLLOW_SECONDS
        talk.now += FOLLOW_SECONDS / 2
    talk.now += 1
    for turn in range(5):
        head.received()
        assert not turn or talk.wakefulness.until() == talk.now + FOLLOW_SECONDS
        talk.now += FOLLOW_SECONDS / 2
        next_worker.sent()
        talk.now += FOLLOW_SECONDS / 2


class Clock:
    """Each look takes a thousandth of a second; `at` has what happens then."""

    def __init__(self) -> None:
        self.now = 10.0
        self.at: dict[int, socket.socket] = {}
        self.looks = 0

    def __call__(self) -> float:
        self.looks += 1
        self.now += 0.001
        if self.looks in self.at:
            self.at[self.looks].send(b"x")
        return self.now


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
        assert wakefulness.until()


def test_it_sleeps_when_nothing_came_in_time() -> None:
    clock = Clock()
    wakefulness = close_messages(clock.now)
    with WakefulSelector(wakefulness, clock=clock, displaced=lambda: 0) as selector:
        assert selector.select(FOLLOW_SECONDS * 1.5) == []
        assert clock.looks >= 20
        assert not wakefulness.until()
        looks = clock.looks
        assert selector.select(0.001) == []
        assert clock.looks == looks, "it has not polled"


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
        assert not wakefulness.until()


def test_a_timer_is_not_kept_waiting() -> None:
    clock = Clock()
    wakefulness = close_messages(clock.now)
    with WakefulSelector(wakefulness, clock=clock, displaced=lambda: 0) as selector:
        assert selector.select(0.003) == []
        assert clock.looks < 8
        assert wakefulness.until(), "that something else came first says nothing"


@pytest.mark.parametrize("processors", [LEAST_PROCESSORS - 1, LEAST_PROCESSORS])
def test_few_processors_are_left_to_others(processors: int) -> None:
    loop = WakefulLoop(processors)
    try:
        talk = loop.conversation(asks=False)
        assert (talk is not None) == (processors == LEAST_PROCESSORS)
        if talk is not None:
            talk.sent()
            talk.received()
        assert (loop.waits_until > 0) == (talk is not None)
    finally:
        loop.close()


def test_a_loop_works_as_any() -> None:
    async def main() -> bytes:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, WakefulLoop)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            talk = loop.conversation(asks=False)
            assert talk is not None
            for _ in range(3):
                talk.sent()
                loop.call_later(0.001, theirs.send, b"x")
                got = await loop.sock_recv(ours, 1)
            return got

    with asyncio.Runner(loop_factory=lambda: WakefulLoop(LEAST_PROCESSORS)) as runner:
        assert runner.run(main()) == b"x"


@pytest.mark.parametrize(("text", "most"), [("150000 100000", 1), ("max 100000", None), ("", None)])
def test_a_share_of_the_processors_counts(
    text: str, most: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeful_loop, "_QUOTA", tmp_path / "none")
    everything = usable_processors()
    quota = tmp_path / "cpu.max"
    quota.write_text(text)
    monkeypatch.setattr(wakeful_loop, "_QUOTA", quota)
    assert usable_processors() == (everything if most is None else most)


def test_children_poll_only_where_there_are_processors_to_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    for processors in (1, LEAST_PROCESSORS, LEAST_FOR_CHILDREN - 1, LEAST_FOR_CHILDREN, 64):
        monkeypatch.setattr(wakeful_loop, "usable_processors", lambda processors=processors: processors)
        assert children_may_poll() == (processors >= LEAST_FOR_CHILDREN)
