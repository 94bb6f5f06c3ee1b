"""Smaller quantisations that take the place of a model that fits no more."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.head.model import Model
from meshd.head.served_files import ServedFiles
from meshd.model.status import ModelState
from meshd.peer.interface import PeerState

from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.head.rig import cpu_lines
from tests.unit.head.scene import Scene, scene
from tests.unit.head.stubs import FakeFile

pytestmark = pytest.mark.virtual

WHY = "no split fits"


def named(name: str, *, layers: int = 4) -> FakeFile:
    file = FakeFile(layers=layers)
    file.name = name
    return file


def test_the_next_smaller_one_each_time_and_the_own_one_after_each_life() -> None:
    own, one, two = named("own"), named("one"), named("two")
    files = ServedFiles(own, [one, two])
    assert files.current is own and files.note == ""
    files.loaded()
    files.lost()
    assert files.does_not_fit(WHY) and files.current is one
    assert files.does_not_fit("nor does that") and files.current is two
    assert files.note == f"`two` in place of `own`: {WHY}"
    assert not files.does_not_fit("nothing fits") and files.current is own, "that is waited for"
    assert files.does_not_fit(WHY)
    files.loaded()
    assert files.current is one
    files.lost()
    assert files.current is own and files.note == ""


def test_none_before_the_own_one_was_loaded() -> None:
    """Workers may still be on their way."""
    files = ServedFiles(named("own"), [named("one")])
    assert not files.does_not_fit(WHY)
    files.loaded()
    files.begin()
    assert not files.does_not_fit(WHY), "it was unloaded since"
    assert not ServedFiles(named("own")).does_not_fit(WHY)


@pytest.mark.parametrize(
    ("change", "why"),
    [({"architecture": "qwen2"}, "it is `qwen2`, not `llama`"), ({"vocabulary": 65}, "another vocabulary")],
)
def test_another_model_is_refused_at_the_start(change: dict[str, object], why: str) -> None:
    other = named("other")
    other.headers = (parse(gguf(*language_model(**change))),)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="`other` cannot take the place of `own`") as caught:
        ServedFiles(named("own"), [other])
    assert why in caught.value.what and "fallback_models" in caught.value.hint


async def test_a_file_that_is_gone_is_not_called_replaced(tmp_path: Path) -> None:
    file = named("own")
    file.paths, file.replaced = (tmp_path / "own", tmp_path), True
    files = ServedFiles(file)
    with pytest.raises(UserError, match="`own` is gone: it was removed, moved or renamed") as caught:
        await files.know(lambda _: None)
    assert "move it back" in caught.value.hint
    (tmp_path / "own").touch()
    with pytest.raises(UserError, match="`own` was replaced by another file"):
        await files.know(lambda _: None)


def fallback_scene(it: Scene) -> None:
    """Two workers, of which the model needs both."""
    it.serve = Model(it.bench.runtime, named("own", layers=500), it.options, None, [named("one")])
    for name in ("anna", "bert"):
        it.worker(name)
        it.workers[name].device_lines = cpu_lines(free_mib=120)


async def test_a_smaller_one_is_served_until_the_worker_is_back(tmp_path: Path) -> None:
    async with scene(tmp_path, devices=("none",)) as it:
        fallback_scene(it)
        it.start()
        await it.until(ModelState.READY)
        assert it.serve.model_status.fallback == "" and it.serve.model_name == "own"
        bert = it.workers["bert"].mesh
        bert.say(PeerState.LOST)
        it.llama.die("a worker is lost")
        await it.until(ModelState.LOADING, "`one` in place of `own`: `own` does not fit: it needs ")
        await it.until(ModelState.READY, "`one` in place of `own`: `own` does not fit: it needs ")
        status = it.serve.model_status
        assert (status.fallback, status.name) == ("one", "own")
        assert {part.node for part in status.split if part.layers} == {"anna"}
        it.llama.die("something else")
        await it.until(ModelState.LOADING)
        await it.until(ModelState.READY, "`one` in place of")
        await asyncio.sleep(1)
        bert.since = asyncio.get_running_loop().time()
        bert.say(PeerState.CONNECTED)
        await it.until(ModelState.LOADING, "worker bert is here", seconds=100)
        await it.until(ModelState.READY)
        assert it.serve.model_status.fallback == ""


async def test_what_does_not_fit_at_the_start_is_waited_for(tmp_path: Path) -> None:
    async with scene(tmp_path, devices=("none",)) as it:
        fallback_scene(it)
        it.workers["bert"].mesh.say(PeerState.KNOWN)
        it.start()
        await it.until(ModelState.FAILED)
        it.workers["bert"].mesh.say(PeerState.CONNECTED)
        await it.until(ModelState.READY)
        assert it.serve.model_status.fallback == ""


@pytest.mark.parametrize("smaller", [False, True])
async def test_what_fits_no_more_waits_for_the_worker(tmp_path: Path, smaller: bool) -> None:
    """And no smaller one fits either: answers under way wait as long as a model may come back."""
    async with scene(tmp_path, devices=("none",)) as it:
        fallback_scene(it)
        files = [named("one", layers=500)] if smaller else []
        it.serve = Model(it.bench.runtime, named("own", layers=500), it.options, None, files)
        it.start()
        await it.until(ModelState.READY)
        bert = it.workers["bert"].mesh
        bert.say(PeerState.LOST)
        it.llama.die("a worker is lost")
        await it.until(ModelState.WAITING, "waiting for bert to come back: `")
        assert it.serve.readiness.no_room and "does not fit: it needs" in it.serve.readiness.reason
        for _ in range(100):
            await asyncio.sleep(0.9)
            assert it.serve.readiness.state is not ModelState.FAILED
        bert.since = asyncio.get_running_loop().time()
        bert.say(PeerState.CONNECTED)
        await it.until(ModelState.READY, seconds=40)
        assert it.serve.model_status.fallback == ""


async def test_a_file_that_is_gone_after_a_loss_is_a_failure(tmp_path: Path) -> None:
    """No worker that comes back brings it."""
    async with scene(tmp_path) as it:
        it.worker("anna")
        it.start()
        await it.until(ModelState.READY)
        it.file.replaced = True
        it.llama.die("something")
        await it.until(ModelState.FAILED, "is gone")
        assert not it.serve.readiness.no_room
