"""Connections of clients: who is cut off and who may stay; and what a stream says while no answer comes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import (
    API_CLIENTS,
    API_CLIENTS_OF_ADDRESS,
)
from meshd.gateway.client_connections import (
    SWEEP_SECONDS,
    ApiServer,
    ClientConnection,
    ConnectionLimits,
    StreamReply,
    left_out,
)
from meshd.gateway.dialects.chat import PassedOn

pytestmark = pytest.mark.virtual
FAR = "192.0.2.7"


class Wire(asyncio.Transport):
    """A connection from a given address."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__({"peername": (host, port)})
        self.cut = False
        self.waiting = 0
        self.closing = False

    def is_closing(self) -> bool:
        """Return True as asyncio.Transport does."""
        return self.closing

    def get_write_buffer_size(self) -> int:
        """Return the size as asyncio.Transport does."""
        return self.waiting

    def abort(self) -> None:
        """Abort as asyncio.Transport does."""
        self.cut = True

    def close(self) -> None:
        """Close as asyncio.Transport does."""


class Street:
    """The limits of an API, and connections in the order in which they came."""

    def __init__(self) -> None:
        async def handler(_request: web.BaseRequest) -> web.StreamResponse:
            return web.Response()

        self.limits = ConnectionLimits()
        self._server = ApiServer(self.limits, handler, idle=60.0)
        self.wires: list[Wire] = []
        self.connections: list[ClientConnection] = []

    def come(self, host: str) -> ClientConnection:
        """One more."""
        connection, wire = self._server(), Wire(host, 1024 + len(self.wires))
        connection.connection_made(wire)
        self.wires.append(wire)
        self.connections.append(connection)
        return connection

    @property
    def cut(self) -> list[int]:
        """Who was sent away, by number."""
        return [number for number, wire in enumerate(self.wires) if wire.cut]


@asynccontextmanager
async def street_of_clients() -> AsyncIterator[Street]:
    """All its connections are lost at the end."""
    street = Street()
    try:
        yield street
    finally:
        for connection in street.connections:
            connection.connection_lost(None)
        await asyncio.sleep(1.0)  # in which their tasks end


async def test_one_address_cuts_its_own_older_ones_and_nobody_elses() -> None:
    async with street_of_clients() as street:
        street.come("192.0.2.1")
        for _ in range(20):
            street.come(FAR)
        assert len(street.cut) == 4 and 0 not in street.cut and 20 not in street.cut


async def test_users_of_this_machine_share_no_address() -> None:
    async with street_of_clients() as street:
        for _ in range(20):
            street.come("127.0.0.1")
        assert street.cut == []


async def test_who_showed_a_key_does_not_count_and_is_not_cut() -> None:
    async with street_of_clients() as street:
        assert street.limits.admit(street.come(FAR), b"key")
        for _ in range(16):
            street.come(FAR)
        assert street.cut == []


async def test_when_places_are_short_the_client_with_most_idle_connections_loses_its_oldest() -> None:
    async with street_of_clients() as street:

        async def come(host: str, key: bytes, *, idle: bool = True) -> bool:
            """A client with one request, which is answered a second later if it is to be `idle` then."""
            connection = street.come(host)
            admitted = street.limits.admit(connection, key)
            if idle:
                with connection.answering():
                    await asyncio.sleep(1.0)
            return admitted

        small = API_CLIENTS.most - API_CLIENTS_OF_ADDRESS.most
        assert all([await come(f"192.0.2.{number}", b"small") for number in range(small)])
        some = [await come(FAR, b"large", idle=number > 2) for number in range(API_CLIENTS_OF_ADDRESS.most)]
        assert all(some) and street.cut == []
        assert await come("198.51.100.1", b"new")
        assert street.cut == [small + 3]  # of those of `large` that are idle
        assert await come(FAR, b"new")
        assert street.cut == [small + 3, small + 4]


async def test_one_address_has_no_more_than_its_share_of_a_key() -> None:
    async with street_of_clients() as street:
        for _ in range(API_CLIENTS_OF_ADDRESS.most):
            assert street.limits.admit(street.come(FAR), b"key")  # with requests under way: none is idle
        assert not street.limits.admit(street.come(FAR), b"key")
        assert street.limits.admit(street.come("198.51.100.1"), b"key")
        assert street.cut == []
        street.connections[0].connection_lost(None)
        assert street.limits.admit(street.come(FAR), b"key"), "its place is free"


@pytest.mark.parametrize(("seconds", "cut"), [(9.9, []), (10.1 + SWEEP_SECONDS, [0])])
async def test_a_stranger_has_ten_seconds(seconds: float, cut: list[int]) -> None:
    """On a virtual clock, in which the limits are looked at once a second."""

    async with street_of_clients() as street:
        sweep = asyncio.get_running_loop().create_task(street.limits.serve())
        street.come(FAR)
        assert street.limits.admit(street.come(FAR), b"key")
        await asyncio.sleep(seconds)
        assert street.cut == cut
        sweep.cancel()


class Reader:
    """A client for which more waits as soon as it has taken what waited, as asyncio's transports have it."""

    def __init__(self, street: Street, piece: int) -> None:
        self._connection = street.come(FAR)
        self._wire = street.wires[-1]
        self._piece = piece
        street.limits.admit(self._connection, b"key")
        self._write()

    def _write(self) -> None:
        self._wire.waiting += self._piece
        self._connection.pause_writing()

    def take(self, count: int) -> None:
        while count:
            taken = min(count, self._wire.waiting)
            self._wire.waiting -= taken
            count -= taken
            if self._wire.waiting < 16_000:
                self._connection.resume_writing()
                self._write()


async def cut_after(street: Street, taken: int, every: int, piece: int) -> int | None:
    """When a client is cut that takes so much every so many seconds of twenty minutes."""
    sweep = asyncio.get_running_loop().create_task(street.limits.serve())
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
async def test_a_client_that_takes_too_little_of_its_answer_is_cut(
    taken: int, every: int, piece: int
) -> None:
    async with street_of_clients() as street:
        assert await cut_after(street, taken, every, piece) in range(300, 305)


@pytest.mark.parametrize(("taken", "every"), [(240, 1), (84_000, 1), (1_000_000, 1), (90_000, 290)])
@pytest.mark.parametrize("piece", [100_000, 8 << 20])
async def test_a_client_that_reads_slowly_is_not(taken: int, every: int, piece: int) -> None:
    async with street_of_clients() as street:
        assert await cut_after(street, taken, every, piece) is None


async def test_a_client_for_which_writing_does_not_wait_may_stay_until_it_is_closed() -> None:
    async with street_of_clients() as street:
        sweep = asyncio.get_running_loop().create_task(street.limits.serve())
        street.limits.admit(street.come(FAR), b"key")
        [wire] = street.wires
        wire.waiting = 5
        await asyncio.sleep(2000)
        assert street.cut == []
        wire.closing = True
        await asyncio.sleep(310)
        assert street.cut == [0]
        sweep.cancel()


COMMENT = b": keep-alive\n\n"
WAITS = b": waits for a worker\n\n"


class Recorded(web.StreamResponse):
    """Notes what is written, and when."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[float, bytes]] = []
        self._begun = False

    @property
    def prepared(self) -> bool:
        return self._begun

    async def prepare(self, request: web.BaseRequest) -> None:
        self._begun = True

    async def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written.append((asyncio.get_running_loop().time(), bytes(data)))


async def said_in(
    seconds: float, notice: Callable[[float], str], *, event_every: float = 0.0
) -> list[tuple[float, bytes]]:
    """`notice`: what is waited for after so many seconds."""
    loop = asyncio.get_running_loop()
    began, response = loop.time(), Recorded()
    request = make_mocked_request("POST", "/")
    reply = StreamReply(request, silence=10.0, headers={}, answering=PassedOn())
    reply.response = response
    async with reply.commented(lambda: notice(loop.time() - began)):
        while loop.time() < began + seconds:
            await asyncio.sleep(event_every or seconds)
            if event_every:
                await reply.send(b"data: {}\n\n")
    return [(round(at - began), data) for at, data in response.written]


async def test_silence_is_broken_by_comments() -> None:
    assert await said_in(25.0, lambda _: "") == [(10, COMMENT), (20, COMMENT)]


async def test_what_is_waited_for_is_told_soon_and_then_in_place_of_other_comments() -> None:
    assert await said_in(25.0, lambda _: "waits for a worker") == [(1, WAITS), (11, WAITS), (21, WAITS)]


async def test_an_answer_that_comes_is_not_commented_on() -> None:
    said = await said_in(25.0, lambda _: "waits for a worker", event_every=0.75)
    assert {data for _, data in said} == {b"data: {}\n\n"}


async def test_what_is_waited_for_next_is_told_as_soon_and_what_counts_on_is_not() -> None:
    def notice(after: float) -> str:
        return f"no connection for {after:.0f} s" if after < 4.5 else "loads" if after < 6.2 else ""

    said = await said_in(18.0, notice)
    assert said == [(1, b": no connection for 1 s\n\n"), (5, b": loads\n\n"), (15, COMMENT)]


async def test_what_is_waited_for_once_more_is_told_again() -> None:
    said = await said_in(8.0, lambda after: "" if 2 < after < 4 else "waits for a worker")
    assert said == [(1, WAITS), (4, WAITS)]


@given(st.lists(st.text(min_size=1), min_size=1))
def test_whatever_a_client_calls_its_tools_the_header_can_hold_it(notes: list[str]) -> None:
    (said,) = left_out(notes).values()
    assert said and said.isascii() and said.isprintable()


def test_names_are_told_once_and_what_a_header_cannot_hold_is_replaced() -> None:
    assert list(left_out(["a\r\nb", "a\r\nb", "c\0é"]).values()) == ["a??b, c??"]
    assert left_out([]) == {}
