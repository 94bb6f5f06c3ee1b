"""The API of a node that still fetches: how far it is, and all that it will serve, each with its state."""

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from meshd.base.tasks import Owner
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config, Paths
from meshd.daemon.fetching import ModelsOnceFetched
from meshd.daemon.roles import ROLES
from meshd.devices.interface import RoleStatus
from meshd.gateway.interface import ModelWish
from meshd.gateway.request import OneModel, PlainModel
from meshd.model.status import FetchStatus, ModelState
from meshd.store.hash_cache import HashCache

from tests.conformance.run import run

Answers = Mapping[str, tuple[int, dict[str, object]]]

ASKED = json.dumps({"model": "small", "messages": [{"role": "user", "content": "hello"}]}).encode()
PATHS = {
    "/v1/models": None,
    "/v1/models/tiny": None,
    "/api/tags": None,
    "/api/ps": None,
    "/health": None,
    "/v1/chat/completions": ASKED,
}


class Fetches:
    """Implements FetchingRole: `big` comes, its draft and `next` are still to come, the rest is here."""

    now = FetchStatus(
        name="mesh:big",
        step="fetching",
        activity="fetching big from desk",
        source="members",
        done_bytes=10**9,
        total_bytes=4 * 10**9,
        bytes_s=1e8,
    )
    lacks = frozenset({"mesh:big", "mesh:draft", "mesh:next"})
    status = RoleStatus(children=(), tunnels=(), model=None, fetching=now)

    async def serve(self) -> None:
        await asyncio.Event().wait()


HOW_FAR = "`mesh:big`: fetching big from desk: 1.0 GB of 4.0 GB, 100.0 MB/s, 30 s left"


def got(url: str, data: bytes | None = None) -> tuple[int, dict[str, object]]:
    """The status and the body of an answer."""
    try:
        with urlopen(Request(url, data, {"Content-Type": "application/json"}), timeout=30) as answer:
            return answer.status, json.load(answer)
    except HTTPError as refusal:
        with refusal:
            return refusal.code, json.load(refusal)


def answers(folder: Path, serve: ServeConfig, *models: ModelConfig) -> Answers:
    """What a node that is to serve these says, by path."""
    paths = Paths(home=folder, cache=folder)
    config = replace(Config(), serve=replace(serve, port=0), models=models, paths=paths)

    async def main() -> Answers:
        with contextlib.ExitStack() as held:
            claimed = await ROLES["serve"].claim(config, HashCache(folder), held)
            make = claimed.while_fetching(Fetches()).gateway
            assert make is not None
            gateway = make()
            async with Owner() as owner:
                owner.start(gateway.serve(), name="gateway")
                await gateway.started.wait()
                url = gateway.status.url
                found = {
                    path: await asyncio.to_thread(got, f"{url}{path}", data) for path, data in PATHS.items()
                }
                owner.cancel()
        return found

    return asyncio.run(main())


def named(name: str, model: str | Path, draft: str | None = None, *aliases: str) -> ModelConfig:
    return ModelConfig(name=name, aliases=aliases, serve=ServeConfig(model=model, draft_model=draft))


def rows_of(answer: tuple[int, dict[str, object]], field: str) -> list[dict[str, str]]:
    code, body = answer
    rows = body[field]
    assert code == 200 and isinstance(rows, list)
    return rows


def test_all_models_are_listed_while_some_are_fetched(tmp_path: Path) -> None:
    models = (
        named("big", "mesh:big"),
        named("small", Path("/small.gguf"), "mesh:draft", "tiny"),
        named("next", "mesh:next"),
        named("here", Path("/here.gguf")),
    )
    found = answers(tmp_path, ServeConfig(), *models)
    rows = rows_of(found["/v1/models"], "data")
    states = {"big": "fetching", "small": "fetching", "next": "fetching", "here": "unloaded"}
    assert [(row["id"], row["state"]) for row in rows] == list(states.items())
    assert [row["reason"] for row in rows] == [
        HOW_FAR,
        f"`mesh:draft` is fetched after {HOW_FAR}",
        f"`mesh:next` is fetched after {HOW_FAR}",
        f"it is here, and waits for {HOW_FAR}",
    ]
    assert found["/v1/models/tiny"] == (200, rows[1])
    assert {row["name"]: row["state"] for row in rows_of(found["/api/tags"], "models")} == states
    assert rows_of(found["/api/ps"], "models") == []
    code, health = found["/health"]
    assert (code, health["status"], health["progress"]) == (503, "fetching", 0.25)
    assert health["models"] == states
    code, refused = found["/v1/chat/completions"]
    error = refused["error"]
    assert code == 503 and isinstance(error, dict) and error["code"] == "model_fetching"
    assert f"`mesh:draft` is fetched after {HOW_FAR}" in error["message"]


def test_a_single_model_is_listed_once_it_answers(tmp_path: Path) -> None:
    """A client takes it for one that can be asked."""
    found = answers(tmp_path, ServeConfig(model="mesh:big"))
    assert {path: code for path, (code, _body) in found.items() if path != "/api/ps"} == {
        path: 503 for path in PATHS if path != "/api/ps"
    }


def test_the_api_says_how_far_it_is_and_then_asks_the_model() -> None:
    models = ModelsOnceFetched(Fetches(), ())
    said = models.readiness
    assert (said.state, said.progress, said.retry_after) == (ModelState.FETCHING, 0.25, 30)
    assert said.reason == HOW_FAR
    assert [one.upstream.model_name for one in models.all] == ["mesh:big"]
    late = models.find(ModelWish("far"))
    assert late is not None and late.upstream.slots is None and run(late.turn().begin()) == said
    there = OneModel(late.upstream)
    models.come(there)
    assert models.only is there.only and isinstance(models.only, PlainModel)
