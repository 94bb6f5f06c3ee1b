"""Streams that name a lease before it is granted: they wait for its server, few, and its head's alone."""

import asyncio
from contextlib import closing
from pathlib import Path

import pytest
from meshd.base.errors import Broken, MeshdError
from meshd.base.peer_limits import EARLY_STREAMS
from meshd.peer.interface import Stream
from meshd.wire.lease import Grant, Reserve, WorkerOffer

from tests.unit.head.calls import MIB, Call, Scene, scene
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import Server, heard

pytestmark = pytest.mark.virtual


def rpc(call: Call, offer: WorkerOffer) -> Stream:
    return call.head.open_stream(call.worker.key.peer, "rpc", metadata={"lease": offer.lease_id})


async def offered(it: Scene, head: str = "head") -> tuple[Call, WorkerOffer]:
    it.bench.start_seconds = 5.0
    call = it.call(head)
    offer = await call.offer()
    assert len(offer.lease_id) == 16
    return call, offer


async def why_over(stream: Stream) -> str:
    with pytest.raises(MeshdError) as caught:
        async with asyncio.timeout(100):
            await stream.read()
    return caught.value.what


async def test_a_stream_waits_for_the_server_and_reaches_it(tmp_path: Path) -> None:
    """Even if it overtakes the reservation."""
    async with scene(tmp_path) as it:
        call, offer = await offered(it)
        stream = rpc(call, offer)
        await stream.write(talk.hello())
        await asyncio.sleep(0.01)
        await call.says(Reserve((100 * MIB,)))
        await asyncio.sleep(4.9)
        assert it.bench.children[0].spec is None
        grant = await call.hears()
        while not isinstance(grant, Grant):
            grant = await call.hears()
        assert grant.lease_id == offer.lease_id
        await asyncio.sleep(0.1)
        with closing(Server(it.bench.children[0])) as server:
            assert server.hears() == talk.hello()
            server.head.send(talk.welcome())
            assert await heard(stream) == talk.welcome()
        assert "has its connection" in await why_over(rpc(call, offer)), "it need not wait any more"


async def test_no_other_member_may_name_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        _, offer = await offered(it)
        other = it.call("other")
        assert "no live lease" in await why_over(rpc(other, offer))


async def test_a_lease_that_is_not_granted_ends_the_streams_that_wait_for_it(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        call, offer = await offered(it)
        early = rpc(call, offer)
        await call.says(Reserve((1 << 50,)))
        assert "broken" in await why_over(early)
        assert it.bench.children == [] and it.worker.status.lent == ()
        assert "no live lease" in await why_over(rpc(call, offer))


async def test_a_head_that_goes_takes_its_waiting_streams_along(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        call, offer = await offered(it)
        early = rpc(call, offer)
        await call.says(Reserve((100 * MIB,)))
        await asyncio.sleep(1)
        await call.release()
        with pytest.raises(Broken):
            await early.read()
        assert it.worker.status.lent == ()


async def test_of_one_member_few_wait_whatever_it_has_been_offered(tmp_path: Path) -> None:
    async with scene(tmp_path) as it:
        calls = [await offered(it) for _ in range(2)]
        streams = [rpc(*calls[number % 2]) for number in range(EARLY_STREAMS.most)]
        await asyncio.sleep(0.1)
        assert "too many streams are waiting" in await why_over(rpc(*calls[0]))
        other = await offered(it, "other")
        theirs = rpc(*other)
        for call, _ in (*calls, other):
            await call.says(Reserve((100 * MIB,)))
        await asyncio.sleep(10)
        for stream in streams[2:]:
            assert "has its connection already" in await why_over(stream), "it waits for no server"
        for stream in (*streams[:2], theirs):
            await stream.write(talk.hello())
        await asyncio.sleep(0.1)
        for child in it.bench.children:
            with closing(Server(child)) as server:
                assert server.hears() == talk.hello()
