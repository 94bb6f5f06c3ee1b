"""The libraries of OpenAI and Anthropic before a gateway: answers, losses and errors in their dialects."""

import asyncio
import json
import threading
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest
from aiohttp import web
from meshd.gateway import server
from meshd.gateway.dialects.dialect import Translation
from meshd.gateway.dialects.template_fit import template_questions
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.gateway.request import UpstreamRequest, upstream_request
from meshd.model.status import ModelState

from tests.process.gateway_fake import HI, FakeServer, World, begin_stream, chunk, die, says, streams, world
from tests.process.test_gateway_continued import CONFIG
from tests.unit.gateway.dialects.llama_server import BEGIN, end, text, whole

KEY = "sk-0123456789"
ASKED: Any = HI["messages"]
TOO_LONG = {
    "code": 400,
    "message": "request (5000 tokens) exceeds the available context size (4096 tokens), try increasing it",
    "type": "exceed_context_size_error",
    "n_prompt_tokens": 5000,
    "n_ctx": 4096,
}
PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
BODY = {**HI, "input": "hi", "max_tokens": 9}

QUESTIONS = len(template_questions())  # that a template is asked


def of_openai(here: World, *, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=key, max_retries=0, timeout=20)


def of_anthropic(here: World, *, key: str = KEY) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=here.url, api_key=key, max_retries=0, timeout=20)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_prompt_that_is_too_long_is_named_in_each_dialect(path: str, stream: bool) -> None:
    async with world(says(400, {"error": TOO_LONG}), config=CONFIG) as here:
        async with here.http.post(here.url + path, json={**BODY, "stream": stream}) as answer:
            assert answer.status == 400 and answer.headers["x-should-retry"] == "false"
            error = (await answer.json())["error"]
        assert (
            "5000" in error["message"] and "4096" in error["message"] and "`--ctx-size`" in error["message"]
        )
        if path == "/v1/messages":
            assert error["type"] == "invalid_request_error"
            assert error["message"].startswith("prompt is too long: 5000 tokens > 4096 maximum")
        else:
            assert error["code"] == "context_length_exceeded"


async def test_a_base_url_with_v1_too_many_is_told_to_the_library_of_anthropic() -> None:
    async with world(says(200, {}), config=CONFIG) as here:
        async with anthropic.AsyncAnthropic(base_url=f"{here.url}/v1", api_key=KEY, max_retries=0) as client:
            with pytest.raises(anthropic.NotFoundError) as refused:
                await client.messages.create(model="tiny", max_tokens=9, messages=ASKED)
        body: Any = refused.value.body
        assert (body["type"], body["error"]["type"]) == ("error", "not_found_error")
        assert "use the base URL `http://HOST:PORT` (without `/v1`)" in body["error"]["message"]
        assert refused.value.response.headers["x-should-retry"] == "false"


async def test_errors_before_a_model_are_in_the_dialect_of_the_path() -> None:
    async with world(says(200, {}), config=GatewayConfig(port=0, api_keys=(ApiKey(KEY),))) as here:
        async with of_anthropic(here, key="sk-wrong") as client:
            with pytest.raises(anthropic.AuthenticationError) as refused:
                await client.messages.create(model="tiny", max_tokens=9, messages=ASKED)
        body: Any = refused.value.body
        assert body["type"] == "error" and body["error"]["type"] == "authentication_error"
        assert refused.value.response.headers["x-should-retry"] == "false"
        headers = {"x-api-key": KEY}
        async with here.http.get(f"{here.url}/v1/messages/batches", headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (404, "not_found_error")
        here.upstream.readiness = Readiness(ModelState.FAILED, "no memory")
        async with here.http.post(f"{here.url}/v1/messages", json=BODY, headers=headers) as answer:
            assert (answer.status, (await answer.json())["error"]["type"]) == (503, "api_error")
            assert answer.headers["x-should-retry"] == "false", "it will not be ready later"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("sent", "place"), [("\\ud800", "messages[0].content"), ("NaN", "")])
async def test_what_is_no_json_for_llama_server_is_the_client_s_fault(
    path: str, sent: str, place: str
) -> None:
    async with world(says(200, {}), config=CONFIG) as here:
        body = json.dumps(BODY).replace('"hi"', f'"a{sent}"' if place else sent)
        async with here.http.post(
            here.url + path, data=body, headers={"Content-Type": "application/json"}
        ) as answer:
            assert answer.status == 400
            assert place in (await answer.json())["error"]["message"]
        assert not here.server.seen


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_is_held_while_the_model_is_loaded(path: str) -> None:
    async with world(streams(BEGIN, text("So"), end()), config=CONFIG) as here:
        here.upstream.readiness = Readiness(ModelState.LOADING, "reading 43 %")
        async with here.http.post(here.url + path, json={**BODY, "stream": True}) as answer:
            assert answer.status == 200
            assert await answer.content.readuntil(b"\n\n") == b": reading 43 %\n\n"
            assert not here.server.seen
            here.upstream.readiness = Readiness(ModelState.READY, "")
            assert b"So" in await answer.read()


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_without_a_worker_ends_with_an_error_that_says_why(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("meshd.gateway.answer.BEGIN_SECONDS", 0.3)
    async with world(says(200, {}), config=CONFIG) as here:
        here.upstream.readiness = Readiness(ModelState.WAITING, "no worker is connected")
        async with here.http.post(here.url + path, json={**BODY, "stream": True}) as answer:
            assert answer.status == 200
            *_, last, nothing = (await answer.read()).split(b"\n\n")
        assert b"no worker is connected" in last and nothing == b""
        async with here.http.post(here.url + path, json=BODY) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
            assert answer.headers["x-should-retry"] == "false", "it waited already: libraries show the error"


HELD = {
    **dict.fromkeys(PATHS, whole("So")),
    "/v1/completions": {"choices": [{"text": "So"}]},
    "/api/chat": whole("So"),
    "/api/generate": whole("So"),
    "/v1/embeddings": {"data": [{"embedding": [0.5], "index": 0}]},
    "/api/embed": {"data": [{"embedding": [0.5], "index": 0}], "usage": {"prompt_tokens": 1}},
}


def unstreamed(path: str) -> dict[str, object]:
    """Return a body that asks for no stream; Ollama's are streamed unless they say so."""
    prompt = {} if path == "/v1/responses" else {"prompt": "hi"}
    return {**BODY, **prompt, "stream": False}


@pytest.mark.parametrize("path", HELD)
async def test_a_request_that_is_not_streamed_is_held_while_the_model_is_loaded(path: str) -> None:
    async def answers(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        templated = request.path == "/apply-template"
        return await says(200, {"prompt": ""} if templated else HELD[path])(server, request)

    async with world(answers, config=CONFIG) as here:
        here.upstream.readiness = Readiness(ModelState.LOADING, "reading 43 %")
        asked = asyncio.ensure_future(here.http.post(here.url + path, json=unstreamed(path)))
        while not here.gateway.status.requests:
            async with here.http.get(f"{here.url}/health") as health:
                assert health.status == 503
        assert not here.server.seen and not asked.done()
        here.upstream.readiness = Readiness(ModelState.READY, "")
        async with await asked as answer:
            assert answer.status == 200, await answer.text()
            assert await answer.json()


@pytest.mark.parametrize("path", HELD)
async def test_a_load_that_takes_too_long_is_told_in_the_dialect(path: str) -> None:
    async with world(says(200, {}), config=replace(CONFIG, continue_seconds=0.3)) as here:
        here.upstream.readiness = Readiness(ModelState.LOADING, "reading 43 %", retry_after=7)
        async with here.http.post(here.url + path, json=unstreamed(path)) as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "7")
            error = (await answer.json())["error"]
        assert "reading 43 %" in (error if path.startswith("/api/") else error["message"])
        assert path != "/v1/messages" or error["type"] == "api_error"
        assert not here.server.seen


@pytest.mark.parametrize("path", ["/tokenize", "/v1/messages/count_tokens"])
async def test_what_computes_nothing_is_not_held(path: str) -> None:
    async with world(says(200, {}), config=CONFIG) as here:
        here.upstream.readiness = Readiness(ModelState.LOADING, "reading 43 %")
        async with here.http.post(here.url + path, json={**BODY, "content": "a"}) as answer:
            assert answer.status == 503


async def test_a_template_is_asked_once_and_gets_what_it_takes() -> None:
    """One that refuses a second system message, as Qwen3.5's does."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(server.seen[-1][-1])
        if request.path != "/apply-template":
            return await says(200, whole("So"))(server, request)
        if any(one["role"] == "system" for one in asked["messages"][1:]):
            error = {
                "code": 500,
                "message": "Jinja Exception: System message must be first",
                "type": "server_error",
            }
            return await says(500, {"error": error})(server, request)
        return await says(200, {"prompt": json.dumps(asked)})(server, request)

    async with world(answer, config=CONFIG) as here:
        messages = [{"role": role, "content": role} for role in ("system", "developer", "user", "system")]
        for _ in range(2):
            assert (await here.chat(messages=messages)).status == 200
        assert [path for _, path, *_ in here.server.seen].count("/apply-template") == QUESTIONS
        for heard in here.server.asked():
            first = {"role": "system", "content": "system\n\ndeveloper\n\nsystem"}
            assert heard["messages"] == [first, {"role": "user", "content": "user"}]


async def test_a_template_without_tools_is_told_of() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(server.seen[-1][-1])
        if request.path != "/apply-template":
            return await says(200, whole("So"))(server, request)
        told = [f"{one['role']}: {one['content']}" for one in asked["messages"]]
        return await says(200, {"prompt": "\n".join(told)})(server, request)

    async with world(answer, config=CONFIG) as here:
        tools = [{"type": "function", "function": {"name": "ls"}}]
        reply = await here.chat(tools=tools)
        assert reply.status == 200 and "`ls`" in reply.headers["X-Meshd-Left-Out"]
        for choice in ("required", {"type": "function", "function": {"name": "ls"}}):
            refused = await here.chat(tools=tools, tool_choice=choice)
            assert refused.status == 400
            error = (await refused.json())["error"]
            assert error["code"] == "tools_not_offered" and "`ls`" in error["message"]


async def test_a_llama_server_that_dies_under_the_questions_is_asked_later() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/apply-template" and len(server.seen) <= QUESTIONS:
            die(request)
        if request.path == "/apply-template":
            return await says(200, {"prompt": server.seen[-1][-1].decode()})(server, request)
        return await says(200, whole("So"))(server, request)

    async with world(answer, config=CONFIG) as here:
        for _ in range(3):
            tools = [{"type": "function", "function": {"name": "ls"}}]
            assert (await here.chat(tools=tools)).status == 200
        assert [path for _, path, *_ in here.server.seen].count("/apply-template") == 2 * QUESTIONS


async def test_a_template_that_is_answered_with_no_json_takes_what_all_take() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/apply-template":
            return web.Response(text="oops")
        return await says(200, whole("So"))(server, request)

    async with world(answer, config=CONFIG) as here:
        messages = [{"role": role, "content": role} for role in ("system", "user", "system")]
        assert (await here.chat(messages=messages)).status == 200
        [heard] = here.server.asked()
        assert [one["role"] for one in heard["messages"]] == ["system", "user"]


@pytest.mark.parametrize(("letters", "at_once"), [(1, True), (40_000, False)])
async def test_a_large_body_is_judged_beside_the_loop(
    monkeypatch: pytest.MonkeyPatch, letters: int, at_once: bool
) -> None:
    threads: list[int] = []

    def noted(translation: Translation) -> UpstreamRequest:
        threads.append(threading.get_ident())
        return upstream_request(translation)

    monkeypatch.setattr(server, "upstream_request", noted)
    async with world(says(200, {})) as here:
        asked = {"input": "x" * letters}
        async with here.http.post(f"{here.url}/v1/embeddings", json=asked) as reply:
            assert reply.status == 200
    assert [one == threading.get_ident() for one in threads] == [at_once]


async def test_comments_do_not_disturb_it_and_a_loss_raises_with_the_reason() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        response = await begin_stream(request)
        await response.write(chunk("a"))
        die(request)
        return response

    async with world(answer, config=GatewayConfig(port=0, keepalive_seconds=0.01)) as here:
        async with of_openai(here) as ai:
            stream = await ai.chat.completions.create(model="tiny", messages=ASKED, stream=True)
            here.server.let_go.set()  # the headers are here, and so was a comment
            seen = []
            with pytest.raises(openai.APIError, match="llama-server exited"):
                async for part in stream:
                    seen.append(part.choices[0].delta.content)
            assert seen == ["a"]


async def test_it_understands_our_refusals() -> None:
    async with world(says(200, {}), config=GatewayConfig(port=0, api_keys=(ApiKey(KEY),))) as here:
        async with of_openai(here, key="sk-wrong-key") as ai:
            with pytest.raises(openai.AuthenticationError):
                await ai.models.list()
        here.upstream.readiness = Readiness(ModelState.LOADING, "loading layer 3")
        async with of_openai(here) as ai:
            with pytest.raises(openai.InternalServerError, match="loading layer 3") as caught:
                await ai.chat.completions.create(model="tiny", messages=ASKED)
            assert caught.value.status_code == 503
            assert caught.value.code == "model_loading"
