"""A worker whose head is on its machine: what they say goes past their link, and ends with the lease."""

import asyncio
import socket
from contextlib import closing
from pathlib import Path

import pytest
from meshd.base.local_way import LOCAL, OFFERED_BYTES, LocalOffer
from meshd.peer.interface import MetadataValue, Stream
from meshd.wire.lease import Grant

from tests.unit.head.calls import Call, Scene
from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import heard, lent

pytestmark = pytest.mark.virtual


def _stream(it: Scene, call: Call, grant: Grant, offered: MetadataValue) -> Stream:
    metadata = {"lease": grant.lease_id, LOCAL: offered}
    return call.head.open_stream(it.bench.mesh.key.peer, "rpc", metadata=metadata)


def _taken(offer: LocalOffer) -> socket.socket:
    end = offer.take()
    assert end is not None, "it has come before its stream was accepted"
    end.setblocking(False)
    return end


@pytest.mark.parametrize("ends", ["lease", "stream", "server"])
async def test_the_server_is_reached_by_the_connection_until_the_lease_ends(
    tmp_path: Path, ends: str
) -> None:
    with closing(LocalOffer()) as offer:
        async with lent(tmp_path) as (it, call, grant, server):
            stream = _stream(it, call, grant, offer.offered)
            await stream.accepted()
            with _taken(offer) as end:
                end.sendall(talk.hello())
                await asyncio.sleep(1)
                assert server.hears() == talk.hello()
                server.head.send(talk.welcome())
                await asyncio.sleep(1)
                assert end.recv(1 << 16) == talk.welcome()
                if ends == "lease":
                    await call.release()
                elif ends == "stream":
                    stream.reset(1, "the session is over")
                else:
                    it.bench.children[0].die("it ended", code=1, signal=None)
                await asyncio.sleep(3)
                assert end.recv(1) == b""


@pytest.mark.parametrize("offered", [bytes(OFFERED_BYTES), b"", b"short", 7, "name"])
async def test_what_leads_nowhere_is_served_over_the_link(tmp_path: Path, offered: MetadataValue) -> None:
    async with lent(tmp_path) as (it, call, grant, server):
        stream = _stream(it, call, grant, offered)
        await stream.write(talk.hello())
        await asyncio.sleep(1)
        server.head.send(talk.welcome())
        assert await heard(stream) == talk.welcome()
        await call.release()


async def test_a_second_stream_gets_neither_the_server_nor_a_connection(tmp_path: Path) -> None:
    with closing(LocalOffer()) as first, closing(LocalOffer()) as second:
        async with lent(tmp_path) as (it, call, grant, server):
            await _stream(it, call, grant, first.offered).accepted()
            with _taken(first) as end:
                _stream(it, call, grant, second.offered)
                await asyncio.sleep(1)
                other = second.take()
                if other is not None:
                    with other:
                        assert other.recv(1) == b""
                end.sendall(talk.hello())
                await asyncio.sleep(1)
                assert server.hears() == talk.hello()
            await call.release()
