"""The API of a client: models of all heads, the head of each request, and what follows when one is lost."""

import asyncio
from dataclasses import replace

import pytest
from aiohttp import web
from meshd.gateway.interface import Readiness
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState
from meshd.wire.models import ApiModel

from tests.conformance.run import until
from tests.process.client_scene import HELLO, scene, text_of
from tests.process.gateway_fake import (
    DONE,
    Answer,
    FakeServer,
    OneByOne,
    begin_stream,
    chunk,
    die,
    last_chunk,
    says,
    streams,
)


def dies_after(*pieces: bytes) -> Answer:
    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        for piece in pieces:
            await response.write(piece)
        die(request)
        return response

    return answer


async def dies(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
    die(request)
    return web.Response()


def stays_after(*pieces: bytes) -> Answer:
    """It says no more until it is let go."""

    async def answer(server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        response = await begin_stream(request)
        for piece in pieces:
            await response.write(piece)
        await server.let_go.wait()
        return response

    return answer


async def test_models_are_those_of_all_heads_and_each_is_asked_for_its_own() -> None:
    async with scene() as here:
        one = await here.head("one", says(200, HELLO), model="tiny")
        async with await here.post(model="gpt-4o") as answer:
            assert answer.status == 200  # there is but one
        two = await here.head("two", says(200, HELLO), model="big")
        assert await here.names() == ["big", "tiny"]
        for model in ("big", "tiny", "big"):
            async with await here.post(model=model) as answer:
                assert answer.status == 200
        assert (len(one.asked), len(two.asked)) == (2, 2)
        async with await here.post(model="gpt-4o") as answer:
            assert answer.status == 404
            assert "`big`, `tiny` are" in (await answer.json())["error"]["message"]


async def test_models_of_heads_are_listed_with_what_clients_look_for() -> None:
    async with scene() as here:
        head = await here.head("one", says(200, HELLO))
        head.models = [
            replace(head.models[0], context=4096, created=1_770_000_000, capabilities=("completion", "tools"))
        ]
        await until(lambda: here.told("one") == tuple(head.models))
        _, body = await here.get("/v1/models")
        [model] = body["data"] if isinstance(body["data"], list) else []
        assert (model["context_length"], model["created"]) == (4096, 1_770_000_000)
        assert model["capabilities"] == ["completion", "tools"]


async def test_requests_of_members_take_turns_with_those_of_others() -> None:
    async with scene() as here:
        by_turns = OneByOne(HELLO)
        head = await here.head("one", by_turns)
        head.upstream.slots = 1
        flood = [asyncio.ensure_future(here.post(user="member")) for _ in range(8)]
        await until(lambda: head.gateway.status.waiting == 7)
        mine = asyncio.ensure_future(here.http.post(f"{head.gateway.url}/completion", json={"user": "local"}))
        await until(lambda: head.gateway.status.waiting == 8)
        assert here.gateway.status.running == here.gateway.status.waiting == 0, "heads have the queues"
        for _ in range(9):
            by_turns.answer_one()
        for answer in await asyncio.gather(mine, *flood):
            async with answer:
                assert answer.status == 200
        assert by_turns.came == ["member", "local", *["member"] * 7]


async def test_requests_of_others_count_as_well() -> None:
    async with scene() as here:
        one = await here.head("one", stays_after(chunk("a")))
        two = await here.head("two", says(200, HELLO))
        async with here.http.post(f"{one.gateway.url}/completion", json={"stream": True}) as local:
            await until(lambda: [model.requests for model in here.told("one") or ()] == [1])
            for _ in range(3):
                async with await here.post() as answer:
                    assert answer.status == 200
            assert len(two.asked) == 3
            one.server.let_go.set()
            await local.read()


async def test_what_one_head_refuses_another_one_answers() -> None:
    """Before the first byte, whether or not a stream was asked for."""
    async with scene() as here:
        one = await here.head("one", says(200, HELLO))
        two = await here.head("two", streams(chunk("hello"), last_chunk(1), DONE), others=1)
        one.upstream.readiness = Readiness(ModelState.LOADING, "a worker was lost")  # it has not told yet
        async with await here.post(stream=True) as answer:
            assert text_of(await answer.read()) == "hello"
        two.upstream.readiness = Readiness(ModelState.FAILED, "no memory")
        async with await here.post() as answer:
            assert answer.status == 503
            message = (await answer.json())["error"]["message"]
            assert "`one`: " in message and "`two`: " in message and "no memory" in message
        assert (len(one.asked), len(two.asked)) == (0, 1)


async def test_a_head_whose_llama_server_is_lost_is_followed_by_another() -> None:
    async with scene() as here:
        one = await here.head("one", dies)
        await here.head("two", says(200, HELLO), others=1)
        async with await here.post() as answer:
            assert (answer.status, await answer.json()) == (200, HELLO)
        assert len(one.asked) == 1


async def test_it_does_not_go_on_with_other_weights() -> None:
    async with scene() as here:
        await here.head("one", dies_after(chunk("The sky ")))
        two = await here.head("two", streams(chunk("other"), DONE), others=1)
        two.models = [ApiModel("tiny", "ready", takes=True, fingerprint=b"o" * 32)]
        await until(lambda: [one.fingerprint for one in here.told("two") or ()] == [b"o" * 32])
        async with await here.post(stream=True) as answer:
            streamed = await answer.read()
        assert text_of(streamed) == "The sky " and not two.asked
        assert b'data: {"error"' in streamed and b"`one` broke the answer off" in streamed


async def test_it_goes_on_nowhere_while_its_weights_are_unknown() -> None:
    """The model was loaded for this request, and its head has not told its fingerprint yet."""
    async with scene() as here:
        one = await here.head("one", dies_after(chunk("The sky ")))
        one.models = [ApiModel("tiny", "ready", takes=True)]
        await until(lambda: [model.fingerprint for model in here.told("one") or ()] == [b""])
        two = await here.head("two", streams(chunk("other"), DONE), others=1)
        async with await here.post(stream=True) as answer:
            streamed = await answer.read()
        assert text_of(streamed) == "The sky " and not two.asked
        assert b'data: {"error"' in streamed


@pytest.mark.parametrize("stream", [False, True])
async def test_without_another_head_the_error_is_told(stream: bool) -> None:
    async with scene() as here:
        await here.head("one", dies_after(chunk("The sky ")))
        async with await here.post(stream=stream) as answer:
            body = await answer.read()
            assert b"`one`" in body and b"upstream_lost" in body


async def test_a_head_that_vanishes_in_mid_answer_is_left() -> None:
    async with scene() as here:
        one = await here.head("one", stays_after(chunk("The sky ")))
        two = await here.head("two", streams(chunk("is blue"), last_chunk(1), DONE), others=1)
        async with await here.post(stream=True, temperature=1) as answer:
            await answer.content.readuntil(b"\n\n")
            one.vanish(asyncio.get_running_loop().time())
            streamed = await answer.read()
        assert text_of(chunk("The sky ") + streamed) == "The sky is blue"
        assert b": the connection to `one` was lost" in streamed
        assert len(two.asked) == 1
        await one.server.until(lambda: one.server.cancelled == 1)  # its slot is free


async def test_an_answer_waits_for_a_vanished_head_where_there_is_no_other() -> None:
    """Its stream is durable: the session may come back within the grace."""
    async with scene() as here:
        one = await here.head("one", stays_after(chunk("The sky ")))
        async with await here.post(stream=True) as answer:
            await answer.content.readuntil(b"\n\n")
            one.vanish(asyncio.get_running_loop().time())
            assert (await here.get("/health"))[0] == 503
            one.mesh.say(PeerState.CONNECTED)
            one.server.let_go.set()
            assert b"error" not in await answer.read()
            await here.until_ready()


async def test_health_says_why_no_head_serves() -> None:
    async with scene(only=("desk",)) as here:
        status, body = await here.get("/health")
        assert status == 503 and "no head is called `desk`" in str(body["reason"])
        head = await here.head("desk", says(200, HELLO))
        head.models = [ApiModel("tiny", "loading", takes=False, reason="43 %")]
        await until(lambda: here.told("desk") == tuple(head.models))
        status, body = await here.get("/health")
        assert (status, body["status"]) == (503, "loading")
        assert body["reason"] == "`tiny` on `desk` is loading: 43 %"
        for path in ("/v1/models", "/props"):
            assert (await here.get(path))[0] == 503
        async with await here.post() as answer:
            assert answer.status == 503 and int(answer.headers["Retry-After"]) > 0


async def test_a_page_picks_one_of_the_heads_models_which_they_load_themselves() -> None:
    async with scene() as here:
        await here.head("one", says(200, HELLO), model="tiny")
        await here.head("two", says(200, HELLO), model="big")
        assert (await here.get("/props"))[1]["role"] == "router"
        _, listed = await here.get("/v1/models")
        assert isinstance(rows := listed["data"], list)
        assert [(row["id"], row["status"]) for row in rows] == [
            ("big", {"value": "loaded"}),
            ("tiny", {"value": "loaded"}),
        ]
        url = f"{here.gateway.url}/models"
        async with here.http.post(f"{url}/load", json={"model": "big"}) as answer:
            assert (answer.status, await answer.json()) == (200, {"success": True})
        async with here.http.post(f"{url}/unload", json={"model": "big"}) as answer:
            assert answer.status == 409
            assert "does not load it on demand" in (await answer.json())["error"]["message"]


async def test_a_client_that_hangs_up_frees_the_slot() -> None:
    async with scene() as here:
        head = await here.head("one", stays_after(chunk("a")))
        answer = await here.post(stream=True)
        await answer.content.readuntil(b"\n\n")
        answer.close()
        await head.server.until(lambda: head.server.cancelled == 1)
        await until(lambda: [one.mine for one in here.api.heads.known()] == [0])
        assert not here.api.status.tunnels
