"""The port for scrapers: what it answers, to whom, and what it costs a client to misbehave."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base import metrics_port
from meshd.base.errors import UserError
from meshd.base.metrics_port import (
    MAX_READERS,
    MAX_REQUEST_BYTES,
    MetricsPort,
    Reader,
    listen_for_scrapers,
)
from meshd.base.tasks import Owner

from tests.conformance.run import until

SETTING = "`--here 127.0.0.1:1`"


async def _text() -> str:
    return "meshd_up 1\n"


@asynccontextmanager
async def _served() -> AsyncIterator[MetricsPort]:
    port = MetricsPort(listen_for_scrapers("127.0.0.1", 0, setting=SETTING), _text)
    async with Owner() as owner:
        owner.start(port.serve(), name="metrics")
        yield port
        owner.cancel()


async def _said(port: MetricsPort, *pieces: bytes) -> bytes:
    """Everything that comes until the port closes."""
    number = int(port.url.rpartition(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", number)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("host", ["127.0.0.1:9", "localhost:9", "[::1]:9", "LOCALHOST"])
@pytest.mark.parametrize("path", ["/metrics", "/", "/metrics?collect=all"])
async def test_a_scraper_gets_the_text(host: str, path: str) -> None:
    async with _served() as port:
        asked = f"GET {path} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n\r\n".encode()
        head, _, body = (await _said(port, asked[:9], asked[9:])).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"text/plain; version=0.0.4" in head
    assert b"Content-Length: 11" in head and body == b"meshd_up 1\n"


async def test_a_client_without_a_host_and_one_that_wants_no_body() -> None:
    async with _served() as port:
        assert b" 200 " in await _said(port, b"GET /metrics HTTP/1.0\r\n\r\n")
        head = await _said(port, b"HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert b" 200 " in head and head.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET /metrics HTTP/1.1\r\nHost: evil.example:9464\r\n\r\n", b"403"),  # a web page, by DNS
        (b"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\nHOST : evil.example\r\n\r\n", b"403"),
        (b"POST /metrics HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"405"),
        (b"GET /config HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", b"404"),
        (b"\xff\r\n\r\n", b"405"),
    ],
)
async def test_what_is_refused_gets_no_metrics(asked: bytes, status: bytes) -> None:
    async with _served() as port:
        said = await _said(port, asked)
    assert said.split()[1] == status and b"meshd_up" not in said


async def test_readers_that_hang_up_make_no_more_replies_than_there_are_places() -> None:
    asked, most, go_on = 0, 0, asyncio.Event()

    async def slow() -> str:
        nonlocal asked, most
        asked += 1
        most = max(most, asked)
        await go_on.wait()
        asked -= 1
        return await _text()

    port = MetricsPort(listen_for_scrapers("127.0.0.1", 0, setting=SETTING), slow)
    number = int(port.url.rpartition(":")[2].partition("/")[0])
    async with Owner() as owner:
        owner.start(port.serve(), name="metrics")
        for _ in range(3 * MAX_READERS):
            _reader, writer = await asyncio.open_connection("127.0.0.1", number)
            writer.write(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
            await asyncio.sleep(0.01)
            writer.transport.abort()
        assert most == MAX_READERS
        # Their places are free once the replies are made.
        go_on.set()
        await until(lambda: asked == 0)
        assert b"meshd_up" in await _said(port, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        owner.cancel()


async def test_an_endless_request_is_cut_off() -> None:
    async with _served() as port:
        assert await _said(port, b"GET / HTTP/1.1\r\nX: " + b"x" * MAX_REQUEST_BYTES) == b""


async def test_silent_clients_hold_a_place_for_a_while_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics_port, "READER_SECONDS", 0.2)
    asked = b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    async with _served() as port, Owner() as owner:
        silent: list[asyncio.Task[bytes]] = []
        while await _said(port, asked):  # until they hold all places; the first may have lost theirs again
            silent = [one for one in silent if not one.done()]
            silent += [owner.start(_said(port), name="silent") for _ in range(MAX_READERS - len(silent))]
        assert {await one for one in silent} == {b""}
        assert b"meshd_up" in await _said(port, asked)


class _Written(asyncio.Transport):
    """A connection that keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.data, self.is_closed = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.data += bytes(data)

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True

    abort = close


_PIECES = st.sampled_from(
    [
        b"GET ",
        b"/metrics",
        b" HTTP/1.1",
        b"\r\n",
        b"\r\n\r\n",
        b"Host: ",
        b"127.0.0.1",
        b"[::1",
        b"]",
        b":",
        b"x",
    ]
)


@given(st.lists(_PIECES | st.binary(max_size=20), max_size=30))
def test_whatever_comes_in_is_answered_once_refused_or_cut_off(pieces: list[bytes]) -> None:
    answered: list[bool] = []

    class Port(MetricsPort):
        def answer(self, reader: Reader, *, head_only: bool) -> None:
            answered.append(head_only)

    with socket.socket() as unused:
        reader, transport = Reader(Port(unused, _text)), _Written()
        reader.connection_made(transport)
        for piece in pieces:
            reader.data_received(piece)
        reader.connection_lost(None)
    whole = b"".join(pieces)
    assert len(answered) <= 1 and not (answered and transport.data)
    if b"\r\n\r\n" in whole and not answered and len(whole) < MAX_REQUEST_BYTES:
        assert transport.data.split()[1] in (b"403", b"404", b"405") and transport.is_closed
    if answered:
        assert whole.split(b"\r\n")[0].split(b" ")[0] in (b"GET", b"HEAD")


def test_only_this_machine_may_be_listened_for() -> None:
    for host in ("0.0.0.0", "", "192.0.2.7", "example.org"):
        with pytest.raises(UserError, match="anyone could read the metrics") as refused:
            listen_for_scrapers(host, 0, setting=SETTING)
        assert SETTING in refused.value.hint


def test_a_taken_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=f"port `{port}` on `127.0.0.1` is taken") as refused:
            listen_for_scrapers("localhost", port, setting=SETTING)
    assert SETTING in refused.value.hint


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="no IPv6")
async def test_ipv6_has_brackets_in_the_url() -> None:
    sock = listen_for_scrapers("::1", 0, setting=SETTING)
    with sock:
        assert MetricsPort(sock, _text).url == f"http://[::1]:{sock.getsockname()[1]}/metrics"
