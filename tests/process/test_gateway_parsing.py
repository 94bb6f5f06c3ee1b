"""Bodies that are there at once are parsed one after another, and whatever else waits goes on between two."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Hashable
from contextlib import AbstractContextManager

import pytest
from meshd.gateway import server
from meshd.gateway.dialects.dialect import Translation
from meshd.gateway.interface import ApiKey, GatewayConfig
from meshd.gateway.request import UpstreamRequest, parse_object, upstream_request
from meshd.gateway.turns import Turn, Turns

from tests.process.gateway_fake import DEADLINE, World, says, when, world


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_others_have_a_turn_between_two_bodies(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    turns, parsed_at = 0, []

    def parse(body: bytes) -> dict[str, object]:
        parsed_at.append(turns)
        return parse_object(body)

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with world(says(200, {"usage": {}})) as here:
        monkeypatch.setattr(server, "parse_object", parse)
        counting = asyncio.get_running_loop().create_task(count_turns())
        answers = await asyncio.gather(*(here.http.post(here.url + path, json={}) for _ in range(24)))
        assert {answer.status for answer in answers} == {200}
        counting.cancel()
    assert len(parsed_at) == 24
    assert len(set(parsed_at)) == 24, "two in one turn of the loop"


SECRETS = {"anna": "anna-0123456789abcdef0123456789abcdef", "ben": "ben-0123456789abcdef0123456789abcdef"}
LARGE = "x" * 40_000


class HeldJudging:
    """Holds the judging of large bodies in their thread until it is let go, and notes whose come."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.users: list[object] = []
        self.began = threading.Event()
        self.let_go = threading.Event()
        self.queued = 0
        enter = Turns.enter

        def judge(translation: Translation) -> UpstreamRequest:
            if len(str(translation.fields["input"])) > len(LARGE):
                self.users.append(str(translation.fields["input"])[len(LARGE) :])
                self.began.set()
                assert self.let_go.wait(DEADLINE)
            return upstream_request(translation)

        def counted(turns: Turns, user: Hashable) -> AbstractContextManager[Turn]:
            self.queued += 1
            return enter(turns, user)

        monkeypatch.setattr(server, "upstream_request", judge)
        monkeypatch.setattr(Turns, "enter", counted)

    @contextlib.asynccontextmanager
    async def world(self) -> AsyncIterator[World]:
        keys = tuple(ApiKey(secret, name) for name, secret in SECRETS.items())
        try:
            async with world(says(200, {}), config=GatewayConfig(port=0, api_keys=keys)) as here:
                yield here
        finally:
            self.let_go.set()

    async def until_queued(self, here: World, count: int) -> None:
        await when(here, lambda: self.queued >= count and self.began.is_set())


async def embed(here: World, name: str, text: str) -> int:
    headers = {"Authorization": f"Bearer {SECRETS[name]}"}
    async with here.http.post(f"{here.url}/v1/embeddings", json={"input": text}, headers=headers) as reply:
        return reply.status


async def test_large_bodies_of_several_keys_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldJudging(monkeypatch)
    async with held.world() as here:
        many = [asyncio.ensure_future(embed(here, "anna", f"{LARGE}anna")) for _ in range(4)]
        await held.until_queued(here, 4)
        other = asyncio.ensure_future(embed(here, "ben", f"{LARGE}ben"))
        await held.until_queued(here, 5)
        held.let_go.set()
        assert await asyncio.gather(other, *many) == [200] * 5
        assert held.users == ["anna", "ben", "anna", "anna", "anna"]


async def test_a_small_body_does_not_wait_for_large_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldJudging(monkeypatch)
    async with held.world() as here:
        large = asyncio.ensure_future(embed(here, "anna", f"{LARGE}anna"))
        await held.until_queued(here, 1)
        assert await embed(here, "ben", "short") == 200
        assert not large.done()
        held.let_go.set()
        assert await large == 200
