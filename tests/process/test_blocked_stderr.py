"""Daemons whose stderr is a full pipe that nobody reads: they answer, whatever strangers send, and end."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.models import cache_folder, smollm2
from tests.e2e.nodes import cli, play
from tests.process.malformed import BROKEN_BODIES, MALFORMED, told

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]
END_SECONDS = 60.0
REQUESTS = 20  # of each kind: the pipe is full, so the first line would stop the daemon
HEALTH = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"


def full_pipe() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        while True:
            os.write(writer, bytes(1024))
    except BlockingIOError:
        pass
    os.set_blocking(writer, True)
    return reader, writer


@contextlib.contextmanager
def daemon(home: Path, *words: str, token: str = "") -> Iterator[subprocess.Popen[str]]:
    """With nobody who reads what it writes to stderr."""
    reader, writer = full_pipe()
    process = subprocess.Popen(
        [sys.executable, "-m", "meshd", *words, "--listen", "127.0.0.1:0", "--log-level", "debug"],
        env={
            "MESHD_HOME": str(home),
            "MESHD_CACHE": str(cache_folder()),
            "PATH": "/usr/bin:/bin",
            **({"MESHD_JOIN": token} if token else {}),
        },
        stdout=subprocess.PIPE,
        stderr=writer,
        text=True,
    )
    os.close(writer)
    try:
        yield process
        process.terminate()
        assert process.wait(END_SECONDS) == 0
    finally:
        process.kill()
        process.wait()
        os.close(reader)
        assert process.stdout is not None
        process.stdout.close()


async def api_port(home: Path) -> int:
    async with asyncio.timeout(END_SECONDS):
        while True:
            told_status = await cli(home, "status", "--json")
            if told_status.returncode == 0 and (api := json.loads(told_status.stdout)["api"]):
                return int(api["url"].rpartition(":")[2])


async def answers(port: int) -> None:
    async with asyncio.timeout(END_SECONDS):  # one that waits for the pipe never answers
        assert (await told(port, HEALTH)).startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 "))


async def bears(port: int) -> None:
    """All that is malformed, and then health is told as before."""
    await answers(port)
    for sent in [*(one for one, _, _ in MALFORMED.values()), *BROKEN_BODIES.values()]:
        for _ in range(REQUESTS):
            async with asyncio.timeout(END_SECONDS):
                await told(port, sent)
        await answers(port)


def test_requests_that_are_no_http_stop_neither_serve_nor_client(tmp_path: Path) -> None:
    async def check() -> None:
        head, client = tmp_path / "head", tmp_path / "client"
        with daemon(head, "serve", "--model", str(smollm2()), "--port", "0") as serve:
            assert serve.stdout is not None
            async with asyncio.timeout(END_SECONDS):
                token = (await asyncio.to_thread(serve.stdout.readline)).strip()
            assert token.startswith("meshd1")
            with daemon(client, "client", "--port", "0", token=token):
                await bears(await api_port(head))
                await bears(await api_port(client))

    play(check())
