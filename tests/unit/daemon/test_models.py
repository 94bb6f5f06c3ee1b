"""Test what a daemon does with models: pulls, what it offers and uses, and the state of its disk."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin.api import NO_MEMBER_HAS_IT, PullReply, PullRequest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.config.serve_settings import ModelConfig, ServeConfig
from meshd.config.tree import Config, NodeConfig, Paths, WorkerConfig
from meshd.daemon import models as daemon_models
from meshd.daemon.models import (
    MAX_PULLS,
    SHOWN_FILES,
    ModelExchange,
    Storage,
    files_in_use,
    gives_unbounded,
    started_with,
)
from meshd.devices.interface import RoleStatus
from meshd.library.facts import facts_of
from meshd.library.members.pull import PullStep
from meshd.library.stores import Stores
from meshd.model.status import StoreStatus
from meshd.store.hash_cache import PieceCache
from meshd.wire.models import MODELS_SERVICE, ToldDisk

from tests.conformance.run import run, until
from tests.unit.library.members.exchange_scene import NAME, Scene, big, scene, stores_of
from tests.unit.library.models import put, tiny


@asynccontextmanager
async def exchange(it: Scene, folder: Path) -> AsyncIterator[ModelExchange]:
    """Run the exchange of the scene's taker."""
    config = Config(paths=Paths(home=folder / "home", cache=folder / "taker"))
    made = ModelExchange(
        it.taker,
        config,
        PieceCache.below(config.paths.cache),
        is_serving=lambda: False,
        disk=lambda: None,
    )
    async with Owner() as owner:
        owner.start(made.serve(), name="models")
        await asyncio.sleep(0)
        yield made
        owner.cancel()


async def ended(models: ModelExchange, reply: PullReply) -> PullReply:
    while reply.step not in ("done", "failed"):
        await asyncio.sleep(0.02)
        reply = models.progress(reply.id)
    return reply


async def test_a_pull_runs_to_its_end(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a").has(big())
        [listed] = (await models.listed()).models
        assert (listed.node, listed.name, listed.bytes) == ("a", NAME, len(big()))
        reply = await ended(models, models.start(PullRequest(name=NAME)))
        assert reply.error == "" and reply.done_bytes == len(big()) and len(reply.fingerprint or "") == 64
        assert Path(reply.paths[0]).name == f"{NAME}.gguf" and reply.holders[0].bytes == len(big())


async def test_a_failure_has_its_words(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a")
        reply = await ended(models, models.start(PullRequest(name="mesh:none")))
        assert reply.code == NO_MEMBER_HAS_IT and "asked: a" in reply.error and reply.hint


@pytest.mark.parametrize(
    "part", [PullRequest(name=NAME, for_plan=True), PullRequest(name=NAME, header_only=True)]
)
async def test_a_download_is_of_whole_models(tmp_path: Path, part: PullRequest) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        with pytest.raises(UserError, match="`download` is for whole models") as caught:
            models.start(replace(part, download=True))
        assert "leave out `download`" in caught.value.hint and (await models.listed()).pulls == ()


async def test_what_nobody_watches_is_ended_and_continued_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_models, "_LOOK_SECONDS", 0.05)
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a").has(big())
        with monkeypatch.context() as impatient:
            impatient.setattr(daemon_models, "_UNWATCHED_SECONDS", 0.3)
            first = models.start(PullRequest(name=NAME, rate=1 << 20))
            [pull] = models._pulls.values()
            await until(lambda: not models._pulls, seconds=60.0)
        assert pull.work.state.step is PullStep.FAILED
        with pytest.raises(UserError, match="has ended"):
            models.progress(first.id)
        reply = await ended(models, models.start(PullRequest(name=NAME)))
        assert reply.error == "" and reply.id != first.id


@pytest.mark.parametrize("begun", ["so", "later"])
async def test_one_in_the_background_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    monkeypatch.setattr(daemon_models, "_UNWATCHED_SECONDS", 0.3)
    monkeypatch.setattr(daemon_models, "_LOOK_SECONDS", 0.05)
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a").has(big())
        first = models.start(PullRequest(name=NAME, rate=1 << 20, background=begun == "so"))
        if begun == "later":
            models.start(PullRequest(name=NAME, background=True))
        await until(lambda: not models._pulls, seconds=60.0)
        assert [file.read_bytes() for file in (tmp_path / "taker/models").rglob("*.gguf")] == [big()]
        with pytest.raises(UserError, match="has ended"):
            models.progress(first.id)


async def test_one_in_the_background_that_failed_is_told_until_it_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_models, "_UNWATCHED_SECONDS", 0.3)
    monkeypatch.setattr(daemon_models, "_LOOK_SECONDS", 0.05)
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        file = it.giver("a").has(big())
        request = PullRequest(name=NAME, rate=1 << 20, background=True)
        first = models.start(request)
        await until(lambda: models.progress(first.id).step == "fetching")
        file.unlink()
        reply = await ended(models, models.progress(first.id))
        assert reply.error
        await asyncio.sleep(1.0)  # nobody asks any more
        assert [(one.id, one.error) for one in (await models.listed()).pulls] == [(first.id, reply.error)]
        again = models.start(request)
        assert [one.id for one in (await models.listed()).pulls] == [again.id]


async def test_a_second_verb_watches_the_same_pull(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a").has(big())
        first = models.start(PullRequest(name=NAME, rate=1 << 20))
        assert models.start(PullRequest(name=NAME)).id == first.id
        assert [one.id for one in (await models.listed()).pulls] == [first.id]
        models.stop(first.id)
        reply = await ended(models, models.progress(first.id))
        assert reply.step == "failed" and reply.error == "it was stopped"
        assert (await models.listed()).pulls == ()


async def test_no_verb_ends_the_pull_of_a_model_that_the_node_needs(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a").has(big())
        watched = models.start(PullRequest(name=NAME, rate=1 << 20))
        assert models.start(PullRequest(name=NAME), is_own=True).id == watched.id
        models.stop(watched.id)
        await asyncio.sleep(0.1)
        assert models.progress(watched.id).step not in ("failed", "done")
        models.stop(watched.id, is_own=True)
        assert (await ended(models, models.progress(watched.id))).error == "it was stopped"


async def test_two_plans_of_one_model_have_a_folder_each(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a").has(big())
        begun = [models.start(PullRequest(name=NAME, for_plan=True)) for _ in range(2)]
        first, second = [Path((await ended(models, one)).paths[0]) for one in begun]
        shutil.rmtree(first.parent)
        assert second.stat().st_size == len(big())
        shutil.rmtree(second.parent)
        assert not [path for path in (tmp_path / "taker/models").rglob("*") if "plan" in path.name]


def test_what_plans_left_behind_is_removed_when_the_daemon_starts(tmp_path: Path) -> None:
    cache = tmp_path / "taker"
    places = [cache / "models/plan-0", cache / "models/.parts/plan-1", cache / ".headers/tmp2"]
    others = [cache / "models/header-0", cache / "models/mesh-0", cache / "models/.parts/0"]
    for place in (*places, *others):
        put(place / "far.header", b"GGUF")
        os.utime(place, (1, 1))
    lock = put(cache / "models/.parts/plan-1.lock", b"")
    running = put(cache / "models/plan-9/far.header", b"GGUF")

    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path):
            await until(lambda: not any(place.exists() for place in (*places, lock)), seconds=20.0)
            assert running.exists() and all(place.exists() for place in others)

    run(main())


async def test_so_many_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        for number in range(MAX_PULLS):
            models.start(PullRequest(name=f"mesh:m{number}"))
        with pytest.raises(UserError, match="are being pulled already"):
            models.start(PullRequest(name="mesh:more"))
        with pytest.raises(UserError, match="is not a model's name"):
            models.start(PullRequest(name="/etc/passwd"))
        with pytest.raises(UserError, match="at least 32 of the 64 digits") as caught:
            models.start(PullRequest(name="mesh:570760e3492da2f0"))
        assert "`meshd model ls --json`" in caught.value.hint


@pytest.mark.parametrize(
    ("give", "computing", "gives"), [("own", False, True), ("own", True, False), ("off", False, False)]
)
def test_pieces_are_given_unbounded_where_nothing_is_computed(
    give: str, computing: bool, gives: bool
) -> None:
    config = Config(node=NodeConfig(give_models=give))
    assert gives_unbounded(config, lambda: RoleStatus((), (), None, is_computing=computing)) is gives


class Node:
    """One with stores of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.walks = 0
        self.kept: StoreStatus | None = None

    def stores(self) -> Stores:
        self.walks += 1
        return stores_of(self.folder / "me")

    def storage(self, it: Scene, *models: Path) -> Storage:
        """Return the storage of the scene's taker."""
        config = Config(
            node=NodeConfig(name="taker"),
            paths=Paths(home=self.folder / "home", cache=self.folder / "me/cache"),
            worker=WorkerConfig(models=models),
        )
        return Storage(it.taker, config, self.stores, kept=lambda: self.kept)

    @asynccontextmanager
    async def serving(self, it: Scene, *models: Path) -> AsyncIterator[Storage]:
        made = self.storage(it, *models)
        async with Owner() as owner:
            owner.start(made.serve(), name="storage")
            yield made
            owner.cancel()


async def test_status_counts_each_model_once_and_not_again_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_models, "_FIRST_COUNT_SECONDS", 60.0)  # the machine may be busy
    file = put(tmp_path / "elsewhere/c-Q4_0.gguf", tiny(fill=3))
    put(tmp_path / "me/own/a-Q4_0.gguf", tiny(fill=1))
    put(tmp_path / "me/cache/models/b-Q4_0.gguf", tiny(fill=2))
    (tmp_path / "me/own/same.gguf").symlink_to(tmp_path / "me/own/a-Q4_0.gguf")
    node = Node(tmp_path)
    async with scene(tmp_path) as it, node.serving(it, file) as made:
        first = await made.status()
        assert (first.models, first.models_bytes) == (3, 3 * len(tiny()))
        assert first.free_bytes is not None and first.free_bytes > 0 and first.cache_room_bytes is None
        for _ in range(5):
            assert (await made.status()).models == 3
        assert node.walks == 1


async def test_the_hole_in_a_header_is_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemon_models, "_FIRST_COUNT_SECONDS", 60.0)
    file = put(tmp_path / "elsewhere/c-Q4_0.gguf", tiny())
    os.truncate(file, 64 << 20)
    async with scene(tmp_path) as it, Node(tmp_path).serving(it, file) as made:
        status = await made.status()
        assert status.models == 1 and status.models_bytes is not None
        assert status.models_bytes < 1 << 20


async def test_two_files_of_one_content_are_one_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = facts_of
    monkeypatch.setattr(
        daemon_models, "facts_of", lambda one, hashes: replace(known(one, hashes), fingerprint="ab" * 32)
    )
    for name in ("a-Q4_0", "b-Q4_0"):
        put(tmp_path / f"me/own/{name}.gguf", tiny())
    async with scene(tmp_path) as it, Node(tmp_path).serving(it) as made:
        own, *_ = await made.of_all()
        assert len(own.models) == 1 and own.more_models == 0


async def test_a_walk_that_takes_long_keeps_no_status_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_models, "_FIRST_COUNT_SECONDS", 0.01)
    async with scene(tmp_path) as it:
        made = Node(tmp_path).storage(it)
        for _ in range(2):  # nobody serves it, so the count never comes
            view = await made.status()
            assert view.models is None and view.models_bytes is None and view.free_bytes is not None


async def test_room_is_what_the_limit_of_kept_weights_leaves(tmp_path: Path) -> None:
    node = Node(tmp_path)
    async with scene(tmp_path) as it, node.serving(it) as made:
        node.kept = StoreStatus(path="", bytes=30, limit=100, tensors=1)
        assert (await made.status()).cache_room_bytes == 70
        node.kept = StoreStatus(path="", bytes=130, limit=100, tensors=1)
        disk = made.disk()
        assert disk is not None and disk.room == 0


async def test_a_disk_that_cannot_be_looked_at_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_place: Path) -> int:
        raise OSError("stale file handle")

    monkeypatch.setattr(daemon_models, "free_bytes", broken)
    async with scene(tmp_path) as it, Node(tmp_path).serving(it) as made:
        assert made.disk() is None and (await made.status()).free_bytes is None


async def _never(_stream: object) -> None:
    raise AssertionError("it was refused")


async def test_all_nodes_and_their_largest_models(tmp_path: Path) -> None:
    async with scene(tmp_path) as it, Node(tmp_path).serving(it) as made:
        giver = it.giver("a")
        giver.disk = ToldDisk(5_000, 300)
        giver.has(big())
        for number in range(SHOWN_FILES + 1):
            giver.has(tiny(fill=number + 1), f"m{number:02}-Q4_0")
        it.giver("b")
        it.mute("closed").handle(MODELS_SERVICE, _never, allow=lambda _member, _metadata: "not today")
        put(tmp_path / "me/own/mine-Q4_0.gguf", tiny())
        put(tmp_path / "me/own/cut-Q4_0.gguf", tiny()[:-9])
        own, a, b, closed = await made.of_all()
        assert own.node == "taker" and own.free_bytes and own.why_not == ""
        [mine] = own.models
        assert (mine.name, mine.bytes, mine.fingerprint) == ("mine-Q4_0", len(tiny()), None)
        assert (a.node, a.free_bytes, a.cache_room_bytes) == ("a", 5_000, 300)
        assert [one.name for one in a.models[:2]] == [NAME, "m00-Q4_0"]
        assert len(a.models) == SHOWN_FILES and a.more_models == 2
        assert (b.node, b.free_bytes, b.cache_room_bytes, b.models) == ("b", None, None, ())
        assert (closed.node, closed.why_not, closed.free_bytes) == ("closed", "not today", None)


def test_models_by_name_are_no_files_yet(tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    named = Config(
        worker=WorkerConfig(models=("hf:a/b", file)),
        serve=ServeConfig(model="hf:a/b", fallback_models=(file,)),
    )
    assert started_with(named) == [file, file]


def test_files_in_use_are_those_of_all_models(tmp_path: Path) -> None:
    one, two, three, four = (tmp_path / f"{name}.gguf" for name in "abcd")
    several = Config(
        serve=ServeConfig(model="hf:a/b", mmproj=one),
        models=(ModelConfig(name="m", serve=ServeConfig(model=two, draft_model=three)),),
        worker=WorkerConfig(models=(four,)),
    )
    assert set(files_in_use(several)) == {one, two, three, four}
    assert files_in_use(Config()) == []


async def test_folders_that_cannot_be_walked_end_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_models, "_FIRST_COUNT_SECONDS", 60.0)
    node = Node(tmp_path)
    monkeypatch.setattr(node, "stores", homeless)
    async with scene(tmp_path) as it, node.serving(it) as made:
        found = await made.status()
        assert found.models is None and found.free_bytes is not None


def homeless() -> Stores:
    """As `Path.expanduser` fails."""
    raise RuntimeError("Could not determine home directory.")
