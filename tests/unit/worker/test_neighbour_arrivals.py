"""meshd.worker.neighbour_arrivals: what a mesh-server is told of its neighbours, and until when."""

import asyncio
import os
from collections.abc import Callable
from socket import socket

import pytest
from meshd.base.errors import Broken, RemoteProtocolError
from meshd.base.peer_limits import NEIGHBOURS
from meshd.process.handover import socket_pair
from meshd.rpc import mesh_protocol
from meshd.worker.neighbour_arrivals import ARRIVAL, COMPLETE, NeighbourArrivals

from tests.sim.loop import run

SECONDS = 12.0


class Told:
    """A DescriptorSocket that notes what is sent; `gone`: the server has ended."""

    child_end = -1

    def __init__(self) -> None:
        self.gone = False
        self.heard: list[tuple[int, int]] = []

    def send(self, kind: int, number: int, descriptor: int = -1) -> None:
        if self.gone:
            raise Broken("the child takes no descriptors: broken pipe")
        if descriptor >= 0:
            os.fstat(descriptor)  # it is open still
        self.heard.append((kind, number))

    def close(self) -> None:
        pass


def arrivals(
    told: Told, *, pair: Callable[[], tuple[socket, int]] = socket_pair, named: int = 0
) -> NeighbourArrivals:
    made = NeighbourArrivals(told, pair, seconds=SECONDS)
    for number in range(named):
        made.name(number)
    return made


def hands_over(made: NeighbourArrivals, number: int) -> bool:
    """Whether the server's end was closed here: ours finds that nobody else has it."""
    ours, theirs = made.new_pair()
    with ours:
        made.come(number, theirs)
        ours.settimeout(10)
        return ours.recv(1) == b""


async def settled(made: NeighbourArrivals) -> tuple[frozenset[int], float]:
    """Who was late, and the seconds that it took."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    return await made.settle(), loop.time() - began


def test_without_any_it_is_complete_at_once() -> None:
    told = Told()
    made = arrivals(told)
    made.all_named()
    assert run(settled(made)) == (frozenset(), 0.0)
    assert told.heard == [(COMPLETE, 0)]


@pytest.mark.virtual
async def test_it_is_complete_once_each_has_come_or_is_not_coming() -> None:
    told = Told()
    made = arrivals(told, named=1)
    assert hands_over(made, 0), "one may come before the others are named"
    made.name(1)
    made.name(2)
    made.all_named()
    settling = asyncio.ensure_future(settled(made))
    await asyncio.sleep(1)
    made.not_coming(1)
    await asyncio.sleep(1)
    assert not settling.done() and [made.awaits(number) for number in range(3)] == [False, False, True]
    assert hands_over(made, 2)
    assert await settling == (frozenset(), 2.0)
    assert told.heard == [(ARRIVAL, 0), (ARRIVAL, 2), (COMPLETE, 0)]


def test_who_is_late_is_named_and_not_awaited_any_more() -> None:
    told = Told()
    made = arrivals(told, named=3)
    made.all_named()
    made.not_coming(0)
    assert run(settled(made)) == (frozenset({1, 2}), SECONDS)
    assert not made.awaits(1) and not made.awaits(2)
    assert told.heard == [(COMPLETE, 0)]


def test_one_that_came_and_ends_is_not_told_of() -> None:
    """The server finds the end of the connection."""
    told = Told()
    made = arrivals(told, named=1)
    hands_over(made, 0)
    made.not_coming(0)
    assert told.heard == [(ARRIVAL, 0)]


@pytest.mark.parametrize("number", [0, NEIGHBOURS.most])
def test_numbers_are_few_and_each_is_given_once(number: int) -> None:
    made = arrivals(Told(), named=1)
    with pytest.raises(RemoteProtocolError, match="no two the same"):
        made.name(number)
    made.name(NEIGHBOURS.most - 1)


def test_a_number_is_not_free_again_when_who_had_it_has_gone() -> None:
    made = arrivals(Told(), named=1)
    made.not_coming(0)
    with pytest.raises(RemoteProtocolError, match="no two the same"):
        made.name(0)


def test_nothing_is_named_after_the_last() -> None:
    made = arrivals(Told())
    made.all_named()
    with pytest.raises(RemoteProtocolError, match="no two the same"):
        made.name(0)
    with pytest.raises(RemoteProtocolError, match="complete before"):
        made.all_named()


def test_only_who_was_named_is_awaited() -> None:
    made = arrivals(Told(), named=1)
    assert made.awaits(0) and not made.awaits(1)


def test_without_a_free_descriptor_there_is_no_connection() -> None:
    def none_free() -> tuple[socket, int]:
        raise OSError(24, "Too many open files")

    with pytest.raises(Broken, match="no connection can be made: too many open files"):
        arrivals(Told(), pair=none_free).new_pair()


def test_a_server_that_has_ended_keeps_no_descriptor_and_nobody_waiting() -> None:
    told = Told()
    told.gone = True
    made = arrivals(told, named=1)
    assert hands_over(made, 0)
    made.all_named()
    assert run(settled(made)) == (frozenset(), 0.0)


def test_a_worker_takes_as_many_as_its_server_does() -> None:
    assert NEIGHBOURS.most == mesh_protocol.NEIGHBOURS
