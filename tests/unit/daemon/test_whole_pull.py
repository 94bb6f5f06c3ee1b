"""Models that the daemon gets for its user by any name: from here, members or a hub, and checked."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from meshd.admin.api import PullReply, PullRequest

from tests.conformance.run import until
from tests.hub_server import Hub, taken_for_hub
from tests.unit.daemon.test_models import ended, exchange
from tests.unit.library.members.exchange_scene import NAME, big, scene
from tests.unit.library.models import cached, put, tiny

REPOSITORY, HUB_NAME = "me/Big-GGUF", "hf:me/Big-GGUF:Q8_0"


@pytest.fixture(autouse=True)
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub that has the large model, for a user without settings."""
    for name in os.environ:
        if name.startswith(("MESHD_", "HF_", "HUGGINGFACE_", "OLLAMA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    (tmp_path / "user").mkdir()
    with taken_for_hub(Hub(), tmp_path / "user/token", monkeypatch) as server:
        server.repositories = {REPOSITORY: {f"{NAME}.gguf": big()}}
        yield server


def asking(name: str) -> PullRequest:
    return PullRequest(name=name, background=True, download=True)


def only(reply: PullReply) -> Path:
    assert reply.error == "" and reply.step == "done", reply
    [path] = reply.paths
    return Path(path)


async def test_what_no_member_has_is_downloaded_and_told(tmp_path: Path, hub: Hub) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a")
        begun = models.start(asking(HUB_NAME))
        assert (begun.asked, begun.name, begun.source) == (HUB_NAME, "", "members")
        reply = await ended(models, begun)
        path = only(reply)
        assert path.read_bytes() == big() and "huggingface/hub" in str(path)
        assert (reply.source, reply.name, reply.was_here) == ("download", HUB_NAME, False)
        again = await ended(models, models.start(asking(HUB_NAME)))
        assert only(again) == path and again.was_here
    assert len(hub.headers_of("/bytes/")) == 1


async def test_how_far_a_download_is_can_be_seen_and_it_can_be_stopped(tmp_path: Path, hub: Hub) -> None:
    """The next one goes on where it was; a command without --background watches the same."""
    hub.pause, hub.mark = 0.02, 2 << 20
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        begun = models.start(asking(HUB_NAME))
        await until(hub.reached.is_set)
        await until(lambda: models.progress(begun.id).step == "fetching")
        now = models.start(PullRequest(name=HUB_NAME))
        assert now.id == begun.id and now.activity.startswith("downloading big-Q8_0.gguf")
        assert now.total_bytes == len(big())
        listed = await models.listed()
        assert [(pull.asked, pull.source) for pull in listed.pulls] == [(HUB_NAME, "download")]
        models.stop(begun.id)
        stopped = await ended(models, models.progress(begun.id))
        assert (stopped.step, stopped.error) == ("failed", "it was stopped")
        hub.pause = 0.0
        reply = await ended(models, models.start(asking(HUB_NAME)))
        assert only(reply).read_bytes() == big()
    assert int(hub.headers_of("/bytes/")[-1]["Range"][6:-1]) >= 1 << 20, "what was there did not come again"


async def test_what_members_give_is_compared_with_the_hubs_hash(tmp_path: Path, hub: Hub) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        cached(it.giver("a").folder / "hub", REPOSITORY, {f"{NAME}.gguf": big()})
        reply = await ended(models, models.start(asking(HUB_NAME)))
        path = only(reply)
        assert path.read_bytes() == big() and "huggingface/hub" in str(path)
        assert reply.source == "members" and reply.holders[0].bytes == len(big()) and reply.note == ""
    assert hub.headers_of("/bytes/") == []


async def test_what_differs_from_the_hubs_is_replaced_and_told(tmp_path: Path, hub: Hub) -> None:
    hub.repositories = {REPOSITORY: {f"{NAME}.gguf": tiny()}}
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        cached(it.giver("a").folder / "hub", REPOSITORY, {f"{NAME}.gguf": big()})
        reply = await ended(models, models.start(asking(HUB_NAME)))
        assert only(reply).read_bytes() == tiny() and reply.source == "download"
        assert "is not the file that Hugging Face has under that name; it was removed" in reply.note


async def test_what_cannot_be_compared_is_kept_and_told(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        cached(it.giver("a").folder / "hub", REPOSITORY, {f"{NAME}.gguf": big()})
        reply = await ended(models, models.start(asking(HUB_NAME)))
        assert only(reply).read_bytes() == big()
        assert reply.note.startswith("not compared with the hash that Hugging Face promises:")


async def test_a_file_that_arrives_damaged_is_not_kept(tmp_path: Path, hub: Hub) -> None:
    hub.corruptions = 2
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        reply = await ended(models, models.start(asking(HUB_NAME)))
        assert reply.step == "failed" and "arrived damaged, twice" in reply.error and reply.hint
        assert reply.paths == () and not list((tmp_path / "user").rglob("*.gguf"))
        assert [pull.error for pull in (await models.listed()).pulls] == [reply.error]


@pytest.mark.parametrize(
    ("name", "said", "hint"),
    [
        ("hf:me/None-GGUF:Q8_0", "no repository `me/None-GGUF`", ""),
        ("nonesuch", "there is no model `nonesuch` on this machine", "meshd model ls"),
        ("ollama:nonesuch", "Ollama has no model `nonesuch`", "ollama pull nonesuch"),
        ("mesh:nonesuch", "no member of the mesh has `mesh:nonesuch`", "meshd model ls"),
        ("nonesuch.gguf", "there is no model `nonesuch.gguf`", "check the path"),
    ],
)
async def test_names_that_nobody_knows(tmp_path: Path, name: str, said: str, hint: str) -> None:
    """They are told at once, as the command line tells them, and are no pull to begin again."""
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a")
        reply = await ended(models, models.start(asking(name)))
        assert said in reply.error and hint in reply.hint and reply.step == "failed"
        assert (await models.listed()).pulls == ()


async def test_a_model_that_is_here_is_used_where_it_is(tmp_path: Path, hub: Hub) -> None:
    path = put(tmp_path / "user/.models/own-Q8_0.gguf", tiny())
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        reply = await ended(models, models.start(asking("own-Q8_0")))
        assert only(reply) == path and reply.was_here and reply.name == "own-Q8_0"
    assert hub.asked == []


async def test_a_plain_pull_of_the_same_name_is_waited_for(tmp_path: Path, hub: Hub) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        it.giver("a").has(big())
        plain = models.start(PullRequest(name=NAME, rate=1 << 20))
        whole = models.start(asking(NAME))
        assert whole.id != plain.id
        first, second = await asyncio.gather(ended(models, plain), ended(models, whole))
        assert only(first) == only(second) and first.was_here != second.was_here, "one copied it"
