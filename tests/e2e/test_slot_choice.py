"""The slot that a request names, with a real llama-server: neighbours, and as many cached tokens as without.

There is no mesh: what matters is which slots llama-server computes in, and what it finds there.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from meshd.build.interface import LLAMA_SERVER
from meshd.gateway.interface import GatewayConfig
from meshd.gateway.request import OneModel

from tests.e2e.models import stock
from tests.e2e.native_rig import Head, wait_until
from tests.e2e.random_models import random_model
from tests.process.gateway_fake import FakeUpstream, gateway_of, serving

pytestmark = [pytest.mark.native, pytest.mark.timeout(600)]

SLOTS = 4
CONTEXT = 8192  # tokens of a slot; this model has one for each letter
SHORT = 4  # tokens


@contextlib.asynccontextmanager
async def api(folder: Path, *, names_slots: bool = True) -> AsyncIterator[tuple[aiohttp.ClientSession, Head]]:
    """A gateway before a llama-server with a cache for each slot."""
    given = ("-np", str(SLOTS), "-c", str(SLOTS * CONTEXT), "-no-kvu")
    with Head(stock().binaries[LLAMA_SERVER], folder, random_model("llama"), [], extra=given) as server:
        upstream = FakeUpstream(server.socket_path, slots=SLOTS, may_name_slots=names_slots)
        gateway = await gateway_of(GatewayConfig(port=0), OneModel(upstream))
        async with serving(gateway), aiohttp.ClientSession(gateway.url) as http:
            yield http, server


async def complete(http: aiohttp.ClientSession, prompt: str, tokens: int = SHORT) -> dict[str, Any]:
    body = {"prompt": prompt, "n_predict": tokens, "temperature": 0, "ignore_eos": True}
    async with http.post("/completion", json=body) as reply:
        assert reply.status == 200, await reply.text()
        answer: dict[str, Any] = await reply.json()
        return answer


@contextlib.asynccontextmanager
async def streamed(http: aiohttp.ClientSession, prompt: str) -> AsyncIterator[None]:
    """An answer that has begun; the client hangs up when the block is left."""
    body = {"prompt": prompt, "n_predict": CONTEXT, "ignore_eos": True, "stream": True}
    async with http.post("/completion", json=body) as reply:
        await reply.content.readany()
        yield


async def until_busy(server: Head, *slots: int) -> None:
    """By what llama-server says itself."""

    async def busy() -> set[int]:
        async with (
            aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(server.socket_path))) as raw,
            raw.get("http://localhost/slots") as reply,
        ):
            return {slot["id"] for slot in await reply.json() if slot["is_processing"]}

    while await busy() != {*slots}:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.02)


async def test_a_gap_between_answers_is_filled(tmp_path: Path) -> None:
    async with api(tmp_path) as (http, server):
        # prompts that never come back, so that no cache is worth a gap
        for number in range(2 * SLOTS):
            await complete(http, f"{number} is a number.")
        async with streamed(http, "A long answer"):
            await until_busy(server, 0)
            async with streamed(http, "Yet another"):
                await until_busy(server, 0, 1)
                async with streamed(http, "Third of all"):
                    await until_busy(server, 0, 1, 2)
            await until_busy(server, 0)
            assert [(await complete(http, f"{word} it is"))["id_slot"] for word in ("So", "Here")] == [1, 1]
            async with streamed(http, "Now two"):
                await until_busy(server, 0, 1)
                assert (await complete(http, "This is beside them"))["id_slot"] == 2


async def test_who_hangs_up_and_asks_again_finds_the_cache(tmp_path: Path) -> None:
    async with api(tmp_path) as (http, server):
        prompt = "All that was said before. " * 20
        await complete(http, "Something else")
        async with streamed(http, prompt):
            await until_busy(server, 1)
        answer = await complete(http, f"{prompt}And more")
        assert answer["id_slot"] == 1
        assert answer["timings"]["cache_n"] >= len(prompt)


def by_id(server: Head) -> int:
    """Count the requests that named their slots, as far as the log is written, which has its own thread."""
    return server.output.count("selected slot by id")


async def test_every_kind_of_request_names_its_slot(tmp_path: Path) -> None:
    said = {"messages": [{"role": "user", "content": "Say something."}], "max_tokens": SHORT}
    requests: list[tuple[str, dict[str, Any]]] = [
        ("/completion", {"prompt": "Once", "n_predict": SHORT}),
        ("/v1/completions", {"prompt": "Twice", "max_tokens": SHORT}),
        ("/v1/completions", {"prompt": ["Never", "Ever"], "max_tokens": SHORT}),
        ("/v1/chat/completions", said),
        ("/v1/chat/completions", said | {"stream": True}),
        ("/v1/messages", said),
        ("/v1/responses", {"input": "Say more.", "max_output_tokens": SHORT}),
        ("/api/chat", {"messages": said["messages"], "options": {"num_predict": SHORT}}),
    ]
    async with api(tmp_path) as (http, server):
        for path, body in requests:
            async with http.post(path, json=body) as reply:
                assert reply.status == 200, (path, await reply.text())
                await reply.read()
        named = len(requests) + 1
        await asyncio.to_thread(wait_until, lambda: by_id(server) >= named, "llama-server has told of slots")
        assert by_id(server) == named
        async with http.post("/v1/chat/completions", json=said | {"n": 2, "stream": True}) as reply:
            assert reply.status == 200
            await reply.read()
        assert by_id(server) == named


async def _cached(http: aiohttp.ClientSession, users: int, system: str) -> int:
    """Tokens that were in the cache, in all turns of all users."""
    head = [{"role": "system", "content": system}] if system else []
    said: list[list[dict[str, Any]]] = [list(head) for _ in range(users)]
    cached = 0
    for turn in range(3):
        for user, messages in enumerate(said):
            messages.append({"role": "user", "content": f"{user} asks, {turn}: " + "and so on " * 20})
            body = {"messages": messages, "max_tokens": SHORT, "temperature": 0}
            async with http.post("/v1/chat/completions", json=body) as reply:
                answer = await reply.json()
            messages.append(answer["choices"][0]["message"])
            cached += answer["timings"]["cache_n"]
    return cached


@pytest.mark.parametrize(
    ("users", "system"),
    [(SLOTS, ""), (SLOTS + 1, ""), (SLOTS, "Speak like a pirate. " * 20), (SLOTS + 2, "Be brief. " * 40)],
    ids=["a slot each", "one too many", "one system prompt", "more with one system prompt"],
)
async def test_conversations_find_as_much_as_where_llama_server_chooses(
    tmp_path: Path, users: int, system: str
) -> None:
    found = []
    for names_slots in (False, True):
        async with api(tmp_path, names_slots=names_slots) as (http, _server):
            found.append(await _cached(http, users, system))
    assert found[1] >= found[0] > 0
