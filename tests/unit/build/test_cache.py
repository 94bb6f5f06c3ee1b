"""meshd.build.cache: what counts as a finished build, and one builder at a time."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from meshd.build import cache
from meshd.build.cache import BuildKey
from meshd.build.interface import BuildProgress, Stage
from meshd.build.pin import read_pin

from tests.unit.build.stored import program

KEY = BuildKey("c" * 40, "cpu", "12345678", "d" * 64)
UPSTREAMS = BuildKey("c" * 40, "cpu", "12345678")


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """The folder of a finished build."""
    cache.store(tmp_path, KEY, [program(tmp_path / "out", "mesh-server", "binary")])
    return cache.folder_of(tmp_path, KEY).parent


def test_names_of_keys_differ_in_every_part() -> None:
    others = [
        BuildKey("e" * 40, "cpu", "12345678", "d" * 64),
        BuildKey("c" * 40, "cpu", "12345678", "e" * 64),
        BuildKey("c" * 40, "cuda", "12345678", "d" * 64),
        BuildKey("c" * 40, "cpu", "12345679", "d" * 64),
        UPSTREAMS,
    ]
    assert len({key.name for key in (KEY, *others)}) == 6


def test_a_stored_build_is_found(stored: Path, tmp_path: Path) -> None:
    programs = cache.load(tmp_path, KEY)
    assert programs == {"mesh-server": stored / "bin" / "mesh-server"}
    assert programs["mesh-server"].read_text() == "binary"
    assert cache.load(tmp_path, UPSTREAMS) == {}


def test_more_binaries_are_added(stored: Path, tmp_path: Path) -> None:
    cache.store(tmp_path, KEY, [program(tmp_path / "out", "mesh-tests")])
    assert cache.load(tmp_path, KEY).keys() == {"mesh-server", "mesh-tests"}


def test_without_a_stamp_it_was_never_finished(stored: Path, tmp_path: Path) -> None:
    (stored / "stamp.json").unlink()
    assert cache.load(tmp_path, KEY) == {}


@pytest.mark.parametrize("harm", ["gone", "cut", "mode"])
def test_a_binary_that_is_not_whole(stored: Path, tmp_path: Path, harm: str) -> None:
    path = stored / "bin" / "mesh-server"
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        os.truncate(path, 2)
    else:
        path.chmod(0o644)
    assert cache.load(tmp_path, KEY) == {}


def test_another_key_in_the_same_place(stored: Path, tmp_path: Path) -> None:
    other = BuildKey("c" * 40, "cpu", "12345678", f"{'d' * 12}{'f' * 52}")
    assert other.name == KEY.name
    assert cache.load(tmp_path, other) == {}


def test_old_builds_are_removed_each_kind_for_itself(tmp_path: Path) -> None:
    native = tmp_path / "native"
    made = [replace(UPSTREAMS, commit=f"{number}" * 40) for number in range(6)]
    made += [replace(KEY, sources_sha256=f"{number}" * 64) for number in range(6)]
    for time, key in enumerate(made):
        cache.store(tmp_path, key, [program(tmp_path / "out", "program")])
        os.utime(native / key.name / "stamp.json", ns=(time, time))
    cache.prune(native, read_pin())
    assert {path.name for path in native.iterdir()} == {key.name for key in (*made[2:6], *made[8:])}


def test_a_tree_of_the_pin_stays_whatever_its_backend(tmp_path: Path) -> None:
    native, pin = tmp_path / "native", read_pin()
    for name, origin in (
        ("upstream-cpu-1", pin.commit),
        ("upstream-cuda-1", pin.commit),
        ("upstream-x-1", ""),
    ):
        (native / name).mkdir(parents=True)
        (native / name / "origin").write_text(origin)
    cache.prune(native, pin)
    assert sorted(path.name for path in native.iterdir()) == ["upstream-cpu-1", "upstream-cuda-1"]


async def test_a_second_builder_waits_and_says_so(tmp_path: Path) -> None:
    heard: list[BuildProgress] = []
    order: list[str] = []

    told = asyncio.Event()

    def on_progress(progress: BuildProgress) -> None:
        heard.append(progress)
        told.set()

    async def second() -> None:
        async with cache.locked(tmp_path / "lock", on_progress):
            order.append("second")

    async with asyncio.timeout(10), asyncio.TaskGroup() as group:
        async with cache.locked(tmp_path / "lock", on_progress):
            group.create_task(second())
            await told.wait()
            order.append("first")
    assert order == ["first", "second"]
    assert [progress.stage for progress in heard] == [Stage.WAIT]


async def test_a_builder_that_was_cancelled_lets_go(tmp_path: Path) -> None:
    async def hold() -> None:
        async with cache.locked(tmp_path / "lock", lambda progress: None):
            await asyncio.Event().wait()

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(hold(), 0.01)
    async with asyncio.timeout(10), cache.locked(tmp_path / "lock", lambda progress: None):
        pass
