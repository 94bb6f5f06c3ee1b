"""Headers of models from members: what is taken, how it is found again, and members that lie about hashes."""

import asyncio
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest
from meshd.base.errors import MeshdError, UserError
from meshd.library.headers import find_header, said_of
from meshd.library.members.pull_header import HeaderPull
from meshd.library.members.pull_model import NobodyHasIt, PullStep
from meshd.model.model_name import MeshName, parse_model_name
from meshd.model.piece_index import PIECE_BYTES, PieceIndex
from meshd.model.weights_index import fingerprint
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.store.header_file import HeaderFile, present_tensors, read_note
from meshd.wire.models import (
    MODELS_SERVICE,
    AskPieces,
    AskTensors,
    ModelsTold,
    NoPieces,
    PieceHashes,
    PiecesTold,
    TensorHashes,
    ToldModel,
    decode,
)
from meshd.wire.pieces import HERE, PIECES_SERVICE

from tests.conformance.run import run
from tests.gguf_bytes import gguf, language_model, parse
from tests.unit.library.members.exchange_scene import NAME, Scene, scene
from tests.unit.library.members.test_hostile_members import lies_about
from tests.unit.library.models import tiny, tiny_shards
from tests.unit.role.fake_mesh import FakeMesh
from tests.unit.store.header_files import hashes_of


@cache
def large() -> bytes:
    """Layers of four pieces, behind an embedding of some kB."""
    return gguf(*language_model(width=1024, vocabulary=32, layers=16))


def pull_of(it: Scene, name: str = NAME) -> HeaderPull:
    whole = it.pull(name)
    return HeaderPull(it.taker, parse_model_name(name), whole._place)


def first_and_last() -> int:
    """Bytes of the pieces of `large` with its embedding, and with what is behind its layers."""
    return PIECE_BYTES + len(large()) % PIECE_BYTES


async def failed(pull: HeaderPull) -> MeshdError:
    try:
        await pull.run()
    except MeshdError as error:
        return error
    raise AssertionError("it was pulled")


def fingerprint_of(data: bytes) -> str:
    return fingerprint([parse(data)], [hashes_of(data)])


@dataclass
class Member:
    """One that has `data`, and says of it what a test wants."""

    data: bytes
    hashes: tuple[bytes, ...]
    fingerprint: bytes = b""
    why_not: str = ""
    asked: int = 0

    def speaks_for(self, mesh: FakeMesh) -> None:
        mesh.handle(MODELS_SERVICE, self._answer, allow=lambda _member, _metadata: None)
        mesh.handle(PIECES_SERVICE, self._give, allow=lambda _member, _metadata: None)

    async def _answer(self, stream: Stream) -> None:
        messages = MessageStream(stream)
        match decode(await messages.receive()):
            case AskPieces():
                index = index_of(self.data)
                await messages.send(PiecesTold(index.sizes).encode())
                await messages.send(PieceHashes(index.hashes).encode())
            case AskTensors():
                self.asked += 1
                if self.why_not:
                    await messages.send(NoPieces(self.why_not).encode())
                for digest in self.hashes:
                    await messages.send(TensorHashes(digest).encode())
            case _:
                told = ToldModel(bytes(16), (NAME,), len(self.data), fingerprint=self.fingerprint)
                await messages.send(ModelsTold((told,)).encode())
        stream.write_eof()

    async def _give(self, stream: Stream) -> None:
        while True:
            request = bytes(await stream.read())
            stream.consumed(len(request))
            for at in range(0, len(request), 4):
                begin = int.from_bytes(request[at : at + 4], "big") * PIECE_BYTES
                await stream.write(HERE + self.data[begin : begin + PIECE_BYTES])


@cache
def index_of(data: bytes) -> PieceIndex:
    return lies_about(data)[1]


def test_the_pieces_with_the_header_and_no_others_come(tmp_path: Path) -> None:
    async def main() -> None:
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
            assert note.content == index_of(large()).content and note.names == (NAME,)
            assert path.stat().st_size == len(large())
            assert path.stat().st_blocks * 512 <= 2 * PIECE_BYTES < len(large())
            data, header = path.read_bytes(), parse(large())
            assert data[: header.data_offset] == large()[: header.data_offset]
            for one in present_tensors(header):
                assert data[one.offset : one.offset + one.size] == large()[one.offset : one.offset + one.size]
            (await HeaderFile.open_header(path)).close()
            assert pull.state.fingerprint in said_of(path) and "as reported by a" in said_of(path)

    run(main())


def test_a_header_of_several_pieces(tmp_path: Path) -> None:
    data = gguf(*language_model(vocabulary=64, extra={"tokenizer.ggml.merges": ["x" * 1000] * 9000}))

    async def main() -> None:
        async with scene(tmp_path) as it:
            it.giver("a").has(data)
            pull = pull_of(it)
            await pull.run()
            assert pull.state.total == len(data) > 2 * PIECE_BYTES
            assert pull.state.fingerprint == fingerprint_of(data)

    run(main())


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    """After a cut; and a whole one is found by its name, its fingerprint and its content."""

    async def main() -> None:
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
            digits, content = fingerprint_of(large()), index_of(large()).content.hex()
            for text in (NAME, NAME.lower(), f"{NAME}.gguf", digits, digits[:12], content):
                found = find_header(models, MeshName(text))
                assert found is not None and found.paths == pull.state.paths, text
            assert find_header(models, MeshName("other")) is None
            assert find_header(models, MeshName("0" * 12)) is None

    run(main())


def test_two_give(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            for name in ("a", "b"):
                it.giver(name).has(large())
            pull = pull_of(it)
            await pull.run()
            assert sum(one.bytes for one in pull.state.holders.values()) == first_and_last()

    run(main())


def lying(data: bytes, *, about: str) -> tuple[bytes, ...]:
    """The hashes of all tensors, and wrong ones of those whose names begin so."""
    tensors = parse(data).tensors
    right = hashes_of(data)
    return tuple(
        b"x" * 32 if one.name.startswith(about) else digest
        for one, digest in zip(tensors, right, strict=True)
    )


@pytest.mark.parametrize("name", [NAME, f"mesh:{fingerprint_of(large())[:20]}"])
def test_hashes_that_do_not_give_the_fingerprint_are_a_lie(tmp_path: Path, name: str) -> None:
    async def main() -> None:
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

    run(main())


def test_a_fingerprint_of_lies_about_what_comes(tmp_path: Path) -> None:
    """What is here is compared, though the hashes give the fingerprint that was told."""

    async def main() -> None:
        async with scene(tmp_path) as it:
            lies = lying(large(), about="token_embd")
            told = bytes.fromhex(fingerprint([parse(large())], [lies]))
            Member(large(), lies, told).speaks_for(it.mute("liar"))
            error = await failed(pull_of(it))
            assert isinstance(error, NobodyHasIt)
            assert error.what == f"what members gave as `{NAME}` was something else"

    run(main())


@pytest.mark.parametrize("count", [-1, 1], ids=["fewer", "more"])
def test_as_many_hashes_as_tensors(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            hashes = hashes_of(large())
            given = hashes[:count] if count < 0 else (*hashes[:-1], hashes[-1] + b"x" * 32)
            Member(large(), given).speaks_for(it.mute("a"))
            error = await failed(pull_of(it))
            assert "no member gives" in error.what and "a: " in error.what

    run(main())


def test_a_model_in_several_files(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            for name, data in tiny_shards(3).items():
                giver.has(data, name.removesuffix(".gguf"))
            error = await failed(pull_of(it, "mesh:tiny-Q4_K_M"))
            assert isinstance(error, UserError)
            assert error.what == "`tiny-Q4_K_M` is stored in 3 files, which `--header-only` cannot serve"
            assert "omit `--header-only`" in error.hint

    run(main())


def test_what_is_no_model(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            Member(b"GGUF" + bytes(6 << 20), ()).speaks_for(it.mute("a"))
            assert "GGUF version 0" in (await failed(pull_of(it))).what

    run(main())


def test_a_member_reads_its_file_for_the_hashes_once(tmp_path: Path) -> None:
    """And tells the same as from its cache."""

    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            giver.has(tiny())
            await pull_of(it).run()
            [told] = [one.told for one in await asyncio.to_thread(giver.offered.listed)]
            again = pull_of(it)
            await again.run()
            assert again.state.fingerprint == fingerprint_of(tiny())
            assert told.content

    run(main())
