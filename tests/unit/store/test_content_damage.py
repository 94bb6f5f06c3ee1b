"""The content store after a crash, and with packs that are not as they were."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from meshd.store import content_store
from meshd.store.hashes import hash_tensors
from meshd.store.pack import JOURNAL, PackWriter, journal_of

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


async def test_a_crash_leaves_nothing_for_ever(tmp_path: Path) -> None:
    async with opened(tmp_path / "t") as writing:
        it = await took(writing)
        it.piece(missed(A), 0, A[:100], last=False)
        await until(lambda: bool(new(tmp_path / "t")))
        (tmp_path / "t" / ".new-crashed").write_bytes(b"half a pack")
        (tmp_path / "t" / "gone.tensors.checked").write_bytes(b"")
        async with opened(tmp_path / "t") as other:
            await has(other)
            left, journal = sorted(new(tmp_path / "t"))
            assert left.name != ".new-crashed", "what another process writes stays"
            assert journal == journal_of(left)
            # that pack and its journal, by which another process could finish it; nothing else is left
            assert len(list((tmp_path / "t").iterdir())) == 2
        it.close()
    assert new(tmp_path / "t") == []


def _cut_short(journal: bytes) -> bytes:
    return journal[:-9]


def _lie(journal: bytes) -> bytes:
    return journal.replace(missed(B).digest.hex().encode(), missed(A).digest.hex().encode())


@pytest.mark.parametrize(
    ("change", "left"),
    [(bytes, {A, B}), (_cut_short, {A}), (_lie, set()), (lambda _: b"", set()), (lambda _: b"\xff\n", set())],
    ids=["as it was", "cut", "lying", "empty", "no text"],
)
async def test_a_pack_of_a_killed_process_is_finished(
    tmp_path: Path, change: Callable[[bytes], bytes], left: set[bytes]
) -> None:
    """With the tensors that were whole. What a journal claims is compared with what is there."""
    folder = tmp_path / "t"
    folder.mkdir(mode=0o700)
    writer = PackWriter(folder, "peer")
    for content in (A, B):
        writer.write(missed(content), 0, content)
        assert writer.complete(missed(content))
    writer.write(missed(b"begun"), 0, b"be")
    [path] = [one for one in new(folder) if not one.name.endswith(JOURNAL)]
    killed = folder / ".new-killed"
    shutil.copyfile(path, killed)
    journal_of(killed).write_bytes(change(journal_of(path).read_bytes()))
    writer.abandon()
    async with opened(folder) as store:
        assert await has(store) == left
    assert new(folder) == []


async def test_a_store_that_ends_while_a_lease_sends_leaves_no_half_pack(tmp_path: Path) -> None:
    async with opened(tmp_path / "t") as store:
        it = await took(store)
        it.piece(missed(A), 0, A[:100], last=False)
        await until(lambda: bool(new(tmp_path / "t")))
    assert new(tmp_path / "t") == []
    it.close()


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
async def test_a_damaged_pack_is_never_given(
    tmp_path: Path, harm: Callable[[Path], None], again: bool
) -> None:
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


async def test_what_was_damaged_is_kept_anew_while_the_lease_lives_that_brought_it(tmp_path: Path) -> None:
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


async def test_a_pack_that_was_read_once_is_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def counted(*args: object, label: str, **more: object) -> object:
        read.append(label)
        return await hash_tensors(*args, label=label, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(content_store, "hash_tensors", counted)

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
