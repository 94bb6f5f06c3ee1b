"""llama-server is lost under an answer: the client waits in its stream, and the next one makes the rest."""

import asyncio
import json

import pytest
from aiohttp import ClientResponse, web
from meshd.gateway.interface import GatewayConfig, Readiness
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    DONE,
    FakeServer,
    World,
    begin_stream,
    chunk,
    die,
    event,
    last_chunk,
    raw_post,
    says,
    world,
)

CONFIG = GatewayConfig(port=0, keepalive_seconds=0.1, continue_seconds=5.0)
READY = Readiness(ModelState.READY, "")
KEEP_ALIVE = b": keep-alive\n\n"
LOADING = Readiness(ModelState.LOADING, "worker garage is lost")


TOOLS = [{"type": "function", "function": {"name": "f"}}]


def dies_after(*pieces: bytes, times: int = 1, then: tuple[bytes, ...] = ()) -> "Dying":
    return Dying(pieces, times, then)


class Dying:
    """A server that is gone after some pieces, so many times; then it answers."""

    def __init__(self, pieces: tuple[bytes, ...], times: int, then: tuple[bytes, ...]) -> None:
        self._pieces = pieces
        self._left = times
        self._then = then

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        is_last = self._left == 0
        self._left -= not is_last
        for piece in self._then if is_last else self._pieces:
            await response.write(piece)
        if not is_last:
            die(request)
        return response


class Held(Dying):
    """As one that dies once after `a`, when the test lets it go."""

    def __init__(self, *then: bytes) -> None:
        super().__init__((), 1, then)

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if not self._left:
            return await super().__call__(server, request)
        self._left = 0
        response = await begin_stream(request)
        await response.write(chunk("a"))
        await server.let_go.wait()
        die(request)
        return response


def data_of(stream: bytes) -> list[bytes]:
    """Its events, without comments."""
    return [one + b"\n\n" for one in stream.split(b"\n\n") if one and not one.startswith(b":")]


async def next_notice(reply: ClientResponse) -> bytes:
    """The next comment that tells something; on a busy machine others come before it, in the silence."""
    while (comment := await reply.content.readuntil(b"\n\n")) == KEEP_ALIVE:
        pass
    return comment


async def test_the_client_gets_the_rest() -> None:
    async with world(
        dies_after(chunk("a"), chunk("b"), then=(chunk("c"), last_chunk(3), DONE)), config=CONFIG
    ) as here:
        reply = await here.chat(stream=True, max_tokens=9)
        assert data_of(await reply.read()) == [chunk("a"), chunk("b"), chunk("c"), last_chunk(3), DONE]
        first, second = (json.loads(body) for *_, body in here.server.seen)
        assert "seed" in first and second["seed"] == first["seed"]
        assert second["messages"] == [*first["messages"], {"role": "assistant", "content": "ab"}]
        assert (first["max_tokens"], second["max_tokens"]) == (9, 7)
        assert len(here.upstream.broke) == 1


@pytest.mark.parametrize(
    "lost",
    [LOADING, Readiness(ModelState.FAILED, "waiting for garage: `m` does not fit", no_room=True)],
    ids=["loads", "does not fit, and the worker may come back"],
)
async def test_it_waits_for_the_model_and_says_why(lost: Readiness) -> None:
    async with world(Held(chunk("b"), DONE), config=CONFIG) as here:
        reply = await here.chat(stream=True)
        assert await reply.content.readuntil(b"\n\n") == chunk("a")
        here.upstream.readiness = lost
        here.server.let_go.set()
        assert await next_notice(reply) == f": {lost.reason}\n\n".encode()
        assert len(here.server.seen) == 1, "nobody is asked before the model is ready"
        here.upstream.readiness = READY
        assert data_of(await reply.read()) == [chunk("b"), DONE]


async def test_a_short_wait_is_explained_too() -> None:
    """The model is ready again long before the next look for something to tell."""
    config = GatewayConfig(port=0, keepalive_seconds=60.0, continue_seconds=5.0)
    async with world(dies_after(chunk("a"), then=(chunk("b"), DONE)), config=config) as here:

        async def broke(why: str) -> str:
            here.upstream.readiness = LOADING
            asyncio.get_running_loop().call_later(0.1, lambda: setattr(here.upstream, "readiness", READY))
            return why

        here.upstream.upstream_broke = broke  # type: ignore[method-assign]
        reply = await here.chat(stream=True)
        rest = await reply.read()
        assert b": worker garage is lost\n\n" in rest and data_of(rest) == [chunk("a"), chunk("b"), DONE]


async def test_a_stream_that_nobody_asked_for_goes_on_as_well() -> None:
    async with world(Dying((chunk("a"),), 1, (chunk("a"), chunk("b"), DONE)), config=CONFIG) as here:
        reply = await here.chat(seed=1, temperature=0)
        assert reply.content_type == "text/event-stream"
        assert data_of(await reply.read()) == [chunk("a"), chunk("b"), DONE]


class Resumed(Dying):
    """As one that dies once after `a` and `b`, then makes `a` again, and the rest when the test says so."""

    def __init__(self, *then: bytes) -> None:
        super().__init__((chunk("a"), chunk("b")), 1, then)
        self.may_end = asyncio.Event()

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if self._left:
            return await super().__call__(server, request)
        response = await begin_stream(request)
        await response.write(chunk("a"))
        await server.let_go.wait()
        for piece in self._then:
            await response.write(piece)
        await self.may_end.wait()
        await response.write(DONE)
        return response


async def test_a_client_is_told_that_its_greedy_answer_is_computed_again() -> None:
    again = b": computing the answer again up to where it stopped\n\n"
    server = Resumed(chunk("b"), chunk("c"))
    async with world(server, config=CONFIG) as here:
        reply = await here.chat(stream=True, temperature=0)
        told = b""
        while again not in told:
            told += await reply.content.readuntil(b"\n\n")
        assert data_of(told) == [chunk("a"), chunk("b")]
        here.server.let_go.set()
        while chunk("c") not in told:
            told += await reply.content.readuntil(b"\n\n")
        assert await reply.content.readuntil(b"\n\n") == b": keep-alive\n\n", "that is over"
        server.may_end.set()
        assert data_of(told + await reply.read()) == [chunk("a"), chunk("b"), chunk("c"), DONE]


def _ends_with_an_error(here: World, stream: bytes) -> None:
    *before, last = data_of(stream)
    assert before == [chunk("a")]
    assert json.loads(last.removeprefix(b"data: "))["error"]["code"] == "upstream_lost"


@pytest.mark.parametrize("state", [ModelState.FAILED, ModelState.UNLOADED])
async def test_a_model_that_has_failed_or_made_room_is_not_waited_for(state: ModelState) -> None:
    async with world(Held(), config=CONFIG) as here:
        reply = await here.chat(stream=True)
        await reply.content.readuntil(b"\n\n")
        here.upstream.readiness = Readiness(state, "no memory")
        here.server.let_go.set()
        rest = await reply.read()
        assert b"upstream_lost" in rest and len(here.server.seen) == 1


async def test_nor_longer_than_asked() -> None:
    config = GatewayConfig(port=0, keepalive_seconds=0.1, continue_seconds=0.3)
    async with world(dies_after(chunk("a"), then=(DONE,)), config=config) as here:

        async def broke(why: str) -> str:
            here.upstream.readiness = LOADING
            return why

        here.upstream.upstream_broke = broke  # type: ignore[method-assign]
        reply = await here.chat(stream=True)
        _ends_with_an_error(here, await reply.read())
        assert len(here.server.seen) == 1


async def test_a_request_that_ends_each_llama_server_is_given_up() -> None:
    async with world(dies_after(chunk("a"), times=99), config=CONFIG) as here:
        reply = await here.chat(stream=True)
        stream = data_of(await reply.read())
        assert stream[:-1] == [chunk("a")] * 4 and b"upstream_lost" in stream[-1]
        assert len(here.server.seen) == 4


def _called(arguments: str, name: str = "") -> bytes:
    function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
    return event({"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": function}]}}]})


async def test_the_same_is_asked_for_where_the_rest_is_refused() -> None:
    """Ask for the same where a template or a vocabulary does not let llama-server move the grammar on."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if json.loads(server.seen[-1][-1])["messages"][-1]["role"] == "assistant":
            error = {"error": {"code": 400, "message": "Failed to initialize samplers"}}
            return await says(400, error)(server, request)
        return await dying(server, request)

    dying = dies_after(chunk("a"), then=(chunk("a"), chunk("b"), DONE))
    async with world(answer, config=CONFIG) as here:
        reply = await here.chat(stream=True, response_format={"type": "json_object"})
        assert data_of(await reply.read()) == [chunk("a"), chunk("b"), DONE]
        assert len(here.server.seen) == 3


async def test_a_client_that_leaves_while_it_waits_is_forgotten() -> None:
    async with world(
        Held(), config=GatewayConfig(port=0, keepalive_seconds=0.1, continue_seconds=60.0)
    ) as here:
        here.upstream.readiness = READY
        reply = await here.chat(stream=True)
        await reply.content.readuntil(b"\n\n")
        here.upstream.readiness = LOADING
        here.server.let_go.set()
        await reply.content.readuntil(b"\n\n")
        reply.close()
        await here.until_idle()
        assert len(here.server.seen) == 1


async def test_a_node_that_stops_ends_what_waits_for_a_template() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/apply-template":
            await server.let_go.wait()
        return await dying(server, request)

    dying = dies_after(_called("{", "f"))
    async with world(answer, config=CONFIG) as here:
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        body = {"messages": [{"role": "user", "content": "hi"}], "tools": TOOLS}
        writer.write(raw_post(here.port, {**body, "stream": True}))
        await here.server.until(lambda: "/apply-template" in [path for _, path, *_ in here.server.seen])
    assert b'"code": "stopping"' in await reader.read()
    writer.close()
    await writer.wait_closed()


async def test_a_seed_is_added_only_where_the_client_has_none() -> None:
    async with world(dies_after(times=0, then=(chunk("a"), DONE)), config=CONFIG) as here:
        for seed in (None, -1, 7):
            await (await here.chat(stream=True, **({} if seed is None else {"seed": seed}))).read()
        seeds = [json.loads(body)["seed"] for *_, body in here.server.seen]
        assert seeds[2] == 7 and all(0 <= seed < 1 << 31 for seed in seeds) and seeds[0] != seeds[1]
