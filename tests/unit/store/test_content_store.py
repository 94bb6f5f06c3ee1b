"""The content store: what one lease brought the next one has, whole and within limits, whatever happens."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from blake3 import blake3
from meshd.base.replaced_file import NEW_PREFIX
from meshd.base.tasks import Owner
from meshd.rpc.missed_tensors import Missed
from meshd.store import content_store, lease_cache
from meshd.store.content_store import DiskContentStore
from meshd.store.eviction import MAX_PACKS
from meshd.store.hash_cache import HashCache
from meshd.store.hashes import hash_tensors
from meshd.store.interface import Shelf

from tests.conformance.run import run

LARGE = 1 << 40
KIB = 1024


def content(number: int, size: int = 4 * KIB) -> bytes:
    return bytes([number]) * size


def missed(data: bytes) -> Missed:
    return Missed(blake3(data).digest(), 0, len(data))


@asynccontextmanager
async def opened(path: Path, *, limit: int = LARGE) -> AsyncIterator[DiskContentStore]:
    store = DiskContentStore(path, limit=limit, cache=HashCache(path.parent / "weights"))
    async with Owner() as owner:
        owner.start(store.serve(), name="store")
        yield store
        owner.cancel()


async def took(store: DiskContentStore, peer: str = "peer", *, most: int = LARGE) -> Shelf:
    async def on_progress(_text: str) -> None: ...

    taken = await store.take(peer=peer, on_progress=on_progress)
    assert taken is not None
    taken.allow(most)
    return taken


def sends(it: Shelf, *tensors: bytes) -> list[bool]:
    """As a head does, in two pieces each."""
    took_all = []
    for data in tensors:
        tensor, half = missed(data), len(data) // 2
        first = it.piece(tensor, 0, data[:half], last=False)
        took_all.append(first and it.piece(tensor, half, data[half:], last=True))
    return took_all


async def keeps(store: DiskContentStore, *tensors: bytes, peer: str = "peer") -> None:
    """One lease that brings these, from begin to end; they are on the disk then."""
    it = await took(store, peer)
    assert all(sends(it, *tensors))
    it.done()
    it.close()
    (await took(store)).close()


def held(it: Shelf) -> set[bytes]:
    """What its index names, read through its descriptors."""
    found = set()
    for tensor in it.index.tensors:
        data = os.pread(it.descriptors[tensor.file], tensor.size, tensor.offset)
        assert (blake3(data).digest(), tensor.digest.hex()) == (tensor.digest, tensor.name)
        found.add(data)
    return found


async def has(store: DiskContentStore) -> set[bytes]:
    it = await took(store)
    found = held(it)
    it.close()
    return found


def packs(path: Path) -> list[Path]:
    return sorted(path.glob("*.tensors"))


def new(path: Path) -> list[Path]:
    return list(path.glob(".new-*"))


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not true():  # noqa: ASYNC110 - a file says it
            await asyncio.sleep(0)


A, B, C = content(1), content(2), content(3)


def test_what_one_lease_brought_the_next_one_has(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            first = await took(store)
            assert held(first) == set()
            assert len(first.descriptors) == len(first.index.files) == 1, (
                "a server without files is not asked"
            )
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

    run(main())


def test_what_is_not_what_it_was_named_is_not_kept_nor_is_what_follows(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            it = await took(store)
            sends(it, A)
            it.piece(missed(B), 0, C, last=True)
            sends(it, C)
            it.close()
            assert await has(store) == {A}

    run(main())


def test_one_content_for_two_places_is_kept_once_and_spoils_nothing(tmp_path: Path) -> None:
    """A head may name what it likes: here, other sizes for one hash, to write over what is good."""

    async def main() -> None:
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

    run(main())


def test_a_lease_that_ends_in_the_middle_keeps_what_was_whole(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            it = await took(store)
            sends(it, A)
            it.piece(missed(B), 0, B[:100], last=False)
            it.close()
            assert await has(store) == {A}
            assert new(tmp_path / "t") == []

    run(main())


def test_no_more_than_a_lease_may_have(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            it = await took(store, most=len(A) + len(B) - 1)
            assert sends(it, A, B) == [True, False]
            it.close()
            never = await took(store, most=0)
            assert sends(never, C) == [False]
            never.close()
            assert await has(store) == {A}

    run(main())


def test_what_the_disk_cannot_keep_up_with_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_store, "QUEUE_BYTES", len(A) + 4 * content_store.JOB_BYTES)

    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            it = await took(store)
            assert sends(it, A, B) == [True, False], "nothing was written between: this waits for nobody"
            it.close()
            assert await has(store) == {A}
            again = await took(store)
            assert sends(again, B) == [True]
            again.close()
            assert await has(store) == {A, B}

    run(main())


def test_a_full_pack_is_sealed_before_the_lease_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_store, "PACK_BYTES", 2 * len(A))

    async def main() -> None:
        async with opened(tmp_path / "t", limit=MAX_PACKS * len(A)) as store:
            it = await took(store)
            sends(it, A, B, C)
            async with asyncio.timeout(20):
                while await has(store) != {A, B}:
                    pass
            it.close()
            assert await has(store) == {A, B, C}
            assert len(packs(tmp_path / "t")) == 2

    run(main())


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


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit for two packs of 64 KiB, looked at with each piece."""
    monkeypatch.setattr(lease_cache, "ROOM_STEP_BYTES", 1)
    return 150 * KIB


def large(number: int) -> bytes:
    return content(number, 64 * KIB)


def test_what_was_not_used_for_longest_makes_room(tmp_path: Path, small: int) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t", limit=small) as store:
            await keeps(store, large(1))
            await keeps(store, large(2))
            it = await took(store)
            it.loaded(missed(large(1)).digest)
            it.close()
            await keeps(store, large(3))
            assert await has(store) == {large(1), large(3)}
            assert store.status.bytes <= store.status.limit == small
            assert len(list((tmp_path / "t").iterdir())) == 4, "nothing is left of what is gone"

    run(main())


def test_who_sends_most_loses_its_own_first(tmp_path: Path, small: int) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t", limit=small + 64 * KIB) as store:
            await keeps(store, large(1), peer="quiet")
            for number in range(2, 9):
                await keeps(store, large(number), peer="loud")
            assert await has(store) == {large(1), large(7), large(8)}

    run(main())


def test_what_a_lease_uses_stays_and_what_it_has_brought(tmp_path: Path, small: int) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t", limit=small) as store:
            await keeps(store, large(1))
            it = await took(store)
            it.loaded(missed(large(1)).digest)
            sends(it, large(2))
            it.done()
            assert await has(store) == {large(1), large(2)}
            other = await took(store, "other")
            sends(other, large(3))
            other.close()
            assert await has(store) == {large(1), large(2)}, "both are in use: there is no room for a third"
            it.close()
            await keeps(store, large(3))
            assert large(3) in await has(store)

    run(main())


def test_what_a_lease_was_only_offered_makes_room_for_what_it_brings(tmp_path: Path, small: int) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t", limit=small) as store:
            await keeps(store, large(1))
            await keeps(store, large(2))
            it = await took(store)
            it.loaded(missed(large(2)).digest)
            assert sends(it, large(3)) == [True]
            await until(lambda: any(path.stat().st_size == 64 * KIB for path in new(tmp_path / "t")))
            it.close()
            assert await has(store) == {large(2), large(3)}

    run(main())


def test_a_head_makes_room_only_for_what_it_truly_sends(tmp_path: Path, small: int) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t", limit=small) as store:
            await keeps(store, large(1))
            await keeps(store, large(2))
            it = await took(store, "liar")
            assert it.piece(Missed(bytes(32), 0, 1 << 40), 0, b"x", last=False)
            it.close()
            assert await has(store) == {large(1), large(2)}

    run(main())


def test_two_daemons_share_one_folder(tmp_path: Path, small: int) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t", limit=small) as one, opened(tmp_path / "t", limit=small) as two:
            await keeps(one, large(1))
            in_use = await took(two)
            assert held(in_use) == {large(1)}
            in_use.loaded(missed(large(1)).digest)
            await keeps(one, large(2))
            await keeps(one, large(3))
            assert await has(one) == await has(two) == {large(1), large(3)}
            assert held(in_use) == {large(1)}
            in_use.close()

    run(main())


def test_two_leases_bring_the_same_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "t") as store:
            one, two = await took(store), await took(store)
            assert sends(one, A) == [True]
            assert sends(two, A, B) == [False, True]
            one.close()
            two.close()
            assert await has(store) == {A, B}
            assert sum(A in pack.read_bytes() for pack in packs(tmp_path / "t")) == 1

    run(main())


def test_a_limit_of_nothing_keeps_nothing_and_leaves_what_others_keep(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


@pytest.mark.parametrize("what", ["loose", "file", "link"])
def test_a_folder_that_is_not_ours_alone_is_not_used(tmp_path: Path, what: str) -> None:
    path = tmp_path / "t"
    if what == "loose":
        path.mkdir(mode=0o700)
        path.chmod(0o770)
    elif what == "file":
        path.write_bytes(b"")
    else:
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")

    async def main() -> None:
        async with opened(path) as store:

            async def on_progress(_text: str) -> None: ...

            assert await store.take(peer="peer", on_progress=on_progress) is None
            assert (store.status.bytes, store.status.tensors) == (0, 0)

    run(main())
