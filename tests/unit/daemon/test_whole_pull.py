"""Models that the daemon gets for its user by any name: from here, members or a hub, and checked."""

import asyncio
import errno
import fcntl
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.admin.api import PullReply, PullRequest
from meshd.base.units import in_bytes
from meshd.build.interface import BuildProgress, ProgressCallback, Stage
from meshd.daemon import whole_pull
from meshd.library import download, resolve
from meshd.library.members import fetch
from meshd.library.members.part_files import PartFiles
from meshd.model.model_name import DEMO, DEMO_STEM
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.wire.models import GONE, HERE, NoPieces, ReadingModel, ToldModel

from tests.conformance.run import until
from tests.hub_server import Hub, taken_for_hub
from tests.unit.daemon.test_models import ended, exchange
from tests.unit.library.members.exchange_scene import NAME, big, scene
from tests.unit.library.members.test_hostile_members import lies_about, says, told_of
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


_RUBBISH = b"GGUF of nothing"
_TOLD_NAMES = {
    HUB_NAME: (NAME, HUB_NAME),
    "glm": ("GLM-4.7-Flash-Q4_K_M", "hf:unsloth/GLM-4.7-Flash-GGUF:Q4_K_M"),
    DEMO: (DEMO_STEM,),
}


@pytest.mark.parametrize(
    ("lie", "asked"),
    [
        *(
            (lie, HUB_NAME)
            for lie in ("bytes", "gone", "stalls", "nothing", "reads", "rubbish", "size", "two")
        ),
        ("bytes", "glm"),
        ("reads", "glm"),
        ("bytes", DEMO),
        ("reads", DEMO),
    ],
)
async def test_no_member_keeps_a_published_model_from_being_downloaded(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, lie: str, asked: str
) -> None:
    """One says that it has it, and then gives something else, or never anything."""
    hub.repositories = {
        REPOSITORY: {f"{NAME}.gguf": tiny()},
        "unsloth/GLM-4.7-Flash-GGUF": {"GLM-4.7-Flash-Q4_K_M.gguf": tiny()},
    }
    monkeypatch.setattr(fetch, "_SILENT_SECONDS", 0.3)
    monkeypatch.setattr(whole_pull, "ASKING_SECONDS", 0.5)
    monkeypatch.setattr(resolve, "demo_model", _demo)
    give, index = lies_about(big())
    if lie == "rubbish":
        give, index = lies_about(_RUBBISH, _gives_rubbish)
    if lie == "size":
        index = PieceIndex((1 << 39,), bytes(32) * ((1 << 39) // PIECE_BYTES))
    told = ToldModel(bytes(16), _TOLD_NAMES[asked], index.size, quant="Q8_0")
    gives = {"gone": _gone, "stalls": _stalls}.get(lie, give)
    pieces = {"reads": _reads_forever, "nothing": _has_nothing}.get(lie)
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        says(it.mute("liar"), told, index, gives, pieces=pieces)
        if lie == "two":
            other, other_index = lies_about(tiny(fill=3))
            says(it.mute("other"), replace(told, size=other_index.size), other_index, other)
        reply = await ended(models, models.start(asking(asked)))
        assert only(reply).read_bytes() == tiny() and reply.source == "download" and reply.note
        assert (reply.holders, reply.name, reply.fingerprint) == ((), asked, None)


async def _demo(cache: Path, progress: ProgressCallback) -> Path:
    progress(BuildProgress(Stage.FETCH, "downloading the model", 1, 2))
    return put(cache / "models/SmolLM2-135M-Instruct.Q4_1.gguf", tiny())


async def _reads_forever(stream: Stream) -> None:
    messages = MessageStream(stream)
    while True:
        await messages.send(ReadingModel("0 %").encode())
        await asyncio.sleep(0.01)


async def _has_nothing(stream: Stream) -> None:
    await MessageStream(stream).send(NoPieces("it changed its mind").encode())
    stream.write_eof()


async def _gives_rubbish(stream: Stream) -> None:
    await stream.read()
    await stream.write(HERE + _RUBBISH)
    await asyncio.Event().wait()


async def _gone(stream: Stream) -> None:
    await stream.write(GONE)


async def _stalls(_stream: Stream) -> None:
    await asyncio.Event().wait()


async def test_members_that_give_slowly_are_not_left(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only while they read their file, before any of it comes, time is limited."""
    monkeypatch.setattr(whole_pull, "ASKING_SECONDS", 2.0)
    taken: list[float] = []
    write = PartFiles.write

    def slow(files: PartFiles, number: int, data: bytes) -> None:
        threading.Event().wait(1.2)
        taken.append(len(data))
        write(files, number, data)

    monkeypatch.setattr(PartFiles, "write", slow)
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        cached(it.giver("a").folder / "hub", REPOSITORY, {f"{NAME}.gguf": big()})
        reply = await ended(models, models.start(asking(HUB_NAME)))
        assert only(reply).read_bytes() == big() and reply.source == "members" and sum(taken) == len(big())


async def test_a_disk_that_cannot_be_written_is_told(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no fault of the members, so nothing is downloaded instead."""

    def full(files: PartFiles, _number: int, _data: bytes) -> None:
        raise files.cannot_write(OSError(errno.ENOSPC, "full"))

    monkeypatch.setattr(PartFiles, "write", full)
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        cached(it.giver("a").folder / "hub", REPOSITORY, {f"{NAME}.gguf": big()})
        reply = await ended(models, models.start(asking(HUB_NAME)))
        assert "the disk is full" in reply.error and reply.source == "members" and reply.note == ""
    assert hub.asked == []


async def test_a_name_of_no_hub_is_not_looked_for_elsewhere(tmp_path: Path, hub: Hub) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        give, index = lies_about(big())
        says(it.mute("liar"), told_of(big()), index, give)
        reply = await ended(models, models.start(asking(NAME)))
        assert "no member gives" in reply.error and reply.source == "members"


async def test_nothing_of_a_rejected_copy_is_told_of_a_download(tmp_path: Path, hub: Hub) -> None:
    hub.repositories = {REPOSITORY: {f"{NAME}.gguf": tiny()}}
    hub.bytes_status = 403
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        cached(it.giver("a").folder / "hub", REPOSITORY, {f"{NAME}.gguf": big()})
        reply = await ended(models, models.start(asking(HUB_NAME)))
        assert reply.step == "failed" and "HTTP 403" in reply.error and "it was removed" in reply.note
        assert (reply.fingerprint, reply.paths, reply.holders) == (None, (), ())
        assert reply.name == HUB_NAME and [pull.asked for pull in (await models.listed()).pulls] == [HUB_NAME]


async def test_a_rate_is_not_ignored_in_silence(tmp_path: Path, hub: Hub) -> None:
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        reply = await ended(models, models.start(replace(asking(HUB_NAME), rate=20_000_000)))
        assert only(reply).read_bytes() == big()
        assert reply.note == "a download is not limited to 20.0 MB/s, as copies from members are"


async def test_a_download_that_waits_has_begun(tmp_path: Path, hub: Hub) -> None:
    """Its size is not known of all that comes, and who began it in the background waits no longer."""
    place = tmp_path / "user/.cache/huggingface/hub/.locks/models--me--Big-GGUF"
    place.mkdir(parents=True)
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        with (place / f"{hashlib.sha256(big()).hexdigest()}.lock").open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            begun = models.start(asking(HUB_NAME))
            await until(lambda: "waiting for it" in models.progress(begun.id).activity)
            now = models.progress(begun.id)
            assert (now.step, now.name, now.total_bytes) == ("fetching", HUB_NAME, 0)
        assert only(await ended(models, now)).read_bytes() == big()


async def test_a_download_by_the_librarys_own_means_has_begun(
    tmp_path: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells its size, but not how far it is."""
    monkeypatch.setattr(download, "MOST_PLAIN_BYTES", 1 << 20)
    hub.pause, hub.mark = 0.02, 1 << 20
    async with scene(tmp_path) as it, exchange(it, tmp_path) as models:
        begun = models.start(asking(HUB_NAME))
        await until(hub.reached.is_set)
        now = models.progress(begun.id)
        assert (now.step, now.name, now.total_bytes) == ("fetching", HUB_NAME, 0)
        assert now.activity == f"downloading {NAME}.gguf ({in_bytes(len(big()))})"
        hub.pause = 0.0
        assert only(await ended(models, now)).read_bytes() == big()


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
