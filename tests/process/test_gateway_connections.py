"""Connections to the API that show no key: few, not for long, and never in the way of those with one."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest
from meshd.base.peer_limits import API_CLIENTS, API_CLIENTS_OF_KEY, API_STRANGERS
from meshd.gateway import client_connections
from meshd.gateway.interface import ApiKey, GatewayConfig

from tests.process.gateway_fake import OneByOne, World, says, world

KEY = "sk-a-key-of-this-test"
KEYED = GatewayConfig(port=0, api_keys=(ApiKey(KEY), ApiKey("sk-another-key-of-it")))
HALF = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "


class Stranger:
    """Half a request, which never ends."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def is_cut(self, within: float) -> bool:
        """Return True if the connection ends in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                try:
                    return await self.reader.read() == b""
                except ConnectionError:
                    return True
        return False


@contextlib.asynccontextmanager
async def strangers(it: World, count: int) -> AsyncIterator[list[Stranger]]:
    made = []
    for _ in range(count):
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        with contextlib.suppress(ConnectionError):
            writer.write(HALF)
            await writer.drain()
        made.append(Stranger(reader, writer))
    try:
        yield made
    finally:
        for one in made:
            one.writer.transport.abort()
        await asyncio.sleep(0)


async def models(it: World, key: str = KEY) -> int:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    async with it.http.get(f"{it.url}/v1/models", headers=headers) as answer:
        await answer.read()
        return answer.status


async def test_a_client_with_a_key_gets_in_while_strangers_fill_the_door() -> None:
    async with world(says(200, {}), config=KEYED) as it, strangers(it, 4 * API_STRANGERS.most) as made:
        assert await models(it) == 200
        assert await models(it, key="") == 401
        cut = sum(await asyncio.gather(*(one.is_cut(1.0) for one in made)))
        assert cut >= 3 * API_STRANGERS.most
        assert await models(it) == 200


@pytest.mark.parametrize(
    ("path", "keys"), [("/v1/models", ()), ("/v1/models", (KEY,)), ("/health", ()), ("/chat.css", ())]
)
async def test_a_connection_that_was_let_in_stays(
    monkeypatch: pytest.MonkeyPatch, path: str, keys: tuple[str, ...]
) -> None:
    """Also without keys, as on loopback, and where a browser first reads the chat page on it."""
    monkeypatch.setattr(client_connections, "STRANGER_SECONDS", 0.3)
    monkeypatch.setattr(client_connections, "SWEEP_SECONDS", 0.1)
    ask = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {KEY}\r\n\r\n".encode()

    config = GatewayConfig(port=0, api_keys=tuple(map(ApiKey, keys)))
    async with world(says(200, {}), config=config) as it, strangers(it, 0):
        reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
        for _ in range(2):
            writer.write(ask)
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            await reader.readexactly(int(head.partition(b"Content-Length: ")[2].split()[0]))
            await asyncio.sleep(0.8)
        assert not reader.at_eof()
        writer.transport.abort()


async def ask_on(it: World, key: str = KEY) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection on which one request was answered, and which is kept open."""
    reader, writer = await asyncio.open_connection("127.0.0.1", it.port)
    head = f"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {key}\r\n\r\n"
    writer.write(head.encode())
    said = await reader.readuntil(b"\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 200"), said
    await reader.readexactly(int(said.partition(b"Content-Length: ")[2].split()[0]))
    return reader, writer


@pytest.mark.parametrize("keys", [(), (KEY, "sk-another-key-of-it")])
async def test_idle_connections_keep_nobody_out_and_the_longest_idle_one_is_closed(
    keys: tuple[str, ...],
) -> None:
    config = GatewayConfig(port=0, api_keys=tuple(map(ApiKey, keys)))
    async with world(says(200, {}), config=config) as it:
        kept = [await ask_on(it) for _ in range(API_CLIENTS.most + 20)]
        assert await models(it) == 200
        closed = len(kept) + 1 - API_CLIENTS_OF_KEY.most
        assert [await reader.read() for reader, _ in kept[:closed]] == [b""] * closed
        assert not any(reader.at_eof() for reader, _ in kept[closed:])
        for _, writer in kept:
            writer.transport.abort()


async def test_a_connection_with_a_request_under_way_is_not_closed_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_connections, "API_CLIENTS", replace(API_CLIENTS, most=2))
    monkeypatch.setattr(client_connections, "API_CLIENTS_OF_KEY", replace(API_CLIENTS_OF_KEY, most=2))
    answer = OneByOne()

    async with world(answer) as it, asyncio.TaskGroup() as under_way:
        busy = [under_way.create_task(it.chat(user=name)) for name in "ab"]
        await it.server.until(lambda: it.server.active == 2)
        assert await models(it) == 503
        answer.answer_one()
        await asyncio.wait(busy, return_when=asyncio.FIRST_COMPLETED)
        assert await models(it) == 200
        answer.answer_one()
        assert [(await one).status for one in busy] == [200, 200]
