"""Weights of a load from members in memory: who gives which, who lies, and what a head cannot cause."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import pytest
from meshd.devices.interface import FromMembers
from meshd.library.members.fetch_weights import MemberWeights
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.peer.interface import Stream
from meshd.store.content_store import DiskContentStore
from meshd.store.hash_cache import HashCache, PieceCache
from meshd.store.interface import LeaseCache
from meshd.store.model_file import ModelFile
from meshd.wire.lease import NeededTensor, Needs
from meshd.wire.models import HERE, ToldModel

from tests.unit.library.members.exchange_scene import NAME, Scene, big, scene
from tests.unit.library.members.test_hostile_members import Serve, lies_about, says
from tests.unit.library.models import put
from tests.unit.store.stored_leases import LARGE, has, opened, took


@dataclass
class Taker:
    """A worker's daemon that takes weights, and keeps them."""

    it: Scene
    store: DiskContentStore
    keep: LeaseCache
    file: ModelFile
    lines: list[str] = field(default_factory=list)

    @property
    def members(self) -> MemberWeights:
        cache = self.it.folder / "taker"
        return MemberWeights(self.it.taker, PieceCache.below(cache))

    async def needs(self, *names: str) -> Needs:
        """Return what the head's file needs: the tensors whose names begin so, or all of them."""
        index = await self.file.index()
        rows = [row for row in index.tensors if not names or row.name.startswith(names)]
        tensors = [NeededTensor(row.file, row.kind, row.offset, row.size, row.digest) for row in rows]
        return Needs(content(), len(big()), 1, tuple(tensors))

    async def fetch(self, needs: Needs) -> FromMembers:
        return await self.members.fetch(needs, self.keep, self.lines.append)

    async def kept(self) -> int:
        """Bytes of tensors, each of which is right."""
        self.keep.close()
        return sum(map(len, await has(self.store)))


def content() -> bytes:
    """Return the content of the file of `big`."""
    index: PieceIndex
    _, index = lies_about(big())
    return index.content


def size_of(needs: Needs) -> int:
    return sum({one.digest: one.size for one in needs.tensors}.values())


@asynccontextmanager
async def taking(folder: Path, *, limit: int = LARGE) -> AsyncIterator[Taker]:
    path = put(folder / "head/big.gguf", big())
    async with scene(folder) as it, opened(folder / "t", limit=limit) as store:
        file = await ModelFile.open(path, cache=HashCache(folder / "head/weights"))
        keep = await took(store)
        try:
            yield Taker(it, store, keep, file)
        finally:
            keep.close()
            file.close()


def gives_after(data: bytes, asked: asyncio.Event, waits_for: asyncio.Event) -> Serve:
    """An honest member, which begins when another one has been asked, too."""

    async def give(stream: Stream) -> None:
        while True:
            request = bytes(await stream.read())
            stream.consumed(len(request))
            asked.set()
            await waits_for.wait()
            for at in range(0, len(request), 4):
                begin = int.from_bytes(request[at : at + 4], "big") * PIECE_BYTES
                await stream.write(HERE + data[begin : begin + PIECE_BYTES])

    return give


async def test_two_members_give_what_is_needed_at_once(tmp_path: Path) -> None:
    async with taking(tmp_path) as taker:
        _, index = lies_about(big())
        told = ToldModel(bytes(16), (NAME,), len(big()), content=index.content)
        one, two = asyncio.Event(), asyncio.Event()
        says(taker.it.mute("one"), told, index, gives_after(big(), one, two))
        says(taker.it.mute("two"), told, index, gives_after(big(), two, one))
        needs = await taker.needs()
        found = await taker.fetch(needs)
        assert found.given.keys() == {"one", "two"} and not found.why
        assert sum(found.given.values()) == len(big())
        assert taker.lines[-1].endswith("from one, two") and taker.lines[-1].startswith("fetches ")
        assert await taker.kept() == size_of(needs)


async def test_only_the_pieces_with_what_is_needed(tmp_path: Path) -> None:
    async with taking(tmp_path) as taker:
        taker.it.giver("one").has(big())
        needs = await taker.needs("blk.0.attn_norm", "output_norm")
        found = await taker.fetch(needs)
        assert 0 < sum(found.given.values()) <= 2 * PIECE_BYTES < len(big())
        assert await taker.kept() == size_of(needs)


async def test_a_liar_is_left_and_another_one_gives(tmp_path: Path) -> None:
    async with taking(tmp_path) as taker:
        give, index = lies_about(big())
        told = ToldModel(bytes(16), (NAME,), len(big()), content=index.content)
        says(taker.it.mute("liar"), told, index, give)
        needs = await taker.needs()
        alone = await taker.fetch(needs)
        assert not alone.given and "liar: piece" in alone.why and "is wrong" in alone.why
        taker.it.giver("one").has(big())
        found = await taker.fetch(needs)
        assert found.given.keys() == {"one"} and not found.why
        assert await taker.kept() == size_of(needs)


@pytest.mark.parametrize("told", [b"", b"x" * 32], ids=["not read yet", "another"])
async def test_a_member_with_another_file_of_that_size_gives_nothing(tmp_path: Path, told: bytes) -> None:
    async with taking(tmp_path) as taker:
        give, index = lies_about(bytes(len(big())))
        model = ToldModel(bytes(16), (NAME,), len(big()), content=told)
        says(taker.it.mute("other"), model, index, give)
        found = await taker.fetch(await taker.needs())
        assert found == FromMembers({}, "no member gives more")


async def test_what_the_file_does_not_have_is_not_fetched(tmp_path: Path) -> None:
    """Nor what would cost a piece for a few bytes, again and again."""
    async with taking(tmp_path) as taker:
        taker.it.giver("one").has(big())
        behind = NeededTensor(0, 0, len(big()) - 4, 8, bytes(32))
        outside = Needs(content(), len(big()), 1, (behind,))
        assert not (await taker.fetch(outside)).given


async def test_pieces_are_bounded_by_what_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshd.library.members.fetch_weights._SPARE_PIECES", 1)
    async with taking(tmp_path) as taker:
        taker.it.giver("one").has(big())
        places = (0, PIECE_BYTES, 2 * PIECE_BYTES)
        rows = [NeededTensor(0, 0, at, 4, at.to_bytes(32, "big")) for at in places]
        found = await taker.fetch(Needs(content(), len(big()), 1, tuple(rows)))
        assert sum(found.given.values()) == PIECE_BYTES


async def test_hashes_that_are_not_those_of_the_bytes_are_kept_by_nobody(tmp_path: Path) -> None:
    """A head that lies about its tensors: the piece is right, so no member is blamed."""
    async with taking(tmp_path) as taker:
        taker.it.giver("one").has(big())
        needs = await taker.needs()
        wrong = NeededTensor(0, needs.tensors[0].kind, 0, 1000, b"w" * 32)
        await taker.fetch(Needs(content(), len(big()), 1, (wrong,)))
        assert await taker.kept() == 0


async def test_a_store_without_room_ends_it(tmp_path: Path) -> None:
    async with taking(tmp_path, limit=1000) as taker:
        taker.it.giver("one").has(big())
        needs = await taker.needs()
        for _ in range(3):  # the disk says it a moment later than the last piece came
            found = await taker.fetch(needs)
            await asyncio.sleep(0.1)
        assert "this node: weights cannot be kept: there is no space" in found.why
        assert await taker.kept() == 0


async def test_a_head_that_gives_its_file_needs_nobody_else(tmp_path: Path) -> None:
    async with taking(tmp_path) as taker:
        for by_us, gives in ((True, False), (False, True), (True, True)):
            pieces = PieceCache.below(taker.it.folder / "taker")
            head = MemberWeights(taker.it.taker, pieces, gives=lambda gives=gives: gives)  # type: ignore[misc]
            found = await head.given_content(taker.file, taker.lines.append, by_us=by_us)
            assert found == (content() if by_us and gives else b"")


async def test_the_head_asks_whether_anybody_else_has_its_file(tmp_path: Path) -> None:
    async with taking(tmp_path) as taker:
        ask = partial(taker.members.given_content, by_us=False)
        assert await ask(taker.file, taker.lines.append) == b"" and not taker.lines, "it is not read for that"
        assert await taker.members.content_of(taker.file, taker.lines.append) == content()
        other = bytearray(big())
        other[-1] ^= 1
        twin = taker.it.giver("twin")
        twin.has(bytes(other))
        offered = twin.offered.listed()[0]
        with offered.paths[0].open("rb") as open_file:
            await twin.pieces.read([open_file.fileno()], ["x"], lambda _: None)
        twin.offered.changed()
        assert await ask(taker.file, taker.lines.append) == b"", "one of its size has other bytes"
        assert "to compare it" in taker.lines[-1]
        taker.it.giver("unread").has(big())
        assert await ask(taker.file, taker.lines.append) == content()
