"""Connections of clients: who is cut off and who may stay; and what a stream says while no answer comes."""

import asyncio
import io
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from hypothesis import given
from hypothesis import strategies as st
from meshd.base import log as logging
from meshd.base.peer_limits import (
    API_CLIENTS,
    API_CLIENTS_OF_ADDRESS,
    API_CLIENTS_OF_KEY,
)
from meshd.base.sockets import adopt
from meshd.gateway.client_connections import (
    HEADER_LINE_BYTES,
    MAX_HEADERS,
    REQUEST_HEAD_BYTES,
    SWEEP_SECONDS,
    ApiServer,
    ClientConnection,
    ConnectionLimits,
    Handler,
    StreamReply,
    has_long_header,
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


async def test_a_key_with_all_its_places_loses_its_own_connection_and_no_other() -> None:
    async with street_of_clients() as street:

        async def come(host: str, key: bytes) -> bool:
            connection = street.come(host)
            admitted = street.limits.admit(connection, key)
            with connection.answering():
                await asyncio.sleep(1.0)
            return admitted

        assert await come("198.51.100.1", b"small"), "it is idle for longest"
        assert all([await come(f"192.0.2.{number}", b"large") for number in range(API_CLIENTS_OF_KEY.most)])
        assert street.cut == []
        assert await come("198.51.100.2", b"large") and street.cut == [1]
        assert await come("198.51.100.2", b"small") and street.cut == [1]


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


# What a connection answers to bytes that are no request, and after a fault.


async def exchanged(*pieces: bytes, handler: Handler | None = None) -> bytes:
    """All that a client gets that sends these pieces, a second apart, and then nothing more."""

    async def plain(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="fine")

    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    server = ApiServer(ConnectionLimits(), handler or plain, idle=5.0)
    await adopt(theirs, server)
    reader, writer = await asyncio.open_unix_connection(sock=ours)
    for piece in pieces:
        writer.write(piece)
        await asyncio.sleep(1)
    received = await reader.read()
    writer.close()
    await asyncio.sleep(10)
    return received


def statuses(received: bytes) -> list[int]:
    return [int(status) for status in re.findall(rb"HTTP/1\.[01] (\d+)", received)]


GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
FIELD = b"X-Any: " + b"x" * 2000 + b"\r\n"


@pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        ((GET + b"\r\n",), [200]),
        ((GET + b"\r\n", GET + b"\r\n"), [200, 200]),
        ((b"nonsense\r\n\r\n",), [400]),
        ((GET + b"X: x\r\n" * (MAX_HEADERS - 1) + b"\r\n",), [200]),
        ((GET + b"X: x\r\n" * (MAX_HEADERS + 9) + b"\r\n",), [400]),
        ((GET, FIELD * 120, b"\r\n"), [200]),
        ((GET, FIELD * 120, b"\r\n", GET, FIELD * 120, b"\r\n"), [200, 200]),
        ((GET, FIELD * 120, FIELD * 20), [431]),
        ((b"GET /" + b"x" * (33 << 10) + b" HTTP/1.1\r\n\r\n",), [431]),
    ],
)
async def test_what_is_no_request_is_refused_once(pieces: tuple[bytes, ...], expected: list[int]) -> None:
    received = await exchanged(*pieces)
    assert statuses(received) == expected
    code = {400: b"invalid_http", 431: b"headers_too_large"}.get(expected[-1], b"fine")
    assert code in received
    if expected[-1] != 200:
        assert b"X-Content-Type-Options: nosniff" in received


async def test_an_unfinished_head_has_a_limit_to_the_byte() -> None:
    rest = REQUEST_HEAD_BYTES - len(GET) - 120 * len(FIELD)
    last = b"Y: " + b"y" * (rest - 3)
    assert statuses(await exchanged(GET, FIELD * 120, last, b"\r\n\r\n")) == [200]
    assert statuses(await exchanged(GET, FIELD * 120, last, b"y")) == [431]


async def test_a_long_body_is_no_part_of_a_head() -> None:
    async def reads(request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text=str(len(await request.read())))

    size = 2 * REQUEST_HEAD_BYTES
    post = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % size
    received = await exchanged(post, b"x" * size, GET + b"\r\n", handler=reads)
    assert statuses(received) == [200, 200] and str(size).encode() in received


@pytest.mark.parametrize(
    ("path", "is_anthropic"), [(b"/v1/messages", True), (b"/v1/chat/completions", False)]
)
async def test_a_fault_of_ours_is_told_in_the_dialect_and_logged(path: bytes, is_anthropic: bool) -> None:
    async def fails(_request: web.BaseRequest) -> web.StreamResponse:
        raise ValueError(f"a bug at {path!r}")

    log = io.StringIO()
    logging.set_up(level="warning", stream=log)
    try:
        get = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n\r\n"
        received = await exchanged(get, handler=fails)
    finally:
        logging.set_up(level="warning")
    head, _, body = received.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 500 ") and b"Connection: close" in head and b"Server: meshd" in head
    assert b"a bug" not in body and ("type" in json.loads(body)) is is_anthropic
    assert log.getvalue().count("work_failed") == 1 and "a bug" in log.getvalue()


async def test_after_a_fault_within_an_answer_nothing_more_is_written() -> None:
    async def fails(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"half of")
        raise LookupError("a bug")

    log = io.StringIO()
    logging.set_up(level="warning", stream=log)
    try:
        received = await exchanged(GET + b"\r\n", handler=fails)
    finally:
        logging.set_up(level="warning")
    assert statuses(received) == [200] and received.endswith(b"half of\r\n")
    assert "a bug" in log.getvalue()


@pytest.mark.parametrize(
    ("given", "logged"),
    [
        ({"exc_info": KeyError("k")}, "KeyError"),
        ({}, "RuntimeError"),
        ({"exc_info": ConnectionResetError()}, ""),
        ({"exc_info": web.RequestPayloadError("p")}, ""),
    ],
)
async def test_only_faults_of_ours_are_logged_after_an_answer(given: dict[str, object], logged: str) -> None:
    log = io.StringIO()
    async with street_of_clients() as street:
        connection = street.come(FAR)
        logging.set_up(level="warning", stream=log)
        try:
            connection.log_exception("the end", **given)
        finally:
            logging.set_up(level="warning")
    assert logged in log.getvalue() and bool(log.getvalue()) is bool(logged)


@pytest.mark.parametrize(
    ("name", "size", "is_long"),
    [
        ("X-Any", HEADER_LINE_BYTES - 5, False),
        ("X-Any", HEADER_LINE_BYTES - 4, True),
        ("Cookie", 1 << 20, False),
    ],
)
def test_a_header_has_a_limit_unless_browsers_make_it(name: str, size: int, is_long: bool) -> None:
    assert has_long_header({"Host": "x", name: "x" * size}) is is_long


async def test_a_connection_is_idle_between_requests_once_all_is_taken() -> None:
    async with street_of_clients() as street:
        connection = street.come(FAR)
        [wire] = street.wires
        seen = [connection.idle_since]
        with connection.answering():
            seen.append(connection.idle_since)
            with connection.answering():
                await asyncio.sleep(1)
            seen.append(connection.idle_since)
            await asyncio.sleep(1)
        ended = asyncio.get_running_loop().time()
        seen.append(connection.idle_since)
        wire.waiting = 1
        assert [*seen, connection.idle_since] == [None, None, None, ended, None]


class Closing(asyncio.Transport):
    """Notes that it was closed."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize("begun", [False, True])
async def test_notes_are_a_header_or_once_a_comment(begun: bool) -> None:
    response = Recorded()
    reply = StreamReply(make_mocked_request("POST", "/"), silence=10.0, headers={}, answering=PassedOn())
    reply.response = response
    await reply.say("too early")
    assert response.written == []
    if begun:
        await reply.begin()
        assert response.prepared and response.written == [], "headers alone"
    for notes in (["a tool"], ["a tool"], [], ["another"]):
        await reply.note(notes)
    written = [data for _, data in response.written]
    name = b": X-Meshd-Left-Out: "
    assert written == ([name + b"a tool\n\n", name + b"another\n\n"] if begun else [])
    assert response.headers.get("X-Meshd-Left-Out") == (None if begun else "another")
    if begun:
        await reply.say("waits")
        assert response.written[-1][1] == b": waits\n\n"


async def test_a_stream_that_is_cut_says_why_and_closes() -> None:
    response, transport = Recorded(), Closing()
    request = make_mocked_request("POST", "/", transport=transport)
    reply = StreamReply(request, silence=10.0, headers={"X-Any": "1"}, answering=PassedOn())
    headers = reply.response.headers
    assert headers["X-Any"] == "1" and headers["Content-Type"] == "text/event-stream"
    assert headers["Cache-Control"] == "no-cache" and headers["X-Accel-Buffering"] == "no"
    reply.response = response
    await reply.cut("the node stops")
    assert [data for _, data in response.written] == [b": the node stops\n\n"] and transport.closed


async def test_a_look_is_taken_at_once_if_the_answer_has_begun() -> None:
    loop = asyncio.get_running_loop()
    for begun in (False, True):
        response, notice, began = Recorded(), [""], loop.time()
        reply = StreamReply(make_mocked_request("POST", "/"), silence=10.0, headers={}, answering=PassedOn())
        reply.response = response
        async with reply.commented(partial("".join, notice)):
            if begun:
                await reply.begin()
            notice[0] = "lost"
            reply.look()
            await asyncio.sleep(0.5)
            assert [data for _, data in response.written] == [b": lost\n\n"] * begun
            await asyncio.sleep(5)
        assert [round(at - began, 3) for at, _ in response.written] == [0.0 if begun else 1.0]


async def test_no_comment_comes_while_they_are_forbidden() -> None:
    response = Recorded()
    reply = StreamReply(make_mocked_request("POST", "/"), silence=10.0, headers={}, answering=PassedOn())
    reply.response = response
    began = asyncio.get_running_loop().time()
    async with reply.commented(lambda: ""):
        reply.allow_comments(False)
        await asyncio.sleep(25)
        assert response.written == []
        reply.allow_comments(True)
        await asyncio.sleep(10)
        await reply.stop_comments()
        await asyncio.sleep(30)
    assert [round(at - began) for at, _ in response.written] == [30]
