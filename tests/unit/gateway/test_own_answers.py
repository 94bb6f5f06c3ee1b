"""What a gateway answers without a llama-server: health, the lists of models, and the chat page."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from aiohttp import web
from meshd.gateway.dialects.ollama import VERSION
from meshd.gateway.failure import HttpRefusal
from meshd.gateway.interface import Readiness
from meshd.gateway.own_answers import OwnAnswers, model_object
from meshd.gateway.pages import small_page
from meshd.gateway.request import OneModel
from meshd.model.served_facts import ServedFacts
from meshd.model.status import ModelState, WorkerWeights

from tests.process.gateway_fake import (
    FakeModel,
    FakeModels,
    FakeServer,
    FakeUpstream,
    says,
)
from tests.unit.gateway.virtual_gateway import (
    LOADING,
    READY,
)


def own(states: Mapping[str, ModelState], *, on_demand: bool = True) -> OwnAnswers:
    """The answers for several models, by state."""
    models = [
        FakeModel(
            name,
            FakeUpstream(Path("/s"), name, Readiness(state, f"{name} is so")),
            FakeServer(says(200, {})),
            aliases=(f"{name}-alias",),
            state=state,
        )
        for name, state in states.items()
    ]
    fakes = FakeModels(models)
    fakes.on_demand = on_demand
    return OwnAnswers(fakes)


def read(response: web.Response) -> tuple[int, dict[str, object]]:
    assert isinstance(response.body, bytes)
    fields: dict[str, object] = json.loads(response.body)
    return response.status, fields


async def test_health_of_one_model_is_its_own() -> None:
    anna = WorkerWeights("anna", 100, 60, 40, 10)
    loading = Readiness(ModelState.LOADING, "hashing", 7, progress=0.2, workers=(anna,))
    upstream = FakeUpstream(Path("/s"))
    answers = OwnAnswers(OneModel(upstream))
    for asked in ("", "anything"):
        assert read(answers.health(asked, {})) == (200, {"status": "ok", "model": "tiny"})
    upstream.readiness = loading
    response = answers.health("", {"X-Any": "1"})
    status, fields = read(response)
    assert (status, response.headers["Retry-After"], response.headers["X-Any"]) == (503, "7", "1")
    error = fields.pop("error")
    assert isinstance(error, dict) and error["code"] == "model_loading"
    assert fields == {
        "status": "loading",
        "reason": "hashing",
        "progress": 0.2,
        "model": "tiny",
        "workers": [
            {"node": "anna", "total_bytes": 100, "local_bytes": 60, "missing_bytes": 40, "sent_bytes": 10}
        ],
    }


async def test_health_of_several_models_is_that_of_all_or_of_the_one_asked_for() -> None:
    answers = own({"tiny": ModelState.READY, "big": ModelState.UNLOADED})
    states = {"tiny": "ready", "big": "unloaded"}
    assert read(answers.health("", {})) == (200, {"status": "ok", "models": states})
    assert read(answers.health("tiny-alias", {})) == (200, {"status": "ok", "model": "tiny"})
    status, fields = read(answers.health("big", {}))
    assert (status, fields["status"], fields["model"], fields["reason"]) == (
        503,
        "unloaded",
        "big",
        "big is so",
    )
    with pytest.raises(HttpRefusal) as refused:
        answers.health("none", {})
    assert refused.value.failure.status == 404
    elsewhere = own({"tiny": ModelState.READY}, on_demand=False)
    assert read(elsewhere.health("", {})) == (200, {"status": "ok", "model": "tiny"})
    elsewhere = own({"tiny": ModelState.READY, "big": ModelState.READY}, on_demand=False)
    assert read(elsewhere.health("", {})) == (200, {"status": "ok", "model": ""})


@pytest.mark.parametrize(
    ("path", "answers"),
    [
        ("/v1/models", True),
        ("/models", True),
        ("/v1/models/any/name", True),
        ("/api/tags", True),
        ("/api/ps", True),
        ("/api/version", True),
        ("/v1/modelsx", False),
        ("/api/show", False),
        ("/health", False),
    ],
)
async def test_paths_about_models(path: str, answers: bool) -> None:
    assert own({}).answers(path) is answers


async def test_models_on_demand_are_listed_with_their_states() -> None:
    answers = own({"tiny": ModelState.READY, "big": ModelState.UNLOADED})
    listed = answers.about("/v1/models")
    assert listed == answers.about("/models") and listed["object"] == "list"
    rows = listed["data"]
    assert isinstance(rows, list)
    found = [(row["id"], row["state"], row["reason"], row["aliases"]) for row in rows]
    assert found == [
        ("tiny", "ready", "as the test says", ["tiny-alias"]),
        ("big", "unloaded", "as the test says", ["big-alias"]),
    ]
    for name in ("big", "big-alias"):
        assert answers.about(f"/v1/models/{name}") == rows[1]
    with pytest.raises(HttpRefusal) as refused:
        answers.about("/v1/models/none")
    assert refused.value.failure.code == "model_not_found"


@pytest.mark.parametrize(
    ("path", "names"), [("/api/tags", ["tiny", "big"]), ("/api/ps", ["tiny"]), ("/api/version", None)]
)
async def test_ollamas_lists(path: str, names: Sequence[str] | None) -> None:
    found = own({"tiny": ModelState.READY, "big": ModelState.UNLOADED}).about(path)
    if names is None:
        assert found == {"version": VERSION}
        return
    rows = found["models"]
    assert isinstance(rows, list) and [row["name"] for row in rows] == names


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/tiny", "/api/tags"])
async def test_a_model_is_listed_once_it_answers(path: str) -> None:
    upstream = FakeUpstream(Path("/s"), facts=ServedFacts(context=7))
    answers = OwnAnswers(OneModel(upstream))
    assert "tiny" in json.dumps(answers.about(path))
    upstream.readiness = LOADING
    with pytest.raises(HttpRefusal) as refused:
        answers.about(path)
    assert (refused.value.failure.status, refused.value.failure.retry_after) == (503, 7)
    assert answers.about("/api/ps") == {"models": []} and answers.about("/api/version")
    upstream.readiness, upstream.model_name = READY, ""
    for listing in ("/v1/models", "/api/tags"):
        assert "tiny" not in json.dumps(answers.about(listing))


@pytest.mark.parametrize(
    ("asked", "found"), [({"model": "tiny"}, True), ({"name": "tiny"}, True), ({"model": "x"}, False)]
)
async def test_a_model_is_shown_by_either_name(asked: Mapping[str, object], found: bool) -> None:
    answers = own({"big": ModelState.READY, "tiny": ModelState.READY})
    if found:
        response = answers.show(asked, {"X-Any": "1"})
        status, fields = read(response)
        assert status == 200 and response.headers["X-Any"] == "1"
        assert isinstance(info := fields["model_info"], dict) and info["general.basename"] == "tiny"
    else:
        with pytest.raises(HttpRefusal):
            answers.show(asked, {})


@pytest.mark.parametrize(
    ("facts", "contexts", "meta"),
    [
        (ServedFacts(), {}, {}),
        (
            ServedFacts(
                context=8, trained_context=9, size=5, parameters=7, architecture="a", quantization="q"
            ),
            {"max_model_len": 8, "context_length": 8, "context_window": 8},
            {"n_ctx": 8, "n_ctx_train": 9, "n_params": 7, "size": 5, "ftype": "q", "architecture": "a"},
        ),
        (ServedFacts(trained_context=9), {}, {"n_ctx_train": 9}),
    ],
)
async def test_a_listed_model_has_what_is_known(
    facts: ServedFacts, contexts: Mapping[str, int], meta: Mapping[str, object]
) -> None:
    found = model_object("tiny", facts)
    assert found == {
        "id": "tiny",
        "object": "model",
        "created": 0,
        "owned_by": "meshd",
        **contexts,
        "capabilities": ["completion"],
        "meta": meta,
    }


async def test_the_small_page_is_its_files_with_strict_headers() -> None:
    page = small_page()
    kinds = {path: file.content_type for path, file in page.items()}
    assert kinds == {"/": "text/html", "/chat.js": "text/javascript", "/chat.css": "text/css"}
    for file in page.values():
        response = await file.response({}, {"X-Any": "1"})
        assert response.body == file.place.read_bytes() != b"" and response.charset == "utf-8"
        assert "default-src 'none'" in response.headers["Content-Security-Policy"]
        assert response.headers["Cache-Control"] == "no-cache" and response.headers["X-Any"] == "1"
