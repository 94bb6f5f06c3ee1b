"""The `ollama` client of PyPI lists and shows models, chats, calls tools and understands our errors."""

import asyncio
import json
from collections.abc import Awaitable, Callable

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
Ask = Callable[[World, ollama.AsyncClient], Awaitable[None]]


def piece(**delta: object) -> bytes:
    return event({"id": "c", "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})


def end(reason: str = "stop") -> tuple[bytes, bytes, bytes]:
    last = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    return event(last), event({"id": "c", "choices": [], "usage": USAGE, "timings": TIMINGS}), DONE


def whole(**message: object) -> Answer:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    return says(200, {"id": "c", "choices": [choice], "usage": USAGE, "timings": TIMINGS})


def play(answer: Answer, ask: Ask, config: GatewayConfig | None = None) -> None:
    async def scenario() -> None:
        async with world(answer, config=config) as here:
            here.upstream.facts = FACTS
            client = ollama.AsyncClient(host=here.url, headers={"Authorization": f"Bearer {KEY}"})
            try:
                await ask(here, client)
            finally:
                await client._client.aclose()

    asyncio.run(scenario())


def asked(here: World) -> dict[str, object]:
    """The last body that llama-server got."""
    body = json.loads(here.server.seen[-1][3])
    assert isinstance(body, dict)
    return body


def test_it_lists_and_shows_the_model() -> None:
    async def ask(here: World, client: ollama.AsyncClient) -> None:
        [listed] = (await client.list()).models
        assert (listed.model, listed.size) == ("tiny", 5)
        assert listed.details is not None
        assert (listed.details.parameter_size, listed.details.quantization_level) == ("135.0M", "Q8_0")
        [running] = (await client.ps()).models
        assert (running.name, running.context_length) == ("tiny", 8192)
        shown = await client.show("whatever:latest")
        assert shown.capabilities == ["completion", "tools"]
        assert shown.modelinfo is not None and shown.modelinfo["llama.context_length"] == 8192
        assert not here.server.seen

    play(says(200, {}), ask, GatewayConfig(port=0, api_keys=(ApiKey(KEY),)))


def test_a_streamed_chat_thinks_speaks_and_ends_with_figures() -> None:
    async def ask(here: World, client: ollama.AsyncClient) -> None:
        parts = [
            part
            async for part in await client.chat(
                "tiny",
                HI,
                stream=True,
                think=True,
                options={"temperature": 0, "num_ctx": 99, "num_predict": 7},
            )
        ]
        assert "".join(part.message.thinking or "" for part in parts) == "hm"
        assert "".join(part.message.content or "" for part in parts) == "hello"
        last = parts[-1]
        assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]
        assert (last.done_reason, last.prompt_eval_count, last.eval_count) == ("length", 5, 2)
        assert (last.prompt_eval_duration, last.eval_duration) == (20_000_000, 40_000_000)
        sent = asked(here)
        assert (sent["temperature"], sent["max_tokens"]) == (0, 7)
        assert sent["chat_template_kwargs"] == {"enable_thinking": True} and "num_ctx" not in sent
        assert here.gateway.status.tokens == 2

    said = (piece(reasoning_content="hm"), piece(content="hello"), *end("length"))
    play(streams(*said), ask)


def test_three_turns_with_tools() -> None:
    """As in Ollama's documentation: call, results by the tool's name, answer."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        messages = json.loads(server.seen[-1][3])["messages"]
        results = [one for one in messages if one["role"] == "tool"]
        if len(results) == 2:
            return await whole(content=f"{len(messages)} messages")(server, request)
        number = len(results)
        function = {"name": "add", "arguments": json.dumps({"a": number})}
        call = {"id": f"c{number}", "type": "function", "function": function}
        return await whole(content="", tool_calls=[call])(server, request)

    def add(a: int) -> int:
        """Add.

        Args:
            a: a number
        """
        return a + 1

    async def ask(here: World, client: ollama.AsyncClient) -> None:
        messages: list[ollama.Message] = [ollama.Message(role="user", content="add")]
        for number in range(2):
            said = await client.chat("tiny", messages, tools=[add])
            assert said.message.tool_calls is not None
            [call] = said.message.tool_calls
            assert (call.function.name, dict(call.function.arguments)) == ("add", {"a": number})
            result = ollama.Message(role="tool", tool_name="add", content=str(add(number)))
            messages += [said.message, result]
        said = await client.chat("tiny", messages, tools=[add])
        assert (said.message.content, said.done_reason) == ("5 messages", "stop")
        sent = asked(here)["messages"]
        assert isinstance(sent, list)
        calls = [one["tool_calls"][0]["id"] for one in sent if "tool_calls" in one]
        assert (
            calls == [one["tool_call_id"] for one in sent if one["role"] == "tool"] and len(set(calls)) == 2
        )

    play(answer, ask)


def test_streamed_calls_come_whole() -> None:
    async def ask(here: World, client: ollama.AsyncClient) -> None:
        parts = [part async for part in await client.chat("tiny", HI, stream=True)]
        [call] = [call for part in parts for call in part.message.tool_calls or ()]
        assert (call.function.name, dict(call.function.arguments)) == ("f", {"a": 1})
        assert (parts[-1].done, parts[-1].done_reason) == (True, "stop")

    def call(arguments: str, **more: object) -> bytes:
        return piece(tool_calls=[{"index": 0, **more, "function": {"name": "f", "arguments": arguments}}])

    play(streams(call('{"a"', id="c"), call(": 1}"), *end("tool_calls")), ask)


def test_generate_with_an_image_a_schema_and_raw() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/v1/completions":
            body = {"choices": [{"text": "raw", "finish_reason": "stop"}], "usage": USAGE}
            return await says(200, body)(server, request)
        return await whole(content='{"a": 1}')(server, request)

    async def ask(here: World, client: ollama.AsyncClient) -> None:
        schema = {"type": "object"}
        said = await client.generate("tiny", "look", system="be brief", images=[b"\x89PNG"], format=schema)
        assert (said.response, said.done, said.eval_count) == ('{"a": 1}', True, 2)
        sent = asked(here)
        messages = sent["messages"]
        assert isinstance(messages, list) and messages[0]["content"] == "be brief"
        assert messages[1]["content"][1]["image_url"]["url"].startswith("data:image/png;base64,iVBORw")
        assert "json_schema" in str(sent["response_format"])
        assert (await client.generate("tiny", "[INST]", raw=True)).response == "raw"
        loaded = await client.generate("tiny", keep_alive="5m")
        assert (loaded.response, loaded.done_reason) == ("", "load")

    play(answer, ask)


def test_embeddings() -> None:
    answer = says(200, {"data": [{"embedding": [0.5, 1.0]}], "usage": {"prompt_tokens": 4}})

    async def ask(here: World, client: ollama.AsyncClient) -> None:
        embedded = await client.embed("tiny", ["a"])
        assert (embedded.embeddings, embedded.prompt_eval_count) == ([[0.5, 1.0]], 4)
        assert list((await client.embeddings("tiny", "a")).embedding) == [0.5, 1.0]
        assert asked(here)["input"] == "a"

    play(answer, ask)


def test_errors_have_ollamas_form_before_and_within_a_stream() -> None:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        await response.write(chunk("a"))
        die(request)
        return response

    async def ask(here: World, client: ollama.AsyncClient) -> None:
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

    play(answer, ask)


def test_a_wrong_key_is_an_error_that_it_shows() -> None:
    async def ask(here: World, client: ollama.AsyncClient) -> None:
        stranger = ollama.AsyncClient(host=here.url)
        with pytest.raises(ollama.ResponseError, match="this API needs a key") as caught:
            await stranger.chat("tiny", HI)
        assert caught.value.status_code == 401
        await stranger._client.aclose()

    play(says(200, {}), ask, GatewayConfig(port=0, api_keys=(ApiKey(KEY),)))


def test_a_base_url_with_v1_is_an_error_that_says_what_to_use() -> None:
    async def ask(here: World, client: ollama.AsyncClient) -> None:
        wrong = ollama.AsyncClient(host=f"{here.url}/v1")
        with pytest.raises(ollama.ResponseError, match=r"HOST:PORT` \(without `/v1`\)") as caught:
            await wrong.chat("tiny", HI)
        assert caught.value.status_code == 404
        response = await here.http.post(f"{here.url}/v1/api/chat", json={})
        assert response.headers["x-should-retry"] == "false"
        assert isinstance((await response.json())["error"], str), "Ollama's form, not OpenAI's"
        await wrong._client.aclose()

    play(says(200, {}), ask)


def test_a_silent_stream_is_kept_alive_by_lines_that_clients_skip() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        return await streams(piece(content="hello"), *end())(server, request)

    async def ask(here: World, client: ollama.AsyncClient) -> None:
        stream = await client.chat("tiny", HI, stream=True)
        text = ""
        async for part in stream:
            here.server.let_go.set()  # a first line is here, and llama-server has said nothing
            text += part.message.content or ""
        assert text == "hello"

    play(answer, ask, GatewayConfig(port=0, keepalive_seconds=0.01))


def test_programs_that_look_for_ollama_find_it() -> None:
    async def ask(here: World, _client: ollama.AsyncClient) -> None:
        async with httpx.AsyncClient(base_url=here.url) as http:
            assert (await http.head("/")).status_code == 200
            version = (await http.get("/api/version")).json()["version"]
            assert tuple(map(int, version.split("."))) >= (0, 6, 4), "VS Code asks for that"
            for path in ("/api/show", "/api/chat"):
                refused = await http.get(path)
                assert (refused.status_code, refused.json()) == (405, {"error": "use POST for this path"})
            page = {"Origin": "http://localhost:3000", "Content-Type": "text/plain"}
            assert (await http.post("/api/show", content="{}", headers=page)).status_code == 415

    play(says(200, {}), ask)


def test_several_models_are_found_by_name_with_or_without_a_tag() -> None:
    async def scenario() -> None:
        answers = {name: whole(content=f"from {name}") for name in ("a", "b:7b")}
        async with many_world(answers) as here:
            for model in here.models.values():
                model.granted.set()
            here.models["a"].state = ModelState.UNLOADED
            client = ollama.AsyncClient(host=here.gateway.url)
            assert [one.model for one in (await client.list()).models] == ["a", "b:7b"]
            assert [one.model for one in (await client.ps()).models] == ["b:7b"]
            for name, said in (("a:latest", "a"), ("a", "a"), ("b:7b", "b:7b"), ("a-alias:latest", "a")):
                answer = await client.chat(name, HI)
                assert (answer.message.content, answer.model) == (f"from {said}", said)
            with pytest.raises(ollama.ResponseError, match="`c:latest` is not served here") as caught:
                await client.show("c:latest")
            assert caught.value.status_code == 404
            await client._client.aclose()

    asyncio.run(scenario())
