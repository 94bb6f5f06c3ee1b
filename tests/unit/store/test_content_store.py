"""The content store: what one lease brought the next one has, whole."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.files import NEW_PREFIX
from meshd.rpc.mesh_keeping import Missed
from meshd.store import content_store
from meshd.store.pack_folder import MAX_PACKS

from tests.unit.store.stored_leases import (
    A,
    B,
    C,
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


async def test_what_one_lease_brought_the_next_one_has(tmp_path: Path) -> None:
    async with opened(tmp_path / "t") as store:
        first = await took(store)
        assert held(first) == set()
        assert len(first.descriptors) == len(first.index.files) == 1, "a server without files is not asked"
        assert sends(first, A, B) == [True, True]
        first.done()
        assert sends(first, C) == [False], "a model that is loaded sends no weights"
        second = await took(store)
        assert held(second) == {A, B}
        assert sends(second, A) == [False], "it is here"
        first.close()
        second.close()
        assert store.status.tensors == 2
        assert store.status.bytes == sum(pack.stat().st_size for pack in packs(tmp_path / "t"))
    async with opened(tmp_path / "t") as store:
        assert await has(store) == {A, B}
    assert new(tmp_path / "t") == []
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o700


async def test_what_is_not_what_it_was_named_is_not_kept_nor_is_what_follows(tmp_path: Path) -> None:
    async with opened(tmp_path / "t") as store:
        it = await took(store)
        sends(it, A)
        it.piece(missed(B), 0, C, last=True)
        sends(it, C)
        it.close()
        assert await has(store) == {A}


async def test_one_content_for_two_places_is_kept_once_and_spoils_nothing(tmp_path: Path) -> None:
    """A head may name what it likes: here, other sizes for one hash, to overwrite good tensors."""
    async with opened(tmp_path / "t") as store:
        it = await took(store)
        one, other = missed(A), Missed(missed(A).digest, 0, 3 * len(A))
        same = missed(A)
        assert it.piece(one, 0, A[:100], last=False)
        assert sends(it, B) == [True]
        assert not it.piece(other, len(A), bytes(len(B)), last=False)
        assert not it.piece(same, 0, A, last=True)
        assert it.piece(one, 100, A[100:], last=True)
        it.close()
        assert await has(store) == {A, B}


async def test_a_lease_that_ends_in_the_middle_keeps_what_was_whole(tmp_path: Path) -> None:
    async with opened(tmp_path / "t") as store:
        it = await took(store)
        sends(it, A)
        it.piece(missed(B), 0, B[:100], last=False)
        it.close()
        assert await has(store) == {A}
        assert new(tmp_path / "t") == []


async def test_no_more_than_a_lease_may_have(tmp_path: Path) -> None:
    async with opened(tmp_path / "t") as store:
        it = await took(store, most=len(A) + len(B) - 1)
        assert sends(it, A, B) == [True, False]
        it.close()
        never = await took(store, most=0)
        assert sends(never, C) == [False]
        never.close()
        assert await has(store) == {A}


async def test_what_the_disk_cannot_keep_up_with_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_store, "_QUEUE_BYTES", len(A) + 4 * content_store.JOB_BYTES)

    async with opened(tmp_path / "t") as store:
        it = await took(store)
        assert sends(it, A, B) == [True, False], "nothing was written between: this waits for nobody"
        it.close()
        assert await has(store) == {A}
        again = await took(store)
        assert sends(again, B) == [True]
        again.close()
        assert await has(store) == {A, B}


async def test_a_full_pack_is_sealed_before_the_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_store, "PACK_BYTES", 2 * len(A))

    async with opened(tmp_path / "t", limit=MAX_PACKS * len(A)) as store:
        it = await took(store)
        sends(it, A, B, C)
        async with asyncio.timeout(20):
            while await has(store) != {A, B}:
                pass
        it.close()
        assert await has(store) == {A, B, C}
        assert len(packs(tmp_path / "t")) == 2


async def test_two_leases_bring_the_same_once(tmp_path: Path) -> None:
    async with opened(tmp_path / "t") as store:
        one, two = await took(store), await took(store)
        assert sends(one, A) == [True]
        assert sends(two, A, B) == [False, True]
        one.close()
        two.close()
        assert await has(store) == {A, B}
        assert sum(A in pack.read_bytes() for pack in packs(tmp_path / "t")) == 1


async def test_a_limit_of_nothing_keeps_nothing_and_leaves_what_others_keep(tmp_path: Path) -> None:
    async with opened(tmp_path / "t") as store:
        await keeps(store, A)
    there = packs(tmp_path / "t")
    left = tmp_path / "t" / f"{NEW_PREFIX}of-a-crash"
    left.touch(mode=0o600)
    async with opened(tmp_path / "t", limit=0) as store:
        await until(lambda: not left.exists())

        async def on_progress(_text: str) -> None: ...

        assert await store.take(peer="peer", on_progress=on_progress) is None
        assert (store.status.limit, store.status.bytes) == (0, 0)
    assert there and packs(tmp_path / "t") == there


@pytest.mark.parametrize("what", ["loose", "file", "link"])
async def test_a_folder_that_is_not_ours_alone_is_not_used(tmp_path: Path, what: str) -> None:
    path = tmp_path / "t"
    if what == "loose":
        path.mkdir(mode=0o700)
        path.chmod(0o770)
    elif what == "file":
        path.write_bytes(b"")
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")

    async with opened(path) as store:

        async def on_progress(_text: str) -> None: ...

        assert await store.take(peer="peer", on_progress=on_progress) is None
        assert (store.status.bytes, store.status.tensors) == (0, 0) and store.status.problem
