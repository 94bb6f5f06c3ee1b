"""The `openai` client of PyPI lists models, chats, streams and understands our errors."""

import openai
import pytest
from aiohttp import web
from meshd.gateway.interface import ApiKey, GatewayConfig, Readiness
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    FakeServer,
    World,
    begin_stream,
    chunk,
    die,
    says,
    world,
)

KEY = "sk-0123456789"


def client(here: World, *, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{here.url}/v1", api_key=key, max_retries=0, timeout=20)


async def test_it_lists_models() -> None:
    async with world(says(200, {}), config=GatewayConfig(port=0, api_keys=(ApiKey(KEY),))) as here:
        async with client(here) as ai:
            assert [model.id async for model in ai.models.list()] == ["tiny"]
            assert (await ai.models.retrieve("tiny")).owned_by == "meshd"


async def test_comments_do_not_disturb_it_and_a_loss_raises_with_the_reason() -> None:
    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        await server.let_go.wait()
        response = await begin_stream(request)
        await response.write(chunk("a"))
        die(request)
        return response

    async with world(answer, config=GatewayConfig(port=0, keepalive_seconds=0.01)) as here:
        async with client(here) as ai:
            stream = await ai.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True
            )
            here.server.let_go.set()  # the headers are here, and so was a comment
            seen = []
            with pytest.raises(openai.APIError, match="llama-server exited"):
                async for part in stream:
                    seen.append(part.choices[0].delta.content)
            assert seen == ["a"]


async def test_it_understands_our_refusals() -> None:
    async with world(says(200, {}), config=GatewayConfig(port=0, api_keys=(ApiKey(KEY),))) as here:
        async with client(here, key="sk-wrong-key") as ai:
            with pytest.raises(openai.AuthenticationError):
                await ai.models.list()
        here.upstream.readiness = Readiness(ModelState.LOADING, "loading layer 3")
        async with client(here) as ai:
            with pytest.raises(openai.InternalServerError, match="loading layer 3") as caught:
                await ai.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}])
            assert caught.value.status_code == 503
            assert caught.value.code == "model_loading"
