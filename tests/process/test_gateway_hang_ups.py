"""A client that hangs up gives back all that its request held, whatever the request waited for."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from aiohttp import web
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits, Readiness
from meshd.gateway.server import Gateway
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    HI,
    FakeServer,
    OneByOne,
    many_world,
    raw_post,
    says,
    when,
    world,
)
from tests.process.test_gateway_answers import COMPLETION
from tests.process.test_gateway_queue import AGENT, CHAT, KEYS, ask, logged, until

# Room for one request of each key, and for its body.
LIMITS = KeyLimits(concurrent=1)
CONFIG = GatewayConfig(
    port=0,
    api_keys=(ApiKey(AGENT, "agent", LIMITS), ApiKey(CHAT, "chat", LIMITS)),
    max_requests=2,
    max_body_bytes=10_000,
    max_bodies_bytes=15_000,
)
PAD = "x" * 8_000
Close = Callable[[asyncio.StreamWriter], None]


def finish(writer: asyncio.StreamWriter) -> None:
    writer.close()


def reset(writer: asyncio.StreamWriter) -> None:
    """As the kernel does for a client that was killed with bytes unread."""
    raw: socket.socket = writer.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.close()


def post(gateway: Gateway, body: dict[str, object]) -> bytes:
    port = int(gateway.url.rpartition(":")[2])
    head, _, payload = raw_post(port, {**HI, "user": "gone", "pad": PAD, **body}).partition(b"\r\n\r\n")
    return head + f"\r\nAuthorization: Bearer {AGENT}\r\n\r\n".encode() + payload


@contextlib.asynccontextmanager
async def sent(gateway: Gateway, data: bytes, close: Close) -> AsyncIterator[None]:
    """Over a connection that ends with the block."""
    _, writer = await asyncio.open_connection("127.0.0.1", int(gateway.url.rpartition(":")[2]))
    writer.write(data)
    yield
    close(writer)
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()


@pytest.mark.parametrize("close", [finish, reset])
async def test_while_its_body_is_awaited(close: Close) -> None:
    server = OneByOne(COMPLETION)
    async with world(server, config=CONFIG) as here:
        async with sent(here.gateway, post(here.gateway, {})[:-100], close):
            await when(here, lambda: here.upstream.under_way == 1)
            assert (await ask(here, AGENT, "early"))[0] == 503
        await when(here, lambda: not here.upstream.under_way)
        server.answer_one()
        assert (await ask(here, AGENT, "next", pad=PAD))[0] == 200
        assert server.came == ["next"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("close", [finish, reset])
async def test_while_its_turn_is_awaited(close: Close, stream: bool) -> None:
    server = OneByOne(COMPLETION)
    async with world(server, config=CONFIG) as here:
        here.upstream.slots = 1
        first = asyncio.ensure_future(ask(here, CHAT, "first"))
        await until(here, running=1, waiting=0)
        async with sent(here.gateway, post(here.gateway, {"stream": stream}), close):
            await until(here, running=1, waiting=1)
        await until(here, running=1, waiting=0)
        last = asyncio.ensure_future(ask(here, AGENT, "next", pad=PAD))
        await until(here, running=1, waiting=1)
        server.answer_one(2)
        assert [(await one)[0] for one in (first, last)] == [200, 200]
        assert server.came == ["first", "next"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("close", [finish, reset])
async def test_while_a_load_is_awaited(close: Close, stream: bool) -> None:
    async with world(OneByOne(COMPLETION), config=replace(CONFIG, continue_seconds=300.0)) as here:
        here.upstream.readiness = Readiness(ModelState.LOADING, "reading 43 %")
        async with sent(here.gateway, post(here.gateway, {"stream": stream}), close):
            await when(here, lambda: here.gateway.status.requests == 1)
        await when(here, lambda: not here.upstream.under_way)
        assert not here.server.seen


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("close", [finish, reset])
async def test_while_it_is_answered(close: Close, stream: bool) -> None:
    server = OneByOne(COMPLETION)
    async with world(server, config=CONFIG) as here:
        here.upstream.slots = 1
        async with sent(here.gateway, post(here.gateway, {"stream": stream}), close):
            await here.server.until(lambda: here.server.active == 1)
        await until(here, running=0, waiting=0)
        await here.server.until(lambda: here.server.cancelled == 1)
        server.answer_one()
        assert (await ask(here, AGENT, "next", pad=PAD))[0] == 200


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("close", [finish, reset])
async def test_while_its_model_is_awaited(close: Close, stream: bool) -> None:
    server = OneByOne(COMPLETION)
    async with many_world({"a": server}, config=CONFIG) as here:
        model = here.models["a"]
        model.upstream.slots = 1
        async with sent(here.gateway, post(here.gateway, {"model": "a", "stream": stream}), close):
            await when(here, lambda: bool(model.turns))
        await when(here, lambda: not model.upstream.under_way)
        assert model.turns[0].ended and not server.came
        model.granted.set()
        server.answer_one()
        body = {"model": "a", **HI, "user": "next", "pad": PAD}
        headers = {"Authorization": f"Bearer {AGENT}"}
        url = f"{here.gateway.url}/v1/chat/completions"
        async with here.http.post(url, json=body, headers=headers) as answer:
            assert answer.status == 200
        assert server.came == ["next"]


@pytest.mark.parametrize("stream", [True, False])
async def test_who_hangs_up_pays_for_the_prompt(stream: bool, tmp_path: Path) -> None:
    """At once, before llama-server has told what it took; and after a restart that is not forgotten."""
    prompt = "a long text to read " * 500

    config = GatewayConfig(port=0, api_keys=(ApiKey(AGENT, "agent", KeyLimits(tokens_per_day=1000)), KEYS[1]))

    async def never(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        return web.Response()

    async with logged(never, tmp_path, config) as here:
        body = {"messages": [{"role": "user", "content": prompt}], "stream": stream}
        url, headers = f"{here.url}/v1/chat/completions", {"x-api-key": AGENT}
        asking = asyncio.ensure_future(here.http.post(url, json=body, headers=headers))
        await here.server.until(lambda: here.server.active == 1)
        asking.cancel()
        await until(here, running=0, waiting=0)
        [used, _] = here.gateway.status.keys
        assert len(prompt) // 4 <= (used.tokens_today or 0) < len(prompt) // 2
        assert (await ask(here, AGENT))[0] == 429
    async with logged(says(200, COMPLETION), tmp_path, config) as here:
        assert (await ask(here, AGENT))[0] == 429
