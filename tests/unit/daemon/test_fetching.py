"""The models of a role that are fetched while the node runs, and the API that tells how far they are."""

import asyncio
import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from meshd.admin.api import PullRequest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner, cancel_and_wait
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config, NodeConfig, Paths, WorkerConfig
from meshd.daemon import fetching
from meshd.daemon.fetching import Fetching, ModelsOnceFetched, with_paths
from meshd.daemon.role_kind import Wanted
from meshd.daemon.roles import ROLES
from meshd.devices.interface import RoleStatus
from meshd.gateway.interface import ModelWish
from meshd.gateway.request import OneModel, PlainModel
from meshd.library.members import fetch
from meshd.model.status import FetchStatus, ModelState
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.peer.interface import PeerState, Stream
from meshd.peer.messages import MessageStream
from meshd.store.hash_cache import HashCache
from meshd.wire.models import GONE, NoPieces, ReadingModel, ToldModel

from tests.conformance.run import run, until
from tests.hub_server import Hub, taken_for_hub
from tests.unit.daemon.test_models import ended, exchange
from tests.unit.library.members.exchange_scene import NAME, Scene, big, scene
from tests.unit.library.members.test_hostile_members import lies_about, says
from tests.unit.library.models import tiny

HUB_NAME = "hf:me/Far-GGUF:Q8_0"
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


@pytest.fixture(autouse=True)
def _soon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("MESHD_", "HF_", "HUGGINGFACE_", "OLLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setattr(fetching, "_LOOK_SECONDS", 0.02)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    (tmp_path / "user").mkdir()
    with taken_for_hub(Hub(), tmp_path / "user/token", monkeypatch) as server:
        yield server


def config_in(folder: Path, *names: str) -> Config:
    """Return the configuration of a node that serves the first model, and smaller ones beside it."""
    serve = ServeConfig(model=names[0], fallback_models=names[1:])
    return Config(serve=serve, paths=Paths(home=folder / "home", cache=folder / "taker"))


async def fetched(it: Scene, folder: Path, *names: str, seen: list[FetchStatus] | None = None) -> Config:
    """Return what becomes of the settings; `seen` gets each state."""
    config = config_in(folder, *names)
    async with exchange(it, folder) as models:
        work = Fetching(config, ROLES["serve"].wanted(config), it.taker, models)
        task = asyncio.create_task(work.run())
        try:
            while not task.done():
                if seen is not None and (not seen or seen[-1] != work.now):
                    assert work.status.fetching == work.now and work.status.model is None
                    seen.append(work.now)
                await asyncio.sleep(0)  # each turn of the loop: a step may be short
        finally:
            await cancel_and_wait(task)
    if seen is not None:
        seen.append(work.now)
    return task.result()


def path_of(config: Config) -> Path:
    assert isinstance(config.serve.model, Path)
    return config.serve.model


@pytest.mark.parametrize("name", [f"mesh:{NAME}", NAME])
async def test_it_comes_from_members(tmp_path: Path, name: str) -> None:
    seen: list[FetchStatus] = []
    async with scene(tmp_path) as it:
        it.giver("a").has(big())
        path = path_of(await fetched(it, tmp_path, name, seen=seen))
        assert path.read_bytes() == big() and path.name == f"{NAME}.gguf"
    assert seen[0].text == "looking for it on this machine" and seen[0].name == name
    assert (seen[-1].step, seen[-1].activity) == ("done", f"fetched {NAME} from a")
    fetches = [one for one in seen if one.step == "fetching"]
    assert fetches and fetches[-1].total_bytes == len(big()) and fetches[-1].source == "members"
    assert [one.node for one in fetches[-1].sources] == ["a"]


@pytest.mark.parametrize("name", [f"mesh:{NAME}", NAME])
async def test_a_member_that_is_about_to_come_is_waited_for(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path) as it:
        late = it.giver("late")
        late.has(big())
        late.mesh.state = PeerState.CONNECTING
        seen: list[FetchStatus] = []
        task = asyncio.create_task(fetched(it, tmp_path, name, seen=seen))
        await until(lambda: any(one.activity == "asking the members of the mesh" for one in seen))
        await asyncio.sleep(0.1)
        late.mesh.state = PeerState.CONNECTED
        assert path_of(await task).read_bytes() == big()


async def test_two_names_are_fetched_one_after_the_other(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        giver.has(big())
        giver.has(tiny(), "small-Q2_K")
        config = await fetched(it, tmp_path, f"mesh:{NAME}", "small-Q2_K")
        [smaller] = config.serve.fallback_models
        assert path_of(config).read_bytes() == big()
        assert isinstance(smaller, Path) and smaller.read_bytes() == tiny()


@pytest.mark.parametrize(
    ("state", "waits"), [(PeerState.CONNECTED, False), (PeerState.CONNECTING, True), (PeerState.LOST, True)]
)
async def test_nobody_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: PeerState, *, waits: bool
) -> None:
    """Said as soon as every member was asked; one that is not connected may come, for ten seconds."""
    monkeypatch.setattr(fetching, "OR_ELSEWHERE_SECONDS", 0.5 if waits else 1000.0)
    async with scene(tmp_path) as it:
        it.giver("a").mesh.state = state
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(UserError, match="there is no model `none` on this machine") as caught:
            await fetched(it, tmp_path, "none")
        asked = "asked: a" if state is PeerState.CONNECTED else "none is connected"
        assert "no member of the mesh has `none`" in caught.value.what and asked in caught.value.what
        assert "meshd model ls" in caught.value.hint
        assert loop.time() - began >= 0.5 * waits


async def test_a_member_that_was_stopped_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "OR_ELSEWHERE_SECONDS", 1000.0)
    async with scene(tmp_path) as it:
        gone = it.giver("gone").mesh
        gone.state, gone.stopped = PeerState.LOST, "stopped"
        with pytest.raises(UserError, match="no member of the mesh has `none`: none is connected"):
            await fetched(it, tmp_path, "none")


async def test_a_name_of_members_is_waited_for_though_all_were_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "FOUND_SECONDS", 0.5)
    async with scene(tmp_path) as it:
        it.giver("a")
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(UserError, match="no member of the mesh has `mesh:none`; asked: a"):
            await fetched(it, tmp_path, "mesh:none")
        assert loop.time() - began >= 0.5


async def test_another_failure_is_told_at_once(tmp_path: Path) -> None:
    """A name of two models."""
    async with scene(tmp_path) as it:
        it.giver("a").has(big())
        it.giver("b").has(big()[: len(big()) // 2] + big())
        with pytest.raises(UserError, match="means different models"):
            await fetched(it, tmp_path, f"mesh:{NAME}")


async def test_what_no_member_has_is_downloaded(tmp_path: Path, hub: Hub) -> None:
    hub.repositories = {"me/Far-GGUF": {"far-Q8_0.gguf": tiny()}}
    async with scene(tmp_path) as it:
        it.giver("a")
        seen: list[FetchStatus] = []
        path = path_of(await fetched(it, tmp_path, HUB_NAME, seen=seen))
        assert path.read_bytes() == tiny() and "huggingface/hub" in str(path)
        assert seen[-1].source == "download"
        assert path_of(await fetched(it, tmp_path, HUB_NAME)) == path, "it is here now"
    assert len(hub.headers_of("/bytes/")) == 1


async def _reads_forever(stream: Stream) -> None:
    messages = MessageStream(stream)
    while True:
        await messages.send(ReadingModel("0 %").encode())
        await asyncio.sleep(0.01)


async def _has_nothing(stream: Stream) -> None:
    await MessageStream(stream).send(NoPieces("it changed its mind").encode())
    stream.write_eof()


@pytest.mark.parametrize("lie", ["bytes", "gone", "stalls", "nothing", "reads", "size", "two"])
async def test_no_member_keeps_a_model_of_the_hub_from_being_downloaded(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, lie: str
) -> None:
    """One says that it has it, and then gives something else, or never anything."""
    hub.repositories = {"me/Far-GGUF": {"far-Q8_0.gguf": tiny()}}
    monkeypatch.setattr(fetch, "_SILENT_SECONDS", 0.3)
    monkeypatch.setattr(fetching, "ASKING_SECONDS", 0.5)
    size = 1 << 39 if lie == "size" else len(big())
    give, index = lies_about(big())
    if lie == "size":
        index = PieceIndex((size,), bytes(32) * (size // PIECE_BYTES))
    told = ToldModel(bytes(16), ("far-Q8_0", HUB_NAME), size, quant="Q8_0")

    async def gone(stream: Stream) -> None:
        await stream.write(GONE)

    async def stalls(_stream: Stream) -> None:
        await asyncio.Event().wait()

    gives = {"gone": gone, "stalls": stalls}.get(lie, give)
    pieces = {"reads": _reads_forever, "nothing": _has_nothing}.get(lie)
    async with scene(tmp_path) as it:
        says(it.mute("liar"), told, index, gives, pieces=pieces)
        if lie == "two":
            other, other_index = lies_about(tiny(fill=3))
            says(it.mute("other"), replace(told, size=other_index.size), other_index, other)
        seen: list[FetchStatus] = []
        path = path_of(await fetched(it, tmp_path, HUB_NAME, seen=seen))
        assert path.read_bytes() == tiny() and "huggingface/hub" in str(path)
        assert seen[-1].source == "download" and "members" in {one.source for one in seen}


async def test_where_nobody_gives_a_model_of_the_hub_all_is_told(tmp_path: Path, hub: Hub) -> None:
    hub.repositories = {}
    async with scene(tmp_path) as it:
        give, index = lies_about(big())
        told = ToldModel(bytes(16), ("far-Q8_0", HUB_NAME), len(big()), quant="Q8_0")
        says(it.mute("liar"), told, index, give)
        with pytest.raises(UserError, match=r"no repository `me/Far-GGUF`.*; no member gives .*liar: piece"):
            await fetched(it, tmp_path, HUB_NAME)


async def test_a_download_ends_when_the_node_is_stopped_and_goes_on_later(tmp_path: Path, hub: Hub) -> None:
    hub.repositories = {"me/Far-GGUF": {"far-Q8_0.gguf": big()}}
    hub.pause, hub.mark = 0.02, 2 << 20
    async with scene(tmp_path) as it:
        task = asyncio.create_task(fetched(it, tmp_path, HUB_NAME))
        await until(hub.reached.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        hub.pause = 0.0
        assert path_of(await fetched(it, tmp_path, HUB_NAME)).read_bytes() == big()
    second = hub.headers_of("/bytes/")[-1]
    assert int(second["Range"][6:-1]) >= 1 << 20, "what was there did not come again"


async def test_a_pull_ends_when_the_node_is_stopped(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.giver("a").has(big())
        it.mute("stalls")
        config = config_in(tmp_path, "mesh:none")
        async with exchange(it, tmp_path) as models:
            work = Fetching(config, ROLES["serve"].wanted(config), it.taker, models)
            task = asyncio.create_task(work.run())
            await until(lambda: work.now.activity == "asking the members of the mesh")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0.1)
            assert not (await models.listed()).pulls


@pytest.mark.parametrize("how", ["done", "stopped", "beside"])
async def test_a_users_pull_of_the_same_content_under_another_name_ends_nothing(
    tmp_path: Path, how: str
) -> None:
    """The node waits for a pull that was begun before its own, and takes what that leaves."""
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        giver = it.giver("a")
        giver.has(big())
        config = config_in(tmp_path, f"mesh:{NAME}")
        work = Fetching(config, ROLES["serve"].wanted(config), it.taker, models)
        user = PullRequest(name=f"{NAME}.gguf", rate=4 << 20)
        pull = models.start(user)
        if how != "beside":
            await until(lambda: models.progress(pull.id).step == "fetching")
        task = asyncio.create_task(work.run())
        if how == "stopped":
            await until(lambda: work.now.activity.startswith("waiting for"))
            models.stop(pull.id)
        path = path_of(await task)
        assert path.read_bytes() == big()
        reply = await ended(models, models.progress(pull.id))
        assert reply.error == ("it was stopped" if how == "stopped" else "")
        assert path.read_bytes() == big() and len(list((tmp_path / "taker").rglob("*.gguf"))) == 1


def test_what_a_role_wants_and_where_its_paths_go(tmp_path: Path) -> None:
    config = config_in(tmp_path, "a", "b")
    tables = (ModelConfig(name="m", serve=replace(config.serve, draft_model="d", fallback_models=())),)
    several = replace(
        config, serve=ServeConfig(), models=tables, worker=WorkerConfig(models=("w", Path("/x")))
    )
    assert ROLES["serve"].wanted(config) == [Wanted("a"), Wanted("b")]
    assert ROLES["serve"].wanted(several) == [Wanted("a"), Wanted("d")]
    assert ROLES["worker"].wanted(several) == [Wanted("w", partial=True)]
    assert not ROLES["client"].wanted(several)
    paths = {Wanted(name): Path(f"/{name}") for name in ("a", "d", "w")}
    placed = with_paths(several, paths)
    assert (placed.models[0].serve.model, placed.models[0].serve.draft_model) == (Path("/a"), Path("/d"))
    assert placed.worker.models == (Path("/w"), Path("/x"))


@pytest.mark.parametrize("file", ["tiny-Q4_0.header", "tiny-Q4_0.gguf"])
def test_a_header_is_served_without_devices(tmp_path: Path, file: str) -> None:
    """And all of the model as any other, where a member's model was on this machine already."""
    config = config_in(tmp_path, "mesh:tiny-Q4_0")
    config = replace(config, node=NodeConfig(), serve=replace(config.serve, header_only=True))
    [wanted] = ROLES["serve"].wanted(config)
    assert wanted == Wanted("mesh:tiny-Q4_0", header_only=True)
    serve = with_paths(config, {wanted: tmp_path / file}).serve
    is_header = file.endswith(".header")
    assert (serve.model, serve.header_only) == (tmp_path / file, is_header)
    assert serve.devices == (("none",) if is_header else ())


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
    """Return what a node that is to serve these says, by path."""
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
