"""The content store after a crash, and with packs that are not as they were."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.store import content_store
from meshd.store.hashes import hash_tensors

from tests.conformance.run import run
from tests.unit.store.stored_leases import (
    A,
    B,
    has,
    held,
    keeps,
    missed,
    new,
    opened,
    packs,
    sends,
    took,
    until,
)


def test_a_crash_leaves_nothing_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as writing:
            it = await took(writing)
            it.piece(missed(A), 0, A[:100], last=False)
            await until(lambda: bool(new(tmp_path / "t")))
            (tmp_path / "t" / ".new-crashed").write_bytes(b"half a pack")
            (tmp_path / "t" / "gone.tensors.checked").write_bytes(b"")
            async with opened(tmp_path / "t") as other:
                await has(other)
                [left] = new(tmp_path / "t")
                assert left.name != ".new-crashed", "what another process writes stays"
                assert len(list((tmp_path / "t").iterdir())) == 1
            it.close()
        assert new(tmp_path / "t") == []

    run(main())


def test_a_store_that_ends_while_a_lease_sends_leaves_no_half_pack(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            it = await took(store)
            it.piece(missed(A), 0, A[:100], last=False)
            await until(lambda: bool(new(tmp_path / "t")))
        assert new(tmp_path / "t") == []
        it.close()

    run(main())


def _flip(pack: Path) -> None:
    data = bytearray(pack.read_bytes())
    data[10] ^= 1
    pack.write_bytes(data)


def _cut(pack: Path) -> None:
    os.truncate(pack, 100)


def _replace(pack: Path) -> None:
    pack.write_bytes(b"something else")


@pytest.mark.parametrize("harm", [_flip, _cut, _replace, Path.unlink])
@pytest.mark.parametrize("again", [False, True], ids=["running", "restarted"])
def test_a_damaged_pack_is_never_given(tmp_path: Path, harm: Callable[[Path], None], again: bool) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            await keeps(store, A)
            await keeps(store, B)
            [of_a] = [pack for pack in packs(tmp_path / "t") if A in pack.read_bytes()]
            if not again:
                harm(of_a)
                assert await has(store) == {B}
                assert not of_a.exists()
                await keeps(store, A)
                assert await has(store) == {A, B}
        if again:
            harm(of_a)
            async with opened(tmp_path / "t") as store:
                assert await has(store) == {B}
                assert not of_a.exists()

    run(main())


def test_what_was_damaged_is_kept_anew_while_the_lease_lives_that_brought_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            first = await took(store)
            assert sends(first, A) == [True]
            first.done()
            await until(lambda: len(packs(tmp_path / "t")) == 1)
            await until(lambda: store.status.tensors == 1)
            _flip(packs(tmp_path / "t")[0])
            second = await took(store)
            assert A not in held(second)
            assert sends(second, A) == [True]
            second.close()
            await until(lambda: store.status.tensors == 1)
            first.close()
            assert await has(store) == {A}

    run(main())


def test_a_pack_that_was_read_once_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    async def counted(*args: object, label: str, **more: object) -> object:
        read.append(label)
        return await hash_tensors(*args, label=label, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(content_store, "hash_tensors", counted)

    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            await keeps(store, A)
            assert await has(store) == {A}
            assert read == [], "it was hashed while it was written"
        [pack] = packs(tmp_path / "t")
        noted = pack.with_name(pack.name + ".checked")
        async with asyncio.timeout(20):
            while not noted.exists() or not noted.read_text():  # the file system's clock has to tick
                async with opened(tmp_path / "t") as store:
                    assert await has(store) == {A}
        assert read
        read.clear()
        async with opened(tmp_path / "t") as store:
            assert await has(store) == {A}
            assert read == []
            os.utime(pack)
            assert await has(store) == {A}
            assert len(read) == 1, "its dates have changed"

    run(main())
