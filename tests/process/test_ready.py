"""Probes against real sockets that answer well, badly, late or not at all."""

import asyncio
import contextlib
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from meshd.base.errors import UserError
from meshd.process import ready as ready_probes
from meshd.process.ready import LineSeen, http_200, port_open

SHORT = 0.05  # seconds; for questions that nobody answers


@contextlib.asynccontextmanager
async def answering(answer: bytes | None) -> AsyncIterator[Path]:
    """A unix socket that answers each request so, or never (None)."""

    talks: list[asyncio.Task[None] | None] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.append(asyncio.current_task())
        try:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                if answer is None:
                    await reader.read()
                else:
                    writer.write(answer)
                    await writer.drain()
        finally:
            writer.transport.abort()

    # a short path: tmp_path of pytest may be too long for a unix socket
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "s")
        server = await asyncio.start_unix_server(talk, path)
        async with server:
            yield path
        for task in talks:
            if task is not None:
                await asyncio.wait([task])


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.0 200\r\n\r\n", True),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", False),
        (b"HTTP/1.1 2000 No\r\n\r\n", False),
        (b"HTTP/1.1 20", False),
        (b"SSH-2.0-OpenSSH\r\n", False),
        (b"x" * 5000, False),
        (b"", False),
        (None, False),
    ],
)
async def test_http_200(answer: bytes | None, ready: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_probes, "QUESTION_SECONDS", SHORT if answer is None else 10.0)

    async with answering(answer) as path:
        probe = http_200(path)
        assert await probe() is ready


async def test_no_socket_is_not_ready(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        assert not await http_200(Path(folder, "none"))()


def test_a_socket_path_that_is_too_long_is_said_at_once() -> None:
    with pytest.raises(UserError, match="is too long"):
        http_200(Path("/" + "x" * 120))


async def test_a_cancelled_probe_leaves_nothing() -> None:
    async with answering(None) as path:
        asking = asyncio.ensure_future(http_200(path)())
        for _ in range(5):
            await asyncio.sleep(0)
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()


async def test_a_line_is_seen_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ready_probes, "QUESTION_SECONDS", SHORT)

    seen = LineSeen(r"port (\d+)")
    seen.see("nothing of it")
    assert not await seen()
    asking = asyncio.ensure_future(seen())
    seen.see("listening on port 12")
    seen.see("listening on port 13")
    assert await asking
    assert seen.line == "listening on port 12"


async def test_a_port_is_open_or_not() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert await port_open(port)()
    assert not await port_open(port)()
