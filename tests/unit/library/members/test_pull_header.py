"""Headers of models from members: what is taken, how it is found again, and members that lie about hashes."""

import asyncio
from collections import namedtuple
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.library import disk
from meshd.library.members.pull import NobodyHasIt, PullStep
from meshd.library.pulled_models import find_header, said_of
from meshd.model.model_name import MeshName
from meshd.model.weights_index import PIECE_BYTES, fingerprint
from meshd.store.header_file import HeaderFile, present_tensors, read_note

from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.library.members.exchange_scene import NAME, failed, scene
from tests.unit.library.members.told_member import (
    Member,
    fingerprint_of,
    index_of,
    large,
    large_shards,
    lying,
    pull_of,
)
from tests.unit.library.models import tiny
from tests.unit.store.header_files import hashes_of

Usage = namedtuple("Usage", "total used free")


def first_and_last() -> int:
    """Bytes of the pieces of `large` with its embedding, and with what is behind its layers."""
    return PIECE_BYTES + len(large()) % PIECE_BYTES


async def test_the_pieces_with_the_header_and_no_others_come(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.giver("a").has(large())
        pull = pull_of(it)
        await pull.run()
        assert pull.state.step is PullStep.DONE
        assert pull.state.done == pull.state.total == first_and_last()
        assert [(one.node, one.bytes) for one in pull.state.holders.values()] == [("a", first_and_last())]
        [path] = pull.state.paths
        note = read_note(path)
        assert (note.node, note.fingerprint) == ("a", fingerprint_of(large()))
        assert note.content == index_of(large()).content and note.name == NAME
        assert path.stat().st_size == len(large())
        assert path.stat().st_blocks * 512 <= 2 * PIECE_BYTES < len(large())
        data, header = path.read_bytes(), parse(large())
        assert data[: header.data_offset] == large()[: header.data_offset]
        for one in present_tensors(header):
            assert data[one.offset : one.offset + one.size] == large()[one.offset : one.offset + one.size]
        (await HeaderFile.open_header(path)).close()
        assert pull.state.fingerprint in said_of(path) and "as reported by a" in said_of(path)


async def test_a_header_of_several_pieces(tmp_path: Path) -> None:
    data = gguf(*language_model(vocabulary=64, extra={"tokenizer.ggml.merges": ["x" * 1000] * 9000}))

    async with scene(tmp_path) as it:
        it.giver("a").has(data)
        pull = pull_of(it)
        await pull.run()
        assert pull.state.total == len(data) > 2 * PIECE_BYTES
        assert pull.state.fingerprint == fingerprint_of(data)


async def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    """After a cut; and a whole one is found by its name and its fingerprint."""
    async with scene(tmp_path) as it:
        member = Member(large(), hashes_of(large()), why_not="not now")
        member.speaks_for(it.mute("a"))
        assert "not now" in (await failed(pull_of(it))).what
        member.why_not = ""
        pull = pull_of(it)
        await pull.run()
        [holder] = pull.state.holders.values()
        assert holder.bytes == first_and_last() - PIECE_BYTES, "the first was there"
        models = tmp_path / "taker/models"
        digits = fingerprint_of(large())
        for text in (NAME, NAME.lower(), f"{NAME}.gguf", digits, digits[:32].upper()):
            found = find_header(models, MeshName(text))
            assert found is not None and found.paths == pull.state.paths, text
        assert find_header(models, MeshName("other")) is None
        assert find_header(models, MeshName("0" * 32)) is None


@pytest.mark.parametrize("name", [NAME, f"mesh:{fingerprint_of(large())}"])
@pytest.mark.parametrize("fills", [False, True], ids=["before", "meanwhile"])
async def test_a_full_disk_is_no_fault_of_members(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, fills: bool
) -> None:
    """Before the length of the header is known, too."""
    free = iter([1 << 40] if fills else [])
    monkeypatch.setattr("shutil.disk_usage", lambda _: Usage(0, 0, next(free, disk.RESERVED_BYTES)))

    async with scene(tmp_path) as it:
        told = bytes.fromhex(fingerprint_of(large()))
        Member(large(), hashes_of(large()), told).speaks_for(it.mute("a"))
        error = await failed(pull_of(it, name))
        assert isinstance(error, UserError) and "not enough space in" in error.what, error.what
        assert ("67.1 MB are free" if fills else "4.2 MB are needed") in error.what
        assert "MESHD_CACHE" in error.hint


async def test_two_give(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        for name in ("a", "b"):
            it.giver(name).has(large())
        pull = pull_of(it)
        await pull.run()
        assert sum(one.bytes for one in pull.state.holders.values()) == first_and_last()


@pytest.mark.parametrize("name", [NAME, f"mesh:{fingerprint_of(large())[:40]}"])
async def test_hashes_that_do_not_give_the_fingerprint_are_a_lie(tmp_path: Path, name: str) -> None:
    async with scene(tmp_path) as it:
        true = bytes.fromhex(fingerprint_of(large()))
        Member(large(), lying(large(), about="blk.1."), true).speaks_for(it.mute("liar"))
        error = await failed(pull_of(it, name))
        assert "liar: the hashes that it tells are not those of the model's fingerprint" in error.what
        assert not list((tmp_path / "taker/models").glob("header-*"))
        Member(large(), hashes_of(large()), true).speaks_for(it.mute("honest"))
        pull = pull_of(it, name)
        await pull.run()
        assert read_note(pull.state.paths[0]).node == "honest"
        assert pull.state.fingerprint == true.hex()


async def test_a_fingerprint_of_lies_about_what_comes(tmp_path: Path) -> None:
    """Test that what is here is compared, though the hashes give the fingerprint that was told."""
    async with scene(tmp_path) as it:
        lies = lying(large(), about="token_embd")
        told = bytes.fromhex(fingerprint([parse(large())], [lies]))
        Member(large(), lies, told).speaks_for(it.mute("liar"))
        error = await failed(pull_of(it))
        assert isinstance(error, NobodyHasIt)
        assert error.what == f"what members gave as `{NAME}` was something else"


@pytest.mark.parametrize("count", [-1, 1], ids=["fewer", "more"])
async def test_as_many_hashes_as_tensors(tmp_path: Path, count: int) -> None:
    async with scene(tmp_path) as it:
        hashes = hashes_of(large())
        given = hashes[:count] if count < 0 else (*hashes[:-1], hashes[-1] + b"x" * 32)
        Member(large(), given).speaks_for(it.mute("a"))
        error = await failed(pull_of(it))
        assert "no member gives" in error.what and "a: " in error.what


async def test_a_model_in_several_files(tmp_path: Path) -> None:
    shards = large_shards(2)

    async with scene(tmp_path) as it:
        for node in ("a", "b"):
            for name, data in shards.items():
                it.giver(node).has(data, name.removesuffix(".gguf"))
        pull = pull_of(it, "mesh:large-Q4_K_M")
        await pull.run()
        headers = [parse(data) for data in shards.values()]
        assert pull.state.fingerprint == fingerprint(headers, [hashes_of(one) for one in shards.values()])
        assert [path.name for path in pull.state.paths] == [
            f"large-Q4_K_M-{number:05d}-of-00002.header" for number in (1, 2)
        ]
        size = sum(map(len, shards.values()))
        assert pull.state.total == sum(one.bytes for one in pull.state.holders.values())
        assert pull.state.total < size - PIECE_BYTES, "of each file the beginning, and of one the end"
        assert [path.stat().st_size for path in pull.state.paths] == list(map(len, shards.values()))
        file = await HeaderFile.open_header(pull.state.paths[0])
        assert (await file.index()).fingerprint == pull.state.fingerprint
        file.close()
        for text in ("large-Q4_K_M", pull.state.fingerprint):
            found = find_header(tmp_path / "taker/models", MeshName(text))
            assert found is not None and found.paths == pull.state.paths


async def test_one_part_of_several_is_no_model(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        Member(next(iter(large_shards(2).values())), ()).speaks_for(it.mute("a"))
        assert "claims to be shard 1 of 2, expected 1 of 1" in (await failed(pull_of(it))).what


async def test_what_is_no_model(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        Member(b"GGUF" + bytes(6 << 20), ()).speaks_for(it.mute("a"))
        assert "GGUF version 0" in (await failed(pull_of(it))).what


async def test_a_member_reads_its_file_for_the_hashes_once(tmp_path: Path) -> None:
    """And tells the same as from its cache."""
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        giver.has(tiny())
        await pull_of(it).run()
        [told] = [one.entry for one in await asyncio.to_thread(giver.offered.listed)]
        again = pull_of(it)
        await again.run()
        assert again.state.fingerprint == fingerprint_of(tiny())
        assert told.content
