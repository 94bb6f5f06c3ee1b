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
