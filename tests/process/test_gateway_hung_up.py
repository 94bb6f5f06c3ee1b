"""A client that hangs up has had its prompt computed, and is charged for it."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from meshd.gateway.api_key import ApiKey, KeyLimits
from meshd.gateway.interface import GatewayConfig

from tests.process.gateway_fake import FakeServer, says
from tests.process.test_gateway_answers import COMPLETION
from tests.process.test_gateway_queue import AGENT, KEYS, ask, logged, until


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_pays_for_the_prompt(stream: bool, tmp_path: Path) -> None:
    """At once, before llama-server has told what it took; and after a restart that is not forgotten."""
    prompt = "a long text to read " * 500

    async def scenario() -> None:
        config = GatewayConfig(
            port=0, api_keys=(ApiKey(AGENT, "agent", KeyLimits(tokens_per_day=1000)), KEYS[1])
        )

        async def never(server: FakeServer, _request: web.BaseRequest) -> web.StreamResponse:
            await server.let_go.wait()
            return web.Response()

        async with logged(never, tmp_path, config) as here:
            body = {"messages": [{"role": "user", "content": prompt}], "stream": stream}
            url, headers = f"{here.url}/v1/chat/completions", {"x-api-key": AGENT}
            asking = asyncio.ensure_future(here.http.post(url, json=body, headers=headers))
            await here.server.until(lambda: here.server.active == 1)
            asking.cancel()
            await until(here, running=0, waiting=0)
            [used, _] = here.gateway.status.keys
            assert len(prompt) // 4 <= (used.tokens_today or 0) < len(prompt) // 2
            assert (await ask(here, AGENT))[0] == 429
        async with logged(says(200, COMPLETION), tmp_path, config) as here:
            assert (await ask(here, AGENT))[0] == 429

    asyncio.run(scenario())
