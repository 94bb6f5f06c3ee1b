"""Prompts of a list, and choices, take turns as requests do, and all their tokens count."""

import asyncio
import json
import threading
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from meshd.gateway import server
from meshd.gateway.answer_parts import GROUP_INPUTS, Parts, joined_answer
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits

from tests.process.gateway_fake import DEADLINE, FakeServer, OneByOne, World, says, when, world

SECRETS = {"anna": "anna-0123456789abcdef0123456789abcdef", "ben": "ben-0123456789abcdef0123456789abcdef"}
CONFIG = GatewayConfig(port=0, api_keys=tuple(ApiKey(secret, name) for name, secret in SECRETS.items()))


class Completing(OneByOne):
    """Answers a completion when it is let go, and notes the prompts in the order in which they came."""

    def __init__(self) -> None:
        super().__init__(field="prompt")
        self.refuses = ""

    def answer(self, asked: dict[str, Any]) -> web.Response:
        """Answer as OneByOne does."""
        if asked["prompt"] == self.refuses:
            return web.json_response({"error": {"code": 400, "message": "no", "type": "x"}}, status=400)
        usage = {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
        return web.json_response({"choices": [{"index": 0, "text": f"re {asked['prompt']}"}], "usage": usage})


@asynccontextmanager
async def one_slot(config: GatewayConfig = CONFIG) -> AsyncIterator[tuple[World, Completing]]:
    answer = Completing()
    async with world(answer, config=config) as here:
        here.upstream.slots = 1
        yield here, answer


async def complete(here: World, name: str, **asked: object) -> tuple[int, object]:
    headers = {"Authorization": f"Bearer {SECRETS[name]}"}
    async with here.http.post(f"{here.url}/v1/completions", json=asked, headers=headers) as reply:
        return reply.status, await reply.json()


async def until_came(here: World, count: int) -> None:
    async with here.server.changed:
        await here.server.changed.wait_for(lambda: len(here.server.seen) >= count)


async def test_another_key_waits_for_one_prompt_and_not_for_all() -> None:
    async with one_slot() as (here, answer):
        many = asyncio.ensure_future(complete(here, "anna", prompt=["a0", "a1", "a2", "a3"]))
        await until_came(here, 1)
        other = asyncio.ensure_future(complete(here, "ben", prompt="b"))
        await when(here, lambda: here.gateway.status.waiting >= 1)
        answer.answer_one(5)
        status, told = await other
        assert status == 200 and answer.came[:2] == ["a0", "b"]
        status, told = await many
        assert status == 200 and isinstance(told, dict)
        assert [(one["index"], one["text"]) for one in told["choices"]] == [
            (at, f"re a{at}") for at in range(4)
        ]
        assert told["usage"] == {"prompt_tokens": 8, "completion_tokens": 20, "total_tokens": 28}
        anna, ben = here.gateway.status.keys
        assert (anna.prompt_tokens, anna.generated_tokens) == (8, 20)
        assert (ben.prompt_tokens, ben.generated_tokens) == (2, 5)


async def test_choices_count_each() -> None:
    async with one_slot() as (here, answer):
        answer.answer_one(3)
        _, told = await complete(here, "anna", prompt="a", n=3)
        assert isinstance(told, dict)
        assert [one["index"] for one in told["choices"]] == [0, 1, 2]
        assert told["usage"] == {"prompt_tokens": 2, "completion_tokens": 15, "total_tokens": 17}
        assert here.gateway.status.keys[0].generated_tokens == 15
        seeds = [json.loads(body).get("n") for *_, body in here.server.seen]
        assert seeds == [None] * 3


async def test_one_that_is_refused_ends_the_request() -> None:
    async with one_slot() as (here, answer):
        answer.refuses = "a1"
        answer.answer_one(9)
        status, told = await complete(here, "anna", prompt=["a0", "a1", "a2"])
        assert status == 400 and isinstance(told, dict) and told["error"]["message"] == "no"
        assert answer.came == ["a0", "a1"]
        assert here.gateway.status.running == here.gateway.status.waiting == 0


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]]])
async def test_several_prompts_cannot_be_streamed(prompt: object) -> None:
    async with one_slot() as (here, answer):
        status, told = await complete(here, "anna", prompt=prompt, stream=True)
        assert status == 400 and isinstance(told, dict) and told["error"]["param"] == "prompt"
        assert not answer.came


def test_what_was_cached_is_told_to_nobody_where_there_are_several_keys() -> None:
    usage = {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 7}}

    async def scenario(config: GatewayConfig) -> int:
        async with world(says(200, {"choices": [], "usage": usage}), config=config) as here:
            _, told = await complete(here, "anna", prompt="a")
            assert isinstance(told, dict)
            cached: int = told["usage"]["prompt_tokens_details"]["cached_tokens"]
            return cached

    assert asyncio.run(scenario(CONFIG)) == 0
    assert asyncio.run(scenario(GatewayConfig(port=0, api_keys=CONFIG.api_keys[:1]))) == 7


async def test_the_tokens_of_a_day_are_looked_at_before_each_answer() -> None:
    limited = ApiKey(SECRETS["anna"], "anna", KeyLimits(tokens_per_day=10))
    async with one_slot(GatewayConfig(port=0, api_keys=(limited,))) as (here, answer):
        answer.answer_one(9)
        status, told = await complete(here, "anna", prompt=["a0", "a1", "a2", "a3"])
        assert status == 429 and isinstance(told, dict) and told["error"]["code"] == "insufficient_quota"
        assert answer.came == ["a0", "a1"]


@pytest.mark.parametrize(
    ("path", "name"), [("/v1/embeddings", "input"), ("/api/embed", "input"), ("/v1/rerank", "documents")]
)
async def test_inputs_of_embeddings_are_sent_in_groups_that_take_turns(path: str, name: str) -> None:
    came: list[int] = []

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        asked = json.loads(server.seen[-1][3])
        given = asked[name] if isinstance(asked[name], list) else [asked[name]]
        came.append(len(given))
        await server.let_go.wait()
        rows = [{"index": at, "embedding": [float(one)], "score": 0} for at, one in enumerate(given)]
        told = {"data": rows, "results": rows, "usage": {"prompt_tokens": len(rows)}}
        return await says(200, told)(server, request)

    async def ask(here: World, who: str, count: int) -> dict[str, object]:
        headers = {"Authorization": f"Bearer {SECRETS[who]}"}
        body = {"query": "q", name: [str(at) for at in range(count)]}
        async with here.http.post(here.url + path, json=body, headers=headers) as reply:
            assert reply.status == 200, await reply.text()
            told: dict[str, object] = await reply.json()
            return told

    async with world(answer, config=CONFIG) as here:
        here.upstream.slots = 1
        many = asyncio.ensure_future(ask(here, "anna", 2 * GROUP_INPUTS + 3))
        await until_came(here, 1)
        other = asyncio.ensure_future(ask(here, "ben", 2))
        await when(here, lambda: here.gateway.status.waiting >= 1)
        here.server.let_go.set()
        await other
        told = await many
        assert came == [GROUP_INPUTS, 2, GROUP_INPUTS, 3], "another key waits for one group"
        if path == "/v1/embeddings":
            assert told["data"] == [
                {"index": at, "embedding": [float(at)], "score": 0} for at in range(2 * GROUP_INPUTS + 3)
            ]


async def test_each_answer_of_a_request_counts_in_the_requests_of_a_minute() -> None:
    limited = ApiKey(SECRETS["anna"], "anna", KeyLimits(requests_per_minute=4))
    async with one_slot(GatewayConfig(port=0, api_keys=(limited,))) as (here, answer):
        answer.answer_one(9)
        assert (await complete(here, "anna", prompt=["a", "b"], n=2))[0] == 200
        status, told = await complete(here, "anna", prompt="c")
        assert status == 429 and isinstance(told, dict) and told["error"]["code"] == "rate_limit_exceeded"
        assert len(answer.came) == 4


async def test_answers_are_joined_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    began, let_go = threading.Event(), threading.Event()

    def held(parts: Parts, answers: Sequence[bytes]) -> object:
        began.set()
        assert let_go.wait(DEADLINE)
        return joined_answer(parts, answers)

    monkeypatch.setattr(server, "joined_answer", held)
    try:
        async with one_slot() as (here, answer):
            answer.answer_one(2)
            many = asyncio.ensure_future(complete(here, "anna", prompt=["a0", "a1"]))
            await when(here, began.is_set)
            async with here.http.get(f"{here.url}/health") as reply:
                assert reply.status == 200, "the loop goes on"
            let_go.set()
            assert (await many)[0] == 200
    finally:
        let_go.set()


async def test_a_request_that_waits_holds_its_body_and_no_more() -> None:
    tokens = [[999] * 500 + [100_000 + at] * 500 for at in range(64)]
    async with one_slot() as (here, answer):
        first = asyncio.ensure_future(complete(here, "anna", prompt="a"))
        await until_came(here, 1)
        body = json.dumps({"prompt": tokens}).encode()
        headers = {"Authorization": f"Bearer {SECRETS['ben']}", "Content-Type": "application/json"}
        tracemalloc.start()
        try:
            url = f"{here.url}/v1/completions"
            many = asyncio.ensure_future(here.http.post(url, data=body, headers=headers))
            async with asyncio.timeout(DEADLINE):  # a thread lets go of what it was given a little later
                await when(here, lambda: here.gateway.status.waiting >= 1)
                await when(here, lambda: tracemalloc.get_traced_memory()[0] <= 2 * len(body))
        finally:
            tracemalloc.stop()
        many.cancel()
        answer.answer_one()
        assert (await first)[0] == 200
