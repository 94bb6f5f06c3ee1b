"""A daemon whose stderr is a full pipe that nobody reads: it starts, answers, and ends."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.models import cache_folder
from tests.e2e.nodes import cli, play

pytestmark = [pytest.mark.native, pytest.mark.timeout(300)]
END_SECONDS = 60.0


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


@pytest.mark.parametrize(
    "verb", [["worker", "--listen", "127.0.0.1:0"], ["relay", "--listen", "127.0.0.1:0"]]
)
def test_it_starts_answers_and_ends(verb: list[str], tmp_path: Path) -> None:
    async def check() -> None:
        reader, writer = full_pipe()
        process = subprocess.Popen(  # noqa: ASYNC220 - it is there at once
            [sys.executable, "-m", "meshd", *verb, "--log-level", "debug"],
            env={"MESHD_HOME": str(tmp_path), "MESHD_CACHE": str(cache_folder()), "PATH": "/usr/bin:/bin"},
            stdout=subprocess.PIPE,
            stderr=writer,
            text=True,
        )
        os.close(writer)
        try:
            assert process.stdout is not None
            async with asyncio.timeout(END_SECONDS):
                line = await asyncio.to_thread(process.stdout.readline)
            assert line.startswith(("meshd1", "relay://"))
            for _ in range(20 if verb[0] == "worker" else 0):
                assert (await cli(tmp_path, "status")).returncode == 0
            process.terminate()
            assert await asyncio.to_thread(process.wait, END_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
            os.close(reader)
            if process.stdout is not None:
                process.stdout.close()

    play(check())
