"""Streams through the gateway: unbuffered, unchanged, kept alive, cancelled, and ended with a reason."""

import asyncio
import json

from aiohttp import web
from meshd.gateway.interface import GatewayConfig

from tests.process.gateway_fake import (
    DONE,
    FakeServer,
    World,
    begin_stream,
    chunk,
    die,
    last_chunk,
    open_files,
    raw_post,
    streams,
    world,
)


def test_each_event_is_passed_on_before_the_next_is_made() -> None:
    """Lockstep: the fake makes an event only after the client has read the one before."""
    read = asyncio.Semaphore(0)

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        for number in range(20):
            await response.write(chunk(str(number)))
            await read.acquire()
        await response.write(DONE)
        return response

    async def scenario() -> None:
        async with world(answer) as here:
            reply = await here.chat(stream=True)
            for number in range(20):
                assert await reply.content.readuntil(b"\n\n") == chunk(str(number))
                read.release()
            assert await reply.read() == DONE

    asyncio.run(scenario())


def test_bytes_are_unchanged_however_they_are_cut() -> None:
    others = b": theirs\n\n" + b"event: x\r\ndata: 1\r\n\r\n"
    whole = chunk("a") + others + last_chunk(7) + DONE + b"data: tail"

    async def scenario(size: int) -> None:
        pieces = [whole[at : at + size] for at in range(0, len(whole), size)]
        async with world(streams(*pieces)) as here:
            reply = await here.chat(stream=True)
            assert reply.status == 200
            assert reply.content_type == "text/event-stream"
            assert reply.headers["X-Accel-Buffering"] == "no"
            assert "Access-Control-Allow-Origin" not in reply.headers
            assert await reply.read() == whole
            assert here.gateway.status.tokens == 7

    for size in (1, 3, 64, 10_000):
        asyncio.run(scenario(size))


def test_silence_before_the_first_byte_and_between_events_is_filled_with_comments() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()  # the prompt is worked through: llama-server sends no headers yet
        server.let_go.clear()
        response = await begin_stream(request)
        await response.write(chunk("a") + b"data: {")  # half an event, then silence
        await server.let_go.wait()
        await response.write(b"}\n\n")
        return response

    async def scenario() -> None:
        config = GatewayConfig(port=0, keepalive_seconds=0.02)
        async with world(answer, config=config) as here:
            reply = await here.chat(stream=True)
            for _ in range(3):
                assert (await reply.content.readuntil(b"\n\n")).startswith(b":")
            here.server.let_go.set()
            seen = [await reply.content.readuntil(b"\n\n")]
            while not seen[-1].startswith(b"data: "):
                seen.append(await reply.content.readuntil(b"\n\n"))
            assert seen[-1] == chunk("a")
            assert (await reply.content.readuntil(b"\n\n")).startswith(b":")
            here.server.let_go.set()
            rest = (await reply.read()).split(b"\n\n")
            assert [part for part in rest if part and not part.startswith(b":")] == [b"data: {}"]

    asyncio.run(scenario())


def test_an_upstream_that_dies_in_mid_stream_ends_it_with_an_error_event() -> None:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("a") + chunk("b") + b'data: {"half')
        die(request)
        return response

    async def scenario() -> None:
        async with world(answer) as here:
            reply = await here.chat(stream=True)
            events = (await reply.read()).split(b"\n\n")
            assert [event + b"\n\n" for event in events[:2]] == [chunk("a"), chunk("b")]
            error = json.loads(events[2].removeprefix(b"data: "))["error"]
            assert error["type"] == "server_error"
            assert error["code"] == "upstream_lost"
            assert "llama-server" in error["message"]
            assert events[3:] == [b""]
            assert len(here.upstream.broke) == 1
            assert here.gateway.status.tokens == 2
            assert here.gateway.status.active == 0

    asyncio.run(scenario())


def test_an_upstream_that_dies_before_its_headers_after_a_comment_gives_an_error_event() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        die(request)
        return web.Response()

    async def scenario() -> None:
        async with world(answer, config=GatewayConfig(port=0, keepalive_seconds=0.02)) as here:
            reply = await here.chat(stream=True)
            assert (await reply.content.readuntil(b"\n\n")).startswith(b":")
            here.server.let_go.set()
            events = [part for part in (await reply.read()).split(b"\n\n") if part and part[:1] != b":"]
            assert len(events) == 1
            assert json.loads(events[0].removeprefix(b"data: "))["error"]["code"] == "upstream_lost"

    asyncio.run(scenario())


def test_an_error_of_llama_server_after_a_comment_becomes_an_event() -> None:
    async def answer(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        error = {"code": 400, "message": "too long", "type": "exceed_context_size_error"}
        return web.json_response({"error": error}, status=400)

    async def scenario() -> None:
        async with world(answer, config=GatewayConfig(port=0, keepalive_seconds=0.02)) as here:
            reply = await here.chat(stream=True)
            assert (await reply.content.readuntil(b"\n\n")).startswith(b":")
            here.server.let_go.set()
            events = [part for part in (await reply.read()).split(b"\n\n") if part and part[:1] != b":"]
            error = json.loads(events[0].removeprefix(b"data: "))["error"]
            assert (error["message"], error["type"]) == ("too long", "exceed_context_size_error")
            assert here.upstream.broke == []

    asyncio.run(scenario())


def test_a_client_that_hangs_up_ends_the_generation_fifty_times() -> None:
    async def forever(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("a"))
        await server.let_go.wait()
        return response

    async def silent(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        return web.Response()

    async def turn(here: World, number: int) -> None:
        stream, read = ((True, True), (True, False), (False, False))[number % 3]
        here.server.answer = forever if read else silent
        reader, writer = await asyncio.open_connection("127.0.0.1", here.port)
        writer.write(raw_post(here.port, {"stream": stream}))
        await here.server.until(lambda: here.server.active == 1)
        if read:
            await reader.readuntil(b"data: ")
        writer.close()
        await here.server.until(lambda: here.server.cancelled == number + 1)
        await writer.wait_closed()

    async def scenario() -> None:
        async with world(forever) as here:
            for number in range(10):
                await turn(here, number)
            await here.until_idle()
            before = open_files()
            for number in range(10, 50):
                await turn(here, number)
            await here.until_idle()
            assert here.server.active == 0
            assert open_files() <= before
            assert here.upstream.broke == []
            assert "gateway keep-alive" not in {task.get_name() for task in asyncio.all_tasks()}

    asyncio.run(scenario())
