"""Streams that name a lease before it is granted: they wait for its rpc-server, few, and its head's alone."""

import asyncio
from pathlib import Path

import pytest
from meshd.base.errors import Broken, MeshdError
from meshd.base.peer_limits import EARLY_STREAMS
from meshd.peer.interface import Stream
from meshd.role.worker.rpc_server import RpcServer
from meshd.role.worker.rpc_streams import CLOSING_SECONDS
from meshd.wire.lease import Grant, Reserve, WorkerOffer

from tests.sim.loop import run
from tests.unit.role.calls import MIB, Call, Scene, scene


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


def test_a_stream_waits_for_the_rpc_server_and_reaches_it(tmp_path: Path) -> None:
    """Even if it overtakes the reservation."""

    async def main() -> None:
        async with scene(tmp_path) as it:
            call, offer = await offered(it)
            rpc(call, offer)
            await asyncio.sleep(0.01)
            await call.says(Reserve((100 * MIB,)))
            await asyncio.sleep(4.9)
            assert it.bench.connected == []
            grant = await call.hears()
            while not isinstance(grant, Grant):
                grant = await call.hears()
            assert grant.lease_id == offer.lease_id
            await asyncio.sleep(0.1)
            [server] = it.worker._running.values()
            assert isinstance(server, RpcServer)
            assert it.bench.connected == [server.address]
            rpc(call, offer)
            await asyncio.sleep(0.1)
            assert len(it.bench.connected) == 2, "it need not wait any more"
            assert not it.worker._streams._waiting

    run(main())


def test_no_other_member_may_name_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            _, offer = await offered(it)
            other = it.call("other")
            assert "no live lease" in await why_over(rpc(other, offer))

    run(main())


def test_a_lease_that_is_not_granted_ends_the_streams_that_wait_for_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call, offer = await offered(it)
            early = rpc(call, offer)
            await call.says(Reserve((1 << 50,)))
            assert "broken" in await why_over(early)
            assert it.bench.connected == [] and not it.worker._streams._lendings
            assert "no live lease" in await why_over(rpc(call, offer))

    run(main())


def test_a_head_that_goes_takes_its_waiting_streams_along(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            call, offer = await offered(it)
            early = rpc(call, offer)
            await call.says(Reserve((100 * MIB,)))
            await asyncio.sleep(1)
            await call.release()
            with pytest.raises(Broken):
                await early.read()
            assert not it.worker._streams._waiting and not it.worker._streams._lendings

    run(main())


def test_of_one_member_few_wait_whatever_it_has_been_offered(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            calls = [await offered(it) for _ in range(2)]
            for number in range(EARLY_STREAMS.most):
                rpc(*calls[number % 2])
            await asyncio.sleep(0.1)
            assert "too many streams are waiting" in await why_over(rpc(*calls[0]))
            other = await offered(it, "other")
            rpc(*other)
            await asyncio.sleep(0.1)
            assert it.worker._streams._waiting.total() == EARLY_STREAMS.most + 1
            for call, _ in calls:
                await call.says(Reserve((100 * MIB,)))
            await asyncio.sleep(10)
            assert len(it.bench.connected) == EARLY_STREAMS.most

    run(main())


def test_a_stream_that_its_head_keeps_open_ends_a_second_after_the_lease(tmp_path: Path) -> None:
    async def main() -> None:
        async with scene(tmp_path) as it:
            it.bench.head_stays = True
            call, offer = await offered(it)
            stream = rpc(call, offer)
            await call.says(Reserve((100 * MIB,)))
            await asyncio.sleep(6)
            assert len(it.bench.connected) == 1
            await call.release()
            async with asyncio.timeout(CLOSING_SECONDS + 0.1):
                with pytest.raises(Broken):
                    await stream.read()

    run(main())
