"""When llama-server waits, from the messages that pass its daemon."""

import pytest
from meshd.head.measures import AwayTimes
from meshd.rpc import mesh_protocol as wire


class Clock:
    """Moved by tests."""

    def __init__(self) -> None:
        self.now = 0.0
        self.away = AwayTimes(lambda: self.now)

    def at(self, now: float, *numbers: int) -> None:
        self.now = now
        for number in numbers:
            self.away.seen(number)


def test_from_the_first_request_of_a_step_to_its_last_result() -> None:
    it = Clock()
    it.at(1.0, wire.WRITE, wire.COMPUTE)
    it.at(1.1, wire.COMPUTE, wire.READ, wire.READ)
    it.at(1.5, wire.DATA)
    it.at(2.0, wire.DATA, wire.DATA)
    assert it.away.away(0, 10) == pytest.approx(1.0)
    assert it.away.away(1.25, 1.5) == pytest.approx(0.25)


def test_between_two_steps_it_is_not_away() -> None:
    it = Clock()
    for begin in (0.0, 1.0, 2.0):
        it.at(begin, wire.COMPUTE, wire.READ)
        it.at(begin + 0.25, wire.DATA)
    assert it.away.away(0, 10) == pytest.approx(0.75)


def test_steps_are_counted_by_their_ends() -> None:
    it = Clock()
    for begin in (0.0, 1.0, 2.0):
        it.at(begin, wire.COMPUTE, wire.READ)
        it.at(begin + 0.25, wire.DATA)
    assert [it.away.steps(*span) for span in ((0.0, 10.0), (0.25, 2.25), (0.3, 2.2))] == [3, 2, 1]


def test_bytes_of_several_tunnels_are_held_once() -> None:
    it = Clock()
    it.at(1.0)
    it.away.peer_waits(True)
    it.at(1.5)
    it.away.peer_waits(True)
    it.at(2.0)
    it.away.peer_waits(False)
    it.at(3.0)
    it.away.peer_waits(False)
    it.away.target_waits(True)
    assert it.away.held(0, 10) == pytest.approx(2.0) and it.away.away(0, 10) == 0
