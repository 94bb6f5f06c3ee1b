"""The files of a model, and what workers lack of them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.base.errors import Broken, RemoteProtocolError, UserError
from meshd.devices.interface import FromMembers
from meshd.head.lease import FETCH_SECONDS, SLOW_FETCH_BYTES
from meshd.head.model import Model
from meshd.head.served_files import READ_SECONDS, ServedFiles, gains_alone
from meshd.model.status import ModelState
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.peer.interface import PeerState
from meshd.rpc import mesh_protocol as wire
from meshd.store.interface import ProgressCallback

from tests.gguf_bytes import gguf, language_model, parse
from tests.sim.loop import until
from tests.unit.admin.test_snapshot import path
from tests.unit.head.fake_mesh import FakeMesh
from tests.unit.head.rig import cpu_lines
from tests.unit.head.scene import Scene, scene, view
from tests.unit.head.stubs import FakeFile
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.kept import FakeStore

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
        await it.ready()
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
        await it.ready()
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
        await it.ready("anna")
        it.file.replaced = True
        it.llama.die("something")
        await it.until(ModelState.FAILED, "is gone")
        assert not it.serve.readiness.no_room


MIB = 1 << 20
CONTENT = b"c" * 32
ON_WORKERS = {"devices": ("none",), "output": "head"}


class LargeFile(FakeFile):
    """One tensor of nine MiB for each layer, says its index."""

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        tensors = tuple(
            TensorEntry(0, 0, number * 9 * MIB, 9 * MIB, bytes([number]) * 32, f"blk.{number}.ffn_up.weight")
            for number in range(4)
        )
        return WeightsIndex((FileEntry(1 << 30, 1, 1, 1),), tensors, "f" * 64)


@asynccontextmanager
async def two_workers(folder: Path, *, both_keep: bool = False) -> AsyncIterator[Scene]:
    """`anna` keeps what comes, `bert` nothing; members have the head's file."""
    (folder / "pack").write_bytes(b"kept")
    store = FakeStore(folder / "pack")
    try:
        async with scene(folder, min_workers=2, **ON_WORKERS) as it:
            it.head(file=LargeFile())
            it.bench.members.content = CONTENT
            it.worker("anna", store=store)
            it.worker("bert", store=store if both_keep else None)
            yield it
    finally:
        store.close()


async def nobody_fetches(it: Scene) -> None:
    """The model is loaded, and the head has sent what was missing."""
    it.start()
    await it.until(ModelState.READY)
    assert not it.workers["anna"].members.asked


async def test_they_fetch_their_parts_and_begin_together(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as it:
        anna = it.workers["anna"].members
        anna.gives.clear()
        anna.found = FromMembers({"one": 5})
        it.start()
        await it.until(ModelState.LOADING, "anna: fetches 1 MB of 2 MB from one")
        await asyncio.sleep(100)
        [needs] = anna.asked
        assert (needs.content, needs.size, needs.files) == (CONTENT, 1 << 30, 1)
        assert [one.offset // (9 * MIB) for one in needs.tensors] == [0, 1], "its layers, no others"
        assert not it.workers["bert"].members.asked, "it could keep nothing"
        assert not any(bench.children for bench in (it.bench, *it.workers.values()))
        anna.gives.set()
        await it.until(ModelState.READY)
        assert it.roles["anna"].is_lending and it.roles["bert"].is_lending
        assert it.serve.model_status.weights_fetched_bytes == 5


@pytest.mark.parametrize(
    ("both_keep", "way", "by_us"), [(True, "lan", True), (False, "lan", False), (True, "loopback", False)]
)
async def test_pieces_of_this_head_alone_are_for_several_workers(
    tmp_path: Path, both_keep: bool, way: str, by_us: bool
) -> None:
    """On other machines. One that keeps nothing gets its part with the load."""
    async with two_workers(tmp_path, both_keep=both_keep) as it:
        bert = it.workers["bert"].runtime.mesh
        assert isinstance(bert, FakeMesh)
        bert.paths = (path(selected=True, where=way), path(selected=False, where="loopback"))
        await it.ready()
        assert it.bench.members.by_us == [by_us]


def index_of(*sizes: int) -> WeightsIndex:
    """Return the index of one file, in which tensors of these sizes lie one behind the other."""
    places = [sum(sizes[:number]) for number in range(len(sizes))]
    rows = [TensorEntry(0, 0, at, size, bytes(32), "x") for at, size in zip(places, sizes, strict=True)]
    return WeightsIndex((FileEntry(sum(sizes), 1, 1, 1),), tuple(rows), "f" * 64)


@pytest.mark.parametrize(
    ("lacked", "gains"),
    [
        ([[0, 1, 2, 3]], False),  # by one worker: it would wait for the last piece before it loads the first
        ([[0, 1], [2, 3]], True),
        ([[0, 1], [2, 3], [4]], True),  # a third one that lacks little
        ([[0, 1], [4]], False),
        ([[0, 1], []], False),
        ([[4, *range(5, 100, 4)], [4, *range(6, 100, 4)]], False),  # small ones far apart: pieces cost more
    ],
)
def test_when_pieces_of_this_head_alone_are_worth_it(lacked: list[list[int]], gains: bool) -> None:
    index = index_of(*(16 * MIB,) * 4, *(MIB,) * 96)
    assert gains_alone(index, lacked) is gains


def test_pieces_with_little_that_is_lacking_cost_too_much() -> None:
    """12 MiB of pieces for 9, twice; or 36 for 33."""
    assert not gains_alone(index_of(2 * MIB, 9 * MIB, MIB, 9 * MIB), [[1], [3]])
    assert gains_alone(index_of(16 * MIB, 17 * MIB), [[0], [1]])


@pytest.mark.parametrize("fails", [None, Broken("the disk is gone")])
async def test_if_no_member_has_it_the_head_sends_it(tmp_path: Path, fails: Broken | None) -> None:
    async with two_workers(tmp_path) as it:
        it.bench.members.content, it.bench.members.fails = b"", fails
        await nobody_fetches(it)


async def test_a_load_does_not_wait_for_long_until_the_file_is_read(tmp_path: Path) -> None:
    """For an offer stands for a minute; a later load uses what was read."""
    async with two_workers(tmp_path) as it:
        it.bench.members.read_seconds = READ_SECONDS + 100
        await nobody_fetches(it)
        await asyncio.sleep(200)
        assert it.serve.readiness.state is ModelState.READY, "the end of the reading ends nothing else"


async def test_a_little_is_sent_with_the_load(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as it:
        it.head(file=FakeFile())
        it.bench.members.content = CONTENT
        await nobody_fetches(it)


async def test_a_worker_that_never_has_it_all_is_given_up(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as it:
        anna = it.workers["anna"].members
        anna.gives.clear()
        it.start()
        loop = asyncio.get_running_loop()
        began = loop.time()
        await until(lambda: len(anna.asked) == 2, seconds=10_000)
        took = loop.time() - began
        assert 0 <= took - FETCH_SECONDS - 2 * 9 * MIB / SLOW_FETCH_BYTES < 10
        assert not it.bench.children and not it.roles["bert"].is_lending


class OnlyHeader(LargeFile):
    """A model of which this node has no layer."""

    def __init__(self) -> None:
        super().__init__()
        self.header_of = CONTENT


async def test_a_head_with_the_header_only_needs_nobody_to_know_the_content(tmp_path: Path) -> None:
    """And it asks for little as well: it can send nothing."""
    async with two_workers(tmp_path) as it:
        it.head(file=OnlyHeader())
        it.bench.members.content = b""
        await it.ready()
        [needs] = it.workers["anna"].members.asked
        assert needs.content == CONTENT


async def test_what_a_worker_lacks_in_the_end_is_told_and_not_sent(tmp_path: Path) -> None:
    async with two_workers(tmp_path) as it:
        it.head(file=OnlyHeader())
        it.bench.ready = asyncio.get_running_loop().create_future()
        it.start()
        await it.until(ModelState.LOADING, "loading the model")
        lacked = talk.load_entry(digest=bytes([2]) * 32)
        view(it.bench, 1).to_peer(talk.load(lacked))
        with pytest.raises(RemoteProtocolError):
            view(it.bench, 1).from_peer(talk.message(wire.LOADED, rest=b"\1", identity=4))
        await it.until(ModelState.FAILED, "worker bert lacks tensor `blk.2.ffn_up.weight`, and this node")
        assert "has only the header of `tiny` (start that worker with `--model`" in it.serve.readiness.reason
        assert not it.bench.children or not it.bench.children[-1].status.is_up
