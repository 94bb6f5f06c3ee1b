"""A small llama-server on a unix socket, and a gateway before it, for the gateway's tests.

The fake says what a script tells it and notes what happens to it. It is obedient and disobedient:
it can stay silent, die in mid-answer (its transport is aborted) and refuse as llama-server does.
"""

import asyncio
import contextlib
import json
import os
import socket
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
from aiohttp import web
from meshd.base.sockets import connect_unix
from meshd.base.tasks import Owner
from meshd.gateway.access import ApiPort
from meshd.gateway.interface import (
    AnswerTimings,
    ComputedTime,
    ConsoleSource,
    GatewayConfig,
    Models,
    ModelWish,
    Readiness,
)
from meshd.gateway.pages import Page, small_page
from meshd.gateway.request import OneModel
from meshd.gateway.server import Gateway
from meshd.model.device_sampling import DeviceSampling
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState, ModelStatus

HI = {"messages": [{"role": "user", "content": "hi"}]}
DEADLINE = 20.0  # of a whole scenario; only a hang comes near it


def event(fields: object) -> bytes:
    """One event as llama-server writes it."""
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def _piece(choice: object, **more: object) -> bytes:
    head = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    return event({**head, "choices": [choice], **more})


def chunk(text: str) -> bytes:
    """One streamed piece of text."""
    return _piece({"index": 0, "delta": {"content": text}})


def last_chunk(tokens: int) -> bytes:
    """The piece that ends an answer, with llama-server's timings."""
    timings = {"prompt_n": 3, "predicted_n": tokens}
    return _piece({"index": 0, "delta": {}, "finish_reason": "stop"}, timings=timings)


DONE = b"data: [DONE]\n\n"

Answer = Callable[["FakeServer", web.BaseRequest], Awaitable[web.StreamResponse]]


class FakeServer:
    """An llama-server whose answers come from `answer`; `cancelled` counts clients that went away."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        self.active = 0
        self.cancelled = 0
        self.written = 0
        self.changed = asyncio.Condition()
        self.let_go = asyncio.Event()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        body = await request.read()
        self.seen.append((request.method, request.path, dict(request.headers), body))
        await self._change(active=1)
        try:
            return await self.answer(self, request)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.active -= 1
            # a cancelled task may still take a free lock
            async with self.changed:
                self.changed.notify_all()

    def asked(self) -> list[dict[str, Any]]:
        """The bodies that came, without the questions about the chat template."""
        bodies = (body for *_, body in self.seen if b'"meshd-first"' not in body)
        return [json.loads(body) for body in bodies]

    async def _change(self, *, active: int) -> None:
        async with self.changed:
            self.active += active
            self.changed.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until something is true of this server."""
        async with self.changed:
            await self.changed.wait_for(true)

    async def until_written(self, least: int) -> None:
        """Wait until the answers have written so many bytes."""
        await self.until(lambda: self.written >= least)

    async def held_up(self, *, seconds: float = 1.0) -> int:
        """Wait until nobody takes a byte any more for so long; gives how much was written by then."""
        while True:
            before = self.written
            try:
                async with asyncio.timeout(seconds):
                    await self.until_written(before + 1)
            except TimeoutError:
                return self.written


async def begin_stream(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(
        headers={"Content-Type": "text/event-stream", "Access-Control-Allow-Origin": "*"}
    )
    await response.prepare(request)
    return response


def die(request: web.BaseRequest) -> None:
    """As kill -9 does: the connection ends, nothing more is said."""
    assert request.transport is not None
    request.transport.abort()


def says(status: int, body: object) -> Answer:
    """Always this JSON."""

    async def answer(_server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(body, status=status)

    return answer


def streams(*pieces: bytes) -> Answer:
    """Always these bytes, one write each."""

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        for piece in pieces:
            await response.write(piece)
        return response

    return answer


def pours(piece: bytes, *, least: int) -> Answer:
    """The same bytes again and again until `least` are written, as fast as they are taken."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        while server.written < least:
            await response.write(piece)
            async with server.changed:
                server.written += len(piece)
                server.changed.notify_all()
        return response

    return answer


class OneByOne:
    """Answers when it is told to, the oldest request first; notes a `field` of those that came."""

    def __init__(self, said: object = None, *, field: str = "user") -> None:
        self.came: list[str] = []
        self._said = {} if said is None else said
        self._field = field
        self._go = asyncio.Semaphore(0)

    async def __call__(self, server: "FakeServer", _request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(server.seen[-1][3])
        self.came.append(asked[self._field])
        await self._go.acquire()
        return self.answer(asked)

    def answer(self, asked: dict[str, Any]) -> web.Response:
        return web.json_response(self._said)

    def answer_one(self, times: int = 1) -> None:
        for _ in range(times):
            self._go.release()


@dataclass(eq=False)
class FakeUpstream:
    """The serve role as the gateway sees it."""

    socket_path: Path
    model_name: str = "tiny"
    readiness: Readiness = field(default_factory=lambda: Readiness(ModelState.READY, ""))
    broke: list[str] = field(default_factory=list)
    knows: str = ""  # why llama-server is of no use, if anybody knows more than the gateway
    on_broke: Callable[[], Awaitable[None]] | None = None  # what takes time before it is told
    told: list[tuple[int, bool]] = field(default_factory=list)  # tokens of an answer so far, and alone
    device_sampling: DeviceSampling | None = None
    answers: list[tuple[AnswerTimings, bool]] = field(default_factory=list)  # and whether each was alone
    active: list[int] = field(default_factory=list)
    slots: int = 4
    may_name_slots: bool = False
    holds_turns: str = ""
    facts: ServedFacts = field(default_factory=ServedFacts)
    waiting: int = 0
    crashes: int = 0

    @property
    def under_way(self) -> int:
        """Requests for it, as the gateway has told."""
        return self.active[-1] if self.active else 0

    async def connect(self) -> socket.socket:
        return await connect_unix(self.socket_path)

    def is_refusal(self, status: int) -> bool:
        return False

    async def upstream_broke(self, why: str) -> str:
        self.broke.append(why)
        if self.on_broke is not None:
            await self.on_broke()
        return self.knows or why

    def answered(self, timings: AnswerTimings, *, alone: bool, seconds: float) -> None:
        assert seconds >= 0
        self.answers.append((timings, alone))

    async def computed(self, spans: Sequence[tuple[float, float]]) -> Mapping[str, Sequence[ComputedTime]]:
        return {}

    def queued(self, waiting: int) -> None:
        self.waiting = waiting

    def requested(self, active: int) -> None:
        self.active.append(active)

    def generated(self, total: int, grown: int, *, alone: bool) -> None:
        self.told.append((total, alone))


@dataclass
class World:
    """A running gateway, the fake behind it, and a client session."""

    gateway: Gateway
    upstream: FakeUpstream
    server: FakeServer
    http: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return self.gateway.url

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def until_idle(self) -> None:
        """Wait until no request is under way."""
        await when(self, lambda: not self.upstream.under_way)

    async def chat(self, **extra: object) -> aiohttp.ClientResponse:
        body = {"model": "tiny", **HI, **extra}
        return await self.http.post(f"{self.url}/v1/chat/completions", json=body)


async def when(here: "World | ManyWorld", true: Callable[[], bool]) -> None:
    """Wait until something is true; each look is a round trip, so that others get their turn."""
    while not true():
        async with here.http.get(f"{here.gateway.url}/health") as answer:
            await answer.read()


@contextlib.asynccontextmanager
async def listening(server: FakeServer, socket_path: Path) -> AsyncIterator[None]:
    """Serve the fake on its unix socket; the socket file is gone afterwards."""
    runner = web.ServerRunner(
        web.Server(server.handle, handler_cancellation=True, access_log=None), shutdown_timeout=0.1
    )
    await runner.setup()
    try:
        await web.UnixSite(runner, str(socket_path)).start()
        yield
    finally:
        await runner.cleanup()  # unlinks the socket on Python >= 3.13 only
        with contextlib.suppress(FileNotFoundError):
            os.unlink(socket_path)  # noqa: PTH108 - one call of the kernel, not worth a thread


async def gateway_of(
    config: GatewayConfig, models: Models, page: Page | None = None, console: ConsoleSource | None = None
) -> Gateway:
    """A gateway whose port is bound; its page is the small one, whatever was built, unless one is given."""
    page = small_page() if page is None else page
    return Gateway(await ApiPort.claim(config), models, wall=time.time, page=page, console=console)


@contextlib.asynccontextmanager
async def serving(gateway: Gateway) -> AsyncIterator[None]:
    """Run the gateway until the block is left."""
    async with Owner() as owner:
        owner.start(gateway.serve(), name="gateway")
        await gateway.started.wait()
        yield
        owner.cancel()


class FakeTurn:
    """Implements Turn; the test says when it goes ahead, unless its model is ready."""

    def __init__(self, model: "FakeModel") -> None:
        self._model = model
        self.ended = False

    @property
    def notice(self) -> str:
        return "" if self._model.granted.is_set() else self._model.notice

    async def begin(self) -> Readiness | None:
        await self._model.granted.wait()
        return self._model.refused

    def end(self) -> None:
        self.ended = True


@dataclass(eq=False)
class FakeModel:
    """Implements NamedModel: one of several, with a llama-server of its own."""

    name: str
    upstream: FakeUpstream
    server: FakeServer
    aliases: tuple[str, ...] = ()
    state: ModelState = ModelState.READY
    progress: float | None = None
    notice: str = ""
    refused: Readiness | None = None
    granted: asyncio.Event = field(default_factory=asyncio.Event)
    turns: list[FakeTurn] = field(default_factory=list)
    stays: str = ""  # why it cannot be unloaded
    unloads: int = 0

    def unload_unused(self) -> str:
        self.unloads += not self.stays
        return self.stays

    def turn(self) -> FakeTurn:
        self.turns.append(FakeTurn(self))
        return self.turns[-1]

    @property
    def status(self) -> ModelStatus:
        return ModelStatus(
            name=self.name,
            fingerprint="",
            state=self.state,
            reason="as the test says",
            load_seconds=None,
            weights_local_bytes=0,
            weights_network_bytes=0,
            tensors_from_network=(),
            bytes_per_token=None,
            split=(),
            progress=self.progress,
            aliases=self.aliases,
        )


@dataclass
class FakeModels:
    """Implements Models."""

    all: list[FakeModel]
    only: None = None
    on_demand: bool = True

    @property
    def readiness(self) -> Readiness:
        states = {one.state for one in self.all}
        return Readiness(ModelState.FAILED if states == {ModelState.FAILED} else ModelState.READY, "")

    def find(self, wish: ModelWish) -> FakeModel | None:
        known = {called: one for one in self.all for called in (one.name, *one.aliases)}
        return known.get(wish.model) if wish.model else self.all[0]

    @property
    def statuses(self) -> list[ModelStatus]:
        return [one.status for one in self.all]


@dataclass
class ManyWorld:
    """A running gateway with several models, the fakes behind it, and a client session."""

    gateway: Gateway
    models: dict[str, FakeModel]
    http: aiohttp.ClientSession

    async def chat(self, model: object = None, **extra: object) -> aiohttp.ClientResponse:
        body: dict[str, object] = {**HI, **extra}
        body |= {} if model is None else {"model": model}
        return await self.http.post(f"{self.gateway.url}/v1/chat/completions", json=body)

    async def get(self, path: str) -> tuple[int, dict[str, Any]]:
        async with self.http.get(self.gateway.url + path) as answer:
            return answer.status, await answer.json()


@contextlib.asynccontextmanager
async def many_world(
    answers: Mapping[str, Answer],
    *,
    config: GatewayConfig | None = None,
    page: Page | None = None,
    seconds: float = DEADLINE,
) -> AsyncIterator[ManyWorld]:
    """As `world`, with a model of each name, and an alias `NAME-alias`."""
    async with contextlib.AsyncExitStack() as held:
        await held.enter_async_context(asyncio.timeout(seconds))
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="gw")))
        models = {}
        for number, (name, answer) in enumerate(answers.items()):
            path, server = folder / f"{number}", FakeServer(answer)
            await held.enter_async_context(listening(server, path))
            models[name] = FakeModel(name, FakeUpstream(path, name), server, aliases=(f"{name}-alias",))
        gateway = await gateway_of(config or GatewayConfig(port=0), FakeModels(list(models.values())), page)
        await held.enter_async_context(serving(gateway))
        yield ManyWorld(gateway, models, await held.enter_async_context(aiohttp.ClientSession()))


@contextlib.asynccontextmanager
async def world(
    answer: Answer,
    *,
    config: GatewayConfig | None = None,
    seconds: float = DEADLINE,
    page: Page | None = None,
    console: ConsoleSource | None = None,
) -> AsyncIterator[World]:
    """Fake, gateway and client; all gone and nothing leaked when the block is left."""
    with tempfile.TemporaryDirectory(prefix="gw") as folder:
        path = Path(folder) / "s"
        server, upstream = FakeServer(answer), FakeUpstream(path)
        gateway = await gateway_of(config or GatewayConfig(port=0), OneModel(upstream), page, console)
        async with asyncio.timeout(seconds), listening(server, path), serving(gateway):
            async with aiohttp.ClientSession() as http:
                yield World(gateway, upstream, server, http)


def open_files() -> int:
    """Descriptors of this process, where the OS lists them."""
    return len(os.listdir("/dev/fd"))  # noqa: PTH208 - a count of names, no paths needed


def small_window(address: tuple[Any, ...]) -> socket.socket:
    """A client socket whose kernel takes little: newer kernels would buffer 32 MiB."""
    made = socket.socket(address[0], address[1], address[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
    made.setblocking(False)
    return made


def raw_post(port: int, body: Mapping[str, object], *, path: str = "/v1/chat/completions") -> bytes:
    """A request as bytes, for clients that misbehave."""
    payload = json.dumps({**HI, **body}).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
    )
    return head.encode() + payload
