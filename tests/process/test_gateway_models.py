"""Several models behind one gateway: found by name, waited for, and asked each at its own llama-server."""

import asyncio
import json

from meshd.gateway.interface import GatewayConfig, Readiness
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState

from tests.process.gateway_fake import (
    DONE,
    FakeModel,
    ManyWorld,
    chunk,
    last_chunk,
    many_world,
    says,
    streams,
)
from tests.process.test_gateway_continued import data_of
from tests.process.test_gateway_sampling import EXACT

CONFIG = GatewayConfig(port=0, keepalive_seconds=0.1, continue_seconds=5.0)
ANSWERS = {name: says(200, {"from": name}) for name in ("a", "b")}
STREAMS = {name: streams(chunk(name), last_chunk(1), DONE) for name in ("a", "b")}


def all_ready(here: ManyWorld) -> None:
    for model in here.models.values():
        model.granted.set()


async def until_asked(model: FakeModel, count: int = 1) -> None:
    while len(model.turns) < count:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.01)


async def test_a_request_goes_to_the_model_that_it_names() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        all_ready(here)
        asked: dict[str | None, str] = {"b": "b", "a": "a", "b-alias": "b", None: "a", "": "a"}
        for name, expected in asked.items():
            assert (await (await here.chat(name)).json())["from"] == expected, name
        assert [len(model.server.seen) for model in here.models.values()] == [3, 2]
        assert all(turn.ended for model in here.models.values() for turn in model.turns)
        assert here.models["b"].upstream.active == [1, 0, 1, 0]


async def test_an_unknown_model_is_refused_with_the_names_of_those_that_exist() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        all_ready(here)
        answer = await here.chat("gpt-4")
        error = (await answer.json())["error"]
        assert (answer.status, error["code"]) == (404, "model_not_found")
        assert error["message"] == "the model `gpt-4` is not served here; `a`, `b` are"
        wrong: tuple[object, ...] = (5, ["a"], {}, True)
        for one in wrong:
            answer = await here.chat(one)
            assert (answer.status, (await answer.json())["error"]["code"]) == (400, "invalid_model")
        assert not any(model.turns for model in here.models.values())


async def test_a_stream_hears_what_it_waits_for() -> None:
    async with many_world(STREAMS, config=CONFIG) as here:
        here.models["b"].notice = "b: hashing 3 of 17 GB"
        asked = asyncio.create_task(here.chat("b", stream=True))
        answer = await asked
        assert await answer.content.readuntil(b"\n\n") == b": b: hashing 3 of 17 GB\n\n"
        here.models["b"].notice = "b: loading the model"
        assert b"loading the model" in await answer.content.readuntil(b"loading the model\n\n")
        assert here.models["b"].server.seen == [], "nobody is asked before the model is there"
        here.models["b"].granted.set()
        assert data_of(await answer.read()) == [chunk("b"), last_chunk(1), DONE]


async def test_a_plain_request_waits_as_well() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        asked = asyncio.create_task(here.chat("b"))
        await until_asked(here.models["b"])
        assert here.models["b"].server.seen == []
        here.models["a"].granted.set()
        assert (await (await here.chat("a")).json())["from"] == "a", "others are not kept by that"
        here.models["b"].granted.set()
        assert (await (await asked).json())["from"] == "b"


async def test_fields_that_depend_on_the_load_are_added_after_it() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        model = here.models["a"]
        asked = asyncio.create_task(here.chat("a", backend_sampling=True))
        await until_asked(model)
        model.upstream.device_sampling = EXACT
        model.granted.set()
        answer = await asked
        assert (answer.status, (await answer.json())["error"]["code"]) == (
            400,
            "backend_sampling_not_allowed",
        )
        assert (await here.chat("a")).status == 200
        _, _, _, body = model.server.seen[0]
        assert json.loads(body)["backend_sampling"] is True and "seed" in json.loads(body)


async def test_what_cannot_be_loaded_is_an_answer_with_the_reason() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        model = here.models["a"]
        model.refused = Readiness(ModelState.FAILED, "no memory", retry_after=7)
        model.granted.set()
        for stream in (False, True):
            answer = await here.chat("a", stream=stream)
            error = (await answer.json())["error"]
            assert (answer.status, error["code"]) == (503, "model_failed")
            assert "Retry-After" not in answer.headers, "it will not be there later"
            assert "no memory" in error["message"]
        assert all(turn.ended for turn in model.turns)


async def test_after_a_comment_it_is_an_event() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        model = here.models["a"]
        model.notice, model.refused = "a: loading", Readiness(ModelState.FAILED, "no memory")
        answer = await here.chat("a", stream=True)
        await answer.content.readuntil(b"\n\n")
        model.granted.set()
        (event,) = data_of(await answer.read())
        assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == "model_failed"


async def test_a_client_that_goes_while_it_waits_gives_its_turn_up() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        model = here.models["b"]
        asked = asyncio.create_task(here.chat("b"))
        await until_asked(model)
        asked.cancel()
        while not model.turns[0].ended:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)
        assert model.server.seen == [] and model.upstream.active == [1, 0]


async def test_models_are_listed_with_their_states() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        here.models["b"].state = ModelState.UNLOADED
        here.models["b"].upstream.facts = ServedFacts(context=4096, created=7)
        status, listed = await here.get("/v1/models")
        assert status == 200 and listed["object"] == "list"
        assert [(one["id"], one["object"], one["state"], one["aliases"]) for one in listed["data"]] == [
            ("a", "model", "ready", ["a-alias"]),
            ("b", "model", "unloaded", ["b-alias"]),
        ]
        assert [(one["created"], one.get("max_model_len")) for one in listed["data"]] == [
            (0, None),
            (7, 4096),
        ]
        for name in ("b", "b-alias"):
            assert await here.get(f"/v1/models/{name}") == (200, listed["data"][1])
        for path in ("/v1/models/c", "/v1/models/"):
            status, error = await here.get(path)
            assert (status, error["error"]["code"]) == (404, "model_not_found")


async def test_health_is_that_of_any_model_or_of_the_one_asked_for() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        a, b = here.models.values()
        a.state, b.state = ModelState.FAILED, ModelState.UNLOADED
        said = await here.get("/health")
        assert said == (200, {"status": "ok", "models": {"a": "failed", "b": "unloaded"}})
        assert await here.get("/health?model=a-alias") == (200, {"status": "ok", "model": "a"})
        b.upstream.readiness = Readiness(ModelState.UNLOADED, "nobody needs it")
        status, whole = await here.get("/health?model=b")
        assert (status, whole["status"], whole["reason"]) == (503, "unloaded", "nobody needs it")
        assert (await here.get("/health?model=c"))[0] == 404
        b.state = ModelState.FAILED
        status, whole = await here.get("/health")
        assert (status, whole["status"], whole["error"]["code"]) == (503, "failed", "model_failed")


async def test_what_a_llama_server_tells_of_itself_is_asked_by_name_and_loads_nothing() -> None:
    async with many_world(ANSWERS, config=CONFIG) as here:
        assert await here.get("/props?model=b") == (200, {"from": "b"})
        assert await here.get("/metrics?model=a") == (200, {"from": "a"})
        here.models["a"].upstream.readiness = Readiness(ModelState.UNLOADED, "nobody needs it")
        status, error = await here.get("/props?model=a")
        assert (status, error["error"]["code"]) == (503, "model_unloaded")
        assert (await here.get("/props?model=c"))[0] == 404
        assert not any(model.turns for model in here.models.values())
