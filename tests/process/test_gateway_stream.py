"""Streams through the gateway: unbuffered, unchanged, kept alive, cancelled, and ended with a reason."""

import asyncio
import hashlib
import json

import aiohttp
import pytest
from aiohttp import ClientResponse, web
from meshd.gateway.events import EVENT_BYTES
from meshd.gateway.interface import AnswerTimings, GatewayConfig, Readiness
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    DONE,
    HI,
    Answer,
    FakeServer,
    World,
    begin_stream,
    chunk,
    die,
    last_chunk,
    open_files,
    pours,
    raw_post,
    says,
    small_window,
    streams,
    world,
)

TOLD = {"message": "worker garage is lost: no link for 20 s", "param": None, "code": "upstream_lost"}


async def test_each_event_is_passed_on_before_the_next_is_made() -> None:
    """Lockstep: the fake makes an event only after the client has read the one before."""
    read = asyncio.Semaphore(0)

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        for number in range(20):
            await response.write(chunk(str(number)))
            await read.acquire()
        await response.write(DONE)
        return response

    async with world(answer) as here:
        reply = await here.chat(stream=True)
        for number in range(20):
            assert await reply.content.readuntil(b"\n\n") == chunk(str(number))
            read.release()
        assert await reply.read() == DONE
        assert here.upstream.told == [(number, True) for number in range(1, 21)]


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


TIMED = b'data: {"timings":{"prompt_n":80,"prompt_ms":40.0,"predicted_n":2,"predicted_ms":10.0}}\n\n'


def test_an_answer_that_was_made_alone_tells_how_fast_the_model_is() -> None:
    async def scenario(*, beside: bool) -> list[tuple[AnswerTimings, bool]]:
        started = asyncio.Event()

        async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
            response = await begin_stream(request)
            await response.write(chunk("a"))
            if beside:
                await started.wait()
            await response.write(TIMED)
            return response

        async with world(answer) as here:
            first = await here.chat(stream=True)
            await first.content.readuntil(b"\n\n")
            second = await here.chat(stream=True) if beside else None
            if second is not None:
                await second.content.readuntil(b"\n\n")
            started.set()
            await first.read()
            if second is not None:
                await second.read()
            return here.upstream.answers

    timings = AnswerTimings(80, 0.04, 2, 0.01)
    assert asyncio.run(scenario(beside=False)) == [(timings, True)]
    told = asyncio.run(scenario(beside=True))
    assert told[0] == (timings, False) and len(told) == 2


async def test_a_whole_answer_tells_as_well() -> None:
    body = {"usage": {"completion_tokens": 2}, "timings": json.loads(TIMED[5:])["timings"]}
    async with world(says(200, body)) as here:
        await (await here.chat(stream=False)).read()
        assert here.upstream.answers == [(AnswerTimings(80, 0.04, 2, 0.01), True)]


QUICK = GatewayConfig(port=0, keepalive_seconds=0.02)


def is_keep_alive(event: bytes) -> bool:
    return event == b": keep-alive\n\n"


def is_comment(event: bytes) -> bool:
    return event.startswith(b":") and event.endswith(b"\n\n")


async def next_but_comments(reply: ClientResponse) -> bytes:
    """The next event that is not a comment."""
    while True:
        event = await reply.content.readuntil(b"\n\n")
        if not is_comment(event):
            return event


def in_steps(*steps: bytes) -> Answer:
    """Waits for `let_go` before each step, and dies instead of a step that is empty."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response: web.StreamResponse | None = None
        for step in steps:
            await server.let_go.wait()
            server.let_go.clear()
            if not step:
                die(request)
                return web.Response()
            # llama-server sends its headers with the first token
            response = response or await begin_stream(request)
            await response.write(step)
            async with server.changed:
                server.written += len(step)
                server.changed.notify_all()
        return response or web.Response()

    return answer


async def test_a_silent_path_is_told_in_streams_refused_to_others_and_over_once_it_is_back() -> None:
    why = "no connection to worker\nanna for 10 s"
    told = b": no connection to worker anna for 10 s\n\n"

    config = GatewayConfig(port=0, keepalive_seconds=1.5)
    async with world(in_steps(chunk("a"), b"data: {", b"}\n\n"), config=config) as here:
        reply = await here.chat(stream=True)
        here.server.let_go.set()
        assert await next_but_comments(reply) == chunk("a")
        ready = here.upstream.readiness
        here.upstream.readiness = Readiness(ModelState.DEGRADED, why)
        for _ in range(2):
            assert await reply.content.readuntil(b"\n\n") == told
        refused = await here.chat()
        assert refused.status == 503
        assert refused.headers["Retry-After"]
        assert (await refused.json())["error"]["code"] == "model_degraded"
        async with here.http.get(f"{here.url}/health") as health:
            said = await health.json()
            assert (health.status, said["status"], said["reason"]) == (503, "degraded", why)
        assert len(here.server.seen) == 1, "nothing waits in line behind the first"
        here.upstream.readiness = ready
        comments = [await reply.content.readuntil(b"\n\n")]
        while comments[-1] == told and len(comments) < 5:  # sent before it was back
            comments.append(await reply.content.readuntil(b"\n\n"))
        assert is_keep_alive(comments[-1])
        here.server.let_go.set()
        await here.server.until_written(len(chunk("a")) + 1)
        here.upstream.readiness = Readiness(ModelState.DEGRADED, why)
        here.server.let_go.set()
        assert await next_but_comments(reply) == b"data: {}\n\n", "no comment within an event"
        reply.close()


async def test_silence_is_filled_with_comments_before_the_first_byte_between_and_never_within_events() -> (
    None
):
    async with world(in_steps(chunk("a"), b"data: {", b"}\n\n"), config=QUICK) as here:
        reply = await here.chat(stream=True)
        for _ in range(3):
            assert is_comment(await reply.content.readuntil(b"\n\n"))
        here.server.let_go.set()
        assert await next_but_comments(reply) == chunk("a")
        here.server.let_go.set()
        await here.server.until_written(len(chunk("a")) + 1)
        for _ in range(3):
            assert is_comment(await reply.content.readuntil(b"\n\n"))
        here.server.let_go.set()
        assert await next_but_comments(reply) == b"data: {}\n\n"
        reply.close()


LONG = b"data: " + b"x" * (2 * EVENT_BYTES)


async def test_an_event_too_long_to_hold_is_not_interrupted_by_comments() -> None:
    async with world(in_steps(LONG, b"y\n\n", chunk("b")), config=QUICK) as here:
        reply = await here.chat(stream=True)
        here.server.let_go.set()
        head = await reply.content.readuntil(b"data: ")
        begun = await reply.content.readexactly(EVENT_BYTES)
        assert begun == b"x" * EVENT_BYTES
        assert is_comment(head.removesuffix(b"data: ") or b":\n\n")
        # as many silences as a comment would need go by while another stream gets its comments
        other = await here.chat(stream=True)
        for _ in range(4):
            assert is_comment(await other.content.readuntil(b"\n\n"))
        other.close()
        await here.server.until(lambda: here.server.cancelled == 1)
        here.server.let_go.set()
        rest = await reply.content.readuntil(b"\n\n")
        assert set(rest) == set(b"xy\n")
        assert is_comment(await reply.content.readuntil(b"\n\n"))
        reply.close()


async def test_an_upstream_that_dies_within_a_long_event_ends_that_event_first() -> None:
    async with world(in_steps(LONG, b"")) as here:
        asked = asyncio.ensure_future(here.chat(stream=True))
        here.server.let_go.set()
        reply = await asked
        await reply.content.readexactly(len(b"data: ") + EVENT_BYTES)
        here.server.let_go.set()
        begun, error, nothing = (await reply.read()).split(b"\n\n")
        assert set(begun) == set(b"x")
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "upstream_lost"
        assert nothing == b""


async def test_an_upstream_that_dies_in_mid_stream_ends_it_with_an_error_event() -> None:
    async with world(in_steps(chunk("a"), chunk("b"), b'data: {"half', b"")) as here:
        asked = asyncio.ensure_future(here.chat(stream=True))
        here.server.let_go.set()
        reply = await asked
        for text in ("a", "b"):
            assert await reply.content.readuntil(b"\n\n") == chunk(text)
            here.server.let_go.set()
        await here.server.until_written(len(chunk("a") + chunk("b")) + 1)
        here.server.let_go.set()
        event, nothing = (await reply.read()).split(b"\n\n")
        assert nothing == b""  # and no [DONE]
        error = json.loads(event.removeprefix(b"data: "))["error"]
        assert (error["type"], error["code"]) == ("upstream_error", "upstream_lost")
        assert "llama-server" in error["message"]
        assert len(here.upstream.broke) == 1
        assert (here.gateway.status.tokens, here.upstream.under_way) == (2, 0)


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("/v1/chat/completions", ("error", "message")),
        ("/v1/responses", ("message",)),
        ("/v1/messages", ("error", "message")),
    ],
)
async def test_a_worker_lost_in_mid_stream_is_told_in_the_words_of_the_head(
    path: str, place: tuple[str, ...]
) -> None:
    """llama-server ends without a word; its head knows why."""

    async with world(in_steps(chunk("a"), b"")) as here:
        here.upstream.knows = str(TOLD["message"])
        body = {**HI, "input": "hi", "stream": True, "max_tokens": 9}
        here.server.let_go.set()
        async with here.http.post(here.url + path, json=body) as reply:
            assert reply.status == 200
            assert b'"a"' in await reply.content.readuntil(b'"a"')
            here.server.let_go.set()
            *_, last, nothing = (await reply.read()).split(b"\n\n")
        told = json.loads(last.partition(b"data: ")[2])
        for name in place:
            told = told[name]
        assert told == TOLD["message"]
        assert nothing == b""
        assert len(here.upstream.broke) == 1


REFUSED = {"code": 400, "message": "too long", "type": "invalid_request_error"}


@pytest.mark.parametrize(
    ("dies", "expected"),
    [
        (True, {**TOLD, "type": "upstream_error"}),
        (False, {**REFUSED, "param": None, "code": "invalid_request"}),
    ],
)
async def test_after_a_comment_a_loss_or_an_error_becomes_an_event(
    dies: bool, expected: dict[str, object]
) -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        if dies:
            die(request)
        return web.json_response({"error": REFUSED}, status=400)

    async with world(answer, config=QUICK) as here:
        here.upstream.knows = str(TOLD["message"])
        reply = await here.chat(stream=True)
        assert (await reply.content.readuntil(b"\n\n")).startswith(b":")
        here.server.let_go.set()
        [event] = [part for part in (await reply.read()).split(b"\n\n") if part and part[:1] != b":"]
        assert json.loads(event.removeprefix(b"data: "))["error"] == expected
        assert len(here.upstream.broke) == dies


async def test_a_client_that_hangs_up_ends_the_generation_fifty_times() -> None:
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


STREAM_BYTES = 48 << 20
# kernel buffers of both sockets (4 MiB and less) and about 0.5 MiB of the gateway's own
MOST_HELD = 12 << 20


async def test_a_client_that_does_not_read_holds_the_upstream_up() -> None:
    """Test that the gateway holds no more than what lies in some buffer of what the fake could write."""
    piece = chunk("x" * 8000)

    async with world(pours(piece, least=STREAM_BYTES)) as here:
        connector = aiohttp.TCPConnector(socket_factory=small_window)
        async with aiohttp.ClientSession(connector=connector) as http:
            async with http.post(f"{here.url}/completion", json={"stream": True}) as reply:
                assert await here.server.held_up() < MOST_HELD
                received = hashlib.sha256()
                async for data in reply.content.iter_any():
                    received.update(data)
        assert here.server.written >= STREAM_BYTES
        sent = hashlib.sha256(piece * (here.server.written // len(piece)))
        assert received.digest() == sent.digest()
