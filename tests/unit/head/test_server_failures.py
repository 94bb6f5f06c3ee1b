"""llama-server that fails before it is ready: three times with one split is no chance, nor six with any."""

from meshd.head.server_failures import (
    SERVER_RETRY,
    SERVER_TRIES,
    SERVER_TRIES_ANY,
    ServerDied,
    ServerFailures,
)
from meshd.model.status import SplitPart
from meshd.process.interface import ChildState, ChildStatus


def died(layers: int = 30, tail: tuple[str, ...] = ("last line",)) -> ServerDied:
    return ServerDied("llama-server", (SplitPart("a", "CPU", layers, 0),), tail)


def test_with_one_split() -> None:
    it = ServerFailures()
    for number in range(1, SERVER_TRIES + 1):
        assert not it.is_no_chance(spares=False)
        it.died(died())
        assert it.in_row == number
    assert it.is_no_chance(spares=False) and not it.is_no_chance(spares=True)
    assert it.delay == SERVER_RETRY.first
    it.died(died(29))
    assert not it.is_no_chance(spares=False), "another split is another matter"
    assert it.delay == SERVER_RETRY.first * SERVER_RETRY.factor


def test_with_whatever_split() -> None:
    it = ServerFailures()
    for number in range(SERVER_TRIES_ANY):
        assert not it.is_no_chance(spares=True)
        it.died(died(number))
    assert it.is_no_chance(spares=True)


def test_a_life_that_was_ready_begins_anew() -> None:
    it = ServerFailures()
    for _ in range(SERVER_TRIES_ANY):
        it.died(died())
    shown = it.failed_child
    assert shown is not None and shown.state is ChildState.FAILED
    it.was_ready()
    after = ServerFailures()
    assert it.failed_child is after.failed_child is None
    for one in (it, after):
        one.died(died())
        assert not one.is_no_chance(spares=False)


def test_options_that_are_refused_are_no_chance() -> None:
    it = ServerFailures()
    it.died(died(tail=("error: invalid argument: --nosuchopt",)))
    assert it.is_no_chance(spares=True)
    what, hint = it.what_to_say("exit code 1", ("--nosuchopt", "1"))
    assert what == "llama-server refuses its options: invalid argument: --nosuchopt"
    assert hint == "check the arguments after `--`: `--nosuchopt 1`"


def test_its_user_sees_one_that_is_restarted() -> None:
    it = ServerFailures()
    child = ChildStatus("llama-server", ChildState.READY, 5, 0, "", ())
    assert it.as_one(child) == child
    it.restarts, it.why_restarted = 2, "a worker is lost"
    shown = it.as_one(child)
    assert (shown.restarts, shown.reason, shown.pid) == (2, "the last time because a worker is lost", 5)
