"""Who waits at the API without a key: at most so many of one address, for 10 s, and never in a user's way."""

import asyncio

import pytest
from aiohttp import web
from meshd.base.peer_limits import API_STRANGERS, API_STRANGERS_OF_ADDRESS
from meshd.gateway.client_connections import SWEEP_SECONDS, DoorServer, RequestGate, Visitor

from tests.sim.loop import run

FAR = "192.0.2.7"


class Wire(asyncio.Transport):
    """A connection from a given address."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__({"peername": (host, port)})
        self.cut = False
        self.waiting = 0
        self.closing = False

    def is_closing(self) -> bool:
        """See asyncio.Transport."""
        return self.closing

    def get_write_buffer_size(self) -> int:
        """See asyncio.Transport."""
        return self.waiting

    def abort(self) -> None:
        """See asyncio.Transport."""
        self.cut = True


class Street:
    """A door, and connections to it in the order in which they came."""

    def __init__(self) -> None:
        async def handler(_request: web.BaseRequest) -> web.StreamResponse:
            return web.Response()

        self.door = RequestGate()
        self._server = DoorServer(self.door, handler, idle=60.0)
        self.wires: list[Wire] = []
        self.visitors: list[Visitor] = []

    def come(self, host: str) -> Visitor:
        """One more."""
        visitor, wire = self._server(), Wire(host, 1024 + len(self.wires))
        visitor._wire = wire  # no request comes: nothing of aiohttp's is begun
        self.door.arrive(visitor, wire)
        self.wires.append(wire)
        self.visitors.append(visitor)
        return visitor

    @property
    def cut(self) -> list[int]:
        """Who was sent away, by number."""
        return [number for number, wire in enumerate(self.wires) if wire.cut]


def test_the_numbers_that_are_promised() -> None:
    assert (API_STRANGERS.most, API_STRANGERS_OF_ADDRESS.most) == (64, 16)


def test_one_address_cuts_its_own_oldest_and_nobody_elses() -> None:
    async def main() -> None:
        street = Street()
        street.come("192.0.2.1")
        for _ in range(20):
            street.come(FAR)
        assert street.cut == [1, 2, 3, 4]

    run(main())


def test_users_of_this_machine_share_no_address() -> None:
    async def main() -> None:
        street = Street()
        for _ in range(20):
            street.come("127.0.0.1")
        assert street.cut == []

    run(main())


def test_who_showed_a_key_does_not_count_and_is_not_cut() -> None:
    async def main() -> None:
        street = Street()
        assert street.door.know(street.come(FAR), b"key")
        for _ in range(16):
            street.come(FAR)
        assert street.cut == []

    run(main())


@pytest.mark.parametrize(("seconds", "cut"), [(9.9, []), (10.1 + SWEEP_SECONDS, [0])])
def test_a_stranger_has_ten_seconds(seconds: float, cut: list[int]) -> None:
    """On a virtual clock, in which the door looks once a second."""

    async def main() -> None:
        street = Street()
        sweep = asyncio.get_running_loop().create_task(street.door.serve())
        street.come(FAR)
        assert street.door.know(street.come(FAR), b"key")
        await asyncio.sleep(seconds)
        assert street.cut == cut
        sweep.cancel()

    run(main())


class Reader:
    """A client for which more waits as soon as it has taken what waited, as asyncio's transports have it."""

    def __init__(self, street: Street, piece: int) -> None:
        self._visitor = street.come(FAR)
        self._wire = street.wires[-1]
        self._piece = piece
        street.door.know(self._visitor, b"key")
        self._write()

    def _write(self) -> None:
        self._wire.waiting += self._piece
        self._visitor.pause_writing()

    def take(self, count: int) -> None:
        while count:
            taken = min(count, self._wire.waiting)
            self._wire.waiting -= taken
            count -= taken
            if self._wire.waiting < 16_000:
                self._visitor.resume_writing()
                self._write()


async def cut_after(taken: int, every: int, *, piece: int = 100_000) -> int | None:
    """When a client is cut that takes so much every so many seconds of twenty minutes."""
    street = Street()
    sweep = asyncio.get_running_loop().create_task(street.door.serve())
    reader = Reader(street, piece)
    for second in range(1, 1200):
        await asyncio.sleep(SWEEP_SECONDS)
        if street.cut:
            break
        if second % every == 0:
            reader.take(taken)
    sweep.cancel()
    return second if street.cut else None


@pytest.mark.parametrize(("taken", "every"), [(0, 1), (1, 1), (200, 1), (50_000, 250)])
@pytest.mark.parametrize("piece", [100_000, 8 << 20])
def test_a_client_that_takes_too_little_of_its_answer_is_cut(taken: int, every: int, piece: int) -> None:
    assert run(cut_after(taken, every, piece=piece)) in range(300, 305)


@pytest.mark.parametrize(("taken", "every"), [(240, 1), (84_000, 1), (1_000_000, 1), (90_000, 290)])
@pytest.mark.parametrize("piece", [100_000, 8 << 20])
def test_a_client_that_reads_slowly_is_not(taken: int, every: int, piece: int) -> None:
    assert run(cut_after(taken, every, piece=piece)) is None


def test_a_client_for_which_writing_does_not_wait_may_stay_until_it_is_closed() -> None:
    async def main() -> None:
        street = Street()
        sweep = asyncio.get_running_loop().create_task(street.door.serve())
        street.door.know(street.come(FAR), b"key")
        [wire] = street.wires
        wire.waiting = 5
        await asyncio.sleep(2000)
        assert street.cut == []
        wire.closing = True
        await asyncio.sleep(310)
        assert street.cut == [0]
        street.door.leave(street.visitors[0])
        assert not street.door._visitors
        sweep.cancel()

    run(main())
