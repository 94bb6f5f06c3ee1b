"""The content store when it is full: what makes room, and for whom."""

from pathlib import Path

import pytest
from meshd.rpc.mesh_keeping import Missed
from meshd.store import content_store

from tests.unit.store.stored_leases import (
    KIB,
    content,
    has,
    held,
    keeps,
    missed,
    new,
    opened,
    sends,
    took,
    until,
)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> int:
    """A limit for two packs of 64 KiB, looked at with each piece."""
    monkeypatch.setattr(content_store, "ROOM_STEP_BYTES", 1)
    return 150 * KIB


def large(number: int) -> bytes:
    return content(number, 64 * KIB)


async def test_what_was_not_used_for_longest_makes_room(tmp_path: Path, small: int) -> None:
    async with opened(tmp_path / "t", limit=small) as store:
        await keeps(store, large(1))
        await keeps(store, large(2))
        it = await took(store)
        it.loaded(missed(large(1)).digest)
        it.close()
        await keeps(store, large(3))
        assert await has(store) == {large(1), large(3)}
        assert store.status.bytes <= store.status.limit == small
        assert len(list((tmp_path / "t").iterdir())) == 4, "leftovers of a pack that is gone"


async def test_who_sends_most_loses_its_own_first(tmp_path: Path, small: int) -> None:
    async with opened(tmp_path / "t", limit=small + 64 * KIB) as store:
        await keeps(store, large(1), peer="quiet")
        for number in range(2, 9):
            await keeps(store, large(number), peer="loud")
        assert await has(store) == {large(1), large(7), large(8)}


async def test_what_a_lease_uses_stays_and_what_it_has_brought(tmp_path: Path, small: int) -> None:
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
        assert store.status.problem == "there is no space: the rest of the store is in use"
        it.close()
        await keeps(store, large(3))
        assert large(3) in await has(store) and store.status.problem == ""


async def test_what_a_lease_was_only_offered_makes_room_for_what_it_brings(
    tmp_path: Path, small: int
) -> None:
    async with opened(tmp_path / "t", limit=small) as store:
        await keeps(store, large(1))
        await keeps(store, large(2))
        it = await took(store)
        it.loaded(missed(large(2)).digest)
        assert sends(it, large(3)) == [True]
        await until(lambda: any(path.stat().st_size == 64 * KIB for path in new(tmp_path / "t")))
        it.close()
        assert await has(store) == {large(2), large(3)}


async def test_a_head_makes_room_only_for_what_it_truly_sends(tmp_path: Path, small: int) -> None:
    async with opened(tmp_path / "t", limit=small) as store:
        await keeps(store, large(1))
        await keeps(store, large(2))
        it = await took(store, "liar")
        assert it.piece(Missed(bytes(32), 0, 1 << 40), 0, b"x", last=False)
        it.close()
        assert await has(store) == {large(1), large(2)}


async def test_two_daemons_share_one_folder(tmp_path: Path, small: int) -> None:
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
