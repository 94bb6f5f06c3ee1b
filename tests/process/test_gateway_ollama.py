"""The `ollama` client of PyPI lists and shows models, chats, calls tools and understands our errors."""

import contextlib
from collections.abc import AsyncIterator

import httpx
import ollama
import pytest
from aiohttp import web
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    DONE,
    Answer,
    FakeServer,
    World,
    begin_stream,
    chunk,
    die,
    event,
    many_world,
    says,
    streams,
    world,
)

KEY = "sk-0123456789"
HI = [{"role": "user", "content": "hi"}]
TIMINGS = {"prompt_n": 3, "prompt_ms": 20.0, "predicted_n": 2, "predicted_ms": 40.0}
USAGE = {"prompt_tokens": 5, "completion_tokens": 2}
FACTS = ServedFacts(
    context=8192,
    created=1_700_000_000,
    size=5,
    parameters=135_000_000,
    architecture="llama",
    quantization="Q8_0",
    capabilities=("completion", "tools"),
)


def piece(**delta: object) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def end(reason: str = "stop") -> tuple[bytes, bytes, bytes]:
    last = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return event(last), event({"id": "c", "choices": [], "usage": USAGE, "timings": TIMINGS}), DONE


def whole(**message: object) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return says(200, {"id": "c", "choices": [choice], "usage": USAGE, "timings": TIMINGS})


@contextlib.asynccontextmanager
async def with_client(
    answer: Answer, config: GatewayConfig | None = None
) -> AsyncIterator[tuple[World, ollama.AsyncClient]]:
    async with world(answer, config=config) as here:
        here.upstream.facts = FACTS
        async with ollama.AsyncClient(host=here.url, headers={"Authorization": f"Bearer {KEY}"}) as client:
            yield here, client


async def test_errors_have_ollamas_form_before_and_within_a_stream() -> None:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("a"))
        die(request)
        return response

    async with with_client(answer) as (here, client):
        seen: list[str | None] = []
        with pytest.raises(ollama.ResponseError, match="llama-server exited"):
            async for part in await client.chat("tiny", HI, stream=True):
                seen.append(part.message.content)
        assert seen == ["a"]
        with pytest.raises(ollama.ResponseError, match="role") as caught:
            await client.chat("tiny", [{"role": "bob", "content": "x"}])
        assert caught.value.status_code == 400
        with pytest.raises(ollama.ResponseError, match="meshd model") as caught:
            await client.pull("llama3")
        assert caught.value.status_code == 404
        here.upstream.readiness = Readiness(ModelState.LOADING, "reading `tiny`")
        assert (await client.ps()).models == []
        with pytest.raises(ollama.ResponseError, match="reading `tiny`") as caught:
            await client.list()
        assert caught.value.status_code == 503


async def test_a_wrong_key_is_an_error_that_it_shows() -> None:
    async with with_client(says(200, {}), GatewayConfig(port=0, api_keys=(ApiKey(KEY),))) as (here, _):
        async with ollama.AsyncClient(host=here.url) as stranger:
            with pytest.raises(ollama.ResponseError, match="this API needs a key") as caught:
                await stranger.chat("tiny", HI)
        assert caught.value.status_code == 401


async def test_a_base_url_with_v1_is_an_error_that_says_what_to_use() -> None:
    async with with_client(says(200, {})) as (here, _):
        async with ollama.AsyncClient(host=f"{here.url}/v1") as wrong:
            with pytest.raises(ollama.ResponseError, match=r"HOST:PORT` \(without `/v1`\)") as caught:
                await wrong.chat("tiny", HI)
        assert caught.value.status_code == 404
        response = await here.http.post(f"{here.url}/v1/api/chat", json={})
        assert response.headers["x-should-retry"] == "false"
        assert isinstance((await response.json())["error"], str), "Ollama's form, not OpenAI's"


async def test_a_silent_stream_is_kept_alive_by_lines_that_clients_skip() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        return await streams(piece(content="hello"), *end())(server, request)

    async with with_client(answer, GatewayConfig(port=0, keepalive_seconds=0.01)) as (here, client):
        stream = await client.chat("tiny", HI, stream=True)
        text = ""
        async for part in stream:
            here.server.let_go.set()  # a first line is here, and llama-server has said nothing
            text += part.message.content or ""
        assert text == "hello"


async def test_programs_that_look_for_ollama_find_it() -> None:
    async with with_client(says(200, {})) as (here, _):
        async with httpx.AsyncClient(base_url=here.url) as http:
            assert (await http.head("/")).status_code == 200
            version = (await http.get("/api/version")).json()["version"]
            assert tuple(map(int, version.split("."))) >= (0, 6, 4), "VS Code asks for that"
            for path in ("/api/show", "/api/chat"):
                refused = await http.get(path)
                assert (refused.status_code, refused.json()) == (405, {"error": "use POST for this path"})
            page = {"Origin": "http://localhost:3000", "Content-Type": "text/plain"}
            assert (await http.post("/api/show", content="{}", headers=page)).status_code == 415


async def test_several_models_are_found_by_name_with_or_without_a_tag() -> None:
    answers = {name: whole(content=f"from {name}") for name in ("a", "b:7b")}
    async with many_world(answers) as here:
        for model in here.models.values():
            model.granted.set()
        here.models["a"].state = ModelState.UNLOADED
        async with ollama.AsyncClient(host=here.gateway.url) as client:
            assert [one.model for one in (await client.list()).models] == ["a", "b:7b"]
            assert [one.model for one in (await client.ps()).models] == ["b:7b"]
            for name, said in (("a:latest", "a"), ("a", "a"), ("b:7b", "b:7b"), ("a-alias:latest", "a")):
                answer = await client.chat(name, HI)
                assert (answer.message.content, answer.model) == (f"from {said}", said)
            with pytest.raises(ollama.ResponseError, match="`c:latest` is not served here") as caught:
                await client.show("c:latest")
            assert caught.value.status_code == 404
