"""Models between nodes: taken from several, from liars and others, and refused to those that may not."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from meshd.base.errors import Broken, MeshdError, Refused, UserError
from meshd.base.peer_limits import (
    GIVEN_WHILE_SERVING,
    MODELS_ASKED_OF_PEER,
    MODELS_READ,
    PIECES_GIVEN_OF_PEER,
)
from meshd.identity.membership import Role
from meshd.library.members import ask_models as asking
from meshd.library.members.ask_models import ask_members, ask_models, ask_pieces
from meshd.library.members.give_pieces import NO_MODEL
from meshd.library.members.offers import MemberOffer
from meshd.library.members.pull_model import ModelPull, NobodyHasIt, PullStep
from meshd.model.piece_index import PIECE_BYTES, PieceIndex, count_pieces
from meshd.peer.interface import Stream
from meshd.peer.messages import MessageStream
from meshd.role.capacity.tell_capacity import NOT_FOR_YOU
from meshd.wire.models import (
    MODELS_SERVICE,
    ModelsMessage,
    ModelsTold,
    NoPieces,
    PieceHashes,
    PiecesTold,
    ReadingModel,
    ToldModel,
    decode,
)
from meshd.wire.pieces import GONE, HERE, PIECES_SERVICE, piece_request

from tests.conformance.run import run
from tests.gguf_bytes import gguf, language_model
from tests.unit.library.members.exchange_scene import NAME, big, scene
from tests.unit.library.models import put, tiny, tiny_shards
from tests.unit.role.fake_mesh import FakeMesh

Serve = Callable[[Stream], Awaitable[None]]


async def failed(pull: ModelPull) -> MeshdError:
    """How a pull that must not succeed ended."""
    try:
        await pull.run()
    except MeshdError as error:
        return error
    raise AssertionError("it was pulled")


def taken(pull: ModelPull) -> dict[str, int]:
    return {one.node: one.bytes for one in pull.state.holders.values()}


def test_two_give_and_what_came_is_right(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            for name in ("a", "b"):
                it.giver(name).has(big())
            pull = it.pull(NAME)
            await pull.run()
            state = pull.state
            assert state.step is PullStep.DONE and state.done == state.total == len(big())
            assert [path.read_bytes() for path in state.paths] == [big()]
            assert sum(taken(pull).values()) == len(big()) and min(taken(pull).values()) > 0
            assert len(state.fingerprint) == 64
            assert not list((tmp_path / "taker/models/.parts").glob("*/"))

    run(main())


def test_shards_and_names_with_a_scheme(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            parts = tiny_shards(3)
            for name, data in parts.items():
                giver.has(data, name.removesuffix(".gguf"))
            pull = it.pull("mesh:tiny-Q4_K_M")
            await pull.run()
            assert {path.name: path.read_bytes() for path in pull.state.paths} == parts

    run(main())


def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.giver("a").has(big())
            slow = it.pull(NAME, rate=float(PIECE_BYTES))
            task = asyncio.create_task(slow.run())
            while slow.state.done < PIECE_BYTES:  # noqa: ASYNC110 - as its verb looks at it
                await asyncio.sleep(0.01)
            task.cancel()
            await asyncio.wait([task])
            pull = it.pull(NAME)
            await pull.run()
            assert pull.state.before >= PIECE_BYTES
            assert taken(pull) == {"a": len(big()) - pull.state.before}

    run(main())


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


def says(mesh: FakeMesh, told: ToldModel, index: PieceIndex, give: Serve) -> None:
    """A member that tells of one model."""

    async def answer(stream: Stream) -> None:
        messages = MessageStream(stream)
        if (await messages.receive()).find(b"list") >= 0:
            await messages.send(ModelsTold((told,)).encode())
        else:
            await messages.send(PiecesTold(index.sizes).encode())
            await messages.send(PieceHashes(index.hashes).encode())
        stream.write_eof()

    mesh.handle(MODELS_SERVICE, answer, allow=lambda _member, _metadata: None)
    mesh.handle(PIECES_SERVICE, give, allow=lambda _member, _metadata: None)


def told_of(data: bytes, *, fingerprint: bytes = b"") -> ToldModel:
    return ToldModel(bytes(16), (NAME,), len(data), fingerprint=fingerprint)


def test_a_liar_is_not_asked_again_and_its_pieces_come_from_others(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


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
def test_holders_that_give_nothing_delay_nobody(tmp_path: Path, serve: Callable[[], Serve]) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            give, index = lies_about(big(), serve())
            says(it.mute("other"), told_of(big()), index, give)
            it.giver("honest").has(big())
            pull = it.pull(NAME)
            await pull.run()
            assert taken(pull)["honest"] == len(big()) and pull.state.paths[0].read_bytes() == big()

    run(main())


def test_a_wrong_fingerprint_is_found_out_and_others_are_asked(tmp_path: Path) -> None:
    """The liar has pieces that fit each other, of another model than it says."""

    async def main() -> None:
        async with scene(tmp_path) as it:
            honest = it.giver("honest")
            honest.has(big())
            first = it.pull(NAME)
            await first.run()
            wanted = first.state.fingerprint
            for path in first.state.paths:
                path.unlink()
            liar = it.giver("liar")
            liar.has(gguf(*language_model(width=512, vocabulary=5000, fill=7)))
            [real] = liar.offered.listed()
            index = await ask_pieces(
                it.taker, MemberOffer(liar.mesh.key.peer, "liar", real.told), lambda _: None
            )
            _, give = liar.mesh.services[MODELS_SERVICE][0], liar.mesh.services[PIECES_SERVICE][0]
            says(liar.mesh, told_of(big(), fingerprint=bytes.fromhex(wanted)), index, give)
            pull = it.pull(f"mesh:{wanted}")
            error = await failed(pull)
            assert isinstance(error, NobodyHasIt) and "was something else" in error.what
            assert not list((tmp_path / "taker/models").glob("mesh-*/*.gguf"))
            await _hashed(honest.folder)
            honest.offered.changed()
            again = it.pull(f"mesh:{wanted}")
            await again.run()
            assert again.state.fingerprint == wanted and again.state.paths[0].read_bytes() == big()

    run(main())


async def _hashed(folder: Path) -> None:
    """As when its node has used the model."""
    from meshd.store.hash_cache import HashCache
    from meshd.store.model_file import ModelFile

    path = folder / f"cache/models/{NAME}.gguf"
    file = await ModelFile.open(path, cache=HashCache(folder / "cache/weights"))
    await file.index()
    file.close()


def test_what_is_no_model_is_not_kept(tmp_path: Path) -> None:
    async def main() -> None:
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

    run(main())


def test_two_files_of_one_name_and_size(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.giver("a").has(tiny(fill=1))
            it.giver("b").has(tiny(fill=2))
            error = await failed(it.pull(NAME))
            assert isinstance(error, UserError) and "means different models of members" in error.what

    run(main())


def test_nobody_has_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.giver("a").has(tiny())
            error = await failed(it.pull("mesh:other-Q4_0"))
            assert isinstance(error, NobodyHasIt) and "asked: a" in error.what

    run(main())


def test_without_the_role_nothing_is_told_or_given(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path, roles=frozenset(Role) - {Role.USE}) as it:
            giver = it.giver("a")
            giver.has(tiny())
            peer = giver.mesh.key.peer
            with pytest.raises(Refused, match=NOT_FOR_YOU):
                await ask_models(it.taker, peer)
            stream = it.taker.open_stream(peer, PIECES_SERVICE, metadata={"content": bytes(32)})
            with pytest.raises(Refused, match=NOT_FOR_YOU):
                await stream.read()
            assert (await ask_members(it.taker))[0].why_not == NOT_FOR_YOU

    run(main())


def test_no_path_is_told(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            giver.offered.add([put(tmp_path / "secret-folder/mine-Q4_0.gguf", tiny())])
            told = await ask_models(it.taker, giver.mesh.key.peer)
            assert [one.names for one in told] == [("mine-Q4_0",)]
            said = ModelsTold(tuple(told)).encode()
            assert b"secret-folder" not in said and str(tmp_path).encode() not in said

    run(main())


@pytest.mark.parametrize(
    "content", [b"x" * 32, b"", b"x" * 31, "x" * 32, 5], ids=["unknown", "empty", "short", "text", "number"]
)
def test_content_that_is_not_here(tmp_path: Path, content: str | int | bytes) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            giver.has(tiny())
            stream = it.taker.open_stream(giver.mesh.key.peer, PIECES_SERVICE, metadata={"content": content})
            if isinstance(content, bytes) and len(content) == 32:
                assert await stream.read() == GONE
            else:
                with pytest.raises(Refused, match=NO_MODEL):
                    await stream.read()

    run(main())


def test_a_file_that_changes_is_not_given_any_more(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            path = giver.has(tiny())
            offer = MemberOffer(
                giver.mesh.key.peer, "a", (await ask_models(it.taker, giver.mesh.key.peer))[0]
            )
            index = await ask_pieces(it.taker, offer, lambda _: None)
            stream = it.taker.open_stream(offer.peer, PIECES_SERVICE, metadata={"content": index.content})
            await stream.write(piece_request(0))
            first = bytes(await stream.read())
            assert first[:1] == HERE
            path.write_bytes(tiny(fill=9))
            stream.consumed(len(first))
            await stream.write(piece_request(0))
            rest = b""
            while not rest.endswith(GONE):
                rest += bytes(await stream.read())
            assert len(first) + len(rest) == 1 + len(tiny()) + 1

    run(main())


def test_one_member_asks_little_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            giver.has(tiny())
            peer = giver.mesh.key.peer
            idle = [
                it.taker.open_stream(peer, MODELS_SERVICE, metadata={})
                for _ in range(MODELS_ASKED_OF_PEER.most)
            ]
            with pytest.raises(Refused, match="too many questions"):
                await ask_models(it.taker, peer)
            for stream in idle:
                stream.reset(0, "")
            metadata = {"content": bytes(32)}
            for _ in range(PIECES_GIVEN_OF_PEER.most):
                it.taker.open_stream(peer, PIECES_SERVICE, metadata=metadata)
            with pytest.raises(Refused, match="too many streams"):
                await it.taker.open_stream(peer, PIECES_SERVICE, metadata=metadata).read()

    run(main())


def test_one_member_lets_little_be_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            for number in range(int(MODELS_READ.burst) + 1):
                giver.has(tiny(fill=number + 1), f"m{number}-Q4_0")
            told = await ask_models(it.taker, giver.mesh.key.peer)
            for one in told[:-1]:
                await ask_pieces(it.taker, MemberOffer(giver.mesh.key.peer, "a", one), lambda _: None)
            last = MemberOffer(giver.mesh.key.peer, "a", told[-1])
            with pytest.raises(Refused, match="read enough models"):
                await ask_pieces(it.taker, last, lambda _: None)
            known = MemberOffer(giver.mesh.key.peer, "a", told[-2])
            assert (await ask_pieces(it.taker, known, lambda _: None)).count == 1, "that costs nothing"

    run(main())


def test_giving_is_slow_while_a_model_is_served(tmp_path: Path) -> None:
    async def main() -> float:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            giver.has(big())
            giver.serving = True
            loop = asyncio.get_running_loop()
            began = loop.time()
            await it.pull(NAME).run()
            return loop.time() - began

    least = (len(big()) - GIVEN_WHILE_SERVING.burst) / GIVEN_WHILE_SERVING.per_second
    assert run(main()) > 0.9 * least


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
def test_lists_that_are_none(tmp_path: Path, messages: tuple[ModelsMessage, ...], words: str) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other = it.mute("other")
            other.handle(MODELS_SERVICE, _answers(*messages), allow=lambda _member, _metadata: None)
            with pytest.raises(MeshdError, match=words):
                await ask_models(it.taker, other.key.peer)

    run(main())


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
def test_pieces_that_are_none(tmp_path: Path, messages: tuple[ModelsMessage, ...], words: str) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            other = it.mute("other")
            other.handle(MODELS_SERVICE, _answers(*messages), allow=lambda _member, _metadata: None)
            with pytest.raises(MeshdError, match=words):
                await ask_pieces(it.taker, MemberOffer(other.key.peer, "other", MODEL), lambda _: None)

    run(main())


def test_one_that_says_nothing_keeps_nobody_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "LIST_SECONDS", 0.5)

    async def main() -> None:
        async with scene(tmp_path) as it:
            it.mute("silent").handle(MODELS_SERVICE, _answers(), allow=lambda _member, _metadata: None)
            it.giver("a").has(tiny())
            found = {one.node: one for one in await ask_members(it.taker)}
            assert found["silent"].why_not == "it does not answer" and len(found["a"].offers) == 1

    run(main())


def test_something_else_than_a_question_ends_the_stream_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            giver = it.giver("a")
            giver.has(tiny())
            stream = it.taker.open_stream(giver.mesh.key.peer, MODELS_SERVICE, metadata={})
            await MessageStream(stream).send(NoPieces("x").encode())
            with pytest.raises((Broken, Refused)):
                await MessageStream(stream).receive()
            assert len(await ask_models(it.taker, giver.mesh.key.peer)) == 1

    run(main())


def test_the_scene_has_three_pieces() -> None:
    assert count_pieces((len(big()),)) == 3
