"""meshd.build.cache: what counts as a finished build, and one builder at a time."""

import asyncio
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshd.build import cache
from meshd.build.cache import BuildKey
from meshd.build.interface import BuildProgress, Stage
from meshd.wire.native import STOCK_PATCHES

KEY = BuildKey("c" * 40, "d" * 64, "cpu", "12345678")


def _binary(folder: Path, name: str, text: str = "binary") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    folder = tmp_path / KEY.name
    cache.store(folder, KEY, {"rpc-server": _binary(tmp_path / "out", "ggml-rpc-server")})
    return folder


def test_names_of_keys_differ_in_every_part() -> None:
    others = [
        BuildKey("e" * 40, "d" * 64, "cpu", "12345678"),
        BuildKey("c" * 40, "e" * 64, "cpu", "12345678"),
        BuildKey("c" * 40, STOCK_PATCHES, "cpu", "12345678"),
        BuildKey("c" * 40, "d" * 64, "cuda", "12345678"),
        BuildKey("c" * 40, "d" * 64, "cpu", "12345679"),
    ]
    assert len({key.name for key in (KEY, *others)}) == 6


def test_a_stored_build_is_found(stored: Path) -> None:
    info = cache.load(stored, KEY)
    assert info is not None
    assert info.binaries["rpc-server"].read_text() == "binary"
    assert (info.pin, info.patches_sha256, info.backend) == (KEY.commit, KEY.patches_sha256, "cpu")
    assert info.patched
    assert cache.load_any(stored / "bin") == info


def test_more_binaries_are_added(stored: Path, tmp_path: Path) -> None:
    info = cache.store(stored, KEY, {"llama-quantize": _binary(tmp_path / "out", "llama-quantize")})
    assert set(info.binaries) == {"rpc-server", "llama-quantize"}


def test_without_a_stamp_it_was_never_finished(stored: Path) -> None:
    (stored / "stamp.json").unlink()
    assert cache.load(stored, KEY) is None
    assert cache.load_any(stored / "bin") is None


@pytest.mark.parametrize("harm", ["gone", "cut", "mode"])
def test_a_binary_that_is_not_whole(stored: Path, harm: str) -> None:
    path = stored / "bin" / "ggml-rpc-server"
    if harm == "gone":
        path.unlink()
    elif harm == "cut":
        os.truncate(path, 2)
    else:
        path.chmod(0o644)
    assert cache.load(stored, KEY) is None


def test_another_key_in_the_same_place(stored: Path) -> None:
    assert cache.load(stored, BuildKey("c" * 40, "f" * 64, "cpu", "12345678")) is None


@given(
    st.one_of(
        st.binary(max_size=60),
        st.recursive(st.none() | st.integers() | st.text(), st.lists, max_leaves=4).map(
            lambda value: json.dumps(
                {"commit": KEY.commit, "patches": KEY.patches_sha256, "backend": "cpu", "binaries": value}
            ).encode()
        ),
    )
)
def test_any_stamp_is_read_without_an_error(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    folder = tmp_path_factory.mktemp("stamp")
    (folder / "stamp.json").write_bytes(text)
    assert cache.load(folder, KEY) is None


def test_old_trees_and_builds_are_removed(tmp_path: Path) -> None:
    native = tmp_path / "native"
    keep = native / "tree-cpu-1"
    for name in ("tree-cpu-1", "tree-cuda-1"):
        (native / name / "src").mkdir(parents=True)
    for number in range(8):
        folder = native / f"build-{number}"
        cache.store(folder, KEY, {"rpc-server": _binary(tmp_path / "out", "ggml-rpc-server")})
        os.utime(folder / "stamp.json", ns=(number, number))
    cache.prune(native, tree=keep)
    left = sorted(path.name for path in native.iterdir())
    assert left == [*(f"build-{number}" for number in range(2, 8)), "tree-cpu-1"]


def test_a_second_builder_waits_and_says_so(tmp_path: Path) -> None:
    heard: list[BuildProgress] = []
    order: list[str] = []

    told = asyncio.Event()

    def on_progress(progress: BuildProgress) -> None:
        heard.append(progress)
        told.set()

    async def second() -> None:
        async with cache.locked(tmp_path / "lock", on_progress):
            order.append("second")

    async def main() -> None:
        async with asyncio.timeout(10), asyncio.TaskGroup() as group:
            async with cache.locked(tmp_path / "lock", on_progress):
                group.create_task(second())
                await told.wait()
                order.append("first")

    asyncio.run(main())
    assert order == ["first", "second"]
    assert [progress.stage for progress in heard] == [Stage.WAIT]


def test_a_builder_that_was_cancelled_lets_go(tmp_path: Path) -> None:
    async def hold() -> None:
        async with cache.locked(tmp_path / "lock", lambda progress: None):
            await asyncio.Event().wait()

    async def main() -> None:
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(hold(), 0.01)
        async with asyncio.timeout(10), cache.locked(tmp_path / "lock", lambda progress: None):
            pass

    asyncio.run(main())
