"""A worker's mesh-server: what its head says, and what it is told of the server's end."""

import asyncio
import signal
from pathlib import Path

import pytest
from meshd.rpc import frames
from meshd.wire.lease import Lost

from tests.unit.rpc import mesh_talk as talk
from tests.unit.worker.lent import head_stream, heard, lent

pytestmark = pytest.mark.virtual


@pytest.mark.parametrize(
    ("code", "number", "told"),
    [
        (0, None, "head_ended"),
        (1, None, "rpc_server_ended"),
        (None, signal.SIGKILL, "rpc_server_ended"),
        (None, signal.SIGSEGV, "rpc_server_crashed"),
        (None, None, "rpc_server_ended"),
    ],
)
async def test_whose_end_it_was_is_told_whatever_the_words(
    tmp_path: Path, code: int | None, number: int | None, told: str
) -> None:
    async with lent(tmp_path) as (it, call, _grant, _server):
        it.bench.children[0].die("it ended", code=code, signal=number)
        assert await call.hears() == Lost(told, "it ended")


async def test_a_head_waits_that_has_too_much_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "SECONDS_AT_ONCE", frames.MESSAGE_SECONDS)
    monkeypatch.setattr(frames, "SHARE", frames.MESSAGE_SECONDS / 4)
    monkeypatch.setattr(frames, "LITTLE_SECONDS", 0.0)

    async with lent(tmp_path) as (it, call, grant, server):
        stream = head_stream(it, call, grant)
        await stream.write(talk.hello())
        await asyncio.sleep(1)
        server.head.send(talk.welcome())
        assert await heard(stream) == talk.welcome()
        graph = talk.allocate() + talk.graph()
        await stream.write(graph)
        await asyncio.sleep(1)
        assert server.hears() == talk.hello() + graph
        await stream.write(talk.write())
        await asyncio.sleep(3)
        assert server.hears() == b""
        await asyncio.sleep(10)
        assert server.hears() == talk.write()
        await call.release()
