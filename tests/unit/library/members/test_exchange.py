"""Models between nodes: taken from several, from liars and others, and refused to those that may not."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from meshd.base.errors import Refused, UserError
from meshd.base.peer_limits import (
    GIVEN_WHILE_SERVING,
    MODELS_ASKED_OF_PEER,
    MODELS_READ,
    PIECES_GIVEN_OF_PEER,
)
from meshd.devices.capacity import NOT_FOR_YOU
from meshd.identity.membership import Role
from meshd.library.members.give import NO_MODEL
from meshd.library.members.offers import MemberOffer, ask_members, ask_models, ask_pieces
from meshd.library.members.pull import NobodyHasIt, PullStep
from meshd.model.weights_index import PIECE_BYTES, count_pieces
from meshd.peer.interface import Stream
from meshd.wire.limits import MAX_MODEL_ROWS
from meshd.wire.models import (
    GONE,
    HERE,
    MODELS_SERVICE,
    PIECES_SERVICE,
    ToldDisk,
    piece_request,
)

from tests.conformance.run import run
from tests.unit.library.members.exchange_scene import NAME, big, failed, scene, taken
from tests.unit.library.models import put, tiny, tiny_shards

Serve = Callable[[Stream], Awaitable[None]]


async def test_two_give_and_what_came_is_right(tmp_path: Path) -> None:
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


async def test_shards_and_names_with_a_scheme(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        parts = tiny_shards(3)
        for name, data in parts.items():
            giver.has(data, name.removesuffix(".gguf"))
        pull = it.pull("mesh:tiny-Q4_K_M")
        await pull.run()
        assert {path.name: path.read_bytes() for path in pull.state.paths} == parts


async def test_what_is_there_is_not_fetched_again(tmp_path: Path) -> None:
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


async def test_two_files_of_one_name_and_size(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.giver("a").has(tiny(fill=1))
        it.giver("b").has(tiny(fill=2))
        error = await failed(it.pull(NAME))
        assert isinstance(error, UserError) and "means different models of members" in error.what


async def test_nobody_has_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        it.giver("a").has(tiny())
        error = await failed(it.pull("mesh:other-Q4_0"))
        assert isinstance(error, NobodyHasIt) and "asked: a" in error.what


async def test_without_the_role_nothing_is_told_or_given(tmp_path: Path) -> None:
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


async def test_the_disk_is_told_with_the_last_of_the_models(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        for number in range(MAX_MODEL_ROWS + 1):  # two messages
            giver.has(tiny(fill=number + 1), f"m{number}-Q4_0")
        giver.disk = ToldDisk(5_000, 300)
        unknown = it.giver("b")
        found = {one.node: one for one in await ask_members(it.taker)}
        assert found["a"].disk == ToldDisk(5_000, 300) and len(found["a"].offers) == MAX_MODEL_ROWS + 1
        assert found["b"].disk is None and unknown.disk is None and found["b"].why_not == ""


async def test_no_path_is_told(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        giver.offered.add([put(tmp_path / "secret-folder/mine-Q4_0.gguf", tiny())])
        told = await ask_models(it.taker, giver.mesh.key.peer)
        assert [one.names for one in told.models] == [("mine-Q4_0",)]
        said = told.encode()
        assert b"secret-folder" not in said and str(tmp_path).encode() not in said


@pytest.mark.parametrize(
    "content", [b"x" * 32, b"", b"x" * 31, "x" * 32, 5], ids=["unknown", "empty", "short", "text", "number"]
)
async def test_content_that_is_not_here(tmp_path: Path, content: str | int | bytes) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        giver.has(tiny())
        stream = it.taker.open_stream(giver.mesh.key.peer, PIECES_SERVICE, metadata={"content": content})
        if isinstance(content, bytes) and len(content) == 32:
            assert await stream.read() == GONE
        else:
            with pytest.raises(Refused, match=NO_MODEL):
                await stream.read()


async def test_a_file_that_changes_is_not_given_any_more(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        path = giver.has(tiny())
        offer = MemberOffer(
            giver.mesh.key.peer, "a", (await ask_models(it.taker, giver.mesh.key.peer)).models[0]
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


async def test_one_member_asks_little_at_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        giver.has(tiny())
        peer = giver.mesh.key.peer
        idle = [
            it.taker.open_stream(peer, MODELS_SERVICE, metadata={}) for _ in range(MODELS_ASKED_OF_PEER.most)
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


async def test_one_member_lets_little_be_read(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        giver = it.giver("a")
        for number in range(int(MODELS_READ.burst) + 1):
            giver.has(tiny(fill=number + 1), f"m{number}-Q4_0")
        told = (await ask_models(it.taker, giver.mesh.key.peer)).models
        for one in told[:-1]:
            await ask_pieces(it.taker, MemberOffer(giver.mesh.key.peer, "a", one), lambda _: None)
        last = MemberOffer(giver.mesh.key.peer, "a", told[-1])
        with pytest.raises(Refused, match="read enough models"):
            await ask_pieces(it.taker, last, lambda _: None)
        known = MemberOffer(giver.mesh.key.peer, "a", told[-2])
        assert (await ask_pieces(it.taker, known, lambda _: None)).count == 1, "that costs nothing"


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


def test_the_scene_has_three_pieces() -> None:
    assert count_pieces((len(big()),)) == 3
