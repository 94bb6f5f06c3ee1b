"""Requests name the slot of llama-server that is chosen for them, where each slot has its own cache."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from meshd.gateway import upstream as asking
from meshd.gateway.interface import GatewayConfig

from tests.process.gateway_fake import (
    DONE,
    HI,
    FakeServer,
    World,
    begin_stream,
    chunk,
    die,
    last_chunk,
    when,
    world,
)

WHOLE = {
    "choices": [{"index": 0, "message": {"content": "hi"}}],
    "timings": {"prompt_n": 3, "predicted_n": 1},
}
Named = list[int | None]


class Slotted:
    """Answers when it is let go; says by `/slots` which slots are `busy`, unless it is `mute`."""

    def __init__(self) -> None:
        self.busy: set[int] = set()
        self.looks = 0
        self.mute = False
        self.refuses = False
        self.dies = 0  # so many answers break off after their first piece
        self.go = asyncio.Event()

    async def __call__(self, server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        if request.path == "/slots":
            self.looks += 1
            told = [{"id": number, "is_processing": number in self.busy} for number in range(4)]
            return web.Response(status=501) if self.mute else web.json_response(told)
        asked = json.loads(server.seen[-1][3])
        if asked.get("stream"):
            response = await begin_stream(request)
            await response.write(chunk("a"))
            if self.dies:
                self.dies -= 1
                die(request)
                return response
            await self.go.wait()
            await response.write(last_chunk(1) + DONE)
            return response
        await self.go.wait()
        return web.json_response({} if self.refuses else WHOLE, status=400 if self.refuses else 200)


@asynccontextmanager
async def slotted(config: GatewayConfig | None = None) -> AsyncIterator[tuple[World, Slotted]]:
    answer = Slotted()
    async with world(answer, config=config) as here:
        here.upstream.may_name_slots = True
        yield here, answer


def named(here: World) -> Named:
    """The slots that the requests named, in their order."""
    bodies = [json.loads(body) for _, path, _, body in here.server.seen if body and path != "/apply-template"]
    return [body.get("id_slot") for body in bodies]


async def say(here: World, text: str = "hi", **fields: object) -> int:
    async with await here.chat(messages=[{"role": "user", "content": text}], **fields) as reply:
        await reply.read()
        return reply.status


async def begun(here: World, *texts: str, **fields: object) -> list["asyncio.Task[int]"]:
    tasks = []
    for text in texts:
        tasks.append(asyncio.create_task(say(here, text, **fields)))
        count = len(named(here)) + 1
        await here.server.until(lambda count=count: len(named(here)) == count)  # type: ignore[misc]
    return tasks


async def test_those_that_run_at_once_are_neighbours() -> None:
    async with slotted() as (here, answer):
        first = await begun(here, "a", "b", "c")
        answer.go.set()
        assert await asyncio.gather(*first) == [200] * 3
        answer.go.clear()
        # 3 was never used, then the older ones come, of which 2 is a neighbour
        second = await begun(here, "d", "e")
        answer.go.set()
        await asyncio.gather(*second)
        assert named(here)[:4] == [0, 1, 2, 3]
        assert answer.looks == 0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_conversation_comes_back_to_its_slot(stream: bool) -> None:
    async with slotted() as (here, answer):
        answer.go.set()
        for text in ("a", "b"):
            await say(here, text, stream=stream)
        later = [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": "hi"},
            {"role": "user", "content": "c"},
        ]
        async with await here.chat(messages=later, stream=stream) as reply:
            await reply.read()
        assert named(here) == [0, 1, 0]


async def test_none_is_named_where_llama_server_chooses() -> None:
    async with slotted() as (here, answer):
        answer.go.set()
        here.upstream.may_name_slots = False
        await say(here)
        here.upstream.may_name_slots = True
        async with here.http.post(f"{here.url}/v1/embeddings", json={"input": "a"}) as reply:
            await reply.read()
        await say(here, n=2, stream=True)
        assert named(here) == [None] * 3


async def test_each_choice_names_its_own() -> None:
    async with slotted() as (here, answer):
        task = asyncio.create_task(say(here, n=3))
        await here.server.until(lambda: len(named(here)) == 3)
        assert sorted(slot for slot in named(here) if slot is not None) == [0, 1, 2]
        answer.go.set()
        assert await task == 200


@pytest.mark.parametrize("freed", [True, False])
async def test_who_hung_up_may_still_have_a_slot(monkeypatch: pytest.MonkeyPatch, freed: bool) -> None:
    monkeypatch.setattr(asking, "_FREED_SECONDS", 5.0 if freed else 0.2)
    async with slotted() as (here, answer):
        (gone,) = await begun(here, "a", stream=True)
        answer.busy = {0}
        gone.cancel()
        await when(here, lambda: not here.upstream.under_way)
        # others are taken meanwhile
        (other,) = await begun(here, "b")
        assert named(here) == [0, 1] and answer.looks == 1
        # its conversation waits a moment for its slot
        again = asyncio.create_task(say(here, "a"))
        if freed:
            await when(here, lambda: answer.looks > 3)
            assert len(named(here)) == 2
            answer.busy = set()
        await here.server.until(lambda: len(named(here)) == 3)
        assert named(here)[2] == (0 if freed else 2)
        answer.go.set()
        await asyncio.gather(other, again)


async def test_a_llama_server_that_does_not_tell_is_not_waited_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asking, "_FREED_SECONDS", 0.2)
    async with slotted() as (here, answer):
        answer.mute = True
        (gone,) = await begun(here, "a", stream=True)
        gone.cancel()
        await when(here, lambda: not here.upstream.under_way)
        answer.go.set()
        assert await say(here, "a") == 200
        assert named(here) == [0, 1]


async def test_what_is_refused_leaves_the_slot_as_it_is() -> None:
    async with slotted() as (here, answer):
        answer.go.set()
        here.upstream.slots = 2
        for text in ("a", "b"):
            await say(here, text)
        answer.refuses = True
        assert await say(here, "c") == 400
        answer.refuses = False
        assert await say(here, "a") == 200
        assert named(here) == [0, 1, 0, 0]


async def test_an_answer_that_goes_on_names_a_slot_of_the_new_run() -> None:
    async with slotted(GatewayConfig(port=0, continue_seconds=20.0)) as (here, answer):
        answer.go.set()
        for text in ("a", "b"):
            await say(here, text)
        answer.dies = 1
        assert await say(here, "c", stream=True) == 200
        assert await say(here, "a") == 200
        # all is forgotten: neither is 0 kept for `a`
        assert named(here) == [0, 1, 2, 0, 1]


async def test_another_number_of_slots_is_another_llama_server() -> None:
    async with slotted() as (here, answer):
        answer.go.set()
        await say(here, "a")
        here.upstream.slots = 2
        await say(here, "b")
        assert named(here) == [0, 0]
        async with here.http.post(f"{here.url}/v1/chat/completions", json={**HI, "id_slot": 7}) as reply:
            await reply.read()
        assert named(here)[2] == 1
