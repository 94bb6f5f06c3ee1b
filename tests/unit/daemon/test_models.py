"""Pulls in a daemon: watched by a verb, ended with it, and joined by a second one."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.admin.api import NO_MEMBER_HAS_IT, PullReply, PullRequest
from meshd.base.errors import UserError
from meshd.base.tasks import Owner
from meshd.config.tree import Config, NodeConfig, Paths
from meshd.daemon import models as daemon_models
from meshd.daemon.models import MAX_PULLS, ModelExchange, gives_unbounded
from meshd.devices.interface import RoleStatus
from meshd.store.piece_cache import PieceCache

from tests.conformance.run import run, until
from tests.unit.library.members.exchange_scene import NAME, Scene, big, scene
from tests.unit.library.models import put


@asynccontextmanager
async def exchange(it: Scene, folder: Path) -> AsyncIterator[ModelExchange]:
    """That of the scene's taker."""
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


def test_a_pull_runs_to_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a").has(big())
            [listed] = (await models.listed()).models
            assert (listed.node, listed.name, listed.bytes) == ("a", NAME, len(big()))
            reply = await ended(models, models.start(PullRequest(name=NAME)))
            assert reply.error == "" and reply.done_bytes == len(big()) and len(reply.fingerprint or "") == 64
            assert Path(reply.paths[0]).name == f"{NAME}.gguf" and reply.holders[0].bytes == len(big())

    run(main())


def test_a_failure_has_its_words(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a")
            reply = await ended(models, models.start(PullRequest(name="mesh:none")))
            assert reply.code == NO_MEMBER_HAS_IT and "asked: a" in reply.error and reply.hint

    run(main())


def test_what_nobody_watches_is_ended_and_continued_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_models, "_UNWATCHED_SECONDS", 0.3)
    monkeypatch.setattr(daemon_models, "_LOOK_SECONDS", 0.05)

    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a").has(big())
            first = models.start(PullRequest(name=NAME, rate=1 << 20))
            await asyncio.sleep(1.0)
            with pytest.raises(UserError, match="has ended"):
                models.progress(first.id)
            reply = await ended(models, models.start(PullRequest(name=NAME)))
            assert reply.error == "" and reply.id != first.id

    run(main())


@pytest.mark.parametrize("begun", ["so", "later"])
def test_one_in_the_background_runs_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: str
) -> None:
    monkeypatch.setattr(daemon_models, "_UNWATCHED_SECONDS", 0.3)
    monkeypatch.setattr(daemon_models, "_LOOK_SECONDS", 0.05)

    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a").has(big())
            first = models.start(PullRequest(name=NAME, rate=1 << 20, background=begun == "so"))
            if begun == "later":
                models.start(PullRequest(name=NAME, background=True))
            await until(lambda: not models._pulls, seconds=60.0)
            assert [file.read_bytes() for file in (tmp_path / "taker/models").rglob("*.gguf")] == [big()]
            with pytest.raises(UserError, match="has ended"):
                models.progress(first.id)

    run(main())


def test_one_in_the_background_that_failed_is_told_until_it_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_models, "_UNWATCHED_SECONDS", 0.3)
    monkeypatch.setattr(daemon_models, "_LOOK_SECONDS", 0.05)

    async def main() -> None:
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

    run(main())


def test_a_second_verb_watches_the_same_pull(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a").has(big())
            first = models.start(PullRequest(name=NAME, rate=1 << 20))
            assert models.start(PullRequest(name=NAME)).id == first.id
            assert [one.id for one in (await models.listed()).pulls] == [first.id]
            models.stop(first.id)
            reply = await ended(models, models.progress(first.id))
            assert reply.step == "failed" and reply.error == "it was stopped"
            assert (await models.listed()).pulls == ()

    run(main())


def test_no_verb_ends_the_pull_of_a_model_that_the_node_needs(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a").has(big())
            watched = models.start(PullRequest(name=NAME, rate=1 << 20))
            assert models.start(PullRequest(name=NAME), is_own=True).id == watched.id
            models.stop(watched.id)
            await asyncio.sleep(0.1)
            assert models.progress(watched.id).step not in ("failed", "done")
            models.stop(watched.id, is_own=True)
            assert (await ended(models, models.progress(watched.id))).error == "it was stopped"

    run(main())


def test_two_plans_of_one_model_have_a_folder_each(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
            it.giver("a").has(big())
            begun = [models.start(PullRequest(name=NAME, for_plan=True)) for _ in range(2)]
            first, second = [Path((await ended(models, one)).paths[0]) for one in begun]
            shutil.rmtree(first.parent)
            assert second.stat().st_size == len(big())
            shutil.rmtree(second.parent)
            assert not [path for path in (tmp_path / "taker/models").rglob("*") if "plan" in path.name]

    run(main())


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


def test_so_many_at_once(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


@pytest.mark.parametrize(
    ("give", "computing", "gives"), [("own", False, True), ("own", True, False), ("off", False, False)]
)
def test_pieces_are_given_unbounded_where_nothing_is_computed(
    give: str, computing: bool, gives: bool
) -> None:
    config = Config(node=NodeConfig(give_models=give))
    assert gives_unbounded(config, lambda: RoleStatus((), (), None, is_computing=computing)) is gives
