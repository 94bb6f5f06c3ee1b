"""A model that stops in the middle of its answer, and gateways in turn that keep it."""

import asyncio
import contextlib
import json
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

import aiohttp
from aiohttp import web
from meshd.gateway.answer_log import AnswerLog
from meshd.gateway.interface import GatewayConfig
from meshd.gateway.kept_folder import KeptFolder
from meshd.gateway.one_model import OneModel
from meshd.gateway.server import Gateway

from tests.process.gateway_fake import (
    DEADLINE,
    DONE,
    FakeServer,
    FakeUpstream,
    begin_stream,
    chunk,
    last_chunk,
    listening,
    serving,
)

CONFIG = GatewayConfig(port=0, keepalive_seconds=0.1, continue_seconds=5.0)
KEY = "0f8fad5b-d9cb-469f-a165-70867728950e"
ALL = [chunk("a"), chunk("b"), chunk("c"), last_chunk(3), DONE]
CHAT = "/v1/chat/completions"


class Model:
    """Streams `ALL`, or what follows the text that it is given; stands still before event `stop`."""

    def __init__(self, events: list[bytes] = ALL, *, stop: int = 2) -> None:
        self.events = events
        self.stop: int | None = stop

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(server.seen[-1][3])
        last = asked.get("messages", [{}])[-1]
        begun = len(last["content"]) if last.get("role") == "assistant" else 0
        if not asked.get("stream"):
            return web.json_response(
                {"choices": [{"message": {"content": "abc"}}], "seed": asked.get("seed")}
            )
        response = await begin_stream(request)
        for number, one in enumerate(self.events):
            if number == self.stop:
                async with server.changed:
                    server.changed.notify_all()
                await server.let_go.wait()
            if number >= begun:
                await response.write(one)
        return response


@dataclass
class Place:
    """A llama-server, and one gateway after the other, which find what the one before has kept."""

    folder: Path
    server: FakeServer
    upstream: FakeUpstream
    http: aiohttp.ClientSession
    gateway: Gateway | None = None

    @contextlib.asynccontextmanager
    async def daemon(self, config: GatewayConfig = CONFIG) -> AsyncIterator[Gateway]:
        kept = KeptFolder(self.folder / "kept", wall=time.time)
        log = AnswerLog(self.folder / "answers.jsonl")
        gateway = Gateway(config, OneModel(self.upstream), kept=kept, log=log, wall=time.time)
        async with serving(gateway):
            self.gateway = gateway
            yield gateway

    @property
    def files(self) -> list[Path]:
        return sorted((self.folder / "kept").glob("*"))

    @property
    def asked(self) -> list[dict[str, object]]:
        return [json.loads(body) for *_, body in self.server.seen]

    def post(
        self, *, key: str = KEY, last: str = "", path: str = CHAT, secret: str = "", **more: object
    ) -> "aiohttp.client._RequestContextManager":
        assert self.gateway is not None
        headers = {"Idempotency-Key": key} if key else {}
        headers |= {"Last-Event-ID": last} if last else {}
        headers |= {"Authorization": f"Bearer {secret}"} if secret else {}
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "temperature": 0, **more}
        return self.http.post(self.gateway.url + path, json=body, headers=headers)

    async def events(self, count: int, **more: object) -> list[bytes]:
        """So many of an answer, and no more."""
        async with self.post(**more) as answer:  # type: ignore[arg-type]
            assert answer.status == 200, await answer.read()
            return (await first(answer, count))[:count]

    async def whole(self, **more: object) -> bytes:
        async with self.post(**more) as answer:  # type: ignore[arg-type]
            assert answer.status == 200, await answer.read()
            return await answer.read()

    async def refused(self, **more: object) -> tuple[int, str]:
        async with self.post(**more) as answer:  # type: ignore[arg-type]
            return answer.status, (await answer.json())["error"]["code"]


async def first(answer: aiohttp.ClientResponse, count: int) -> list[bytes]:
    data = b""
    while len(data_of(data)) < count and (more := await answer.content.readany()):
        data += more
    return data_of(data)


def data_of(stream: bytes) -> list[bytes]:
    """Its events, without comments."""
    return [one + b"\n\n" for one in stream.split(b"\n\n") if one and not one.startswith(b":")]


def numbered(*events: bytes, since: int = 1) -> list[bytes]:
    return [b"id: %d\n%b" % (number, one) for number, one in enumerate(events, start=since)]


def play(
    check: Callable[[Place], Awaitable[None]], model: Callable[..., Awaitable[web.StreamResponse]]
) -> None:
    async def scenario() -> None:
        with tempfile.TemporaryDirectory(prefix="gw") as name:
            folder = Path(name)
            server, upstream = FakeServer(model), FakeUpstream(folder / "s")
            async with asyncio.timeout(DEADLINE), listening(server, folder / "s"):
                async with aiohttp.ClientSession() as http:
                    await check(Place(folder, server, upstream, http))

    asyncio.run(scenario())
