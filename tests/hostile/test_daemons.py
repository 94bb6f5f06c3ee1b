"""A hostile member against two honest nodes, all three processes of their own, over real sockets.

What is held is measured from outside: bytes and pauses of a stream through a tunnel, memory and computing
time by /proc. A pause counts as far as this process, which does nothing, was not kept waiting itself.
"""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.base.tasks import Owner

from tests.conformance.run import run
from tests.hostile.draw import drawn_seed

ATTACK_SECONDS = 20
WARM_SECONDS = 5
REST_SECONDS = 4
MOST_PAUSE_SECONDS = 1.0
MOST_GROWTH_BYTES = 16 << 20
MOST_OF_A_CORE = 0.2
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
STEP = 0.05

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")


class Program:
    """One of the three."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def hears(self) -> str:
        """Its next line. Raises AssertionError when it has ended."""
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        assert line, "the process has ended"
        return line.decode().strip()

    async def told(self, line: str) -> str:
        """Its answer to a line."""
        self.say(line)
        return await self.hears()

    def say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n".encode())

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def seconds(self) -> float:
        """Of computing, so far."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * PAGE

    async def end(self) -> None:
        """By the end of its input; killed if that is not enough."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(10):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        transport = self._process._transport  # type: ignore[attr-defined]
        transport.close()


@asynccontextmanager
async def program(module: str, *words: str, token: str = "") -> AsyncIterator[Program]:
    environment: Mapping[str, str] = {**os.environ, "MESHD_JOIN": token}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", module, *words),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    it = Program(process)
    try:
        yield it
    finally:
        await it.end()


class Watch:
    """How long this process, which has nothing to do, was kept from running."""

    def __init__(self) -> None:
        self.longest = 0.0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await asyncio.sleep(STEP)
            self.longest = max(self.longest, loop.time() - began - STEP)


def test_the_honest_bear_it(tmp_path: Path) -> None:
    seed = drawn_seed()

    async def work() -> None:
        async with program("tests.hostile.honest", str(tmp_path / "anna"), "anna") as anna:
            token = (await anna.hears()).removeprefix("token ")
            async with program("tests.hostile.honest", str(tmp_path / "bert"), "bert", token=token) as bert:
                await bert.hears()
                assert await anna.told("expose bert") == "done"
                assert await bert.told("use anna") == "done"
                words = (
                    str(tmp_path / "mallory"),
                    str(seed),
                    str(ATTACK_SECONDS + WARM_SECONDS),
                    "anna",
                    "bert",
                )
                async with program("tests.hostile.attack", *words, token=token) as mallory:
                    assert await mallory.hears() == "ready"
                    await _measured((anna, bert), bert, mallory)

    run(work(), seconds=200)


async def _measured(honest: tuple[Program, Program], user: Program, mallory: Program) -> None:
    await asyncio.sleep(REST_SECONDS)  # the hostile one has joined and left just now
    quiet = [one.seconds for one in honest]
    await asyncio.sleep(WARM_SECONDS)
    rest = [one.seconds - before for one, before in zip(honest, quiet, strict=True)]
    mallory.say("go")
    await asyncio.sleep(WARM_SECONDS)
    await user.told("look")
    began = [(one.seconds, one.resident) for one in honest]
    watch = Watch()
    async with Owner() as owner:
        owner.start(watch.run(), name="watch")
        heard = await mallory.hears()
        owner.cancel()
    assert heard.startswith("said "), heard
    said, unheard = heard.removeprefix("said ").split(", unheard ")
    seen = json.loads(await user.told("look"))
    assert all(one.alive for one in honest)
    pause = seen["longest"] - watch.longest
    print(f"{said} messages; longest pause {pause:.2f} s; this process waited {watch.longest:.2f} s")  # noqa: T201
    used = []
    for one, (seconds, resident), idle in zip(honest, began, rest, strict=True):
        used.append((one.seconds - seconds) / ATTACK_SECONDS - idle / WARM_SECONDS)
        print(f"{used[-1]:.0%} of a core, {(one.resident - resident) >> 10} KiB more")  # noqa: T201
        assert one.resident - resident < MOST_GROWTH_BYTES
    assert unheard == "[]", "a way in at which nobody answered"
    assert not seen["wrong"] and seen["beats"] > 0
    assert pause < MOST_PAUSE_SECONDS
    assert max(used) < MOST_OF_A_CORE
