"""A hostile member against two honest nodes, all three processes of their own, over real sockets.

What is held is measured from outside: bytes and pauses of a stream through a tunnel, memory and computing
time by /proc, the files of both homes. Computing is compared 5 s after the start, all else from before it. A
pause counts as far as neither honest process was kept waiting for a processor meanwhile.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from meshd.identity.invite_book import MAX_INVITE_BOOK_BYTES
from meshd.identity.keystore import MAX_BLOB_BYTES
from meshd.identity.revocation import MAX_SET_BYTES

from tests.conformance.run import run
from tests.hostile.draw import drawn_seed
from tests.hostile.honest import own_pause

ATTACK_SECONDS = 20
WARM_SECONDS = 5
REST_SECONDS = 4
MOST_PAUSE_SECONDS = 1.0
MOST_GROWTH_BYTES = 16 << 20
MOST_OF_A_CORE = 0.2
TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
SMALL_BYTES = 8 << 10
HEAD_BYTES = 256  # of a state file, beside what is in it
STATE_BYTES = {
    "identity.key": SMALL_BYTES,
    "membership": SMALL_BYTES,
    "counters": SMALL_BYTES,
    "invites": MAX_INVITE_BOOK_BYTES,
    "revocations": MAX_SET_BYTES,
    "lock": SMALL_BYTES,
    "addresses.blob": SMALL_BYTES,
    "book.blob": MAX_BLOB_BYTES,
    "name.blob": SMALL_BYTES,
    "mesh-port.blob": SMALL_BYTES,
    "portmap.blob": SMALL_BYTES,
    "tunnels.blob": SMALL_BYTES,
}
FILES = {"anna", "anna.log", "bert", "bert.log", "mallory"}

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
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.returncode is None

    @property
    def seconds(self) -> float:
        """Return the seconds of computing, so far."""
        words = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(words[11]) + int(words[12])) / TICKS

    @property
    def resident(self) -> int:
        """Bytes of memory."""
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * PAGE

    async def end(self) -> None:
        """End it by the end of its input; kill it if that is not enough."""
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


def test_a_pause_is_excused_only_while_others_had_the_processors() -> None:
    assert own_pause(2.0, (5.0, 7.0), (5.0, 7.0)) == 2.0
    assert own_pause(2.0, (5.0, 7.0), (5.5, 8.5)) == 0.5
    assert own_pause(1.0, (5.0, 7.0), (7.0, 7.0)) == 0.0


def kept_wrongly(home: Path) -> list[str]:
    """Files that a daemon's home must not have, and those that are larger than they may be."""
    found = []
    for path in sorted(home.rglob("*")):
        name = str(path.relative_to(home))
        size = path.stat().st_size
        if path.is_dir():
            continue
        if name not in STATE_BYTES or size > STATE_BYTES[name] + HEAD_BYTES:
            found.append(f"{name} of {size} bytes")
    return found


def test_a_file_that_no_daemon_keeps_is_found(tmp_path: Path) -> None:
    for name in STATE_BYTES:
        (tmp_path / name).write_bytes(b"x")
    assert kept_wrongly(tmp_path) == []
    (tmp_path / "membership").write_bytes(bytes(64 << 10))
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "dropped").write_bytes(b"x")
    assert kept_wrongly(tmp_path) == ["membership of 65536 bytes", "sub/dropped of 1 bytes"]


def test_the_honest_bear_it(tmp_path: Path) -> None:
    seed = drawn_seed()

    async def work() -> None:
        async with program("tests.hostile.honest", str(tmp_path / "anna"), "anna") as anna:
            token = (await anna.hears()).removeprefix("token ")
            async with program("tests.hostile.honest", str(tmp_path / "bert"), "bert", token=token) as bert:
                await bert.hears()
                assert await anna.told("expose bert") == "done"
                assert await bert.told(f"use anna {anna.pid}") == "done"
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
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert not kept_wrongly(tmp_path / "anna") + kept_wrongly(tmp_path / "bert")


async def _measured(honest: tuple[Program, Program], user: Program, mallory: Program) -> None:
    await asyncio.sleep(REST_SECONDS)  # the hostile one has joined and left just now
    quiet = [one.seconds for one in honest]
    await asyncio.sleep(WARM_SECONDS)
    rest = [one.seconds - before for one, before in zip(honest, quiet, strict=True)]
    resident = [one.resident for one in honest]
    await user.told("look")
    assert await mallory.told("go") == "begun"
    await asyncio.sleep(WARM_SECONDS)
    began = time.monotonic()
    computed = [one.seconds for one in honest]
    heard = await mallory.hears()
    seen = json.loads(await user.told("look"))
    took = time.monotonic() - began
    assert heard.startswith("said "), heard
    said, unheard = heard.removeprefix("said ").split(", unheard ")
    assert all(one.alive for one in honest)
    longest, by_clock = (max(column) for column in zip(*seen["pauses"], strict=True))
    print(f"{said} messages; longest pause {longest:.2f} s, {by_clock:.2f} s by the clock")  # noqa: T201
    used = []
    for one, seconds, before, idle in zip(honest, computed, resident, rest, strict=True):
        used.append((one.seconds - seconds) / took - idle / WARM_SECONDS)
        print(f"{used[-1]:.0%} of a core, {(one.resident - before) >> 10} KiB more")  # noqa: T201
        assert one.resident - before < MOST_GROWTH_BYTES
    assert unheard == "[]", "a way in at which nobody answered"
    assert not seen["wrong"] and seen["beats"] > 0
    assert longest < MOST_PAUSE_SECONDS
    assert max(used) < MOST_OF_A_CORE
