"""Standby workers, and the tensors that each is asked to hold."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.base.errors import Broken
from meshd.devices.interface import FromMembers
from meshd.head import standby as standby_module
from meshd.head.measures import RunFacts
from meshd.head.standby import FOR_ANY, StandbyPart, part_of
from meshd.model.status import ModelState, StandbyStatus
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.peer.interface import PeerState
from meshd.plan.auto_way import AutoWay
from meshd.plan.choose_split import plan_model
from meshd.plan.machines import NodeOffer
from meshd.plan.over_offers import SLACK_BYTES
from meshd.plan.split import placed_tensors
from meshd.store.interface import ProgressCallback
from meshd.wire.limits import MAX_ASKED_TENSORS
from meshd.worker import missing_weights

from tests.sim import loop
from tests.unit.head.fake_mesh import NATIVE
from tests.unit.head.scene import Scene, scene
from tests.unit.head.stubs import FakeFile, at_once
from tests.unit.plan.split_scene import GIB
from tests.unit.plan.test_split_choice import MODEL, OPTIONS, WORK, machines, offer
from tests.unit.plan.test_ways import FAST
from tests.unit.worker.kept import DIGEST, FakeStore

pytestmark = pytest.mark.virtual

NAMES = ["token_embd.weight", *(f"blk.{number}.ffn_up.weight" for number in range(30)), "output_norm.weight"]
TENSOR = GIB // 4
ALWAYS = replace(OPTIONS, split="always", devices=("none",), output="worker")
THERE = machines([offer("a", 8), offer("c", 16)], {"head": 1.0, "a": 1.0, "c": 1.0})
"""`c` has twice the memory of `a`, and so twice the layers."""


def index(names: list[str] = NAMES) -> WeightsIndex:
    rows = [
        TensorEntry(0, 0, at * TENSOR, TENSOR, at.to_bytes(32, "big"), name) for at, name in enumerate(names)
    ]
    return WeightsIndex((FileEntry(len(names) * TENSOR, 1, 1, 1),), tuple(rows), "f" * 64)


def facts() -> RunFacts:
    split = plan_model(MODEL, WORK, THERE, ALWAYS)
    return RunFacts(split.plan, THERE, ALWAYS, MODEL, WORK, split.outcome)


def part(standby: NodeOffer, names: list[str] = NAMES, *, whole: bool = True) -> StandbyPart:
    return part_of(facts(), index(names), standby, THERE, whole=whole)


def with_room(tensors: float) -> NodeOffer:
    """For the plan it has as much memory as `a`."""
    return offer("b", (tensors * TENSOR + SLACK_BYTES) / GIB)


def planned(*nodes: NodeOffer) -> set[int]:
    """The tensors of `b` in the plan over these."""
    plan = plan_model(MODEL, WORK, replace(THERE, offers=nodes), ALWAYS).plan
    return set(placed_tensors(plan, MODEL, NAMES)["b"])


def test_it_holds_a_part_of_each_layer_where_auto_has_chosen_tensors() -> None:
    scene = replace(FAST, seals=True, slower=(1.0,) * 3)
    three = scene.machines
    *two, standby = three.offers
    there = replace(three, offers=tuple(two))
    split = plan_model(scene.layers, scene.work, there, scene.options, AutoWay())
    assert split.plan.by_tensors
    runs = RunFacts(split.plan, there, scene.options, scene.layers, scene.work, split.outcome)
    found = part_of(runs, index(), standby, there, whole=False)
    assert [NAMES[number] for number in found.numbers] == NAMES[1:]


def test_all_of_it_where_that_fits() -> None:
    assert part(with_room(32)) == StandbyPart(tuple(range(32)), 32 * TENSOR, FOR_ANY)
    assert part(with_room(31.5)).why != FOR_ANY


def test_what_is_there_twice_is_held_once() -> None:
    twice = index()
    tensors = tuple(replace(one, digest=bytes(32)) for one in twice.tensors)
    found = part_of(facts(), replace(twice, tensors=tensors), with_room(40), THERE)
    assert (found.size, len(found.numbers)) == (TENSOR, 1)


def test_else_what_the_plans_after_a_loss_give_it() -> None:
    spare = with_room(31.5)
    a, c = THERE.offers
    after_a, after_c = planned(spare, c), planned(a, spare)
    assert after_a and after_c and after_a != after_c
    found = part(spare)
    assert found.numbers == tuple(sorted(after_a | after_c))
    assert found.size == len(found.numbers) * TENSOR and found.why == "for the loss of a, c"
    assert len(part(with_room(40), whole=False).numbers) < 32, "it could not keep all of it"


def test_as_far_as_that_fits() -> None:
    a, c = THERE.offers
    size = len(planned(with_room(16), c))
    spare = with_room(16)
    found = part(spare)
    assert set(found.numbers) == planned(spare, c) and len(found.numbers) == size
    assert found.why == "for the loss of a; for that of c it lacks room"
    assert planned(a, spare)


def test_nothing_where_no_loss_leaves_a_plan() -> None:
    nothing = part(offer("b", 0.2))
    assert nothing.numbers == () and "has no room for what it would need" in nothing.why


def test_a_model_of_too_many_tensors_cannot_be_asked_for() -> None:
    names = [f"blk.0.{number}.weight" for number in range(MAX_ASKED_TENSORS + 1)]
    assert part(with_room(40), names).numbers == ()


OTHER = bytes(range(32, 64))
HERE = TensorEntry(0, 0, 0, 4, DIGEST, "blk.0.ffn_up.weight")
MISSING = TensorEntry(0, 0, 4, 8, OTHER, "blk.3.ffn_up.weight")
READY = StandbyStatus("spare", True, 4, 4, FOR_ANY)


class SmallFile(FakeFile):
    """With these tensors, says its index."""

    tensors: tuple[TensorEntry, ...] = (HERE,)

    async def index(self, progress: ProgressCallback | None = None) -> WeightsIndex:
        return WeightsIndex((FileEntry(1 << 30, 1, 1, 1),), self.tensors, "f" * 64)


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_weights, "in_thread", at_once)


@asynccontextmanager
async def stage(
    folder: Path, *, tensors: tuple[TensorEntry, ...] = (HERE,), **options: object
) -> AsyncIterator[Scene]:
    """Two workers, and one for losses that has one tensor."""
    (folder / "pack").write_bytes(b"kept")
    store = FakeStore(folder / "pack")
    file = SmallFile()
    file.tensors = tensors
    try:
        async with scene(folder, standby=("spare",), devices=("none",), **options) as it:
            it.head(file=file)
            it.worker("anna")
            it.worker("bert")
            it.worker("spare", store=store)
            it.start()
            yield it
    finally:
        store.close()


def standby(it: Scene) -> StandbyStatus:
    [one] = it.serve.model_status.standby
    return one


def nodes(it: Scene) -> set[str]:
    return {part.node for part in it.serve.model_status.split if part.layers}


async def until(it: Scene, status: StandbyStatus, *, seconds: float = 1000.0) -> None:
    await loop.until(lambda: standby(it) == status, seconds=seconds)


def reserved(it: Scene, name: str) -> list[int]:
    return [lent.bytes for lent in it.roles[name].status.lent]


def lose(it: Scene, name: str) -> None:
    """It is gone, and with it the model."""
    it.workers[name].mesh.say(PeerState.LOST)
    it.llama.die("a worker is lost")


async def test_it_holds_what_it_would_need_and_computes_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        await it.until(ModelState.READY)
        assert standby(it) == StandbyStatus("spare", False, 0, 0, "it is asked when the model is ready")
        assert nodes(it) == {"anna", "bert"}
        await until(it, READY)
        assert not it.workers["spare"].children and not it.roles["spare"].is_lending
        assert reserved(it, "spare") == [4 + SLACK_BYTES]
        await asyncio.sleep(1000)
        assert standby(it) == READY and nodes(it) == {"anna", "bert"}, "nothing is loaded again for it"


async def test_the_plans_after_a_loss_are_compared_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers are under way meanwhile."""
    in_thread: list[bool] = []
    handed_over: list[object] = []

    async def to_thread(func: Callable[..., object], *args: object, **more: object) -> object:
        handed_over.append(func)
        try:
            return func(*args, **more)
        finally:
            handed_over.pop()

    def part(*args: object, **more: object) -> object:
        in_thread.append(bool(handed_over))
        return choose(*args, **more)

    choose: Callable[..., object] = standby_module.part_of
    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    monkeypatch.setattr(standby_module, "part_of", part)
    async with stage(tmp_path) as it:
        await until(it, READY)
    assert in_thread and all(in_thread)


async def test_what_it_lacks_is_taken_from_members_and_asked_for_again(tmp_path: Path) -> None:
    async with stage(tmp_path, tensors=(HERE, MISSING)) as it:
        it.bench.members.content = b"c" * 32
        lacks = StandbyStatus("spare", False, 4, 12, "it lacks 8 B: nothing came")
        await until(it, lacks)
        members = it.workers["spare"].members
        [asked] = members.asked
        assert asked.content == b"c" * 32 and [one.digest for one in asked.tensors] == [OTHER]
        assert it.serve.readiness.state is ModelState.READY
        await asyncio.sleep(5)
        assert not reserved(it, "spare") and standby(it) == lacks
        it.workers["spare"].members.found = FromMembers({"head": 8})
        less = StandbyStatus("spare", False, 0, 8, "it lacks 8 B: 8 B from head")
        await until(it, less)
        assert [one.digest for one in members.asked[-1].tensors] == [OTHER], "a part is enough"


async def test_a_head_that_cannot_read_its_file_says_so(tmp_path: Path) -> None:
    async with stage(tmp_path, tensors=(HERE, MISSING)) as it:
        it.bench.members.fails = Broken("the disk is gone")
        await until(it, StandbyStatus("spare", False, 0, 0, "the disk is gone"))
        assert it.serve.readiness.state is ModelState.READY


async def test_one_that_goes_or_is_paused_is_asked_again_when_it_is_back(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        await until(it, READY)
        spare = it.workers["spare"].mesh
        spare.paused = True
        it.roles["spare"].pause.begin(end_leases=False)  # `meshd drain`: the head lets it go
        paused = "spare is paused (`meshd resume` there ends that)"
        await until(it, StandbyStatus("spare", False, 0, 0, paused))
        await asyncio.sleep(10)
        assert not reserved(it, "spare")
        spare.paused = False
        it.roles["spare"].pause.end()
        await until(it, READY)
        spare.say(PeerState.LOST)
        await until(it, StandbyStatus("spare", False, 0, 0, "it is not connected"))
        await asyncio.sleep(10)
        assert not reserved(it, "spare"), "the lease is given back"
        spare.say(PeerState.CONNECTED)
        await until(it, READY)
        assert it.serve.failures == 0


async def test_one_of_another_build_is_told_of(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        it.workers["spare"].mesh.native = replace(NATIVE, pin="other")
        await loop.until(lambda: "llama.cpp" in standby(it).why)
        assert not standby(it).ready and it.serve.readiness.state is ModelState.READY


async def test_the_model_is_loaded_on_it_where_it_does_not_fit_without(tmp_path: Path) -> None:
    async with stage(tmp_path) as it:
        for name in ("anna", "bert"):
            it.workers[name].device_lines = ()
        await it.until(ModelState.READY)
        assert nodes(it) == {"spare"}
