"""A worker that takes what a lease lacks from members, before its mesh-server starts."""

import asyncio
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.base.peer_limits import FETCHES_ASKED
from meshd.base.processes import Outgoing
from meshd.devices.interface import FromMembers
from meshd.model.weights_index import FileEntry, TensorEntry, WeightsIndex
from meshd.wire.lease import (
    PAUSED,
    Begin,
    Fetched,
    Grant,
    LeaseMessage,
    Lost,
    NeededTensor,
    Needs,
    Progress,
    Reserve,
    WorkerOffer,
    mark,
)
from meshd.worker import missing_weights
from meshd.worker.known_files import FilePart, Weights
from meshd.worker.missing_weights import HeldWeights, held_weights

from tests.e2e.residency import drop, resident_bytes
from tests.sim.loop import run, until
from tests.unit.head.calls import ACQUIRE, MIB, Call, Scene, scene
from tests.unit.head.stubs import at_once
from tests.unit.worker.kept import DIGEST, FakeLeaseCache, FakeStore

pytestmark = pytest.mark.virtual

OTHER = bytes(range(32, 64))
HERE, MISSING = NeededTensor(0, 0, 0, 4, DIGEST), NeededTensor(0, 0, 4, 8, OTHER)
NEEDS = Needs(b"c" * 32, 100, 1, (HERE, MISSING))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FakeStore]:
    (tmp_path / "pack").write_bytes(b"kept")
    made = FakeStore(tmp_path / "pack")
    yield made
    made.close()


@pytest.fixture(autouse=True)
def _no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(missing_weights, "in_thread", at_once)


async def reserved(call: Call, *messages: LeaseMessage, mib: int = 100, hold: bool = False) -> None:
    """A head that lets the worker fetch."""
    await call.says(replace(ACQUIRE, marks=mark(DIGEST) + mark(OTHER)))
    offer = await call.hears()
    assert isinstance(offer, WorkerOffer)
    await call.says(Reserve((mib * MIB,), fetch=True, hold=hold))
    for message in messages:
        await call.says(message)


async def answer(call: Call) -> LeaseMessage:
    """The next that says more than how far it is."""
    while isinstance(message := await call.hears(), Progress):
        pass
    return message


@asynccontextmanager
async def fetching(folder: Path, store: FakeStore) -> AsyncIterator[tuple[Scene, Call]]:
    """A lease whose fetch has begun, and goes no further."""
    async with scene(folder, store=store) as it:
        it.bench.members.gives.clear()
        call = it.call()
        await reserved(call, NEEDS)
        await until(lambda: bool(it.bench.members.asked))
        yield it, call


def nothing_is_left(it: Scene) -> bool:
    return it.worker.status.lent == () and not it.worker.is_lending


async def test_the_offer_says_what_is_missing(tmp_path: Path, store: FakeStore) -> None:
    async with scene(tmp_path, store=store) as it:
        call = it.call()
        await call.says(replace(ACQUIRE, marks=mark(OTHER) + mark(DIGEST) + mark(OTHER)))
        offer = await call.hears()
        assert isinstance(offer, WorkerOffer) and offer.lacks == bytes([0b101])
    async with scene(tmp_path) as it:
        call = it.call()
        await call.says(replace(ACQUIRE, marks=mark(OTHER)))
        offer = await call.hears()
        assert isinstance(offer, WorkerOffer) and offer.lacks == b"", "nothing could be kept"


async def test_what_is_missing_is_fetched_before_the_server_starts(tmp_path: Path, store: FakeStore) -> None:
    async with scene(tmp_path, store=store) as it:
        members = it.bench.members
        members.gives.clear()
        members.found = FromMembers({"one": 5_000_000, "two": 3_000_000}, "three: it is gone")
        call = it.call()
        await reserved(call, replace(NEEDS, tensors=(HERE,), last=False), replace(NEEDS, tensors=(MISSING,)))
        while (message := await call.hears()) != Progress("fetches 1 MB of 2 MB from one"):
            assert isinstance(message, Progress)
        assert members.asked == [replace(NEEDS, tensors=(MISSING,))]
        assert store.lease_caches[0].happened == ["handed over", DIGEST, 100 * MIB], "what is here is of use"
        members.gives.set()
        text = "5.0 MB from one, 3.0 MB from two; three: it is gone"
        assert await answer(call) == Fetched(8_000_000, text)
        await asyncio.sleep(10)
        assert not it.bench.children, "other workers may still fetch"
        await call.says(Begin())
        assert isinstance(await answer(call), Grant)
        assert store.lease_caches[0].happened[-1] == "closed"
        assert store.lease_caches[1].happened == ["handed over", 100 * MIB], "with what has come"
        await call.release()
        await until(lambda: nothing_is_left(it))


async def test_what_is_held_is_read_and_waits_without_a_server(tmp_path: Path, store: FakeStore) -> None:
    async with scene(tmp_path, store=store) as it:
        call = it.call()
        await reserved(call, NEEDS, hold=True)
        assert await answer(call) == Fetched(0, "nothing came", held=4), "the store has one of the two"
        assert store.lease_caches[1].happened == ["handed over", DIGEST], "and that one is in use"
        await asyncio.sleep(1000)
        assert not it.bench.children and it.worker.status.lent, "its memory is reserved"
        await call.says(Begin())
        assert isinstance(await answer(call), Grant)
        await call.release()
        await until(lambda: nothing_is_left(it))


@pytest.mark.parametrize("size", [1, 3, 5, MIB])
@pytest.mark.parametrize("hold", [True, False])
async def test_a_tensor_under_another_size_is_none_of_what_is_here(
    tmp_path: Path, store: FakeStore, size: int, hold: bool
) -> None:
    """Else a head that reserves little could have all of a model read and kept, by its hashes."""
    async with scene(tmp_path, store=store) as it:
        call = it.call()
        needs = replace(NEEDS, size=2 * MIB, tensors=(replace(HERE, size=size),))
        await reserved(call, needs, hold=hold)
        told = await answer(call)
        assert isinstance(told, Fetched) and (told.held, told.text) == (0, "nothing is missing")
        assert not it.bench.members.asked, "nor is it fetched: its content is here"
        assert all(DIGEST not in one.happened for one in store.lease_caches), "and the store may drop it"


class FiveTensors(FakeLeaseCache):
    """Tensors of 10 to 14 bytes in one file."""

    @property
    def index(self) -> WeightsIndex:
        rows = [TensorEntry(0, 0, 20 * at, 10 + at, bytes([at]) * 32, f"t{at}") for at in range(5)]
        return WeightsIndex((FileEntry(100, 0, 0, 0),), tuple(rows), "")


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 40)), max_size=12))
def test_no_more_is_held_than_the_head_has_named(rows: list[tuple[int, int]]) -> None:
    """`rows`: tensors and their sizes, as the head says them; the last tensor is not here."""
    with tempfile.TemporaryFile() as file, closing(Outgoing()) as outgoing:
        file.write(bytes(100))
        file.flush()
        weights = Weights((), (), outgoing, FiveTensors(file.fileno()))
        named = tuple(NeededTensor(0, 0, 0, size, bytes([at]) * 32) for at, size in rows)
        held = run(held_weights(replace(NEEDS, tensors=named), weights).read(lambda _: None))
    assert held == sum(size for at, size in set(rows) if at < 5 and size == 10 + at)


@pytest.mark.parametrize("kept", [True, False])
async def test_what_is_held_ends_with_its_head(tmp_path: Path, store: FakeStore, kept: bool) -> None:
    async with scene(tmp_path, store=store if kept else None) as it:
        call = it.call()
        await reserved(call, NEEDS, hold=True)
        told = await answer(call)
        assert isinstance(told, Fetched) and told.held == (4 if kept else 0)
        await asyncio.sleep(100)
        await call.release()
        await until(lambda: nothing_is_left(it))
        assert all(one.happened[-1] == "closed" for one in store.lease_caches) and not it.bench.children


async def test_a_pause_ends_what_is_held(tmp_path: Path, store: FakeStore) -> None:
    async with scene(tmp_path, store=store) as it:
        call = it.call()
        await reserved(call, NEEDS, hold=True)
        assert isinstance(await answer(call), Fetched)
        it.worker.pause.begin(end_leases=True)
        lost = await answer(call)
        assert isinstance(lost, Lost) and lost.code == PAUSED
        await until(lambda: nothing_is_left(it))


@pytest.mark.parametrize("kept", [True, False])
async def test_nothing_to_fetch(tmp_path: Path, store: FakeStore, kept: bool) -> None:
    async with scene(tmp_path, store=store if kept else None) as it:
        call = it.call()
        await reserved(call, replace(NEEDS, tensors=(HERE,)), Begin())
        why = "nothing is missing" if kept else "no downloaded weights are kept here"
        assert await answer(call) == Fetched(0, why)
        assert isinstance(await answer(call), Grant) and not it.bench.members.asked


async def test_a_head_that_goes_ends_the_fetch(tmp_path: Path, store: FakeStore) -> None:
    async with fetching(tmp_path, store) as (it, call):
        await call.release()
        await until(lambda: nothing_is_left(it))
        assert store.lease_caches[0].happened[-1] == "closed" and not it.bench.children


async def test_a_pause_ends_the_fetch(tmp_path: Path, store: FakeStore) -> None:
    async with fetching(tmp_path, store) as (it, call):
        it.worker.pause.begin(end_leases=True)
        lost = await answer(call)
        assert isinstance(lost, Lost) and lost.code == PAUSED
        await until(lambda: nothing_is_left(it))


@pytest.mark.parametrize(
    "message",
    [
        replace(NEEDS, tensors=(replace(MISSING, size=MIB),), size=1 << 40),
        replace(NEEDS, tensors=(replace(MISSING, kind=60_000),)),
        Begin(),
    ],
    ids=["too much", "no such type", "no needs"],
)
async def test_a_head_that_makes_no_sense(tmp_path: Path, store: FakeStore, message: LeaseMessage) -> None:
    """More than it has reserved: one MiB, and 4 bytes beside it."""
    async with scene(tmp_path, store=store) as it:
        call = it.call()
        await reserved(call, replace(NEEDS, tensors=(HERE,), last=False), message, mib=1)
        await call.is_over()
        await until(lambda: nothing_is_left(it))
        assert not it.bench.members.asked and not it.bench.children


async def test_a_head_that_says_nothing_more(tmp_path: Path, store: FakeStore) -> None:
    async with scene(tmp_path, store=store) as it:
        call = it.call()
        await reserved(call, replace(NEEDS, last=False))
        lost = await answer(call)
        assert isinstance(lost, Lost) and lost.code == "timeout"
        await until(lambda: nothing_is_left(it))


async def test_a_head_cannot_make_it_fetch_for_ever(tmp_path: Path, store: FakeStore) -> None:
    async with scene(tmp_path, store=store) as it:
        told: list[LeaseMessage] = []
        for _ in range(int(FETCHES_ASKED.burst) + 1):
            call = it.call()
            await reserved(call, NEEDS)
            told.append(await answer(call))
            await call.release()
            await until(lambda: nothing_is_left(it))
        assert told[-1] == Fetched(0, "this head has asked for weights too often")
        assert len(it.bench.members.asked) == FETCHES_ASKED.burst


MB = 1 << 20
KNOWS = sys.platform == "linux" and [int(part) for part in os.uname().release.split(".")[:2]] >= [5, 14]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(os.urandom(40 * MB))
    return path


def parts_of(descriptor: int) -> list[FilePart]:
    return [FilePart(descriptor, MB, 5 * MB), FilePart(descriptor, 10 * MB, 20 * MB)]


async def test_they_are_in_memory_once_they_are_read(file: Path) -> None:
    told: list[str] = []
    with file.open("rb") as opened:
        drop(file)
        held = HeldWeights(parts_of(opened.fileno()))
        assert await held.read(told.append) == 25 * MB
    if sys.platform == "linux":
        assert resident_bytes(file, [(MB, 5 * MB), (10 * MB, 20 * MB)]) == 25 * MB
    assert told[0] == "reads its weights: 0 B of 26.2 MB" and len(told) == 3


@pytest.mark.skipif(not KNOWS, reason="only Linux 5.14 is asked for what it has dropped")
async def test_what_the_kernel_has_dropped_is_asked_for_again(file: Path) -> None:
    with file.open("rb") as opened:
        held = HeldWeights(parts_of(opened.fileno()))
        drop(file)
        if resident_bytes(file, [(10 * MB, 20 * MB)]) == 20 * MB:
            pytest.skip("the temporary files are in memory, from which nothing is dropped")
        await held.refresh()
        assert resident_bytes(file, [(MB, 5 * MB), (10 * MB, 20 * MB)]) == 25 * MB
        os.truncate(file, 12 * MB)
        await held.refresh()


async def test_a_file_that_was_cut_gives_what_it_has(file: Path) -> None:
    with file.open("rb") as opened:
        os.truncate(file, 12 * MB)
        assert await HeldWeights(parts_of(opened.fileno())).read(lambda _: None) == 7 * MB


async def test_nothing_is_held_at_once() -> None:
    assert await HeldWeights(()).read(lambda _: None) == 0
