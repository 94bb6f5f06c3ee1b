"""Members that lie, stall, flood or babble: named, left out, and nobody else is delayed."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from meshd.base.errors import Broken, MeshdError, Refused
from meshd.base.peer_limits import MODEL_HOLDERS
from meshd.library.members.offers import MemberOffer, ask_members, ask_models, ask_pieces
from meshd.model.weights_index import PIECE_BYTES, PieceIndex
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.wire.models import (
    GONE,
    HERE,
    MODELS_SERVICE,
    PIECES_SERVICE,
    ModelsMessage,
    ModelsTold,
    NoPieces,
    PieceHashes,
    PiecesTold,
    ReadingModel,
    ToldModel,
    decode,
)

from tests.unit.head.fake_mesh import FakeMesh
from tests.unit.library.members.exchange_scene import NAME, big, failed, scene, taken
from tests.unit.library.models import tiny

_HASHES_AT_ONCE = 32 << 10  # bytes of them
Serve = Callable[[Stream], Awaitable[None]]


def lies_about(data: bytes, serve: Serve | None = None) -> tuple[Serve, PieceIndex]:
    """Who tells the true pieces of `data`, and gives others."""
    from blake3 import blake3

    parts = [data[at : at + PIECE_BYTES] for at in range(0, len(data), PIECE_BYTES)]
    index = PieceIndex((len(data),), b"".join(blake3(part).digest() for part in parts))

    async def give(stream: Stream) -> None:
        while True:
            request = bytes(await stream.read())
            stream.consumed(len(request))
            for at in range(0, len(request), 4):
                part = parts[int.from_bytes(request[at : at + 4], "big")]
                await stream.write(HERE + bytes(len(part)))

    return serve or give, index


def says(
    mesh: FakeMesh, told: ToldModel, index: PieceIndex, give: Serve, *, pieces: Serve | None = None
) -> None:
    """A member that tells of one model. `pieces`: answers what pieces it has."""

    async def answer(stream: Stream) -> None:
        messages = MessageStream(stream)
        if (await messages.receive()).find(b"list") >= 0:
            await messages.send(ModelsTold((told,)).encode())
        elif pieces is not None:
            await pieces(stream)
            return
        else:
            await messages.send(PiecesTold(index.sizes).encode())
            for at in range(0, len(index.hashes), _HASHES_AT_ONCE):
                await messages.send(PieceHashes(index.hashes[at : at + _HASHES_AT_ONCE]).encode())
        stream.write_eof()

    mesh.handle(MODELS_SERVICE, answer, allow=lambda _member, _metadata: None)
    mesh.handle(PIECES_SERVICE, give, allow=lambda _member, _metadata: None)


def told_of(data: bytes, *, fingerprint: bytes = b"") -> ToldModel:
    return ToldModel(bytes(16), (NAME,), len(data), fingerprint=fingerprint)


async def test_a_liar_is_not_asked_again_and_its_pieces_come_from_others(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        give, index = lies_about(big())
        says(it.mute("liar"), told_of(big()), index, give)
        alone = it.pull(NAME)
        assert "no member gives" in (await failed(alone)).what
        assert "piece 0 from it is wrong" in next(iter(alone.state.holders.values())).problem
        it.giver("honest").has(big())
        pull = it.pull(NAME)
        await pull.run()
        assert taken(pull) == {"liar": 0, "honest": len(big())}
        assert pull.state.paths[0].read_bytes() == big()


async def test_more_liars_than_are_asked_at_once_keep_nobody_from_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        give, index = lies_about(big())
        for number in range(MODEL_HOLDERS.most):
            says(it.mute(f"liar {number}"), told_of(big()), index, give)
        it.giver("honest").has(big())
        pull = it.pull(NAME)
        await pull.run()
        assert taken(pull) == {"honest": len(big())}


def _stalls() -> Serve:
    async def give(_stream: Stream) -> None:
        await asyncio.Event().wait()

    return give


def _says_gone() -> Serve:
    async def give(stream: Stream) -> None:
        await stream.write(GONE)
        stream.write_eof()

    return give


def _floods() -> Serve:
    async def give(stream: Stream) -> None:
        await stream.write(HERE + bytes(9 * PIECE_BYTES))

    return give


def _resets() -> Serve:
    async def give(stream: Stream) -> None:
        stream.reset(0, "no")

    return give


def _babbles() -> Serve:
    async def give(stream: Stream) -> None:
        await stream.write(b"\x07")

    return give


@pytest.mark.parametrize("serve", [_stalls, _says_gone, _floods, _resets, _babbles])
async def test_holders_that_give_nothing_delay_nobody(tmp_path: Path, serve: Callable[[], Serve]) -> None:
    async with scene(tmp_path) as it:
        give, index = lies_about(big(), serve())
        says(it.mute("other"), told_of(big()), index, give)
        it.giver("honest").has(big())
        pull = it.pull(NAME)
        await pull.run()
        assert taken(pull)["honest"] == len(big()) and pull.state.paths[0].read_bytes() == big()


async def test_what_is_no_model_is_not_kept(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        data = b"GGUF of nothing"

        async def give(stream: Stream) -> None:
            await stream.read()
            await stream.write(HERE + data)
            await asyncio.Event().wait()

        _, index = lies_about(data)
        says(it.mute("liar"), told_of(data), index, give)
        assert "was something else" in (await failed(it.pull(NAME))).what
        assert not list((tmp_path / "taker/models").rglob("*.gguf"))


def _answers(*messages: ModelsMessage) -> Serve:
    async def answer(stream: Stream) -> None:
        talk = MessageStream(stream)
        decode(await talk.receive())
        for message in messages:
            await talk.send(message.encode())
        await asyncio.Event().wait()

    return answer


MODEL = told_of(b"x" * 10)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ((NoPieces("no"),), "expected `models`"),
        ((ModelsTold((), last=False),), "more of them"),
        ((ModelsTold((MODEL,) * 32, last=False),) * 17, "more of them"),
    ],
)
async def test_lists_that_are_none(tmp_path: Path, messages: tuple[ModelsMessage, ...], words: str) -> None:
    async with scene(tmp_path) as it:
        other = it.mute("other")
        other.handle(MODELS_SERVICE, _answers(*messages), allow=lambda _member, _metadata: None)
        with pytest.raises(MeshdError, match=words):
            await ask_models(it.taker, other.key.peer)


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ((ModelsTold(()),), "expected `files`"),
        ((NoPieces("not today"),), "not today"),
        ((ReadingModel("10 %"), PiecesTold((9,))), "other files"),
        ((PiecesTold((5, 5)),), "other files"),
        ((PiecesTold((10,)), NoPieces("no")), "expected `hashes`"),
        ((PiecesTold((10,)), PieceHashes(bytes(64))), "more hashes"),
    ],
)
async def test_pieces_that_are_none(tmp_path: Path, messages: tuple[ModelsMessage, ...], words: str) -> None:
    async with scene(tmp_path) as it:
        other = it.mute("other")
        other.handle(MODELS_SERVICE, _answers(*messages), allow=lambda _member, _metadata: None)
        with pytest.raises(MeshdError, match=words):
            await ask_pieces(it.taker, MemberOffer(other.key.peer, "other", MODEL), lambda _: None)


async def test_one_that_says_nothing_keeps_nobody_from_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.mute("silent").handle(MODELS_SERVICE, _answers(), allow=lambda _member, _metadata: None)
        it.giver("a").has(tiny())
        found = {one.node: one for one in await ask_members(it.taker, seconds=0.5)}
        assert found["silent"].why_not == "it does not answer" and len(found["a"].offers) == 1


async def test_something_else_than_a_question_ends_the_stream_alone(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        giver.has(tiny())
        stream = it.taker.open_stream(giver.mesh.key.peer, MODELS_SERVICE, metadata={})
        await MessageStream(stream).send(NoPieces("x").encode())
        with pytest.raises((Broken, Refused)):
            await MessageStream(stream).receive()
        assert len((await ask_models(it.taker, giver.mesh.key.peer)).models) == 1
