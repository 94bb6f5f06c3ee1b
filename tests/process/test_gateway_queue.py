"""Requests wait in the gateway for their turn: fair between keys, bounded, with an end, and logged."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from meshd.gateway.access import ApiPort
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits, Readiness
from meshd.gateway.request import OneModel
from meshd.gateway.server import Gateway
from meshd.gateway.turns import AnswerLog, Turn
from meshd.gateway.upstream import HELD_ANSWER_BYTES
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    DEADLINE,
    DONE,
    HI,
    FakeServer,
    FakeUpstream,
    OneByOne,
    World,
    begin_stream,
    chunk,
    die,
    last_chunk,
    listening,
    says,
    serving,
    when,
    world,
)
from tests.process.test_gateway_answers import COMPLETION
from tests.process.test_gateway_continued import LOADING, READY

AGENT, CHAT = "sk-agent-12345", "sk-chat-123456"
KEYS = (ApiKey(AGENT, "agent"), ApiKey(CHAT, "chat"))
NOON = 20000 * 86400 + 43200.0


async def ask(here: World, key: str, user: str = "", **extra: object) -> tuple[int, dict[str, object]]:
    headers = {"Authorization": f"Bearer {key}"}
    body = {**HI, "user": user, **extra}
    async with here.http.post(f"{here.url}/v1/chat/completions", json=body, headers=headers) as answer:
        said = await answer.json()
        return answer.status, {**said, "retry": answer.headers.get("Retry-After")}


async def until(here: World, *, running: int, waiting: int) -> None:
    of = here.gateway
    await when(here, lambda: (of.status.running, of.status.waiting) == (running, waiting))


@contextlib.asynccontextmanager
async def logged(answer: object, folder: Path, config: GatewayConfig) -> AsyncIterator[World]:
    """As `world`, with a log of answers in `folder`, at noon."""
    path = folder / "s"
    server, upstream = FakeServer(answer), FakeUpstream(path)  # type: ignore[arg-type]
    log = AnswerLog(folder / "answers.jsonl")
    gateway = Gateway(await ApiPort.claim(config), OneModel(upstream), log=log, wall=lambda: NOON)
    async with asyncio.timeout(DEADLINE), listening(server, path), serving(gateway):
        async with aiohttp.ClientSession() as http:
            yield World(gateway, upstream, server, http)


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "answers.jsonl").read_text().splitlines()]


async def test_a_model_that_is_lost_is_told_before_the_place_in_the_queue() -> None:
    server = OneByOne(COMPLETION)
    config = GatewayConfig(port=0, keepalive_seconds=0.02, continue_seconds=5.0)
    async with world(server, config=config) as here:
        here.upstream.slots = 1
        first = asyncio.ensure_future(ask(here, AGENT, "first"))
        await until(here, running=1, waiting=0)
        second = await here.chat(stream=True, user="second")
        assert await second.content.readline() == b": waiting for a turn: next\n"
        here.upstream.readiness = Readiness(ModelState.LOADING, "worker anna is lost")
        while await second.content.readline() != b": worker anna is lost\n":
            pass
        here.upstream.readiness = Readiness(ModelState.READY, "")
        server.answer_one(2)
        assert (await first)[0] == 200
        await second.read()
        assert server.came == ["first", "second"]


async def test_a_stream_that_waits_is_told_its_place() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        response = await begin_stream(request)
        for piece in (chunk("hel"), chunk("lo"), last_chunk(2), DONE):
            await response.write(piece)
        return response

    async with world(answer, config=GatewayConfig(port=0, keepalive_seconds=0.02)) as here:
        here.upstream.slots = 1
        first = asyncio.ensure_future(here.chat(stream=True))
        await until(here, running=1, waiting=0)
        second = await here.chat(stream=True)
        third = await here.chat(stream=True)
        assert await second.content.readline() == b": waiting for a turn: next\n"
        assert await third.content.readline() == b": waiting for a turn: 1 before this one\n"
        assert len(here.server.seen) == 1
        here.server.let_go.set()
        for stream in (await first, second, third):
            assert (await stream.read()).endswith(DONE)


async def test_waiting_requests_end_when_the_gateway_stops() -> None:
    async with aiohttp.ClientSession() as http:
        async with world(OneByOne(COMPLETION)) as here:
            here.upstream.slots = 1
            there = replace(here, http=http)  # a session that outlives the gateway
            first = asyncio.ensure_future(ask(there, AGENT, "first"))
            await until(here, running=1, waiting=0)
            second = asyncio.ensure_future(ask(there, AGENT, "second"))
            await until(here, running=1, waiting=1)
        for status, said in await asyncio.gather(first, second):
            error = said["error"]
            assert status == 503 and isinstance(error, dict) and error["code"] == "stopping"


async def test_a_model_that_is_lost_before_the_turn_is_told_where_answers_do_not_wait() -> None:
    server = OneByOne(COMPLETION)
    async with world(server) as here:
        here.upstream.slots = 1
        first = asyncio.ensure_future(ask(here, AGENT, "first"))
        await until(here, running=1, waiting=0)
        second = asyncio.ensure_future(ask(here, AGENT, "second"))
        await until(here, running=1, waiting=1)
        here.upstream.readiness = Readiness(ModelState.LOADING, "worker anna is lost")
        server.answer_one()
        await first
        status, said = await second
        assert status == 503 and "worker anna is lost" in str(said["error"])
        assert server.came == ["first"]


async def test_two_requests_of_one_key_leave_room_for_one_of_another() -> None:
    server, config = OneByOne(COMPLETION), GatewayConfig(port=0, api_keys=KEYS, max_requests=3)
    async with world(server, config=config) as here:
        flood = [asyncio.ensure_future(ask(here, AGENT, "agent")) for _ in range(2)]
        await until(here, running=2, waiting=0)
        status, said = await ask(here, AGENT, "agent")
        error = said["error"]
        assert status == 503 and isinstance(error, dict) and error["code"] == "busy"
        mine = asyncio.ensure_future(ask(here, CHAT, "chat"))
        await until(here, running=3, waiting=0)
        server.answer_one(3)
        assert {status for status, _ in await asyncio.gather(mine, *flood)} == {200}


@pytest.mark.parametrize(
    ("limits", "status", "code", "kind"),
    [
        (KeyLimits(requests_per_minute=1), 429, "rate_limit_exceeded", "requests"),
        (KeyLimits(tokens_per_day=5), 429, "insufficient_quota", "insufficient_quota"),
        (KeyLimits(requests_per_minute=2, tokens_per_day=500, concurrent=1), 200, None, None),
    ],
)
async def test_limits_of_a_key(limits: KeyLimits, status: int, code: str | None, kind: str | None) -> None:
    keys = (ApiKey(AGENT, "agent", limits), KEYS[1])
    async with world(says(200, COMPLETION), config=GatewayConfig(port=0, api_keys=keys)) as here:
        assert (await ask(here, AGENT))[0] == 200
        got, said = await ask(here, AGENT)
        assert got == status
        if code is not None:
            error = said["error"]
            assert isinstance(error, dict) and (error["code"], error["type"]) == (code, kind)
            assert "`agent`" in str(error["message"]) and AGENT not in str(said)
            assert said["retry"]
        assert (await ask(here, CHAT))[0] == 200


async def test_each_answer_is_a_line_of_the_log_without_its_text_or_key(tmp_path: Path) -> None:
    config = GatewayConfig(port=0, api_keys=KEYS)
    async with logged(says(200, COMPLETION), tmp_path, config) as here:
        await ask(here, AGENT, "agent")
        async with here.http.post(
            f"{here.url}/tokenize", json={"content": "a"}, headers={"x-api-key": CHAT}
        ) as answer:
            assert answer.status == 200
        here.server.answer = says(400, {"error": {"code": 400, "message": "no", "type": "x"}})
        await ask(here, CHAT, "chat")
        status = here.gateway.status
    first, second = lines(tmp_path)
    assert (first["key"], first["model"], first["path"]) == ("agent", "tiny", "/v1/chat/completions")
    assert first["time"] == "2024-10-04T12:00:00.000Z"
    assert (first["prompt_tokens"], first["generated_tokens"], first["status"]) == (3, 5, 200)
    assert (second["key"], second["prompt_tokens"], second["status"]) == ("chat", None, 400)
    text = (tmp_path / "answers.jsonl").read_text()
    assert AGENT not in text and "hello" not in text
    used = [(key.name, key.answers, key.prompt_tokens, key.generated_tokens) for key in status.keys]
    assert used == [("agent", 1, 3, 5), ("chat", 1, 0, 0)]
    assert AGENT not in repr(status)


def test_a_stream_is_logged_as_it_ended(tmp_path: Path) -> None:
    """The client asked for no usage and gets none; a client that hangs up is 499, its tokens count; one that
    breaks off has the error's status."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("hel"))
        user = json.loads(server.seen[-1][3])["user"]
        if user == "gone":
            await server.let_go.wait()
        if user == "lost":
            die(request)
            return response
        await response.write(last_chunk(2) + DONE)
        if user == "done":
            await server.let_go.wait()
        return response

    async def scenario() -> None:
        async with logged(answer, tmp_path, GatewayConfig(port=0)) as here:
            whole = await here.chat(stream=True, user="stays")
            assert await whole.read() == chunk("hel") + last_chunk(2) + DONE
            done = await here.chat(stream=True, user="done")
            await done.content.readuntil(DONE)
            done.close()  # as OpenAI's client does
            await until(here, running=0, waiting=0)
            gone = await here.chat(stream=True, user="gone")
            await gone.content.readline()
            gone.close()
            await until(here, running=0, waiting=0)
            lost = await here.chat(stream=True, user="lost")
            assert b'"upstream_lost"' in await lost.read()

    asyncio.run(scenario())
    first, done, second, lost = lines(tmp_path)
    for whole in (first, done):
        assert (whole["status"], whole["prompt_tokens"], whole["generated_tokens"]) == (200, 3, 2)
    assert (second["status"], second["generated_tokens"]) == (499, 1)
    assert second["prompt_estimated"] and second["prompt_tokens"] in range(10, 40)
    assert not first["prompt_estimated"]
    assert (lost["status"], lost["generated_tokens"]) == (502, 1)
    assert first["key"] is None


@pytest.mark.parametrize("stream", [False, True])
async def test_the_wait_for_a_load_after_a_loss_counts_as_no_use(
    stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Test the log; tests/unit/gateway/test_turns.py has what it means for who is next."""
    waits: list[Turn] = []
    for_model = Turn.for_model

    def noted(turn: Turn) -> AbstractAsyncContextManager[None]:
        waits.append(turn)
        return for_model(turn)

    monkeypatch.setattr(Turn, "for_model", noted)

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        begun = await begin_stream(request) if stream else None
        if len(server.seen) == 1:
            here.upstream.readiness = LOADING
            die(request)
        if begun is None:
            return web.json_response(COMPLETION)
        await begun.write(last_chunk(1) + DONE)
        return begun

    async with world(answer, config=GatewayConfig(port=0, continue_seconds=20.0)) as here:
        asking = asyncio.ensure_future(here.chat(stream=stream))
        await here.server.until(lambda: len(here.server.seen) == 1)
        before = len(waits)
        await when(here, lambda: here.upstream.readiness is LOADING and len(waits) > before)
        here.upstream.readiness = READY
        async with await asking as reply:
            assert reply.status == 200 and await reply.read()
        assert len(here.server.seen) == 2


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
async def test_an_answer_that_is_too_long_to_be_held_is_charged(path: str) -> None:
    """Test the charge; tests/unit/gateway/test_events.py has what each form of an answer tells."""
    padding = {"content": "x" * (HELD_ANSWER_BYTES + 1)}
    native = {**padding, "tokens_predicted": 5, "tokens_evaluated": 250}
    openai = {**padding, "usage": {"prompt_tokens": 250, "completion_tokens": 5}}
    keys = (ApiKey(AGENT, "agent", KeyLimits(tokens_per_day=1_000_000)),)
    answer = says(200, native if path == "/completion" else openai)
    async with world(answer, config=GatewayConfig(port=0, api_keys=keys)) as here:
        headers = {"Authorization": f"Bearer {AGENT}"}
        async with here.http.post(here.url + path, json={"prompt": "a"}, headers=headers) as reply:
            assert reply.status == 200 and await reply.read()
        [used] = here.gateway.status.keys
        assert used.tokens_today == 255
