"""A client that hangs up gives back all that its request held, whatever the request waited for."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable

import pytest
from meshd.gateway.api_key import ApiKey, KeyLimits
from meshd.gateway.interface import GatewayConfig
from meshd.gateway.server import Gateway

from tests.process.gateway_fake import ManyWorld, OneByOne, World, many_world, raw_post, world
from tests.process.test_gateway_answers import COMPLETION
from tests.process.test_gateway_queue import AGENT, CHAT, ask, until

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
    head, _, payload = raw_post(port, {"messages": [], "user": "gone", "pad": PAD, **body}).partition(
        b"\r\n\r\n"
    )
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


async def when(here: World | ManyWorld, true: Callable[[], bool]) -> None:
    """Each look is a round trip, so that others get their turn."""
    while not true():
        async with here.http.get(f"{here.gateway.url}/health") as answer:
            await answer.read()


@pytest.mark.parametrize("close", [finish, reset])
def test_while_its_body_is_awaited(close: Close) -> None:
    async def scenario() -> None:
        server = OneByOne(COMPLETION)
        async with world(server, config=CONFIG) as here:
            async with sent(here.gateway, post(here.gateway, {})[:-100], close):
                await when(here, lambda: len(here.gateway._places) == 1)
                assert (await ask(here, AGENT, "early"))[0] == 503
            await when(here, lambda: not len(here.gateway._places))
            server.answer_one()
            assert (await ask(here, AGENT, "next", pad=PAD))[0] == 200
            assert server.came == ["next"]

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("close", [finish, reset])
def test_while_its_turn_is_awaited(close: Close, stream: bool) -> None:
    async def scenario() -> None:
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
            server.answer_one()
            server.answer_one()
            assert [(await one)[0] for one in (first, last)] == [200, 200]
            assert server.came == ["first", "next"]

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("close", [finish, reset])
def test_while_it_is_answered(close: Close, stream: bool) -> None:
    async def scenario() -> None:
        server = OneByOne(COMPLETION)
        async with world(server, config=CONFIG) as here:
            here.upstream.slots = 1
            async with sent(here.gateway, post(here.gateway, {"stream": stream}), close):
                await here.server.until(lambda: here.server.active == 1)
            await until(here, running=0, waiting=0)
            await here.server.until(lambda: here.server.cancelled == 1)
            server.answer_one()
            assert (await ask(here, AGENT, "next", pad=PAD))[0] == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("close", [finish, reset])
def test_while_its_model_is_awaited(close: Close, stream: bool) -> None:
    async def scenario() -> None:
        server = OneByOne(COMPLETION)
        async with many_world({"a": server}, config=CONFIG) as here:
            model = here.models["a"]
            model.upstream.slots = 1
            async with sent(here.gateway, post(here.gateway, {"model": "a", "stream": stream}), close):
                await when(here, lambda: bool(model.turns))
            await when(here, lambda: not len(here.gateway._places))
            assert model.turns[0].ended and not server.came
            model.granted.set()
            server.answer_one()
            body = {"model": "a", "messages": [], "user": "next", "pad": PAD}
            headers = {"Authorization": f"Bearer {AGENT}"}
            url = f"{here.gateway.url}/v1/chat/completions"
            async with here.http.post(url, json=body, headers=headers) as answer:
                assert answer.status == 200
            assert server.came == ["next"]

    asyncio.run(scenario())
