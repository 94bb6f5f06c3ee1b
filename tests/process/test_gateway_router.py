"""What a page asks for that lets its user pick one of several models: a list, loads, unloads and events."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from meshd.base.peer_limits import API_MODEL_WATCHERS
from meshd.gateway import router_answers
from meshd.gateway.interface import ApiKey, GatewayConfig, KeyLimits, Readiness
from meshd.gateway.router_answers import EVENTS_PATH, LOAD_PATH, UNLOAD_PATH
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

from tests.process.gateway_fake import FakeServer, ManyWorld, many_world, says, when, world
from tests.process.test_gateway_models import ANSWERS, all_ready, until_asked

ANNA, BEN = "k-anna-0123456789abcdef", "k-ben-0123456789abcdef"
KEYS = GatewayConfig(port=0, api_keys=(ApiKey(ANNA, "anna"), ApiKey(BEN, "ben")))


async def post(
    here: ManyWorld, path: str, body: object, *, key: str = "", **headers: str
) -> tuple[int, dict[str, Any]]:
    headers |= {"Authorization": f"Bearer {key}"} if key else {}
    async with here.http.post(here.gateway.url + path, json=body, headers=headers) as answer:
        return answer.status, await answer.json()


async def chat(here: ManyWorld, model: str, key: str) -> int:
    body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
    status, _ = await post(here, "/v1/chat/completions", body, key=key)
    return status


async def test_the_page_learns_that_there_is_a_choice() -> None:
    async with many_world(ANSWERS) as here:
        for path in ("/props", "/props?autoload=false", "/props?model="):
            status, props = await here.get(path)
            assert (status, props["role"]) == (200, "router")
        assert await here.get("/props?model=b&autoload=false") == (200, {"from": "b"})


async def test_one_model_is_no_choice() -> None:
    async with world(says(200, {"build_info": "b1"})) as here:
        async with here.http.get(f"{here.url}/props") as answer:
            assert (await answer.json())["build_info"] == "b1"
        for path in (LOAD_PATH, UNLOAD_PATH):
            async with here.http.post(here.url + path, json={"model": "tiny"}) as answer:
                assert (answer.status, (await answer.json())["error"]["code"]) == (404, "unknown_path")
        async with here.http.get(here.url + EVENTS_PATH) as answer:
            assert answer.status == 404
        async with here.http.get(f"{here.url}/v1/models") as answer:
            assert "status" not in (await answer.json())["data"][0]


async def test_the_list_has_states_and_what_loaded_models_take() -> None:
    async with many_world(ANSWERS) as here:
        a, b = here.models.values()
        a.upstream.facts = b.upstream.facts = ServedFacts(capabilities=("completion", "vision"))
        b.state = ModelState.UNLOADED
        _, listed = await here.get("/v1/models")
        assert [(row["status"], row.get("architecture")) for row in listed["data"]] == [
            ({"value": "loaded"}, {"input_modalities": ["text", "image"], "output_modalities": ["text"]}),
            ({"value": "unloaded"}, None),
        ]


async def test_a_load_is_a_request_that_waits_for_the_model() -> None:
    async with many_world(ANSWERS) as here:
        model = here.models["b"]
        asked = asyncio.create_task(post(here, LOAD_PATH, {"model": "b-alias"}))
        await until_asked(model)
        assert not asked.done() and model.upstream.active == [1]
        model.granted.set()
        assert await asked == (200, {"success": True})
        assert model.upstream.active == [1, 0] and model.turns[0].ended
        assert model.server.seen == []


async def test_a_load_that_fails_says_why() -> None:
    async with many_world(ANSWERS) as here:
        model = here.models["a"]
        model.refused = Readiness(ModelState.FAILED, "no memory")
        model.granted.set()
        status, answer = await post(here, LOAD_PATH, {"model": "a"})
        assert (status, answer["error"]["code"]) == (503, "model_failed")
        assert "no memory" in answer["error"]["message"]


async def test_a_page_that_goes_gives_its_load_up() -> None:
    async with many_world(ANSWERS) as here:
        model = here.models["b"]
        asked = asyncio.create_task(post(here, LOAD_PATH, {"model": "b"}))
        await until_asked(model)
        asked.cancel()
        await when(here, lambda: model.turns[0].ended)


async def test_an_unload_ends_the_load_of_the_same_user() -> None:
    async with many_world(ANSWERS, config=KEYS) as here:
        model = here.models["b"]
        asked = asyncio.create_task(post(here, LOAD_PATH, {"model": "b"}, key=ANNA))
        await until_asked(model)
        model.stays = "1 request waits for it"  # of somebody else
        assert await post(here, UNLOAD_PATH, {"model": "b"}, key=ANNA) == (200, {"success": True})
        status, answer = await asked
        assert (status, answer["error"]["code"]) == (409, "load_ended") and model.turns[0].ended


async def test_a_user_unloads_what_nobody_else_uses() -> None:
    async with many_world(ANSWERS, config=KEYS) as here:
        all_ready(here)
        model = here.models["a"]
        assert (await post(here, UNLOAD_PATH, {"model": "a"}, key=ANNA))[0] == 403, "loaded for all"
        assert await chat(here, "a", ANNA) == 200
        assert await post(here, UNLOAD_PATH, {"model": "a-alias"}, key=ANNA) == (200, {"success": True})
        assert model.unloads == 1
        assert await chat(here, "a", ANNA) == 200
        assert await chat(here, "a", BEN) == 200
        status, answer = await post(here, UNLOAD_PATH, {"model": "a"}, key=ANNA)
        assert (status, answer["error"]["code"], model.unloads) == (403, "model_of_others", 1)
        assert (await post(here, LOAD_PATH, {"model": "a"}, key=BEN))[0] == 200
        status, answer = await post(here, UNLOAD_PATH, {"model": "a"}, key=BEN)
        assert (status, model.unloads) == (403, 1), "a request makes it nobody's own"


async def test_a_model_that_others_have_left_is_its_users(monkeypatch: pytest.MonkeyPatch) -> None:
    async with many_world(ANSWERS, config=KEYS) as here:
        all_ready(here)
        model = here.models["a"]
        assert await chat(here, "a", ANNA) == 200
        monkeypatch.setattr(router_answers, "_KEPT_SECONDS", 0.0)
        assert await chat(here, "a", BEN) == 200
        model.stays = "2 requests under way"
        status, answer = await post(here, UNLOAD_PATH, {"model": "a"}, key=BEN)
        assert (status, answer["error"]["code"]) == (409, "model_in_use")
        assert "2 requests under way" in answer["error"]["message"]
        model.stays = ""
        assert await post(here, UNLOAD_PATH, {"model": "a"}, key=BEN) == (200, {"success": True})


async def test_without_keys_all_are_one_user() -> None:
    async with many_world(ANSWERS) as here:
        assert await post(here, UNLOAD_PATH, {"model": "a"}) == (200, {"success": True})
        assert here.models["a"].unloads == 1


@pytest.mark.parametrize("path", [LOAD_PATH, UNLOAD_PATH])
async def test_what_is_no_request_for_a_model_is_refused(path: str) -> None:
    async with many_world(ANSWERS) as here:
        wrong: list[tuple[object, int, str]] = [
            ({}, 400, "invalid_model"),
            ({"model": ""}, 400, "invalid_model"),
            ({"model": ["a"]}, 400, "invalid_model"),
            ({"model": "../../etc/passwd"}, 404, "model_not_found"),
            ([], 400, "invalid_json"),
        ]
        for body, expected, code in wrong:
            status, answer = await post(here, path, body)
            assert (status, answer["error"]["code"]) == (expected, code)
        url = here.gateway.url + path
        ours = {"Origin": here.gateway.url, "Content-Type": "text/plain"}
        async with here.http.post(url, data="{}", headers=ours) as refused:
            assert refused.status == 415
        async with here.http.get(url) as refused:
            assert (refused.status, refused.headers["Allow"]) == (405, "POST")
        evil = {"Origin": "https://evil.example"}
        assert (await post(here, path, {"model": "a"}, **evil))[0] == 403
        assert not any(model.turns or model.unloads for model in here.models.values())


async def test_all_of_them_need_a_key_where_requests_do() -> None:
    async with many_world(ANSWERS, config=KEYS) as here:
        for path in (LOAD_PATH, UNLOAD_PATH):
            assert (await post(here, path, {"model": "a"}, key="k-wrong"))[0] == 401
        for path in (EVENTS_PATH, "/props", "/v1/models"):
            assert (await here.get(path))[0] == 401


async def test_a_load_counts_as_a_request_of_its_key() -> None:
    limited = ApiKey(ANNA, "anna", KeyLimits(requests_per_minute=1))
    async with many_world(ANSWERS, config=GatewayConfig(port=0, api_keys=(limited,))) as here:
        all_ready(here)
        assert (await post(here, LOAD_PATH, {"model": "a"}, key=ANNA))[0] == 200
        assert (await post(here, LOAD_PATH, {"model": "a"}, key=ANNA))[0] == 429


# Events.


@asynccontextmanager
async def watching(here: ManyWorld) -> AsyncIterator[aiohttp.ClientResponse]:
    async with here.http.get(here.gateway.url + EVENTS_PATH) as stream:
        assert (stream.status, stream.content_type) == (200, "text/event-stream")
        yield stream


async def event(stream: aiohttp.ClientResponse) -> dict[str, Any]:
    line = await stream.content.readuntil(b"\n\n")
    found = json.loads(line.removeprefix(b"data: "))
    assert isinstance(found, dict)
    return found


async def test_events_tell_all_states_and_then_each_change() -> None:
    async with many_world(ANSWERS) as here:
        here.models["b"].state = ModelState.UNLOADED
        async with watching(here) as stream:
            assert await event(stream) == {"model": "*", "event": "models_reload", "data": {}}
            loaded, unloaded = {"status": "loaded"}, {"status": "unloaded"}
            first = [await event(stream), await event(stream)]
            assert first == [
                {"model": "a", "event": "status_change", "data": loaded},
                {"model": "b", "event": "status_change", "data": unloaded},
            ]
            here.models["b"].state, here.models["b"].progress = ModelState.LOADING, 0.256
            assert await event(stream) == {
                "model": "b",
                "event": "status_change",
                "data": {
                    "status": "loading",
                    "progress": {"stages": ["text_model"], "current": "text_model", "value": 0.26},
                },
            }
            here.models["b"].state = ModelState.FAILED
            assert (await event(stream))["data"] == {"status": "failed"}


async def test_as_many_pages_watch_as_may_and_the_end_of_one_makes_room() -> None:
    async with many_world(ANSWERS) as here:
        url = here.gateway.url + EVENTS_PATH
        async with AsyncExitStack() as watching_too:
            first = await here.http.get(url)
            for _ in range(API_MODEL_WATCHERS.most - 1):
                await watching_too.enter_async_context(here.http.get(url))
            async with here.http.get(url) as refused:
                assert (refused.status, (await refused.json())["error"]["code"]) == (503, "busy")
            first.close()
            status = 503
            while status == 503:
                async with here.http.get(url) as again:
                    status = again.status
            assert status == 200


async def test_head_tells_no_events() -> None:
    async with many_world(ANSWERS) as here, here.http.head(here.gateway.url + EVENTS_PATH) as answer:
        assert answer.status == 200


async def test_another_node_is_told_of_which_of_its_models_is_asked() -> None:
    asked: list[str] = []

    async def answer(_server: FakeServer, request: web.BaseRequest) -> web.StreamResponse:
        asked.append(str(request.rel_url))
        return web.json_response({})

    async with world(answer) as here:
        here.upstream.model_name = "a/b&c"
        for slots in (4, None):  # None: of another node, which has the queue
            here.upstream.slots = slots  # type: ignore[assignment]
            async with here.http.get(f"{here.url}/props?autoload=false") as props:
                assert props.status == 200
    assert asked == ["/props", "/props?model=a/b%26c"]
